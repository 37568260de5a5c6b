"""Which presets the live view offers."""

from presets import load_preset
from wan_ui.live.html import can_begin


def test_the_view_offers_what_begins_without_a_picture():
    assert can_begin(load_preset("wan-live-tiny"))
    assert not can_begin(load_preset("matrix-game-2.0"))  # the command `live` gives it one
    assert not can_begin(load_preset("wan-tiny"))  # makes its videos in one piece
