"""What a worker reports about itself: its state, its devices and their memory, its model, the shapes that are compiled; and the
options that it starts with, its hosts if it is spread over several."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter

from backend.schemas.events import Rate
from backend.schemas.shape import Shape

WorkerState = Literal["starting", "loading", "warming", "ready", "busy", "failed"]


@dataclass(frozen=True, kw_only=True)
class Device:
    """One device as JAX names it. Bytes are None if the device does not report them."""

    name: str
    kind: str
    bytes_in_use: int | None = None
    bytes_limit: int | None = None


@dataclass(frozen=True, kw_only=True)
class UnusedAccelerator:
    """A sentence about an accelerator that is here and not used: what was found, and the one command or step that mends it.
    `is_fault` is False where it was so chosen."""

    found: str
    mend: str = ""
    is_fault: bool = True

    def __str__(self) -> str:
        return f"{self.found}; {self.mend}" if self.mend else self.found


CacheAction = Literal["pin", "unpin", "drop"]
"""What the operator may ask for a kept model."""


@dataclass(frozen=True, kw_only=True)
class CachedModel:
    """A model that a worker keeps: its bytes on all devices together and in the host's memory, those that it shares with others
    among them. The operator may have it `is_pinned`, to go last."""

    model: str
    chip_bytes: int
    host_bytes: int
    is_pinned: bool = False

    @property
    def is_on_chips(self) -> bool:
        """Whether nothing of it has to be brought back."""
        return self.host_bytes == 0


@dataclass(frozen=True, kw_only=True)
class WorkerFacts:
    """Sent after a model is loaded, after each job, and if the devices cannot be had. `model` is the one in use, None while none
    is loaded; `kept` are all that the worker keeps, the one used last first, and `kept_bytes` what they take on the devices and
    in the host's memory, what they share counted once. `refused` says, a sentence each, what the devices or their compiler do not
    take, so that the worker does without it; `notice` is None where every accelerator is used; `rates` are those of the last
    video, by stage."""

    devices: tuple[Device, ...] = ()
    model: str | None = None
    kept: tuple[CachedModel, ...] = ()
    kept_bytes: tuple[int, int] = (0, 0)
    warm: frozenset[Shape] = field(default_factory=frozenset)
    versions: dict[str, str] = field(default_factory=dict)
    refused: tuple[str, ...] = ()
    notice: UnusedAccelerator | None = None
    rates: dict[str, Rate] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Plain values, for `from_json`."""
        return _FACTS.dump_python(self, mode="json")

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "WorkerFacts":
        """The facts that `to_json` wrote."""
        return _FACTS.validate_python(data)


_FACTS = TypeAdapter(WorkerFacts)


@dataclass(frozen=True, kw_only=True)
class WorkerStatus:
    """What the worker is doing now, with a sentence for the user."""

    state: WorkerState
    detail: str


@dataclass(frozen=True, kw_only=True)
class WorkerView:
    """One worker as others see it: the job that it has, its log and its process id, None if there is none.

    `is_fit` is False for one that has failed, or died and not been ready since; `num_cores` is its share of them, 0: all.
    `machine` is that of a cluster which it is on, for the operator; "": this one. `standby` is the id of the process that would
    take its place, None if there is none.
    """

    name: str
    status: WorkerStatus
    facts: WorkerFacts
    job_id: str | None = None
    log: Path | None = None
    pid: int | None = None
    is_fit: bool = True
    num_cores: int = 0
    machine: str = ""
    standby: int | None = None

    @property
    def device_kind(self) -> str:
        """What its runs are filed under, such as "4 TPU v6 lite" or "cpu, cores: 1"; "" while its devices are not known."""
        counts = Counter(device.kind for device in self.facts.devices)
        kinds = " + ".join(kind if count == 1 else f"{count} {kind}" for kind, count in sorted(counts.items()))
        return f"{kinds}, cores: {self.num_cores}" if kinds and self.num_cores else kinds


_SUMMARY: tuple[WorkerState, ...] = ("busy", "ready", "warming", "loading", "starting", "failed")


def summarize_status(workers: Sequence[WorkerView]) -> WorkerStatus:
    """The status of the worker that is farthest: "failed" only if all have failed. Without any, one is expected."""
    if not workers:
        return WorkerStatus(state="starting", detail="Waiting for a cluster node")
    return min((worker.status for worker in workers), key=lambda status: _SUMMARY.index(status.state))


AXES = ("dp", "sp", "tp")
"""The axes of the mesh of devices, see `backend.runtime.mesh`."""


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """How a worker uses its devices: sizes of the mesh's axes (None: the studio chooses) and a folder of precompiled programs.
    Into the folder `profile`, if any, it writes traces of each video's denoising steps `profile_steps`, such as "3-5". Of models
    that are not in use it keeps so many gigabytes on the devices and in the host's memory; None: it chooses."""

    dp: int | None = None
    sp: int | None = None
    tp: int | None = None
    executables: Path | None = None
    profile: Path | None = None
    profile_steps: str | None = None
    resident_chips_gb: float | None = None
    resident_host_gb: float | None = None

    @property
    def mesh(self) -> dict[str, int | None]:
        """The sizes of the mesh's axes by name."""
        return {axis: getattr(self, axis) for axis in AXES}

    def words(self) -> list[str]:
        """As options of the worker's command line."""
        given = [(field.name, getattr(self, field.name)) for field in fields(self)]
        return [word for name, value in given if value is not None for word in (f"--{name.replace('_', '-')}", str(value))]


@dataclass(frozen=True, kw_only=True)
class Hosts:
    """A worker that is one process on each of `count` hosts, this one included. At `address`, on `port`, this one waits for the
    others, who know the same `secret`; on the next port the processes meet."""

    count: int
    address: str
    port: int
    secret: str = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class HostPlace:
    """Which of `count` processes one is, from 0, and where they meet: `coordinator` as it is reached, HOST:PORT, and as the first
    listens there."""

    index: int
    count: int
    coordinator: str
    bind: str | None = None

    def words(self) -> list[str]:
        """As options of the worker's command line."""
        bind = ["--bind", self.bind] if self.bind else []
        return ["--host-index", str(self.index), "--hosts", str(self.count), "--coordinator", self.coordinator, *bind]
