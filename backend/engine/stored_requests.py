"""Parse the requests of stored jobs, cache them, because parsing is slow, and convert stored paths. Does not use the database."""

import json
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from backend.engine.job import Job, ListedJob
from backend.errors import RequestError
from backend.schemas.request import GenerationRequest
from backend.schemas.settings import INPUTS

log = logging.getLogger(__name__)

# The limit of all cached requests together, in characters of JSON: about a thousand usual requests. The parsed requests take
# 30 times as many bytes of memory.
_MOST_READ_CHARACTERS = 2_000_000
_MOST_VALUES = 2000  # most entries of a RequestMemo
Value = TypeVar("Value")


def make_relative(data: dict[str, Any], folder: str) -> dict[str, Any]:
    """Return the stored form of the JSON of a request or an event: paths are relative to the job's folder."""
    return _change_paths(data, lambda path: path.removeprefix(f"{folder}/"))


def make_absolute(data: dict[str, Any], folder: str, job_id: str) -> dict[str, Any]:
    """Convert stored paths to absolute paths in the job's current folder, also the absolute paths of older versions."""

    def resolve(path: str) -> str:
        if not path.startswith("/"):
            return f"{folder}/{path}"
        _, own_folder, name = path.partition(f"/{job_id}/")
        return f"{folder}/{name}" if own_folder else path

    return _change_paths(data, resolve)


def _change_paths(data: dict[str, Any], change: Callable[[str], str]) -> dict[str, Any]:
    if isinstance(result := data.get("result"), dict):
        changes = {"path": change(result["path"])}
        if "request" in result:
            changes["request"] = _change_paths(result["request"], change)
        return data | {"result": result | changes}
    paths = {one.name: data[one.name] for one in INPUTS if data.get(one.name)}
    return data | {role: change(given) if isinstance(given, str) else [*map(change, given)] for role, given in paths.items()}


class _Requests:
    def __init__(self, most_characters: int) -> None:
        self._most, self._size = most_characters, 0
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[str, str, str], GenerationRequest] = OrderedDict()  # ordered by last use
        self._refused: set[str] = set()

    def read(self, text: str, folder: str, job_id: str) -> GenerationRequest:
        """Return the request with this JSON, from the cache if possible. Raises: RequestError."""
        key = text, folder, job_id
        with self._lock:
            if (found := self._kept.get(key)) is not None:
                self._kept.move_to_end(key)
                return found
        try:
            request = GenerationRequest.from_stored(make_absolute(json.loads(text), folder, job_id))
        except RequestError as error:
            if job_id not in self._refused:
                self._refused.add(job_id)
                log.warning("job %s is not listed: %s", job_id, error)
            raise
        with self._lock:
            self._size += len(text) if key not in self._kept else 0
            self._kept[key] = request
            while self._size > self._most:
                (old, _, _), _ = self._kept.popitem(last=False)
                self._size -= len(old)
        return request


read_request = _Requests(_MOST_READ_CHARACTERS).read


class RequestMemo:
    """A cache of values computed from whole requests. `read(job_id)` returns a job. Safe to use from several threads."""

    def __init__(self, read: Callable[[str], Job]) -> None:
        self._read = read
        self._values: dict[tuple[Hashable, str], Any] = {}

    def value(self, job: ListedJob, name: Hashable, compute: Callable[[GenerationRequest], Value]) -> Value:
        """Return `compute(request)` for the job's request, from the cache if possible. `name` identifies the computed value."""
        key = name, job.summary.digest
        if key in (values := self._values):
            return values[key]
        if len(values) >= _MOST_VALUES:
            self._values = values = {}
        whole = self._read(job.id)
        # The request may have been revised after `job` was read, so the key uses the digest of the new request.
        value = values[name, whole.summary.digest] = compute(whole.request)
        return value
