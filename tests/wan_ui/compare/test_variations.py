"""Tests of comparisons: one varied setting, and two to four videos that differ."""

import pytest

from backend.errors import RequestError
from presets import LoraChoice
from tests.wan_ui.builders import a_request
from wan_ui.compare.html import difference_labels
from wan_ui.compare.variations import Axis, find_varied_setting, grid_requests, varied_requests
from wan_ui.i18n.english import ENGLISH


@pytest.mark.parametrize(
    ("what", "text", "values"),
    [
        ("steps", "4, 8,20", [4, 8, 20]),
        ("seed", "1;2 3", [1, 2, 3]),
        ("flow_shift", "1.5, 3", [1.5, 3.0]),
    ],
)
def test_one_thing_is_varied_and_the_rest_stays(what, text, values):
    made = varied_requests(a_request(), what, text, [])
    assert [getattr(request, what) for request in made] == values
    assert find_varied_setting(made) == (what, [str(value) for value in values])


def test_guidance_is_varied_for_all_experts():
    made = varied_requests(a_request(), "guidance", "1, 4.5", [])
    assert [request.guidance for request in made] == [(1.0,), (4.5,)] and find_varied_setting(made) == ("guidance", ["1", "4.5"])


def test_a_comparison_with_and_without_loras_varies_loras():
    made = varied_requests(a_request(loras=(LoraChoice(source="style.safetensors"),)), "loras", "", [])
    assert len(made) == 2 and find_varied_setting(made) == ("loras", [])


def test_no_seeds_are_four_new_ones():
    assert len({request.seed for request in varied_requests(a_request(), "seed", " ", [])}) == 4


@pytest.mark.parametrize(
    ("what", "text", "words"),
    [
        ("steps", "4", "compare has 1 different"),
        ("steps", "4, 4", "compare has 1 different"),
        ("steps", "1,2,3,4,5", "compare has 5"),
        ("steps", "x, 3", "must be numbers"),
        ("steps", "1.5, 3", "whole number"),
        ("steps", "1e999, 3", "must be numbers"),
        ("steps", "4, 9999", "steps=9999"),
        ("loras", "", "name a LoRA"),
        ("preset", "", "choose 2 to 4 models"),
        ("owner", "1, 2", "compare has 0"),
        (["steps"], "1, 2", "compare has 0"),  # a caller can send any JSON
    ],
)
def test_what_cannot_be_compared_is_refused(what, text, words):
    with pytest.raises(RequestError, match=words):
        varied_requests(a_request(), what, text, [])


def test_models_bring_their_own_settings_and_keep_prompt_and_seed():
    tiny, large = varied_requests(a_request(), "preset", "", ["wan-tiny", "wan2.1-t2v-1.3b-480p"])
    assert (large.prompt, large.seed, large.steps) == (tiny.prompt, tiny.seed, 50) and large.width == 832


def test_a_grid_varies_one_thing_along_its_rows_and_another_down_its_columns():
    found, columns = grid_requests(a_request(), Axis(what="steps", text="4, 8"), Axis(what="flow_shift", text="2, 3, 5"))
    assert [(one.steps, one.flow_shift) for one in found] == [
        (4, 2.0),
        (8, 2.0),
        (4, 3.0),
        (8, 3.0),
        (4, 5.0),
        (8, 5.0),
    ] and columns == 2
    found, columns = grid_requests(a_request(), Axis(what="seed"), Axis(what="steps", text="4, 8"))
    assert [one.seed for one in found[:4]] == [one.seed for one in found[4:]], "each row has the same seeds"
    named = difference_labels(found, ENGLISH)
    assert all(f"seed {one.seed}" in label and f"steps {one.steps}" in label for one, label in zip(found, named, strict=True))


@pytest.mark.parametrize("down", [("steps", "4, 8"), ("flow_shift", "2"), ("nothing", "")])
def test_a_grid_of_one_thing_or_of_one_row_is_refused(down):
    with pytest.raises(RequestError):
        grid_requests(a_request(), Axis(what="steps", text="4, 8"), Axis(what=down[0], text=down[1]))
