"""Tests of OpenAI's names for a video's values: lengths and sizes that fit or do not fit, and the description of a job."""

from dataclasses import replace
from pathlib import Path

import pytest

from backend.engine.cleaning import NO_LIMITS, Limits
from backend.errors import RequestError
from backend.schemas.events import Proposal
from backend.schemas.request import GenerationRequest
from presets import list_presets, load_preset
from tests.wan_ui.builders import a_job
from wan_ui.components.progress import StageView
from wan_ui.routes.video_body import VideoBody
from wan_ui.routes.video_values import (
    UnknownField,
    UnknownModel,
    format_seconds,
    parse_settings,
    store_adjustments,
    video_object,
)


def to_request(sent: VideoBody, usual: str) -> GenerationRequest:
    preset, values, adjusted = parse_settings(sent, usual)
    assert adjusted == []
    return GenerationRequest.from_preset(preset, **values)


def request(files: dict[str, Path] | None = None, **fields) -> GenerationRequest:
    return to_request(VideoBody(fields={"prompt": "a red circle", **fields}, files=files or {}), "wan-tiny")


@pytest.mark.parametrize("preset", list_presets(), ids=lambda preset: preset.name)
def test_every_length_and_size_that_a_preset_offers_can_be_said(preset):
    files = {"input_reference": Path("/a.png")} if preset.tasks == ("i2v",) else {}
    files |= {name: Path(f"/{name}.mp4") for name in ("drive", "face") if name in preset.takes}
    files |= {"last_image": Path("/b.png")} if preset.needs_last_image else {}
    for count in preset.frame_counts:
        made = request(files, model=preset.name, seconds=format_seconds(count, preset.fps))
        assert made.num_frames == count
    for width, height in preset.sizes:
        made = request(files, model=preset.name, size=f"{width}x{height}")
        assert (made.width, made.height) == (width, height)


def test_what_is_left_out_is_the_presets_own():
    tiny, made = load_preset("wan-tiny"), request()
    assert (made.width, made.num_frames, made.steps, made.task) == (tiny.width, tiny.num_frames, tiny.steps, "t2v")
    assert request({"input_reference": Path("/a.png")}).task == "i2v"


def test_a_control_clip_and_what_belongs_to_it():
    fields = {"prompt": "x", "model": "ltx-2.3-704p", "control_scale": "0.8", "control_downscale": "2", "seconds": "2"}
    files = {"input_reference": Path("/a.png"), "control": Path("/c.mp4")}
    made = to_request(VideoBody(fields, files), "wan-tiny")
    assert (made.task, made.control, made.control_scale, made.control_downscale) == ("i2v", "/c.mp4", 0.8, 2)
    with pytest.raises(RequestError, match="control was given but wan-tiny does not take it"):
        to_request(VideoBody({"prompt": "x"}, {"control": Path("/c.mp4")}), "wan-tiny")


def test_masks_references_key_frames_and_a_last_image_are_files_of_the_request():
    files = {
        "video": Path("/a.mp4"),
        "mask": Path("/m.png"),
        "references": [Path("/r1.png"), Path("/r2.png")],
        "keyframes": [{"frame": "0", "image": "/k0.png"}, {"frame": 24, "image": "/k24.png"}],
    }
    made = request(files, model="wan2.1-vace-1.3b-480p")
    assert (made.video, made.mask, made.references) == ("/a.mp4", "/m.png", ("/r1.png", "/r2.png"))
    assert (made.keyframe_at, made.keyframes) == ((0, 24), ("/k0.png", "/k24.png"))
    images = {"input_reference": Path("/a.png"), "last_image": Path("/b.png")}
    made = request(images, model="wan2.1-flf2v-14b-720p")
    assert (made.image, made.last_image) == ("/a.png", "/b.png")
    for frame in ("one", -1, 1.5, True, None, ""):
        with pytest.raises(RequestError, match="must be the number of a frame"):
            request({"keyframes": [{"frame": frame, "image": "/k.png"}]}, model="wan2.1-vace-1.3b-480p")


@pytest.mark.parametrize(
    ("fields", "frames"),
    [
        ({"seconds": "2"}, 33),
        ({"seconds": 2}, 33),
        ({"seconds": 2.0}, 33),
        ({"seconds": "0.25"}, 5),
        ({"seconds": "1", "fps": "8"}, 9),
    ],
)
def test_seconds_count_from_the_first_frame_to_the_last(fields, frames):
    assert request(**fields).num_frames == frames


def test_seconds_that_are_no_short_decimal_are_said_to_the_thousandth():
    count = 9  # 8 frames after the first at 24 a second
    assert format_seconds(count, 24) == "0.333"
    assert request(model="hunyuanvideo-1.5-t2v-480p", seconds="0.333").num_frames == count
    with pytest.raises(RequestError, match="does not fit"):
        request(model="hunyuanvideo-1.5-t2v-480p", seconds="0.34")


@pytest.mark.parametrize(
    "seconds", ["", "-1", "1e0", "inf", "nan", " 1", "1,0", "0", "0.1", "10.25", "9" * 400, "１", True, None, [1], {}]
)
def test_no_other_length_is_made_in_place_of_one_that_does_not_fit(seconds):
    with pytest.raises(
        RequestError, match="does not fit wan-tiny, which makes 1 or 2 or 4 or 8 and others from 0.25 to 10 seconds"
    ):
        request(seconds=seconds)


@pytest.mark.parametrize(
    "size", ["", "96", "96x", "96 x 96", "96X96", "-96x96", "100x96", "96x160", "９６x96", "9" * 400 + "x96"]
)
def test_no_other_size_is_made_in_place_of_one_that_does_not_fit(size):
    with pytest.raises(RequestError, match="does not fit wan-tiny, which makes 96x96, 128x96, 96x128 and other multiples of 32"):
        request(size=size)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"size": 96}, "must be a text"),
        ({"prompt": ["a"]}, "must be a text"),
        ({"model": 5}, "must be a text"),
        ({"fps": "x", "seconds": "1"}, "fps='x' must be between"),
        ({"fps": "9" * 5000, "seconds": "1"}, "must be between"),
        ({"fps": "0000000011", "seconds": "1"}, "must be between"),
        ({"size": "96x96", "width": 96}, "width was given together with size"),
        ({"seconds": "1", "num_frames": 17}, "num_frames was given together with seconds"),
        ({"guidance": ["x"]}, "guidance"),
        ({"seed": -1}, "seed=-1"),
    ],
)
def test_what_is_wrong_is_named(fields, words):
    with pytest.raises(RequestError, match=words):
        request(**fields)


def test_only_known_fields_and_models_are_taken():
    with pytest.raises(UnknownField, match="^figure_images is not known"):
        request(figure_images=["/etc/passwd"])
    with pytest.raises(UnknownField):
        request(**{"a\nb" * 1000: 1})
    with pytest.raises(UnknownModel, match="^model='../wan-tiny' must be one of"):
        request(model="../wan-tiny")


@pytest.mark.parametrize(
    ("state", "view", "status", "progress", "error"),
    [
        ("queued", {"phase": "queued"}, "queued", 0, None),
        ("running", {"phase": "denoising", "fraction": 0.5}, "in_progress", 50, None),
        ("running", {"phase": "decoding", "fraction": 1.0}, "in_progress", 99, None),
        ("finished", {"phase": "finished", "fraction": 1.0}, "completed", 100, None),
        ("cancelled", {"phase": "cancelled"}, "failed", 0, "cancelled"),
        ("failed", {"phase": "failed", "cause": "/srv/a/b.bin is broken", "fix": "try again"}, "failed", 0, "generation_failed"),
    ],
)
def test_a_job_is_told_in_openais_states(state, view, status, progress, error):
    job = replace(a_job(), state=state, ended=90.0 if state in ("finished", "failed", "cancelled") else None)
    told = video_object(job, StageView(**view), NO_LIMITS)
    assert (told["status"], told["progress"], told["completed_at"]) == (status, progress, 90 if state == "finished" else None)
    assert (told["error"] or {}).get("code") == error and "/srv" not in str(told["error"])


def test_a_video_says_when_it_goes():
    job, view = replace(a_job(), state="finished", ended=100.0), StageView(phase="finished", fraction=1.0)
    assert video_object(job, view, Limits(days=1))["expires_at"] == 86_500
    assert video_object(replace(job, is_starred=True), view, Limits(days=1))["expires_at"] is None
    assert video_object(job, view, NO_LIMITS)["expires_at"] is None


def test_a_failure_for_memory_says_what_would_fit():
    job = replace(a_job(), state="failed")
    view = StageView(phase="failed", cause="Too large", fix="It would fit at 96x96 with 17 frames")
    assert "would_fit" not in video_object(job, view, NO_LIMITS)["error"]
    fits = Proposal(width=96, height=96, num_frames=17, bytes_per_device=5)
    error = video_object(job, replace(view, proposals=(fits,)), NO_LIMITS)["error"]
    assert error["would_fit"] == [{"width": 96, "height": 96, "num_frames": 17, "bytes_per_device": 5}]
    assert error["message"] == "Too large; It would fit at 96x96 with 17 frames"


def test_a_clip_is_widened_or_continues_with_a_preset_of_vace():
    def made(**fields):
        return to_request(VideoBody({"prompt": "x", "model": "wan2.1-vace-1.3b-480p", **fields}, {"video": Path("/a.mp4")}), "")

    wider = made(margins=["64", "0", "64", "0"], keeps_pixels="false")
    assert (wider.video, wider.margins, wider.keeps_pixels) == ("/a.mp4", (64, 0, 64, 0), False)
    assert (made(extend="after", overlap="9").extend, made(extend="after", overlap="9").overlap) == ("after", 9)
    with pytest.raises(RequestError, match="no area of it to regenerate"):
        made()


@pytest.mark.parametrize(
    ("usual", "size", "seconds", "used_size", "used_seconds"),
    [
        ("wan-tiny", "1280x720", 4, "128x96", None),
        ("wan-tiny", "720x1280", "4", "96x128", None),
        ("wan-tiny", "128x96", "12", None, "10"),
        ("wan-tiny", "1000x1000", "0.3", "96x96", "0.25"),
        ("wan2.1-t2v-1.3b-480p", "1280x720", "8", "832x480", None),
        ("wan2.2-t2v-a14b-720p", "1792x1024", "4", "1280x720", None),
        ("wan2.2-ti2v-5b-720p", "1280x720", "4", "1280x704", None),
        ("ltx-2.3-704p", "1024x1792", "8", "704x1280", "5"),
    ],
)
def test_an_alias_uses_the_nearest_size_and_length_and_says_so(usual, size, seconds, used_size, used_seconds):
    fields = {"prompt": "x", "model": "sora-2", "size": size, "seconds": seconds}
    preset, values, adjusted = parse_settings(VideoBody(fields), usual)
    made = GenerationRequest.from_preset(preset, **values)
    changed = {one["field"]: (one["requested"], one["used"]) for one in adjusted}
    assert preset.name == usual and changed.pop("model") == ("sora-2", usual)
    assert changed.pop("size", (size, None)) == (size, used_size)
    assert changed.pop("seconds", (str(seconds), None)) == (str(seconds), used_seconds) and changed == {}
    assert f"{made.width}x{made.height}" == (used_size or size)
    assert format_seconds(made.num_frames, made.fps) == (used_seconds or str(seconds))


def test_an_operators_alias_names_a_preset_and_wrong_values_are_still_refused():
    def parse(**fields):
        sent = VideoBody({"prompt": "x", **fields})
        return parse_settings(sent, "wan-tiny", {"house": "ltx-tiny"})

    assert parse(model="house")[0].name == "ltx-tiny"
    for wrong in ({"size": "large"}, {"size": "0x96"}, {"seconds": "soon"}, {"seconds": "-1"}, {"fps": "0", "seconds": "1"}):
        with pytest.raises(RequestError):
            parse(model="house", **wrong)
    with pytest.raises(UnknownModel):
        parse(model="sora-2")


def test_a_video_keeps_what_an_alias_changed(tmp_path):
    job, view = a_job(tmp_path), StageView(phase="denoising")
    assert video_object(job, view, NO_LIMITS)["adjusted"] == []
    changed = [{"field": "size", "requested": "1280x720", "used": "128x96"}]
    store_adjustments(tmp_path, changed)
    assert video_object(job, view, NO_LIMITS)["adjusted"] == changed
