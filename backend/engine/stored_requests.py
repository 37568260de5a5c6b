"""Parse the requests of stored jobs, and cache them, because parsing is slow. Does not depend on the database."""

import json
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from backend.engine.job import Job, ListedJob
from backend.engine.stored_paths import make_absolute
from backend.errors import RequestError
from backend.schemas.request import GenerationRequest

log = logging.getLogger(__name__)

# The limit of all cached requests together, in characters of JSON: about a thousand usual requests. The parsed requests take
# 30 times as many bytes of memory.
_MOST_READ_CHARACTERS = 2_000_000
_MOST_VALUES = 2000  # most entries of a RequestMemo
Value = TypeVar("Value")


class _Requests:
    """A cache of the last parsed requests. Safe to use from several threads."""

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
    """A cache of values that were computed from whole requests. Safe to use from several threads."""

    def __init__(self, read: Callable[[str], Job]) -> None:
        """Create an empty cache. `read(job_id)` returns a job with its whole request."""
        self._read = read
        self._values: dict[tuple[Hashable, str], Any] = {}

    def value(self, job: ListedJob, name: Hashable, compute: Callable[[GenerationRequest], Value]) -> Value:
        """Return `compute(request)` for the job's request, from the cache if possible.

        `name` identifies the computed value in the cache. The result must depend on `name` and the request only.
        """
        key = name, job.summary.digest
        if key in (values := self._values):
            return values[key]
        if len(values) >= _MOST_VALUES:
            self._values = values = {}
        whole = self._read(job.id)
        # The request may have been revised after `job` was read, so the key uses the digest of the new request.
        value = values[name, whole.summary.digest] = compute(whole.request)
        return value
