"""Parses the requests of stored jobs, each as rarely as possible. Knows no database."""

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

_MOST_READ_CHARACTERS = 2_000_000  # of JSON: some thousand usual requests, which take 30 times as many bytes
_MOST_VALUES = 2000  # that a RequestMemo keeps
Value = TypeVar("Value")


def parse_request(text: str, folder: str, job_id: str) -> GenerationRequest:
    """Raises: RequestError."""
    return GenerationRequest.from_stored(make_absolute(json.loads(text), folder, job_id))


class _Requests:
    """Keeps requests that were read last, so that each list of jobs does not read them again. Safe from several threads."""

    def __init__(self, most_characters: int) -> None:
        self._most, self._size = most_characters, 0
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[str, str, str], GenerationRequest] = OrderedDict()  # the one that was used last is last
        self._refused: set[str] = set()

    def read(self, text: str, folder: str, job_id: str) -> GenerationRequest:
        """The request that this JSON of a job's row holds. Raises: RequestError."""
        key = text, folder, job_id
        with self._lock:
            if (found := self._kept.get(key)) is not None:
                self._kept.move_to_end(key)
                return found
        try:
            request = parse_request(text, folder, job_id)
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
    """Keeps values that were computed from whole requests, so that a list parses each request once. Safe from several threads."""

    def __init__(self, read: Callable[[str], Job]) -> None:
        """`read(job_id)` returns a job with its whole request."""
        self._read = read
        self._values: dict[tuple[Hashable, str], Any] = {}

    def value(self, job: ListedJob, name: Hashable, compute: Callable[[GenerationRequest], Value]) -> Value:
        """`compute` of the job's request, which must depend on `name` and the request only."""
        key = name, job.summary.digest
        if key in (values := self._values):
            return values[key]
        if len(values) >= _MOST_VALUES:
            self._values = values = {}
        whole = self._read(job.id)
        value = values[name, whole.summary.digest] = compute(whole.request)  # it may have been revised since it was listed
        return value
