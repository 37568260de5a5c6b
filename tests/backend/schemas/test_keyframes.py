"""Check keyframes of a model without control blocks: the allowed frame numbers, and the allowed combinations."""

from dataclasses import asdict

import pytest

from backend.errors import RequestError
from backend.sampling.solvers import schedule_for_request
from backend.schemas.extension import Appended
from backend.schemas.request import GenerationRequest
from backend.schemas.shape import Shape
from presets import load_preset

LTX, WAN = load_preset("ltx-2.3-704p"), load_preset("wan-tiny")
ONE = dict(keyframes=("/k.png",), keyframe_at=(60,))


def request(preset=LTX, **given) -> GenerationRequest:
    return GenerationRequest.from_preset(preset, prompt="a train leaves", **given)


@pytest.mark.parametrize("name", ["ltx-2.0-512p", "ltx-2.3-704p", "ltx-2.3-704p-fast", "ltx-2.5-704p", "ltx-2.5-704p-fast"])
def test_every_ltx_takes_key_frames_and_a_last_picture(name):
    made = request(load_preset(name), **ONE, image="/a.png", last_image="/z.png")
    assert made.inputs() == {"image": ("/a.png",), "last_image": ("/z.png",), "keyframes": ("/k.png",)}
    assert GenerationRequest.from_stored(made.to_json()) == made and Appended.from_request(made).frames == (60, 120)


def test_a_first_frame_is_not_appended():
    made = request(keyframes=("/k.png", "/l.png", "/m.png"), keyframe_at=(7, 0, 3))
    assert made.task == "t2v" and Appended.from_request(made).frames == (7, 3)


def test_key_frames_count_as_tokens_in_the_noise_levels():
    levels = [schedule_for_request(request(**given)).sigmas[15] for given in ({}, {"image": "/a.png"}, ONE)]
    assert levels[0] == levels[1] < levels[2]


@pytest.mark.parametrize(
    ("preset", "given", "said"),
    [
        (WAN, ONE, "keyframes was given but wan-tiny does not take it"),
        (WAN, dict(keyframe_at=(3,)), "keyframe_at was given but wan-tiny does not take it"),
        (LTX, dict(keyframe_at=(3,)), "keyframe_at was given but needs keyframes"),
        (LTX, dict(keyframes=("/k.png",)), "1 keyframes were given with 0 frame numbers"),
        (LTX, dict(ONE, keyframe_at=(121,)), "the keyframe at 121 must be one of the video's 121 frames, 0 to 120"),
        (LTX, dict(ONE, keyframe_at=(-1,)), "the keyframe at -1 must be one of"),
        (LTX, dict(keyframes=("/k.png", "/l.png"), keyframe_at=(4, 4)), "two images for frame 4 were given"),
        (LTX, dict(ONE, keyframe_at=(0,), image="/a.png"), "two images for frame 0 were given"),
        (LTX, dict(ONE, keyframe_at=(120,), image="/a.png", last_image="/z.png"), "two images for frame 120 were given"),
        (LTX, dict(last_image="/z.png"), "image is missing"),
        (LTX, dict(ONE, references=("/r.png",)), "references was given but ltx-2.3-704p does not take it"),
        (LTX, dict(ONE, control_scale=0.5), "control_scale was given but needs control"),
        (LTX, dict(ONE, video="/clip.mp4", make="sound"), "keyframes was given but make=sound only generates audio"),
        (LTX, dict(ONE, shots=[dict(prompt="a"), dict(prompt="b")]), "keyframes was given together with shots"),
    ],
)
def test_what_does_not_fit_is_refused(preset, given, said):
    with pytest.raises(RequestError, match=said):
        request(preset, **given)


def test_what_needs_programs_of_its_own_is_of_a_shape_of_its_own():
    places = [dict(ONE, keyframe_at=(place,)) for place in (0, 60, 61)]
    clips = [dict(video="/clip.mp4", extend="after", overlap=count) for count in (9, 17)]
    first, middle, later, *going_on = (Shape.from_request(request(**given)) for given in (*places, *clips))
    assert first != middle == later and going_on[0] != going_on[1]
    assert Shape(**asdict(middle)) == middle
