"""Check requests with a driving video: segments, sizes, lengths, and one-sentence refusals."""

import pytest

from backend.errors import RequestError
from backend.schemas.clip import Part
from backend.schemas.driving_video import count_segments, driving_prompt, num_segments, size_for_image
from backend.schemas.request import GenerationRequest
from backend.schemas.shape import Shape
from backend.schemas.shots import shot_request
from presets import load_preset

ANIMATE, POSED = load_preset("wan2.2-animate-2-14b"), load_preset("wan2.2-animate-14b")


def request(preset=ANIMATE, **changes) -> GenerationRequest:
    own = {"face": "/face.mp4", "prompt": "a dancer"} if preset is POSED else {}
    return GenerationRequest.from_preset(preset, **{"image": "/a.png", "drive": "/b.mp4", "seed": 1, **own, **changes})


@pytest.mark.parametrize("frames, count", [(1, 1), (5, 1), (81, 1), (82, 2), (161, 2), (162, 3), (1601, 20)])
def test_a_video_has_as_many_segments_as_hold_it(frames, count):
    assert num_segments(frames, 81) == count


@pytest.mark.parametrize(
    "picture, size",
    [
        ((640, 800), (640, 800)),
        ((1080, 1920), (528, 944)),
        ((1, 1), (704, 704)),
        ((4000, 100), (1280, 256)),
        ((10, 9000), (256, 1280)),
    ],
)
def test_the_area_stays_and_the_picture_gives_the_shape(picture, size):
    assert size_for_image(ANIMATE, picture) == size
    made = request(width=size[0], height=size[1])
    assert (made.width, made.height) == size


def test_a_video_is_as_long_as_its_part_of_the_clip_and_may_have_any_length():
    assert request(trim=(1.0, 5.25)).num_frames == 102 and count_segments(request(trim=(1.0, 5.25))) == 2
    assert request(num_frames=100).trim == (0.0, 100 / 24)
    part = Part.from_request(request(trim=(1.0, 5.25)), "drive")
    assert (part.start, part.num_frames, part.size, part.is_letterboxed) == (1.0, 102, (640, 800), True)
    assert Part.from_request(request(POSED), "face").size == (512, 512)


def test_neither_prompt_nor_words_are_needed():
    assert request().prompt == "" and driving_prompt(request()) == ANIMATE.drive_prompt
    assert driving_prompt(request(drive_prompt="a dance")) == "a dance"
    with pytest.raises(RequestError, match="prompt is empty"):
        request(POSED, prompt="")


def test_segments_of_any_number_share_their_programs():
    assert Shape.from_request(request(num_frames=81)) == Shape.from_request(request(num_frames=800))


@pytest.mark.parametrize(
    "preset, changes, words",
    [
        (ANIMATE, {"drive": None}, "drive is missing: wan2.2-animate-2-14b needs it; give drive"),
        (ANIMATE, {"image": None}, "task=t2v is not supported by wan2.2-animate-2-14b"),
        (ANIMATE, {"num_frames": 4}, "trim=0,0.166667 is 4 frames at 24 fps and must be 5"),
        (ANIMATE, {"num_frames": 7201}, "must be 7200 for wan2.2-animate-2-14b"),
        (ANIMATE, {"step_cache": 0.1}, "step_cache was given, and wan2.2-animate-2-14b does not support it; leave it out"),
        (ANIMATE, {"mag_cache": 0.1}, "mag_cache"),
        (ANIMATE, {"face": "/f.mp4"}, "face was given but wan2.2-animate-2-14b does not take it"),
        (ANIMATE, {"mask": "/m.png"}, "mask was given but wan2.2-animate-2-14b does not take it"),
        (ANIMATE, {"drive_prompt": "a\0"}, "drive_prompt has the control character"),
        (ANIMATE, {"strength": 0.5}, "strength was given"),
        (POSED, {"face": None}, "face is missing"),
        (POSED, {"video": "/c.mp4"}, "mask is missing: video needs it to place the person; give both or neither"),
        (POSED, {"mask": "/m.png"}, "mask was given but needs video"),
    ],
)
def test_what_does_not_go_is_refused_in_one_sentence(preset, changes, words):
    with pytest.raises(RequestError) as error:
        request(preset, **changes)
    assert words in str(error.value)


def test_what_belongs_to_a_clip_that_drives_needs_one():
    with pytest.raises(RequestError, match="drive_prompt was given but needs drive"):
        GenerationRequest.from_preset(load_preset("wan-tiny"), prompt="a circle", drive_prompt="a dance")
    with pytest.raises(RequestError, match="drive was given but wan-tiny does not take it"):
        GenerationRequest.from_preset(load_preset("wan-tiny"), prompt="a circle", drive="/b.mp4")


def film(*rows, **changes) -> GenerationRequest:
    return GenerationRequest.from_preset(ANIMATE, shots=list(rows), **{"image": "/a.png", "seed": 1} | changes)


def test_shots_are_driven_by_clips_of_their_own():
    made = film(
        {"drive": "/b.mp4", "num_frames": 49},
        {"drive": "/c.mp4", "prompt": "she bows", "cut": True},
        {"drive": "/b.mp4", "num_frames": 100},
        {"drive": "/c.mp4", "image": "/d.png"},
    )
    assert made.shot_drives == ("/b.mp4", "/c.mp4") and [shot.drive for shot in made.shots] == [0, 1, 0, 1]
    first, cut, on, other = (shot_request(made, index, ANIMATE, "/before") for index in range(4))
    assert (first.drive, first.image, first.trim, first.shot_drives) == ("/b.mp4", "/a.png", (0.0, 49 / 24), ())
    assert (cut.image, cut.prompt, count_segments(cut)) == ("/a.png", "she bows", 1), "from the storyboard's picture again"
    assert on.image == "/before/last.png" and count_segments(on) == 2, "from the last frame of the shot before"
    assert (other.image, other.drive) == ("/d.png", "/c.mp4")
    assert GenerationRequest.from_stored(made.to_json()) == made and not made.is_from_pictures


@pytest.mark.parametrize(
    "rows, changes, words",
    [
        ([{"prompt": "x"}], {}, "shot 1: drive is missing"),
        ([{"drive": 3}], {}, "shot 1 has drive=3, which must be the path"),
        ([{"drive": "/b.mp4"}], {"drive": "/c.mp4"}, "drive was given together with shots, each of which has its own"),
        ([{"drive": "/b.mp4", "video": "/c.mp4"}], {}, "shot 1 has drive together with a finished video"),
        ([{"drive": "/b.mp4", "num_frames": 2}], {}, "shot 1: num_frames=2"),
    ],
)
def test_what_a_driven_shot_refuses(rows, changes, words):
    with pytest.raises(RequestError, match=words):
        film(*rows, **changes)


def test_a_model_that_no_clip_drives_has_no_driven_shots():
    with pytest.raises(RequestError, match="shot 2: drive was given"):
        GenerationRequest.from_preset(load_preset("wan-tiny"), shots=[{"prompt": "x"}, {"prompt": "y", "drive": "/b.mp4"}])
