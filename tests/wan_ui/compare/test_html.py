"""What the table and the labels say of compared settings."""

from presets import load_preset
from tests.wan_ui.builders import a_request
from wan_ui.compare.html import differences, labels_of
from wan_ui.words.english import ENGLISH


def test_the_table_has_what_differs_and_nothing_else():
    requests = [a_request(steps=4), a_request(steps=8)]
    assert [name for name, _ in differences(requests)] == ["steps"]


def test_a_video_is_named_by_what_is_its_own():
    tiny = a_request()
    large = type(tiny).from_preset(load_preset("wan2.1-t2v-1.3b-480p"), prompt=tiny.prompt, seed=tiny.seed)
    assert "preset wan-tiny" in labels_of([tiny, large], ENGLISH)[0]
