"""What the engine, its workers, and the hosts of one worker say to each other: frozen values, and their one JSON form."""

from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, get_args

from backend.schemas import events
from backend.schemas.events import Event
from backend.schemas.prompt_cues import Cue
from backend.schemas.request import GenerationRequest
from backend.schemas.worker import CacheAction, WorkerFacts, WorkerStatus


@dataclass(frozen=True, kw_only=True)
class Run:
    """To a worker: begin this job, whose files are in this folder."""

    job_id: str
    request: GenerationRequest
    folder: Path


@dataclass(frozen=True, kw_only=True)
class Begin:
    """To a process that stands by: become a worker that loads this preset's model first, and compiles its shapes ahead or not."""

    preset: str
    warm_up: bool


@dataclass(frozen=True, kw_only=True)
class Cancel:
    """To a worker: stop this job."""

    job_id: str


@dataclass(frozen=True, kw_only=True)
class AddCue:
    """To a worker: follow this cue in an open video."""

    job_id: str
    cue: Cue


@dataclass(frozen=True, kw_only=True)
class ExpectModels:
    """To a worker: jobs in line need the models of these checkpoints, the next first. That of the `preset`, if one is named, is
    to come while the present job is being made."""

    models: list[str]
    preset: str | None = None


@dataclass(frozen=True, kw_only=True)
class PrepareFor:
    """To a worker without a job: somebody may want this soon."""

    request: GenerationRequest


@dataclass(frozen=True, kw_only=True)
class ManageModel:
    """To a worker: this checkpoint's model is to stay, or no longer, or is to be dropped."""

    model: str
    how: CacheAction


@dataclass(frozen=True, kw_only=True)
class Stop:
    """To a worker: save the work and end."""


@dataclass(frozen=True, kw_only=True)
class ExitNow:
    """To a worker: end at once."""


@dataclass(frozen=True, kw_only=True)
class Heartbeat:
    """A sign of life."""


@dataclass(frozen=True, kw_only=True)
class Status:
    """From a worker: what it is doing now."""

    status: WorkerStatus


@dataclass(frozen=True, kw_only=True)
class Facts:
    """From a worker: its devices, its model, and what it has compiled."""

    facts: WorkerFacts


@dataclass(frozen=True, kw_only=True)
class JobEvent:
    """From a worker: what has happened to this job."""

    job_id: str
    event: Event


@dataclass(frozen=True, kw_only=True)
class Exiting:
    """From a worker: it is about to end, for this reason."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class Decide:
    """From the first host's process to the others: its decision, a JSON value."""

    what: str
    value: Any


@dataclass(frozen=True, kw_only=True)
class Gather:
    """From each host's process: it waits for the others."""

    what: str
    value: str


@dataclass(frozen=True, kw_only=True)
class Gathered:
    """To each host's process: all have come, with these values, in the order of the hosts."""

    values: list[str]


@dataclass(frozen=True, kw_only=True)
class Hello:
    """From a member to the first host: process `index` of `count`, with its versions by name."""

    index: int
    count: int
    versions: dict[str, str] = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class Refused:
    """To a member: why it cannot take part."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class Start:
    """To a member: start a process as the first host does, with these of its `WorkerOptions`; all processes meet at this port of
    the first host."""

    preset: str
    model: str | None
    warm_up: bool
    pipeline: str | None
    options: dict[str, float | None]
    port: int


@dataclass(frozen=True, kw_only=True)
class RunWithFiles:
    """To a member: begin this job, with the files that follow. `names` are theirs in the job's folder; `inputs` are the names of
    the request's inputs, by role."""

    job_id: str
    request: GenerationRequest
    inputs: dict[str, list[str]]
    names: list[str]


@dataclass(frozen=True, kw_only=True)
class Exit:
    """From a member: its process has ended, with this code."""

    code: int


ToWorker = Begin | Run | Cancel | AddCue | ExpectModels | PrepareFor | ManageModel | Stop | ExitNow
FromWorker = Heartbeat | Status | Facts | JobEvent | Exiting
BetweenHosts = Decide | Gather | Gathered | Hello | Refused | Start | RunWithFiles | Exit
Message = ToWorker | FromWorker | BetweenHosts

_TYPES = {cls.__name__: cls for cls in get_args(Message)}
_CODECS = {  # how the fields of these names are written and read; all others are plain JSON
    "request": (GenerationRequest.to_json, GenerationRequest.from_stored),
    "folder": (str, Path),
    "cue": (Cue.model_dump, Cue.model_validate),
    "status": (asdict, lambda data: WorkerStatus(**data)),
    "facts": (WorkerFacts.to_json, WorkerFacts.from_json),
    "event": (lambda event: event.to_json(), events.from_json),
}


def encode(message: Message) -> dict[str, Any]:
    """The message in plain values, for `decode`."""
    values = {field.name: getattr(message, field.name) for field in fields(message)}
    written = {name: _CODECS[name][0](value) if name in _CODECS else value for name, value in values.items()}
    return {"type": type(message).__name__} | written


def decode(data: dict[str, Any]) -> Message:
    """The message that `encode` wrote. Raises: ValueError, TypeError or LookupError for anything else."""
    values = {name: _CODECS[name][1](value) if name in _CODECS else value for name, value in data.items() if name != "type"}
    return _TYPES[data["type"]](**values)
