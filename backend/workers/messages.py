"""The messages between the engine, its workers and the hosts of a worker, with a JSON form, and the channel that sends them."""

import json
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import IO, Any, get_args

from backend.schemas import events
from backend.schemas.events import Event
from backend.schemas.prompt_cues import Cue
from backend.schemas.request import GenerationRequest
from backend.schemas.worker import CacheAction, WorkerFacts, WorkerStatus


@dataclass(frozen=True, kw_only=True)
class Run:
    """Tells a worker to start this job in this folder. It deletes the folder of an instant draft at the end."""

    job_id: str
    request: GenerationRequest
    folder: Path
    is_draft: bool = False


@dataclass(frozen=True, kw_only=True)
class Begin:
    """Tells a standby process to become a worker, load this preset's model and, with `warm_up`, compile its shapes ahead."""

    preset: str
    warm_up: bool


@dataclass(frozen=True, kw_only=True)
class Cancel:
    job_id: str


@dataclass(frozen=True, kw_only=True)
class AddCue:
    job_id: str
    cue: Cue


@dataclass(frozen=True, kw_only=True)
class ExpectModels:
    """Tells a worker which checkpoints' models the queued jobs need, the next job's model first. If `preset` is set, the worker
    must load the preset's model while the current job runs."""

    models: list[str]
    preset: str | None = None


@dataclass(frozen=True, kw_only=True)
class PrepareFor:
    """Tells an idle worker to prepare for a request that may be submitted soon."""

    request: GenerationRequest


@dataclass(frozen=True, kw_only=True)
class ManageModel:
    """Tells a worker to keep this checkpoint's model loaded, to stop keeping it loaded, or to unload it."""

    model: str
    how: CacheAction


@dataclass(frozen=True, kw_only=True)
class Stop:
    """Tells a worker to save its work and end."""


@dataclass(frozen=True, kw_only=True)
class ExitNow:
    """Tells a worker to end immediately."""


@dataclass(frozen=True, kw_only=True)
class Heartbeat:
    """Shows that a worker's process does not hang."""


@dataclass(frozen=True, kw_only=True)
class Status:
    status: WorkerStatus


@dataclass(frozen=True, kw_only=True)
class Facts:
    facts: WorkerFacts


@dataclass(frozen=True, kw_only=True)
class JobEvent:
    job_id: str
    event: Event


@dataclass(frozen=True, kw_only=True)
class Exiting:
    reason: str


@dataclass(frozen=True, kw_only=True)
class Decide:
    """Sends the first host's decision, a JSON value, to the other hosts."""

    what: str
    value: Any


@dataclass(frozen=True, kw_only=True)
class Gather:
    """Reports that a host's process waits at a barrier for the other hosts."""

    what: str
    value: str


@dataclass(frozen=True, kw_only=True)
class Gathered:
    """Tells every host that all hosts reached the barrier. `values` holds one value per host, in host order."""

    values: list[str]


@dataclass(frozen=True, kw_only=True)
class Hello:
    """Introduces a member to the first host: process `index` of `count`, with the versions of its software."""

    index: int
    count: int
    versions: dict[str, str] = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class Refused:
    reason: str


@dataclass(frozen=True, kw_only=True)
class Start:
    """Tells a member to start its process with these options. All processes connect to this port of the first host."""

    preset: str
    model: str | None
    warm_up: bool
    pipeline: str | None
    options: dict[str, float | None]
    port: int


@dataclass(frozen=True, kw_only=True)
class RunWithFiles:
    """Tells a member to start this job. The files follow the message: `names` are their paths in the job's folder, `inputs` the
    names of the request's inputs, by role."""

    job_id: str
    request: GenerationRequest
    inputs: dict[str, list[str]]
    names: list[str]
    is_draft: bool = False


@dataclass(frozen=True, kw_only=True)
class Exit:
    code: int


ToWorker = Begin | Run | Cancel | AddCue | ExpectModels | PrepareFor | ManageModel | Stop | ExitNow
FromWorker = Heartbeat | Status | Facts | JobEvent | Exiting
BetweenHosts = Decide | Gather | Gathered | Hello | Refused | Start | RunWithFiles | Exit
Message = ToWorker | FromWorker | BetweenHosts

_TYPES = {cls.__name__: cls for cls in get_args(Message)}
_CODECS = {  # (encoder, decoder) by field name; other fields are plain JSON
    "request": (GenerationRequest.to_json, GenerationRequest.from_stored),
    "folder": (str, Path),
    "cue": (Cue.model_dump, Cue.model_validate),
    "status": (asdict, lambda data: WorkerStatus(**data)),
    "facts": (WorkerFacts.to_json, WorkerFacts.from_json),
    "event": (lambda event: event.to_json(), events.from_json),
}


def encode_message(message: Message) -> dict[str, Any]:
    values = {field.name: getattr(message, field.name) for field in fields(message)}
    written = {name: _CODECS[name][0](value) if name in _CODECS else value for name, value in values.items()}
    return {"type": type(message).__name__} | written


def decode_message(data: dict[str, Any]) -> Message:
    """Invert `encode_message`. Raises: ValueError, TypeError or LookupError for other values."""
    values = {name: _CODECS[name][1](value) if name in _CODECS else value for name, value in data.items() if name != "type"}
    return _TYPES[data["type"]](**values)


class Channel:
    """One end of the pipes between the engine and its worker: one JSON object per line. Only one thread may receive."""

    def __init__(self, incoming: IO[bytes], outgoing: IO[bytes]):
        self._incoming, self._outgoing = incoming, outgoing
        self._lock = threading.Lock()

    def send(self, message: Message) -> bool:
        """Send one message. Return False if the other process has ended."""
        line = json.dumps(encode_message(message)).encode("ascii") + b"\n"
        with self._lock:
            try:
                self._outgoing.write(line)
                self._outgoing.flush()
            except (BrokenPipeError, ValueError):  # ValueError means that this side closed the pipe
                return False
        return True

    def receive(self) -> Iterator[Message]:
        """Yield the messages until the other process ends. Raises the exceptions of `decode_message` for an invalid line."""
        for line in self._incoming:
            if not line.endswith(b"\n"):
                return  # the other process died while it wrote the line
            yield decode_message(json.loads(line))

    def close(self) -> None:
        for stream in (self._outgoing, self._incoming):
            try:
                stream.close()
            except BrokenPipeError:
                pass  # the other process has ended, so unsent messages are lost
