"""A connection to a studio server. It needs only Python's own library."""

from __future__ import annotations

import contextlib
import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DEFAULT_URL = "http://127.0.0.1:7860"
_ANSWER_SECONDS = 120.0  # the server checks a video's files before it answers
_QUIET_SECONDS = 30.0  # the server sends a comment every two seconds while a video is unchanged
_LOST_SECONDS = 60.0  # how long a lost connection is tried again
_AGAIN_SECONDS = 1.0
_PASSING = (429, 502, 503, 504)  # status of too many streams, and of a proxy while the server starts again

Event = dict[str, Any]


class StudioError(Exception):
    """One sentence for people: what is wrong and what to do."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect, because the new address would receive the key."""

    def redirect_request(self, *_: object) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirect)


@dataclass(frozen=True)
class Server:
    """A studio server: the address of its page, and a program's key. All methods raise `StudioError`."""

    url: str
    key: str

    def list_models(self) -> list[str]:
        """Return the names of the presets that can run on the server."""
        answer = self._exchange("GET", "/v1/models")
        try:
            return [model["id"] for model in answer["data"]]
        except (KeyError, TypeError):
            raise self._foreign_error("another answer") from None

    def generate(self, fields: dict[str, Any], on_event: Callable[[Event | None], object]) -> bytes:
        """Generate a video and return its mp4 file.

        Args:
            fields: the fields of a request to `/v1/videos`.
            on_event: receives each event of the video, and None about every two seconds without news. If it raises, the video
                is stopped on the server.
        """
        answer, event = self._exchange("POST", "/v1/videos", fields), None
        if not isinstance(answer, dict) or "id" not in answer:
            raise self._foreign_error("another answer")
        job_id = answer["id"]
        try:
            for news in self._follow(job_id):
                on_event(news)
                event = news or event
        except BaseException:
            with contextlib.suppress(StudioError):
                self._exchange("POST", f"/v1/videos/{job_id}/cancel", seconds=_QUIET_SECONDS)
            raise
        error = (event or {}).get("video", {}).get("error")
        if error is not None:
            raise StudioError(error["message"])
        return self._download(job_id, on_event)

    def _follow(self, job_id: str) -> Iterator[Event | None]:
        """Yield the video's events until it ends, and None for comments. A lost connection is opened again."""
        until = time.monotonic() + _LOST_SECONDS
        while True:
            try:
                with self._open("GET", f"/v1/videos/{job_id}/events", seconds=_QUIET_SECONDS) as lines:
                    for line in lines:
                        until = time.monotonic() + _LOST_SECONDS
                        if not line.startswith(b"data: "):
                            yield None
                            continue
                        event = json.loads(line[len(b"data: ") :])
                        yield event
                        if "video" in event:
                            return
            except (Unreachable, OSError, http.client.HTTPException) as error:
                if time.monotonic() > until:
                    raise StudioError(f"{self.url} does not answer any more ({error}): check the server") from error
            yield None
            time.sleep(_AGAIN_SECONDS)

    def _download(self, job_id: str, on_event: Callable[[Event | None], object]) -> bytes:
        """Return the finished video's file. A lost download starts again, after a call of `on_event` with None."""
        failing = None
        while True:
            try:
                with self._open("GET", f"/v1/videos/{job_id}/content") as answer:
                    return answer.read()
            except (Unreachable, OSError, http.client.HTTPException) as error:
                failing = failing or time.monotonic()
                if time.monotonic() - failing > _LOST_SECONDS:
                    text = f"The video is finished, but {self.url} does not send it ({error})"
                    raise StudioError(f"{text}: download it from the studio's library") from error
            on_event(None)
            time.sleep(_AGAIN_SECONDS)

    def _exchange(self, method: str, path: str, fields: dict[str, Any] | None = None, seconds: float = _ANSWER_SECONDS) -> Any:
        with self._open(method, path, fields, seconds) as answer:
            try:
                return json.loads(answer.read())
            except (ValueError, OSError, http.client.HTTPException):
                raise self._foreign_error("no JSON") from None

    def _open(
        self, method: str, path: str, fields: dict[str, Any] | None = None, seconds: float = _ANSWER_SECONDS
    ) -> http.client.HTTPResponse:
        if not self.url.startswith(("http://", "https://")):
            raise StudioError(f"The server's address {self.url!r} must start with http:// or https://, such as {DEFAULT_URL}")
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {self.key}"} if self.key else {})
        body = None if fields is None else json.dumps(fields).encode()
        try:
            request = urllib.request.Request(self.url + path, body, headers, method=method)
            return _OPENER.open(request, timeout=seconds)
        except urllib.error.HTTPError as error:
            raise self._read_refusal(error) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise self._unreachable_error(reason) from error

    def _read_refusal(self, error: urllib.error.HTTPError) -> StudioError:
        """Return the server's own sentence. The error is Unreachable if the status is one of _PASSING."""
        is_passing = error.code in _PASSING
        with error:
            try:
                told = json.loads(error.read())["error"]
                message = told["message"] if isinstance(told, dict) else told
            except (ValueError, KeyError, TypeError, OSError, http.client.HTTPException):
                answer = f"{error.code} {error.reason}"
                return self._unreachable_error(answer) if is_passing else self._foreign_error(answer)
        return Unreachable(str(message)) if is_passing else StudioError(str(message))

    def _unreachable_error(self, reason: object) -> StudioError:
        return Unreachable(f"No studio answers at {self.url} ({reason}): start it, or correct the address")

    def _foreign_error(self, answer: str) -> StudioError:
        return StudioError(f"{self.url} does not answer as a studio ({answer}): correct the address")


class Unreachable(StudioError):
    """No server answers at the address, or it cannot answer now. A later request may be answered."""


def read_keys(path: Path) -> dict[str, str]:
    """Return the keys by server address from a JSON file, in its order. Empty if the file is missing. Raises: StudioError."""
    if not path.is_file():
        return {}
    try:
        return {url.rstrip("/"): str(key) for url, key in json.loads(path.read_text("utf-8")).items()}
    except (OSError, ValueError, AttributeError):
        example = json.dumps({DEFAULT_URL: "studio-..."})
        raise StudioError(f"{path} must be JSON with addresses and their keys, such as {example}") from None


def find_server(url: str, key: str, keys: dict[str, str]) -> Server:
    """Return the server at `url`, by default the first of `keys`. An empty `key` is replaced by the key for this address only."""
    url = url.strip().rstrip("/") or next(iter(keys), DEFAULT_URL)
    return Server(url, key.strip() or keys.get(url, ""))
