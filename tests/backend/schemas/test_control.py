"""Check the inputs of models with control blocks, the derived settings, and the combinations that are refused."""

import json
import math

import pytest

from backend.errors import RequestError
from backend.schemas.request import GenerationRequest
from presets import load_preset
from tests.backend.schemas.test_request import refusal, request

VACE, TWO = load_preset("wan2.1-vace-1.3b-480p"), load_preset("wan2.2-vace-fun-a14b-720p")
MASKED = {"video": "/a/clip.mp4", "mask": "/b/mask.png"}
EXTENDED = {"video": "/a/clip.mp4", "extend": "after"}


def test_clips_are_taken_from_their_beginning_and_nothing_is_made_by_strength():
    for given in (MASKED, {"control": "/a.mp4"}):
        made = request(VACE, **given)
        assert (made.trim, made.strength, made.num_steps) == ((0.0, 81 / 16), None, 50)
    assert request(VACE, **MASKED, trim=(1, 1 + 33 / 16)).num_frames == 33
    assert request(VACE).trim is None


@pytest.mark.parametrize(("num_frames", "overlap"), [(81, 17), (33, 17), (29, 9), (9, 5), (5, 1)])
def test_a_clip_that_continues_overlaps_by_whole_latent_frames(num_frames, overlap):
    made = request(VACE, **EXTENDED, num_frames=num_frames)
    assert (made.overlap, made.trim, made.num_frames) == (overlap, None, num_frames)


def test_two_experts_take_the_same():
    made = request(TWO, **MASKED, references=("/r.png", "/s.png"), control_scale=0.5)
    assert made.inputs() == {"video": ("/a/clip.mp4",), "mask": ("/b/mask.png",), "references": ("/r.png", "/s.png")}


def test_it_survives_json_and_is_shared_by_file_names_only():
    given = MASKED | {"references": ("/c/one.png",), "keyframes": ("/d/k.png", "/d/l.png"), "keyframe_at": (0, 80)}
    made = request(VACE, **given, control="/e/c.mp4", control_kind="edges", margins=(16, 0, 16, 0), keeps_pixels=False)
    assert GenerationRequest.from_stored(json.loads(json.dumps(made.to_json()))) == made
    shared = made.for_sharing()
    assert (shared["control"], shared["mask"], shared["references"]) == ("c.mp4", "mask.png", ["one.png"])
    assert (shared["keyframes"], shared["keyframe_at"], shared["keeps_pixels"]) == (["k.png", "l.png"], [0, 80], False)
    absent = {"control", "control_kind", "control_scale", "margins", "extend", "overlap", "keeps_pixels", "keyframe_at"}
    assert not absent & request(VACE).to_json().keys()
    moved = made.with_inputs({"keyframes": ["/x/1.png", "/x/2.png"], "mask": ["/x/m.png"]})
    assert (moved.keyframes, moved.mask, moved.keyframe_at) == (("/x/1.png", "/x/2.png"), "/x/m.png", (0, 80))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"video": "/a.mp4"}, "video was given but no area of it to regenerate; give a mask, margins or extend, "
                              "or give the clip as control"),
        ({"mask": "/m.png"}, "mask was given but needs video; give video too, or leave this out"),
        ({"margins": (1, 0, 0, 0)}, "margins was given but needs video; give video too, or leave this out"),
        ({"extend": "after"}, "extend was given but needs video; give video too, or leave this out"),
        ({"overlap": 5}, "overlap was given but needs extend; give extend too, or leave this out"),
        ({"control_kind": "edges"}, "control_kind was given but needs control; give control too, or leave "
                                    "this out"),
        ({"trim": (0, 1)}, "trim was given but needs a clip; give video or control, or leave this out"),
        ({"keeps_pixels": False}, "keeps_pixels was given but needs video; leave it out"),
        (MASKED | {"extend": "before"}, "mask was given together with extend, which generates whole frames; leave one out"),
        (MASKED | {"strength": 0.5}, "strength was given but wan2.1-vace-1.3b-480p regenerates the areas of mask and margins; "
                                     "leave it out, or choose a preset without control"),
        ({"control_scale": 2.5}, "control_scale=2.5 must be between 0 and 2; 1 is usual"),
        ({"control_scale": math.nan}, "control_scale=nan must be between 0 and 2; 1 is usual"),
        (EXTENDED | {"overlap": 81}, "overlap=81 must be at least 1 and less than the video's 81 frames; 17 is usual"),
        (EXTENDED | {"overlap": 0}, "overlap=0 must be at least 1 and less than the video's 81 frames; 17 is usual"),
        (EXTENDED | {"trim": (0, 0.5)}, "trim=0,0.5 has fewer frames than overlap=17; choose a longer part, or a smaller "
                                        "overlap"),
        (EXTENDED | {"trim": (3, 1)}, "trim=3,1 must be two times of the clip, in seconds, 0 or more, the later time second; "
                                      "0,3 are its first three seconds"),
        (EXTENDED | {"fps": 0}, "fps=0 must be between 1 and 60; 16 is usual"),
        ({"video": "/a.mp4", "margins": (0, 0, 0, 0)}, "margins=0,0,0,0 must be four numbers of pixels, 0 or more and not all 0; "
                                                       "64,0,64,0 widens a clip"),
        ({"video": "/a.mp4", "margins": (-8, 8, 0, 0)}, "margins=-8,8,0,0 must be four numbers of pixels, 0 or more and not all "
                                                        "0; 64,0,64,0 widens a clip"),
        ({"video": "/a.mp4", "margins": (400, 0, 420, 0)}, "margins=400,0,420,0 must leave 16 pixels of the width, which is 832; "
                                                           "choose smaller margins, or a larger width"),
        ({"references": tuple(f"/{n}.png" for n in range(9))}, "9 references were given, and at most 8 can be; leave some out"),
        ({"keyframes": ("/k.png",)}, "1 keyframes were given with 0 frame numbers and each keyframe must have one; give each keyframe a frame "
                                     "number, counted from 0"),
        ({"keyframes": ("/k.png",), "keyframe_at": (81,)}, "the keyframe at 81 must be one of the video's 81 frames, 0 to 80; "
                                                           "80 is the last frame"),
        ({"keyframes": ("/k.png",), "keyframe_at": (-1,)}, "the keyframe at -1 must be one of the video's 81 frames, 0 to 80; "
                                                           "80 is the last frame"),
        ({"keyframes": ("/k.png", "/l.png"), "keyframe_at": (4, 4)}, "two images for frame 4 were given, and a frame can have one; "
                                                                    "move or leave out one"),
        ({"keyframes": ("k.png",), "keyframe_at": (4,)}, "keyframes='k.png' must be an absolute path; give the whole path"),
        (MASKED | {"trim": (0, 2)}, "trim=0,2 is 32 frames at 16 fps and must be 29 or 33 for wan2.1-vace-1.3b-480p; "
                                    "choose 0,1.8125 (29 frames) or 0,2.0625 (33 frames)"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_refused_in_these_words(changes, message):
    assert refusal(VACE, **changes) == message


@pytest.mark.parametrize(
    "changes",
    [{"margins": (1, 2, 3)}, {"margins": "1,2,3,4"}, {"extend": "sideways"}, {"control_kind": "depth"}, {"keyframe_at": ("x",)}],
)
def test_values_of_a_wrong_kind_are_refused_too(changes):
    assert refusal(VACE, **changes).startswith(next(iter(changes)))


@pytest.mark.parametrize(("num_frames", "overlap"), [(17, 9), (9, 5), (5, 1), (33, 17), (65, 17)])
def test_a_model_whose_videos_begin_with_frames_of_a_clip_continues_after_it(num_frames, overlap):
    made = request(num_frames=num_frames, **EXTENDED)
    assert (made.overlap, made.strength, made.trim, made.num_steps, made.task) == (overlap, None, None, made.steps, "t2v")
    assert request(**EXTENDED, keeps_pixels=False).to_json()["keeps_pixels"] is False


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            EXTENDED | {"extend": "before"},
            "extend=before is not supported by wan-tiny; choose after, or a preset with control",
        ),
        (EXTENDED | {"strength": 0.5}, "strength was given together with extend, which leaves the clip unchanged; leave one out"),
        (
            EXTENDED | {"image": "/a.png"},
            "image was given together with video, but a video can start with only one; leave one out",
        ),
        (EXTENDED | {"overlap": 6}, "overlap=6 must be 4n+1 and below 17 for wan-tiny; 17 is usual"),
        (EXTENDED | {"num_frames": 65, "overlap": 33}, "overlap=33 must be 4n+1 and below 33 for wan-tiny; 17 is usual"),
        (EXTENDED | {"overlap": 17}, "overlap=17 must be at least 1 and less than the video's 17 frames; 17 is usual"),
        ({"overlap": 5}, "overlap was given but needs extend; give extend too, or leave this out"),
        ({"extend": "after"}, "extend was given but needs video; give video too, or leave this out"),
    ],
)
def test_what_does_not_go_with_that_is_refused_in_these_words(changes, message):
    assert refusal(**changes) == message


def test_a_model_that_begins_with_one_picture_does_not_go_on_after_a_clip():
    message = "extend was given but wan2.1-t2v-14b-480p does not take it; leave it out, or choose a preset with control"
    assert refusal(load_preset("wan2.1-t2v-14b-480p"), **EXTENDED) == message


@pytest.mark.parametrize("changes", [{"control_scale": 0.5}, {"margins": (1, 0, 0, 0)}, {"keeps_pixels": False}])
def test_other_presets_take_none_of_it(changes):
    name = next(iter(changes))
    assert refusal(**changes) == f"{name} was given but wan-tiny does not take it; leave it out, or choose a preset with control"
    assert refusal(references=("/a.png",)) == "references was given but wan-tiny does not take it; leave it out"


@pytest.mark.parametrize(
    ("field", "value"),
    [("margins", [0, 0, 0, 1 << 20]), ("overlap", 10**6), ("keyframe_at", [-1]), ("control_scale", 1e9)],
)
def test_what_can_never_be_is_refused_in_stored_requests_too(field, value):
    with pytest.raises(RequestError, match=field):
        GenerationRequest.from_stored(request(VACE, **MASKED).to_json() | {field: value})
    with pytest.raises(RequestError, match="^1001 keyframes were given, and at most 1000 can be"):
        GenerationRequest.from_stored(request(VACE).to_json() | {"keyframes": ["/k.png"] * 1001})


def test_what_is_made_from_clips_and_from_pictures_alone_is_told_from_the_rest():
    clip, follows = request(video="/a.mp4"), request(VACE, control="/a.mp4")
    assert clip.has_original and follows.has_original and request(VACE, **MASKED).has_original and not clip.is_from_pictures
    shown = request(VACE, references=("/r.png",)), request(VACE, keyframes=("/k.png",), keyframe_at=(0,))
    assert not any(one.has_original or one.is_from_pictures for one in shown)
    assert request(image="/a.png").is_from_pictures and request(VACE).is_from_pictures
