"""The connection to a studio server, and the jobs that it runs."""

import asyncio
import contextlib
import json
import math
import os
import threading
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, Unpack

import httpx

from wan_studio.errors import RequestRefused, StudioError, VideoCancelled, VideoFailed
from wan_studio.events import Event
from wan_studio.notebook import make_display
from wan_studio.server import LocalServer
from wan_studio.settings import File, Settings, to_data_url, to_fields, to_json
from wan_studio.video import Video

START_SECONDS = 600.0  # the longest wait for a local server; the first start compiles Python files
_TIMEOUT = httpx.Timeout(120.0, connect=30.0)
_QUIET_SECONDS = 30.0  # the server sends a comment every two seconds while a video is unchanged
_SILENT_SECONDS = 60.0  # how long a job's stream or download may fail before its reader gives up
_AGAIN_SECONDS = 1.0
_PASSING = (429, 502, 503, 504)  # status of too many streams, and of a proxy while the server starts again
_PIECE = 2**20

OnEvent = Callable[[Event], object]


class Studio:
    """A studio server. `local` and `connect` create it, and both have the same methods.

    A context manager: leaving it closes the connection and stops a local server. `url` is the server's address. All methods
    raise `StudioError`. Several threads may use one studio.
    """

    def __init__(
        self, url: str, key: str, *, folder: str | os.PathLike[str] = "videos", server: LocalServer | None = None
    ) -> None:
        """Connect to `url` with a key, and check the key. `folder` receives finished videos. `server` is stopped at the end."""
        self.url, self._folder, self._server = f"{url.rstrip('/')}/", Path(folder).expanduser().absolute(), server
        headers = {"authorization": f"Bearer {key}"}
        self._http = httpx.Client(base_url=self.url, headers=headers, timeout=_TIMEOUT, trust_env=server is None)
        try:
            self.models()
        except BaseException:
            self.close()
            raise

    @classmethod
    def connect(cls, url: str, key: str, *, folder: str | os.PathLike[str] = "videos") -> Self:
        """Connect to a running server. `python app.py keys create NAME` on the server's machine creates a key.

        Args:
            url: the address of the page, such as "http://127.0.0.1:7860".
            key: a program's key or the operator's key.
            folder: receives the mp4 files of finished videos; created with the first video.
        """
        return cls(url, key, folder=folder)

    @classmethod
    def local(
        cls,
        data_dir: str | os.PathLike[str] | None = None,
        *,
        model: str | None = None,
        python: str | os.PathLike[str] | None = None,
        options: Sequence[str] = (),
        folder: str | os.PathLike[str] = "videos",
        start_seconds: float = START_SECONDS,
        on_wait: Callable[[str], object] | None = None,
    ) -> Self:
        """Start a server as its own process, and connect to it. It stops when the studio is closed or Python exits.

        Args:
            data_dir: the server's data folder; by default the data folder of `python app.py`.
            model: a checkpoint's id on the Hub or its folder, as `--model`.
            python: the Python program of the environment that has the server's packages; by default this Python.
            options: more options of `python app.py serve`, with absolute paths.
            folder: receives the mp4 files of finished videos; created with the first video.
            start_seconds: the longest wait for the server.
            on_wait: receives the last line of the server's output while the server starts.
        """
        own = ["--data-dir", str(Path(data_dir).expanduser().absolute())] if data_dir is not None else []
        words = [*own, *(["--model", model] if model is not None else []), *options]
        server = LocalServer(words, os.fspath(python) if python is not None else None, start_seconds, on_wait)
        return cls(server.url, server.key, folder=folder, server=server)

    def models(self) -> list[str]:
        """Return the names of the presets that can run on the server."""
        return [model["id"] for model in self._request("GET", "v1/models")["data"]]

    def submit(self, prompt: str, **settings: Unpack[Settings]) -> "Job":
        """Queue a video and return its job. `Settings` describes the settings. Raises: RequestRefused."""
        return self.job(self._request("POST", "v1/videos", to_fields(prompt, settings))["id"])

    def generate(self, prompt: str, *, on_event: OnEvent | None = None, **settings: Unpack[Settings]) -> Video:
        """Generate a video and wait for it.

        Each `Event` is passed to `on_event`. Without it, a notebook's cell shows the progress. Interrupting the wait stops the
        video. Raises: RequestRefused, VideoFailed, VideoCancelled.
        """
        job = self.submit(prompt, **settings)
        try:
            return job.result(on_event or make_display())
        except KeyboardInterrupt:
            job.cancel()
            raise

    def upscale(self, video: File, scale: int = 2, upscaler: str = "") -> "Job":
        """Queue the upscaling of a finished clip and return its job. Raises: RequestRefused.

        Args:
            video: the clip's path or bytes, or a `Video`.
            scale: 2 or 4.
            upscaler: a name of an upscaler of the server; empty for the studio's own.
        """
        fields = {"finished_video": to_data_url("video", video), "upscale": scale}
        return self.job(self._request("POST", "v1/videos", fields | ({"upscaler": upscaler} if upscaler else {}))["id"])

    def job(self, job_id: str) -> "Job":
        """Return the job with this id, for example from an earlier session. The first use of the job checks the id."""
        return Job(self, job_id)

    def close(self) -> None:
        """Close the connection. Stop the server if `local` started it."""
        self._http.close()
        if self._server is not None:
            self._server.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _request(self, method: str, path: str, body: Mapping[str, object] | None = None) -> dict[str, Any]:
        sent: dict[str, Any] = {}
        if body is not None:
            sent = {"content": to_json(body), "headers": {"content-type": "application/json"}}
        try:
            answer = self._http.request(method, path, **sent)
            _check_answer(answer)
            return answer.json()
        except (httpx.TransportError, ValueError) as error:
            raise StudioError(f"{self.url} does not answer as a studio ({error!r}): check the address") from error

    def _stream_events(self, job_id: str) -> Iterator[dict[str, Any] | None]:
        """Yield the server-sent events of one connection, and None for other lines, about every two seconds.

        Raises: httpx.TransportError, RequestRefused.
        """
        timeout = httpx.Timeout(_QUIET_SECONDS)
        with self._http.stream("GET", f"v1/videos/{job_id}/events", timeout=timeout) as answer:
            _check_answer(answer)
            for line in answer.iter_lines():
                yield json.loads(line.removeprefix("data: ")) if line.startswith("data: ") else None

    def _download(self, job_id: str, left: threading.Event) -> Path:
        """Download a finished video. A lost download starts again. If `left` is set, stop with a StudioError."""
        path = self._folder / f"{job_id}.mp4"
        part = path.with_suffix(".part")
        self._folder.mkdir(parents=True, exist_ok=True)
        failing = None
        while True:
            try:
                with self._http.stream("GET", f"v1/videos/{job_id}/content") as answer, part.open("wb") as file:
                    _check_answer(answer)
                    for piece in answer.iter_bytes(_PIECE):
                        file.write(piece)
                        if left.is_set():
                            raise StudioError("The download was stopped")
                return part.replace(path)
            except (httpx.TransportError, RequestRefused) as error:
                failing = failing or time.monotonic()
                _check_passing(error, failing, left, "The video could not be downloaded: call result() again")
            finally:
                part.unlink(missing_ok=True)
            left.wait(_AGAIN_SECONDS)


class Job:
    """A video that is queued, running or ended on the server. `id` is its name there.

    `for event in job` and `async for event in job` yield its progress until it ends. `await job` waits as `result` does. Leaving
    the loop or cancelling the wait does not stop the video.
    """

    def __init__(self, studio: Studio, job_id: str) -> None:
        """Use an existing job. `Studio.submit` creates jobs."""
        self.id, self._studio = job_id, studio

    def __iter__(self) -> Iterator[Event]:
        """Yield the present progress, then each change. A lost connection is opened again, also while the server starts again."""
        with contextlib.closing(self._follow(threading.Event())) as events:
            yield from (event for event in events if event is not None)

    async def __aiter__(self) -> AsyncGenerator[Event, None]:
        left = threading.Event()
        events = self._follow(left)
        try:
            while True:
                event = await asyncio.to_thread(lambda: next(events))
                if event is not None:
                    yield event
                    if event.is_final:
                        return
        finally:
            left.set()
            with contextlib.suppress(ValueError):  # a thread still waits for news; then it sees `left` and ends
                events.close()

    def __await__(self) -> Generator[Any, None, Video]:
        return self._wait().__await__()

    async def _wait(self) -> Video:
        outcome: Mapping[str, Any] = {}
        async with contextlib.aclosing(self.__aiter__()) as events:
            async for event in events:
                outcome = event.outcome
        left = threading.Event()
        try:
            return await asyncio.to_thread(self._download, outcome, left)
        finally:
            left.set()

    def result(self, on_event: OnEvent | None = None, timeout: float | None = None) -> Video:
        """Wait for the video, download it and return it. Each `Event` is passed to `on_event`.

        `timeout` is the longest wait for the video's end in seconds, None for no limit. The video continues on the server.
        Raises: VideoFailed, VideoCancelled, TimeoutError.
        """
        until, outcome = math.inf if timeout is None else time.monotonic() + timeout, {}
        with contextlib.closing(self._follow(threading.Event())) as events:
            for event in events:
                if event is not None:
                    outcome = event.outcome
                    if on_event is not None:
                        on_event(event)
                if not outcome and time.monotonic() > until:
                    raise TimeoutError(f"Video {self.id} has not ended after {timeout:g} s: wait again, or cancel it")
        return self._download(outcome, threading.Event())

    def _follow(self, left: threading.Event) -> Generator[Event | None, None, None]:
        """Yield the video's events until it ends, and None about every two seconds without news. End soon after `left` is set."""
        preview, failing = None, None
        while not left.is_set():
            try:
                for data in self._studio._stream_events(self.id):
                    if left.is_set():
                        return
                    failing = None
                    if data is None:
                        yield None
                        continue
                    event = Event.from_json(data, preview)
                    preview = event.preview
                    yield event
                    if event.is_final:
                        return
            except (httpx.TransportError, RequestRefused) as error:
                failing = failing or time.monotonic()
                _check_passing(error, failing, left, f"{self._studio.url} does not answer any more")
            yield None
            left.wait(_AGAIN_SECONDS)

    def _download(self, outcome: Mapping[str, Any], left: threading.Event) -> Video:
        """Download the video whose last event has this outcome. Raises: VideoFailed, VideoCancelled."""
        error = outcome["video"]["error"]
        if error is None:
            return Video.from_json(outcome["result"], self._studio._download(self.id, left))
        if error["code"] == "cancelled":
            raise VideoCancelled(error["message"])
        raise VideoFailed(error["message"], error.get("would_fit", ()))

    def cancel(self) -> None:
        """Stop the video. A running video stops at the end of a step. Does nothing to an ended video."""
        self._studio._request("POST", f"v1/videos/{self.id}/cancel")


def _check_passing(error: Exception, failing: float, left: threading.Event, text: str) -> None:
    """Return if the request can be sent again. `failing` is the time of the first error since the last answer.

    Raises: the error if it is not passing, StudioError with `text` after _SILENT_SECONDS or if `left` is set.
    """
    if isinstance(error, RequestRefused) and error.status not in _PASSING:
        raise error
    if left.is_set() or time.monotonic() - failing > _SILENT_SECONDS:
        raise StudioError(f"{text} ({error!r})") from error


def _check_answer(answer: httpx.Response) -> None:
    """Check the answer's status. Raises: RequestRefused with the server's message."""
    if answer.is_success:
        return
    answer.read()
    try:
        error = answer.json()["error"]
    except (ValueError, KeyError, TypeError):
        error = {}
    message = error.get("message") if isinstance(error, dict) else str(error)
    details = error if isinstance(error, dict) else {}
    text = message or f"The server answered {answer.status_code} {answer.reason_phrase}"
    raise RequestRefused(text, answer.status_code, details.get("param"), details.get("code"))
