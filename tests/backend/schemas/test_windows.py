"""Check context windows: their places, their weights, which requests have them, and that older requests have none."""

import math
from dataclasses import asdict

import pytest

from backend.errors import RequestError
from backend.schemas.request import GenerationRequest
from backend.schemas.shape import Shape
from backend.schemas.windows import equivalent_tokens, mean_step_calls, step_calls, step_geometry, windows_at
from presets import list_presets, load_preset

LENGTHS = [(6, 5), (9, 5), (10, 9), (25, 9), (41, 21), (81, 21), (3, 2), (4, 1)]


def asked(name: str = "wan-tiny", **changes) -> GenerationRequest:
    extra = {"image": "/a.png"} if load_preset(name).tasks == ("i2v",) else {}
    extra |= {"last_image": "/b.png"} if load_preset(name).needs_last_image else {}
    return GenerationRequest.from_preset(load_preset(name), prompt="a fox", seed=1, **extra | changes)


@pytest.mark.parametrize(("frames", "length"), LENGTHS)
def test_windows_of_every_step_cover_the_video_and_their_weights_add_up_to_one(frames, length):
    for step in range(40):
        sums = [0.0] * frames
        windows = windows_at(step, frames, length)
        assert windows[0].is_first and windows[-1].is_last and sum(window.is_first + window.is_last for window in windows) == 2
        for window in windows:
            assert len(window.weights) == length and all(weight > 0 for weight in window.weights)
            for index, weight in enumerate(window.weights):
                sums[window.begin + index] += weight
        assert all(math.isclose(total, 1) for total in sums)


@pytest.mark.parametrize(("frames", "length"), [(25, 9), (41, 21), (81, 21)])
def test_each_overlaps_the_next_by_half_and_the_inner_ones_move(frames, length):
    begins = [[window.begin for window in windows_at(step, frames, length)] for step in range(20)]
    for places in begins:
        assert all(later - earlier <= length // 2 for earlier, later in zip(places, places[1:], strict=False))
    assert {place for places in begins for place in places} >= set(range(length // 2))  # no position is an edge in every step
    assert begins == [[window.begin for window in windows_at(step, frames, length)] for step in range(20)]


def test_a_window_counts_less_towards_its_edges_but_not_at_the_ends_of_the_video():
    first, middle, last = windows_at(0, 17, 9)
    assert (first.begin, middle.begin, last.begin) == (0, 4, 8)
    assert first.weights[:4] == last.weights[-4:] == (1.0,) * 4
    assert middle.weights[0] < middle.weights[1] < middle.weights[4] > middle.weights[7] > middle.weights[8]


@pytest.mark.parametrize("preset", [one for one in list_presets() if one.trained_frames], ids=lambda preset: preset.name)
def test_lengths_that_a_preset_could_always_make_are_made_as_before(preset):
    """The limits of older versions without windows: 121 frames, for the demos 33."""
    is_demo = preset.model.startswith("embedded:")
    before = 33 if is_demo else 121
    lengths = range(preset.first_frames, preset.max_frames + 1, preset.frame_step)
    windowed = [count for count in lengths if count >= preset.min_frames and asked(preset.name, num_frames=count).window_frames]
    assert windowed == [count for count in lengths if count > before] and windowed[-1] == preset.max_frames
    assert preset.trained_frames == (33 if is_demo else 121 if "ti2v" in preset.name else 81)


def test_a_request_says_so_itself_and_keeps_it():
    long, name = {"num_frames": 65}, "wan2.1-t2v-1.3b-480p"
    assert asked(**long).window_frames == 33 and asked(**long, context_windows=False).window_frames is None
    assert (
        asked(name, num_frames=97).window_frames is None and asked(name, num_frames=97, context_windows=True).window_frames == 81
    )
    assert asked(name, num_frames=81, context_windows=True).window_frames is None
    for wanted in (None, True, False):
        stored = asked(**long, context_windows=wanted).to_json()
        assert ("context_windows" in stored) is (wanted is not None)
        assert GenerationRequest.from_stored(stored).context_windows is wanted
        assert asked(**long, context_windows=wanted).with_changes(seed=2).context_windows is wanted
    old = {name: value for name, value in asked(num_frames=33).to_json().items()}
    assert GenerationRequest.from_stored(old).window_frames is None


def test_models_without_windows_refuse_them():
    for name in ("hunyuan-tiny", "wan-live-tiny"):
        with pytest.raises(RequestError, match=f"context_windows was given but {name} does not support them; leave it out"):
            asked(name, context_windows=True)
        assert asked(name, context_windows=False).window_frames is None


def test_the_step_cache_is_off_in_windows():
    name = "wan2.1-t2v-14b-480p-draft"
    assert asked(name).uses_step_cache and not asked(name, num_frames=161).uses_step_cache
    whole, long = Shape.from_request(asked(name)), Shape.from_request(asked(name, num_frames=161))
    assert (whole.window, whole.is_cached, long.window, long.is_cached) == (0, True, 81, False)
    assert Shape(**{key: value for key, value in asdict(whole).items() if key != "window"}) == whole


def test_what_a_step_is_counts_its_windows():
    request = asked(num_frames=97, steps=4)
    assert step_geometry(request) == asked(num_frames=33).geometry()
    counts = step_calls(request)
    assert counts[0] == 5 and set(counts) <= {5, 6} and mean_step_calls(request) == sum(counts) / 4
    assert equivalent_tokens(asked()) == asked().geometry().num_tokens
    whole = asked(num_frames=97, context_windows=False)
    assert asked(num_frames=33).geometry().num_tokens < equivalent_tokens(request) < 2 * equivalent_tokens(whole)
