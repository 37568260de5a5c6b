"""Check a control clip as appended tokens: its settings, the number of its tokens, and combinations that are refused."""

import pytest

from backend.errors import RequestError
from backend.sampling.solvers import schedule_for_request
from backend.schemas.clip import Part
from backend.schemas.control import check_control
from backend.schemas.extension import Appended
from backend.schemas.request import GenerationRequest
from backend.schemas.shape import Shape
from presets import load_preset

LTX, WAN, VACE = load_preset("ltx-2.3-704p"), load_preset("wan-tiny"), load_preset("wan2.1-vace-1.3b-480p")
CLIP = dict(control="/clip.mp4")


def request(preset=LTX, **given) -> GenerationRequest:
    return GenerationRequest.from_preset(preset, prompt="a dancer", **given)


@pytest.mark.parametrize("name", ["ltx-2.0-512p", "ltx-2.3-704p", "ltx-2.3-704p-fast", "ltx-2.5-704p", "ltx-2.5-704p-fast"])
def test_every_ltx_takes_a_control_clip(name):
    made = request(load_preset(name), **CLIP)
    assert made.inputs() == {"control": ("/clip.mp4",)} and made.has_original and not made.is_from_pictures
    assert made.trim == (0, 121 / 24) and made.num_steps == made.steps and not load_preset(name).has_control_blocks
    assert GenerationRequest.from_stored(made.to_json()) == made
    assert request(load_preset(name), **CLIP, trim=(1, 1 + 49 / 24)).num_frames == 49


def test_it_adds_as_many_tokens_as_the_video_has_or_a_part_of_them():
    made = request(**CLIP, keyframes=("/k.png",), keyframe_at=(60,), image="/a.png")
    assert Appended.from_request(made) == Appended(frames=(60,), picture=(22, 40), control=(16, 22, 40))
    assert Appended.from_request(made).num_tokens == 880 + made.geometry().num_tokens
    smaller = request(**CLIP, control_downscale=2)
    assert Appended.from_request(smaller).num_tokens * 4 == smaller.geometry().num_tokens
    assert Part.from_request(smaller, "control").size == (640, 352) and Part.from_request(made, "control").size == (1280, 704)
    assert Appended.from_request(request()).num_tokens == 0


def test_its_tokens_count_in_the_noise_levels_and_its_size_in_the_programs():
    made = [request(**given) for given in ({}, CLIP | {"control_downscale": 2}, CLIP, CLIP | {"control_scale": 0.5})]
    levels = [schedule_for_request(one).sigmas[15] for one in made]
    assert levels[0] < levels[1] < levels[2] == levels[3]
    assert len({Shape.from_request(one) for one in made}) == 4
    assert Shape.from_request(made[3]) == Shape.from_request(request(**CLIP, control_scale=0.7))


@pytest.mark.parametrize(
    ("preset", "given", "message"),
    [
        (WAN, CLIP, "control was given but wan-tiny does not take it; leave it out"),
        (WAN, dict(control_downscale=2), "control_downscale was given but wan-tiny does not take it; leave it out, or choose a preset with control"),
        (VACE, dict(CLIP, control_downscale=2), "control_downscale was given but wan2.1-vace-1.3b-480p takes control clips of the video's size; leave it out"),
        (LTX, dict(control="clip.mp4"), "control='clip.mp4' must be an absolute path; give the whole path"),
        (LTX, dict(control_scale=0.5), "control_scale was given but needs control; give control too, or leave this out"),
        (LTX, dict(control_downscale=2), "control_downscale was given but needs control; give control too, or leave this out"),
        (LTX, dict(control_kind="edges"), "control_kind was given but needs control; give control too, or leave this out"),
        (LTX, dict(trim=(0, 1)), "trim was given but needs a clip; give it as video, or leave this out"),
        (LTX, dict(CLIP, strength=0.5), "strength was given but needs a clip; give it as video, or leave this out"),
        (LTX, dict(CLIP, control_scale=1.5), "control_scale=1.5 must be above 0 and at most 1 for ltx-2.3-704p; 1 is usual"),
        (LTX, dict(CLIP, control_scale=0.0), "control_scale=0 must be above 0 and at most 1 for ltx-2.3-704p; 1 is usual"),
        (LTX, dict(CLIP, control_scale=float("nan")), "control_scale=nan must be above 0 and at most 1 for ltx-2.3-704p; 1 is usual"),
        (LTX, dict(CLIP, control_downscale=3), "control_downscale=3 must leave sides that are multiples of 32, of a video of 1280x704; choose 1 or 2, or another size"),
        (LTX, dict(CLIP, control_downscale=0), "control_downscale=0 must leave sides that are multiples of 32, of a video of 1280x704; choose 1 or 2, or another size"),
        (LTX, dict(CLIP, control_downscale=2, width=1200), "width=1200 must be a multiple of 32 for ltx-2.3-704p; nearest: 1184 or 1216"),
        (LTX, dict(CLIP, trim=(0, 2)), "trim=0,2 is 48 frames at 24 fps and must be 41 or 49 for ltx-2.3-704p; choose 0,1.70833 (41 frames) or 0,2.04167 (49 frames)"),
        (LTX, dict(CLIP, trim=(2, 1)), "trim=2,1 must be two times of the clip, in seconds, 0 or more, the later time second; 0,3 are its first three seconds"),
        (LTX, dict(CLIP, video="/v.mp4"), "video was given and ltx-2.3-704p can only generate audio for a clip; set make to sound"),
        (LTX, dict(CLIP, video="/v.mp4", make="sound"), "control was given but make=sound only generates audio for video; leave it out"),
        (LTX, dict(CLIP, mask="/m.png"), "mask was given but ltx-2.3-704p does not take it; leave it out"),
        (LTX, dict(CLIP, shots=[dict(prompt="a"), dict(prompt="b")]), "control was given together with shots, but only image is allowed, for the first shot; leave it out"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_in_these_words(preset, given, message):
    with pytest.raises(RequestError) as caught:
        request(preset, **given)
    assert str(caught.value) == message


@pytest.mark.parametrize(("name", "value"), [("control_downscale", 0), ("control_downscale", 10**6), ("control_scale", 1e9)])
def test_what_can_never_be_is_refused_in_stored_requests_too(name, value):
    with pytest.raises(RequestError, match=name):
        GenerationRequest.from_stored(request(**CLIP).to_json() | {name: value})


def test_a_video_in_two_sizes_follows_no_clip():
    preset = LTX.model_copy(update={"refines": True})
    with pytest.raises(RequestError) as caught:
        check_control(request(**CLIP), preset)
    assert str(caught.value) == (
        "control was given but ltx-2.3-704p starts its videos at half the size; leave it out, or choose a preset that uses one size"
    )
