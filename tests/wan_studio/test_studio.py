"""Tests of the client at a server with the pretend pipeline and a password."""

import asyncio
import io
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import imageio_ffmpeg
import numpy
import pytest
from PIL import Image

from backend.engine.keys import Keys
from backend.media.video import read_request
from tests.wan_ui.conftest import _serving
from wan_studio import Event, RequestRefused, Studio, StudioError, Video, VideoCancelled, VideoFailed

PROMPT = "a red square"
SMALL = {"preset": "wan-tiny", "num_inference_steps": 4, "num_frames": 17, "seed": 7}


@pytest.fixture(scope="module")
def connect(tmp_path_factory) -> Iterator[Callable[[str], Studio]]:
    """Return a function that connects to the server with a new key of this name."""
    data_dir, opened = tmp_path_factory.mktemp("studio"), []
    with _serving("fake", data_dir, more=["--auth", "user:password"]) as server:

        def connect(name: str) -> Studio:
            key = Keys(data_dir).create(name)[1]
            opened.append(Studio.connect(server.url, key, folder=data_dir / "downloads"))
            return opened[-1]

        yield connect
        for studio in opened:
            studio.close()


@pytest.fixture(scope="module")
def studio(connect) -> Studio:
    return connect("tests")


def test_a_video_has_a_file_frames_and_its_request(studio):
    events: list[Event] = []
    video = studio.generate(PROMPT, on_event=events.append, width=96, height=96, settings={"solver": "euler"}, **SMALL)
    assert (video.width, video.height, video.num_frames, video.seed, video.audio) == (96, 96, 17, 7, None)
    assert video.frames.shape == (17, 96, 96, 3) and video.frames.dtype == numpy.uint8
    assert (video.request["prompt"], video.request["steps"], video.request["solver"]) == (PROMPT, 4, "euler")
    assert read_request(video.path).seed == 7 and 'src="data:video/mp4;base64,' in video._repr_html_()
    fractions = [event.fraction for event in events]
    assert fractions == sorted(fractions) and fractions[-1] == 1
    assert [event.is_final for event in events] == [False] * (len(events) - 1) + [True]
    preview = next(event for event in events if event.preview)
    assert Image.open(io.BytesIO(preview.preview)).size == (96, 96) and "<img" in preview._repr_html_()
    assert list(video.path.parent.glob("*.part")) == []


def test_audio_is_decoded(studio):
    video = studio.generate("a square that hums", **SMALL)
    assert video.audio.samples.dtype == numpy.float32 and 0.01 < numpy.abs(video.audio.samples).max() <= 1
    seconds = video.audio.samples.shape[1] / video.audio.sample_rate
    assert seconds == pytest.approx(video.num_frames / video.fps, abs=0.1)  # AAC has frames of 1024 samples


def test_a_video_is_decoded_by_the_systems_ffmpeg_or_the_error_says_what_to_install(studio, tmp_path, monkeypatch):
    video = studio.generate(PROMPT, **SMALL)
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(StudioError, match="pip install imageio-ffmpeg"):
        _ = video.frames
    (tmp_path / "ffmpeg").symlink_to(imageio_ffmpeg.get_ffmpeg_exe())
    assert video.frames.shape[0] == 17


def test_a_large_video_is_not_shown_in_a_notebook_and_the_cell_says_why(studio, monkeypatch):
    video = studio.generate(PROMPT, **SMALL)
    monkeypatch.setattr("wan_studio.video.MOST_SHOWN_BYTES", 0)
    assert "<video" not in video._repr_html_() and "more than 0 MB" in video._repr_html_()


def test_a_finished_video_is_upscaled(studio):
    video = studio.generate(PROMPT, width=96, height=96, **SMALL)
    larger = studio.upscale(video, 2).result()
    assert (larger.width, larger.height, larger.num_frames, larger.request["upscale"]) == (192, 192, 17, 2)
    with pytest.raises(RequestRefused, match="none"):
        studio.upscale(video.path.read_bytes(), 4, upscaler="none")


def test_an_image_is_where_a_video_starts(studio):
    video = studio.generate(PROMPT, image=Image.new("RGB", (96, 96), (220, 40, 40)), **SMALL)
    assert video.request["task"] == "i2v" and video.request["image"] == "image.png"


def test_a_job_is_followed_and_awaited_without_blocking(studio):
    async def follow() -> tuple[list[Event], object]:
        job = studio.submit(PROMPT, **SMALL)
        events = [event async for event in job]
        return events, await studio.job(job.id)

    events, video = asyncio.run(follow())
    assert events[-1].phase == "finished" and video.job_id == events[-1].outcome["video"]["id"]


def test_a_cancelled_video_stops_and_stays_in_the_library(studio, close_gate):
    closed = close_gate("a square that waits")
    job = studio.submit("a square that waits", **SMALL)
    closed.wait()
    job.cancel()
    assert [*job][-1].phase == "cancelled"
    with pytest.raises(VideoCancelled):
        job.result()
    job.cancel()  # does nothing to an ended video
    assert studio._request("GET", f"v1/videos/{job.id}")["error"]["code"] == "cancelled"


def test_a_failed_video_raises_with_the_reason(studio):
    with pytest.raises(VideoFailed, match="exploded"):
        studio.generate("explode", **SMALL)
    with pytest.raises(VideoFailed) as short:
        studio.generate("memory", **SMALL)
    assert {"width", "height", "num_frames"} <= short.value.would_fit[0].keys()


def test_wrong_requests_and_keys_are_refused_with_the_field(studio):
    with pytest.raises(RequestRefused, match="must be one of") as refused:
        studio.submit(PROMPT, preset="none")
    assert (refused.value.param, refused.value.code) == ("model", "model_not_found")
    with pytest.raises(RequestRefused, match="is not known"):
        studio.submit(PROMPT, colour="red")
    with pytest.raises(RequestRefused) as unknown:
        Studio.connect(studio.url, "studio-unknown")
    assert unknown.value.status == 401
    assert "wan-tiny" in studio.models()


def test_another_programs_video_does_not_exist(studio, connect, close_gate):
    closed, other = close_gate("a square of somebody"), connect("other")
    job = studio.submit("a square of somebody", **SMALL)
    closed.wait()
    for attempt in (other.job(job.id).result, other.job(job.id).cancel):
        with pytest.raises(RequestRefused) as refused:
            attempt()
        assert refused.value.status == 404
    closed.open()
    assert job.result().job_id == job.id


class Broken(httpx.SyncByteStream):
    """A stream that ends with a lost connection."""

    def __init__(self, *events: dict) -> None:
        self.events = events

    def __iter__(self) -> Iterator[bytes]:
        for event in self.events:
            yield f": still here\n\ndata: {json.dumps(event)}\n\n".encode()
        raise httpx.ReadError("lost")


def answering(answers: list[httpx.Response | httpx.SyncByteStream], monkeypatch: pytest.MonkeyPatch, folder: Path) -> Studio:
    """Return a studio whose server gives these answers, one after the other."""
    monkeypatch.setattr("wan_studio.studio._AGAIN_SECONDS", 0.0)
    monkeypatch.setattr(Studio, "models", lambda studio: [])
    studio = Studio.connect("http://nowhere.example", "key", folder=folder)

    def answer(request: httpx.Request) -> httpx.Response:
        one = answers.pop(0)
        return one if isinstance(one, httpx.Response) else httpx.Response(200, stream=one)

    studio._http = httpx.Client(base_url=studio.url, transport=httpx.MockTransport(answer))
    return studio


class Half(httpx.SyncByteStream):
    """A download that is lost in the middle."""

    def __iter__(self) -> Iterator[bytes]:
        yield b"half"
        raise httpx.ReadError("lost")


def test_a_lost_download_starts_again(monkeypatch, tmp_path):
    answers = [httpx.Response(502), Half(), httpx.Response(200, content=b"the video")]
    studio = answering(answers, monkeypatch, tmp_path)
    assert studio._download("x", threading.Event()).read_bytes() == b"the video"
    answers[:] = [httpx.Response(404)]
    with pytest.raises(RequestRefused, match="404"):
        studio._download("y", threading.Event())
    monkeypatch.setattr("wan_studio.studio._SILENT_SECONDS", -1.0)
    answers[:] = [Half()]
    with pytest.raises(StudioError, match="could not be downloaded: call result"):
        studio._download("y", threading.Event())
    assert [path.name for path in tmp_path.iterdir()] == ["x.mp4"]


class Quiet(httpx.SyncByteStream):
    """A stream with comments only. `most` comments are far more than a test waits for."""

    most, sent = 200, 0

    def __iter__(self) -> Iterator[bytes]:
        while self.sent < self.most:
            self.sent += 1
            yield b": still here\n\n"
            time.sleep(0.05)
        raise httpx.ReadError("lost")


def test_a_wait_ends_while_the_video_continues(monkeypatch, tmp_path):
    """`asyncio.run` also waits for the threads of the loop."""
    streams = [Quiet(), Quiet(), Quiet()]
    job = answering([*streams], monkeypatch, tmp_path).job("x")

    async def wait() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(job, 0.2)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                async for _ in job:
                    pass

    asyncio.run(wait())
    with pytest.raises(TimeoutError, match="has not ended after 0.2 s"):
        job.result(timeout=0.2)
    assert all(0 < stream.sent < stream.most for stream in streams)


def test_a_download_ends_when_its_task_does(monkeypatch, tmp_path):
    studio = answering([httpx.Response(200, content=b"the video")], monkeypatch, tmp_path)
    left = threading.Event()
    left.set()
    with pytest.raises(StudioError, match="stopped"):
        studio._download("x", left)
    assert list(tmp_path.iterdir()) == []


def test_a_lost_connection_is_opened_again(monkeypatch, tmp_path):
    event = {"phase": "denoising", "fraction": 0.5, "text": "", "index": 1, "total": 2, "seconds_left": 1.0, "ahead": 0}
    image = {"preview": "data:image/png;base64,AAAA"}
    end = {"phase": "cancelled", "video": {"error": {"code": "cancelled"}}}
    streams = [Broken(event | image), Broken(), httpx.Response(502), httpx.Response(429), Broken(event | end)]
    studio = answering(streams, monkeypatch, tmp_path)
    assert [(one.phase, one.preview) for one in studio.job("x")] == [("denoising", b"\0\0\0"), ("cancelled", b"\0\0\0")]
    streams[:] = [httpx.Response(404)]
    with pytest.raises(RequestRefused, match="404"):
        studio.job("x").result()
    monkeypatch.setattr("wan_studio.studio._SILENT_SECONDS", -1.0)
    for last in (Broken(), httpx.Response(503)):
        streams[:] = [last]
        with pytest.raises(StudioError, match="does not answer any more"):
            studio.job("x").result()


def test_facts_of_newer_servers_are_ignored(tmp_path):
    facts = {"job_id": "x", "width": 96, "height": 96, "num_frames": 17, "fps": 16, "seed": 7, "seconds": {}}
    facts |= {"has_sound": False, "notes": [], "request": {}}
    video = Video.from_json(facts | {"colour": "red"}, tmp_path / "x.mp4")
    assert (video.job_id, video.fps, video.path) == ("x", 16, tmp_path / "x.mp4")
