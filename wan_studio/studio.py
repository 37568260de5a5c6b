"""The connection to a studio server, and the jobs that it runs."""

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any, Self, Unpack

import httpx

from wan_studio.errors import RequestRefused, StudioError, VideoCancelled, VideoFailed
from wan_studio.events import Event
from wan_studio.notebook import make_display
from wan_studio.server import LocalServer
from wan_studio.settings import Settings, to_fields
from wan_studio.video import Video

START_SECONDS = 600.0  # the longest wait for a local server; the first start compiles Python files
_TIMEOUT = httpx.Timeout(120.0, connect=30.0)
_SILENT_SECONDS = 60.0  # how long a job's stream may fail before its reader gives up
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

    def _request(self, method: str, path: str, body: dict[str, object] | None = None) -> dict[str, Any]:
        try:
            answer = self._http.request(method, path, json=body)
            _check_answer(answer)
            return answer.json()
        except (httpx.TransportError, ValueError) as error:
            raise StudioError(f"{self.url} does not answer as a studio ({error!r}): check the address") from error

    def _stream_events(self, job_id: str) -> Iterator[dict[str, Any]]:
        """Yield the server-sent events of one connection. Raises: httpx.TransportError, RequestRefused."""
        with self._http.stream("GET", f"v1/videos/{job_id}/events") as answer:
            _check_answer(answer)
            for line in answer.iter_lines():
                if line.startswith("data: "):
                    yield json.loads(line.removeprefix("data: "))

    def _download(self, job_id: str) -> Path:
        path = self._folder / f"{job_id}.mp4"
        part = path.with_suffix(".part")
        self._folder.mkdir(parents=True, exist_ok=True)
        try:
            with self._http.stream("GET", f"v1/videos/{job_id}/content") as answer, part.open("wb") as file:
                _check_answer(answer)
                for piece in answer.iter_bytes(_PIECE):
                    file.write(piece)
            part.replace(path)
        except httpx.TransportError as error:
            raise StudioError(f"The video could not be downloaded ({error!r}): call result() again") from error
        finally:
            part.unlink(missing_ok=True)
        return path


class Job:
    """A video that is queued, running or ended on the server. `id` is its name there.

    `for event in job` and `async for event in job` yield its progress until it ends. `await job` waits as `result` does. Leaving
    the loop does not stop the video.
    """

    def __init__(self, studio: Studio, job_id: str) -> None:
        """Use an existing job. `Studio.submit` creates jobs."""
        self.id, self._studio = job_id, studio

    def __iter__(self) -> Iterator[Event]:
        """Yield the present progress, then each change. A lost connection is opened again, also while the server starts again."""
        preview, last = None, time.monotonic()
        while True:
            try:
                for data in self._studio._stream_events(self.id):
                    event, last = Event.from_json(data, preview), time.monotonic()
                    preview = event.preview
                    yield event
                    if event.is_final:
                        return
            except (httpx.TransportError, RequestRefused) as error:
                if isinstance(error, RequestRefused) and error.status not in _PASSING:
                    raise
                if time.monotonic() - last > _SILENT_SECONDS:
                    raise StudioError(f"{self._studio.url} does not answer any more ({error!r})") from error
            time.sleep(_AGAIN_SECONDS)

    async def __aiter__(self) -> AsyncIterator[Event]:
        events = iter(self)
        while True:
            event = await asyncio.to_thread(lambda: next(events, None))
            if event is None:
                return
            yield event

    def __await__(self) -> Generator[Any, None, Video]:
        return asyncio.to_thread(self.result).__await__()

    def result(self, on_event: OnEvent | None = None) -> Video:
        """Wait for the video, download it and return it. Each `Event` is passed to `on_event`.

        Raises: VideoFailed, VideoCancelled.
        """
        outcome: dict[str, Any] = {}
        for event in self:
            outcome = {**event.outcome}
            if on_event is not None:
                on_event(event)
        error = outcome["video"]["error"]
        if error is None:
            return Video.from_json(outcome["result"], self._studio._download(self.id))
        if error["code"] == "cancelled":
            raise VideoCancelled(error["message"])
        raise VideoFailed(error["message"], error.get("would_fit", ()))

    def cancel(self) -> None:
        """Stop the video. A running video stops at the end of a step. Does nothing to an ended video."""
        self._studio._request("POST", f"v1/videos/{self.id}/cancel")


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
