"""Check the upscaling settings of a request."""

import pytest

from backend.errors import RequestError
from backend.schemas.events import VideoResult
from backend.schemas.finished import describe_clip, upscale_clip_request, upscale_request, upscale_result_request
from backend.schemas.request import GenerationRequest
from backend.schemas.shape import UPSCALING, Shape
from backend.schemas.upscaling import FOREIGN, without_upscaling
from presets import load_preset


def asked(**settings) -> GenerationRequest:
    return GenerationRequest.from_preset(load_preset("wan-tiny"), prompt="a red circle", seed=1, **settings)


def test_the_settings_are_stored_only_where_somebody_set_them():
    assert not {"upscale", "upscaler", "finished_video"} & asked().to_json().keys()
    request = asked(upscale=4, upscaler="mine.pth")
    assert GenerationRequest.from_stored(request.to_json()) == request
    assert request.final_size == (4 * request.width, 4 * request.height) and without_upscaling(request) == asked()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"upscale": 3}, "upscale=3 must be 0, 2 or 4; 0 is off"),
        ({"upscale": -2}, "upscale=-2 must be 0, 2 or 4"),
        ({"upscaler": "mine.pth"}, "upscaler was given but needs upscale"),
        ({"upscale": 2, "upscaler": "../x.pth"}, "must be the name of a file in the data folder's upscalers folder"),
        ({"upscale": 2, "upscaler": "a/b"}, "must be the name of a file"),
        ({"upscale": 2, "upscaler": "x" * 300}, "must be the name of a file"),
        ({"upscale": 2, "finished_video": "/etc/passwd"}, "finished_video was given but wan-tiny does not take it"),
        ({"upscale": "many"}, "upscale='many' is refused"),
    ],
)
def test_what_no_upscaler_does_is_one_sentence(settings, said):
    with pytest.raises(RequestError) as refused:
        asked(**settings)
    assert str(refused.value).startswith(said) or said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_finished_video_has_the_shape_of_the_step_alone():
    request = upscale_request(asked(), "/a.mp4", 2)
    assert Shape.from_request(request).task == UPSCALING and Shape.from_request(request) == Shape.for_upscaling(asked(upscale=2))
    assert Shape.from_request(asked(upscale=2)) == Shape.from_request(asked())  # the video itself has the same programs


def test_a_video_that_was_stopped_is_a_clip_of_its_own_length():
    made = asked()
    facts = {"path": "", "fps": made.fps, "width": made.width, "height": made.height, "seconds": {}, "versions": {}}
    whole = VideoResult(num_frames=made.num_frames, request=made, **facts)
    assert without_upscaling(upscale_result_request(whole, made, "/a.mp4", 2)) == made
    part = VideoResult(num_frames=5, request=made, **facts)
    request = upscale_result_request(part, made, "/a.mp4", 2)
    assert (request.preset, request.num_frames, request.prompt) == (FOREIGN, 5, made.prompt)
    twice = upscale_request(asked(upscale=2), "/a.mp4", 2)
    assert twice.preset == FOREIGN and twice.final_size == (4 * made.width, 4 * made.height)


def test_a_clip_of_hours_is_refused():
    assert upscale_clip_request("a", (1920, 1080), 600.0, 30.0, "/a.mp4", 2).num_frames == 18_000
    with pytest.raises(RequestError, match="86,400 frames of 1920x1080 are too many: all pixels together may be 40 billion"):
        upscale_clip_request("a", (1920, 1080), 3600.0, 24.0, "/a.mp4", 2)


def test_a_clip_is_described_without_a_preset():
    clip = describe_clip("holiday.mp4", 640, 360, 240, 24)
    assert (clip.preset, clip.total_frames, Shape.from_request(clip).model) == (FOREIGN, 240, FOREIGN)
