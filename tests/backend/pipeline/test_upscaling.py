"""Upscale a finished video: the whole stage, stopped, killed and resumed, and its audio and settings."""

import dataclasses
import importlib.metadata
import json
import shutil
import sys
from pathlib import Path

import imageio_ffmpeg
import numpy as np
import pytest

from backend.errors import ClipError, ModelError, RequestError
from backend.media.clips import read_clip_facts
from backend.media.finished import upscale_file_request
from backend.media.mp4 import read_comment
from backend.media.video import read_frames, read_request, write_video
from backend.pipeline import upscaling
from backend.pipeline.upscaling import PIECES, SMALLER, upscale_video
from backend.schemas.events import Cancelled, Compiling, Encoding, Finished, Loading, Upscaling, VideoResult
from backend.schemas.finished import upscale_clip_request
from backend.schemas.request import GenerationRequest
from backend.schemas.upscaling import without_upscaling
from presets import load_preset
from tests.clip_files import LEVEL, STEP, counting_clip, run_ffmpeg

NEAR = 3.0  # in levels of 0..255: changes of a grey by the network, the codec and the colours of 4:2:0


@pytest.fixture(autouse=True)
def data_dir(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("STUDIO_DATA_DIR", str(tmp_path / "data"))
    return tmp_path / "data"


@pytest.fixture
def clip(tmp_path) -> Path:
    return counting_clip(tmp_path / "holiday.mp4", 12, 8, (32, 24), sound=True)


def nothing(request):
    raise AssertionError("a finished video is not made again")


def events_of(request, folder, is_cancelled=lambda: False, make=nothing):
    return list(upscale_video(request, folder, is_cancelled, make))


def greys(path: Path) -> list[float]:
    return [float(frame.mean()) for frame in read_frames(path)]


def sound_of(path: Path) -> bytes:
    """Return the packets of the audio as they are in the file."""
    import subprocess

    line = [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", "-i", str(path), "-map", "0:a", "-c", "copy", "-f", "adts", "-"]
    return subprocess.run(line, capture_output=True, check=True).stdout


def test_any_clip_becomes_larger_frame_by_frame_and_keeps_its_sound(clip, tmp_path):
    events = events_of(upscale_file_request(clip, 4), tmp_path / "job")
    assert {type(event) for event in events} == {Loading, Compiling, Upscaling, Finished}
    told = [event for event in events if isinstance(event, Upscaling)]
    assert (told[0].frame, told[-1].frame, told[-1].total) == (0, 12, 12)
    result, path = events[-1].result, tmp_path / "job" / "video.mp4"
    assert (result.width, result.height, result.num_frames, result.fps, result.has_sound) == (128, 96, 12, 8, True)
    facts = read_clip_facts(path)
    assert (facts.width, facts.height, facts.nominal_fps) == (128, 96, 8) and facts.seconds == pytest.approx(1.5, abs=0.03)
    assert np.abs(np.array(greys(path)) - [LEVEL + STEP * index for index in range(12)]).max() <= NEAR
    assert sound_of(path) == sound_of(clip) != b""
    assert "4 times by animevideov3, from 32x24" in result.notes[-1] and result.seconds["upscale"] > 0
    said = json.loads(read_comment(path))
    assert said["upscaled"] == {"by": "animevideov3", "from": [32, 24], "scale": 4}
    assert said["request"]["prompt"] == "holiday.mp4" and str(tmp_path) not in read_comment(path)
    assert sorted(file.name for file in (tmp_path / "job").iterdir()) == ["video.mp4"]


def test_a_clip_becomes_larger_where_spandrel_is_not_installed(clip, tmp_path, monkeypatch):
    installed = importlib.metadata.version

    def version(name: str) -> str:
        if name == "spandrel":
            raise importlib.metadata.PackageNotFoundError(name)
        return installed(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setitem(sys.modules, "spandrel", None)
    result = events_of(upscale_file_request(clip, 4), tmp_path / "job")[-1].result
    assert (result.width, result.versions["spandrel"]) == (128, "none")


def test_a_video_of_ours_keeps_its_settings_and_can_be_made_again_from_them(tmp_path):
    made = GenerationRequest.from_preset(load_preset("wan-tiny"), prompt="a red circle", seed=7, num_frames=17)
    small = tmp_path / "small.mp4"
    write_video([np.full((96, 96, 3), 10 * index, np.uint8) for index in range(17)], small, fps=made.fps, request=made)
    request = upscale_file_request(small, 4)
    events_of(request, tmp_path / "job")
    kept = read_request(tmp_path / "job" / "video.mp4")
    assert without_upscaling(kept) == made and (kept.upscale, kept.final_size) == (4, (384, 384))
    smoother = tmp_path / "changed.mp4"
    run_ffmpeg("-i", str(small), "-vf", "fps=30", "-map_metadata", "0", "-movflags", "use_metadata_tags", str(smoother))
    assert upscale_file_request(smoother, 2).fps == 30  # the file differs from its settings, so the settings are not used


def test_a_video_of_ours_that_was_generated_from_files_keeps_its_prompt(tmp_path):
    made = GenerationRequest.from_preset(load_preset("wan-tiny"), prompt="a red circle", image="/a.png", num_frames=17)
    write_video([np.full((96, 96, 3), index, np.uint8) for index in range(17)], tmp_path / "v.mp4", fps=made.fps, request=made)
    request = upscale_file_request(tmp_path / "v.mp4", 2)
    assert request.inputs() == {"finished_video": (str(tmp_path / "v.mp4"),)}
    assert (request.prompt, request.final_size, request.num_frames) == ("a red circle", (192, 192), 17)


def test_a_step_after_a_video_makes_that_video_first(tmp_path):
    made = GenerationRequest.from_preset(load_preset("wan-tiny"), prompt="a red circle", seed=7, num_frames=17, upscale=4)
    folder, seen = tmp_path / "job", []

    def make(request):
        seen.append(request)
        yield Encoding()
        frames = [np.full((96, 96, 3), 10 * index, np.uint8) for index in range(17)]
        write_video(frames, folder / "video.mp4", fps=request.fps, request=request)
        yield Finished(
            VideoResult(
                path=str(folder / "video.mp4"), fps=16, num_frames=17, width=96, height=96, seconds={"denoise": 5.0},
                request=request, versions={"jax": "0"}, notes=("a note",),
            )
        )  # fmt: skip

    events = events_of(made, folder, make=make)
    result = events[-1].result
    assert seen == [without_upscaling(made)] and isinstance(events[1], Encoding)
    assert (result.width, result.request, result.notes[0]) == (384, made, "a note")
    assert result.seconds["denoise"] == 5.0 and result.seconds["upscale"] > 0
    assert read_request(folder / "video.mp4") == made

    stopped = events_of(made, tmp_path / "stopped", make=lambda request: (event for event in [Cancelled(None)]))
    assert stopped[-1] == Cancelled(None) and isinstance(stopped[0], Loading)
    with pytest.raises(RequestError, match="must be an installed upscaler"):  # before the video is generated
        events_of(made.with_changes(upscaler="missing.pth"), tmp_path / "early", make=nothing)


def test_a_stop_comes_between_two_batches_and_leaves_the_smaller_video(tmp_path, clip, monkeypatch):
    monkeypatch.setattr(upscaling, "EVENT_SECONDS", -1.0)
    request, folder = upscale_file_request(clip, 4), tmp_path / "job"
    seen = []
    for event in upscale_video(request, folder, lambda: len(seen) > 3, nothing):
        seen.append(event)
    assert seen[-1] == Cancelled(None) and not (folder / PIECES).exists()

    result = VideoResult(
        path="", fps=8, num_frames=12, width=32, height=24, seconds={}, request=without_upscaling(request), versions={}
    )
    step = GenerationRequest.from_stored(request.to_json() | {"finished_video": None})

    def make(wanted):
        shutil.copy(clip, folder / "video.mp4")
        yield Finished(dataclasses.replace(result, path=str(folder / "video.mp4"), request=wanted))

    seen.clear()
    for event in upscale_video(step, folder, lambda: len(seen) > 3, make):
        seen.append(event)
    assert seen[-1].result.width == 32 and greys(folder / "video.mp4") == greys(clip)
    assert sorted(file.name for file in folder.iterdir()) == ["video.mp4"]


@pytest.mark.parametrize("end", ["killed", "closed"])
def test_another_process_continues_with_the_pieces_that_are_whole(tmp_path, clip, monkeypatch, end):
    monkeypatch.setattr(upscaling, "PIECE_SECONDS", 0.0)  # each frame is one piece of work
    monkeypatch.setattr(upscaling, "EVENT_SECONDS", -1.0)
    request, folder, copy = upscale_file_request(clip, 4), tmp_path / "first", tmp_path / "second"
    events = upscale_video(request, folder, lambda: False, nothing)
    for event in events:
        if isinstance(event, Upscaling) and event.frame == 7:
            if end == "killed":
                shutil.copytree(folder, copy)
                (copy / PIECES / "0000099.mp4").write_bytes(b"half")
            break
    events.close()
    if end == "closed":
        shutil.copytree(folder, copy)
    whole = sorted(file.name for file in (copy / PIECES).glob("*-*.mp4"))
    begun = int(whole[-1].split("-")[1].removesuffix(".mp4"))
    assert 6 <= begun <= 7
    told = events_of(request, copy)
    assert [event.frame for event in told if isinstance(event, Upscaling)] == list(range(begun, 13))
    events_of(request, tmp_path / "third")
    assert np.abs(np.array(greys(copy / "video.mp4")) - greys(tmp_path / "third" / "video.mp4")).max() <= 1.0
    assert read_clip_facts(copy / "video.mp4").seconds == read_clip_facts(tmp_path / "third" / "video.mp4").seconds


def test_pieces_of_another_request_are_upscaled_again(tmp_path, clip):
    request, folder = upscale_file_request(clip, 4), tmp_path / "job"
    events = upscale_video(request, folder, lambda: False, nothing)
    next(event for event in events if isinstance(event, Upscaling) and event.frame == 12)
    events.close()
    assert list((folder / PIECES).glob("*-*.mp4"))
    other = upscale_file_request(clip, 2)
    told = [event.frame for event in events_of(other, folder) if isinstance(event, Upscaling)]
    assert told[0] == 0 and read_clip_facts(folder / "video.mp4").width == 64


def test_a_smaller_video_that_a_killed_process_has_made_is_not_made_again(tmp_path, clip, monkeypatch):
    folder = tmp_path / "job"
    step = GenerationRequest.from_stored(upscale_file_request(clip, 4).to_json() | {"finished_video": None})
    result = VideoResult(
        path="", fps=8, num_frames=12, width=32, height=24, seconds={"denoise": 3.0}, request=without_upscaling(step), versions={}
    )

    def make(wanted):
        shutil.copy(clip, folder / "video.mp4")
        yield Finished(result)

    events = upscale_video(step, folder, lambda: False, make)
    next(event for event in events if isinstance(event, Upscaling))
    events.close()
    assert (folder / SMALLER).is_file()
    assert events_of(step, folder)[-1].result.seconds["denoise"] == 3.0


def test_rates_that_are_no_whole_number_and_turned_clips_are_taken_as_they_are_seen(tmp_path):
    clip = tmp_path / "film.mov"
    run_ffmpeg("-f", "lavfi", "-i", "testsrc2=s=48x32:r=24000/1001:d=1", "-pix_fmt", "yuv420p", str(clip))
    request = upscale_file_request(clip, 2)
    assert (request.fps, request.width, request.height) == (24, 48, 32) and 23 <= request.num_frames <= 24
    assert events_of(request, tmp_path / "job")[-1].result.num_frames == request.num_frames


@pytest.mark.parametrize("content", [b"", b"not a video", b"\x00\x00\x00\x18ftypmp42" + b"\0" * 64])
def test_a_clip_that_is_none_is_one_sentence(tmp_path, content):
    (tmp_path / "a.mp4").write_bytes(content)
    with pytest.raises(ClipError) as refused:
        upscale_file_request(tmp_path / "a.mp4", 2)
    assert "\n" not in str(refused.value)


def test_what_the_model_cannot_do_or_is_not_there_is_one_sentence(tmp_path, clip, data_dir):
    (data_dir / "upscalers").mkdir(parents=True)
    (data_dir / "upscalers" / "broken.pth").write_bytes(b"\x80\x04.")
    with pytest.raises(ModelError, match="the upscaler broken.pth"):
        events_of(upscale_file_request(clip, 2, "broken.pth"), tmp_path / "job")
    with pytest.raises(RequestError, match="must be an installed upscaler"):
        events_of(upscale_file_request(clip, 2, "missing.pth"), tmp_path / "job")
    with pytest.raises(RequestError, match="upscale=2 makes frames of 8192x9216"):
        upscale_clip_request("large", (4096, 4608), 1.0, 24.0, "/a.mp4", 2)
    for wrong in (0, 1, 3, 8, -4):
        with pytest.raises(RequestError, match="upscale="):
            upscale_clip_request("a", (64, 64), 1.0, 24.0, "/a.mp4", wrong)
