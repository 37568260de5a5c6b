"""The reports of a worker (state, devices, memory, models, compiled shapes) and the options with which it starts."""

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
    """A device, with the name and kind that JAX reports. Not all devices report their memory."""

    name: str
    kind: str
    bytes_in_use: int | None = None
    bytes_limit: int | None = None


@dataclass(frozen=True, kw_only=True)
class UnusedAccelerator:
    """An accelerator that this machine has but does not use. `fix` is the command or step after which the machine uses it.
    `is_fault` is False if the user chose not to use it."""

    found: str
    fix: str = ""
    is_fault: bool = True

    def __str__(self) -> str:
        return f"{self.found}; {self.fix}" if self.fix else self.found


CacheAction = Literal["pin", "unpin", "drop"]
"""The operator's actions on a cached model."""


@dataclass(frozen=True, kw_only=True)
class CachedModel:
    """A model that a worker keeps in memory. `chip_bytes` (on all devices together) and `host_bytes` include networks that other
    models share. Pinned models are unloaded last."""

    model: str
    chip_bytes: int
    host_bytes: int
    is_pinned: bool = False


@dataclass(frozen=True, kw_only=True)
class WorkerFacts:
    """Facts that a worker sends after it loads a model, after each job, and if the devices cannot be used.

    `cached_models` has the last used model first. `cached_bytes` are the bytes of all cached models on all devices together, and
    on the host; shared networks count once. `refused` has a sentence for each kernel or compile option that the devices or the
    compiler refused and the worker replaced. `rates` are the speeds of the last video by stage. `can_prepare` is True if the idle
    worker can load models and compile programs ahead. `notice` reports an unused accelerator.
    """

    devices: tuple[Device, ...] = ()
    model: str | None = None
    cached_models: tuple[CachedModel, ...] = ()
    cached_bytes: tuple[int, int] = (0, 0)
    warm: frozenset[Shape] = field(default_factory=frozenset)
    versions: dict[str, str] = field(default_factory=dict)
    refused: tuple[str, ...] = ()
    notice: UnusedAccelerator | None = None
    rates: dict[str, Rate] = field(default_factory=dict)
    can_prepare: bool = False

    def to_json(self) -> dict[str, object]:
        return _FACTS.dump_python(self, mode="json")

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "WorkerFacts":
        return _FACTS.validate_python(data)


_FACTS = TypeAdapter(WorkerFacts)


@dataclass(frozen=True, kw_only=True)
class WorkerStatus:
    """`detail` is a sentence for the user."""

    state: WorkerState
    detail: str


@dataclass(frozen=True, kw_only=True)
class WorkerView:
    """A worker as the studio shows it. `is_healthy` is False if the worker failed, or if its process ended and no new process is
    ready yet. `num_cores` is the worker's share of the processor cores; 0 means all cores. `machine` is the cluster node of the
    worker, shown to the operator; "" means this machine. `standby_pid` is the id of the waiting process that replaces the
    worker's process when it ends."""

    name: str
    status: WorkerStatus
    facts: WorkerFacts
    job_id: str | None = None
    log: Path | None = None
    pid: int | None = None
    is_healthy: bool = True
    num_cores: int = 0
    machine: str = ""
    standby_pid: int | None = None

    @property
    def device_kind(self) -> str:
        """The devices in stored timings, such as "4 TPU v6 lite" or "cpu, cores: 1". "" while they are unknown."""
        counts = Counter(device.kind for device in self.facts.devices)
        kinds = " + ".join(kind if count == 1 else f"{count} {kind}" for kind, count in sorted(counts.items()))
        return f"{kinds}, cores: {self.num_cores}" if kinds and self.num_cores else kinds


_SUMMARY: tuple[WorkerState, ...] = ("busy", "ready", "warming", "loading", "starting", "failed")


def summarize_status(workers: Sequence[WorkerView]) -> WorkerStatus:
    """The state is "failed" only if all workers have failed. Without workers, it is "starting"."""
    if not workers:
        return WorkerStatus(state="starting", detail="Waiting for a cluster node")
    return min((worker.status for worker in workers), key=lambda status: _SUMMARY.index(status.state))


AXES = ("dp", "sp", "tp")
"""The axes of the device mesh, see `backend.runtime.mesh`."""


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """Options of a worker: the sizes of the mesh axes, and a folder of precompiled programs. None: chosen automatically. If
    `profile` is a folder, traces of the denoising steps `profile_steps`, such as "3-5", are written there for each video.
    `resident_chips_gb` and `resident_host_gb` limit the memory for cached models on the devices and on the host."""

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
        return {axis: getattr(self, axis) for axis in AXES}

    def to_arguments(self) -> list[str]:
        given = [(field.name, getattr(self, field.name)) for field in fields(self)]
        return [word for name, value in given if value is not None for word in (f"--{name.replace('_', '-')}", str(value))]


@dataclass(frozen=True, kw_only=True)
class Hosts:
    """The hosts of one worker: `count` hosts, including this host, each with one process. This host listens on `address` and
    `port` for the other hosts, which must know the same `secret`. The processes start JAX's own connection on `port` + 1."""

    count: int
    address: str
    port: int
    secret: str = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class HostPlace:
    """One of the `count` processes of a worker, one on each host. `index` counts from 0. `coordinator` is the address HOST:PORT
    at which the other processes reach the first process. `bind` is the address at which the first process listens."""

    index: int
    count: int
    coordinator: str
    bind: str | None = None

    def to_arguments(self) -> list[str]:
        bind = ["--bind", self.bind] if self.bind else []
        return ["--host-index", str(self.index), "--hosts", str(self.count), "--coordinator", self.coordinator, *bind]
