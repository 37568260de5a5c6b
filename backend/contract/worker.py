"""What the worker reports about itself: its state, its devices and their memory, its model, the shapes that are compiled; and the
options that it starts with."""

from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, Self

from backend.contract.shape import Shape

WorkerState = Literal["starting", "loading", "warming", "ready", "busy", "failed"]


@dataclass(frozen=True, kw_only=True)
class Device:
    """One device as JAX names it. Bytes are None if the device does not report them."""

    name: str
    kind: str
    bytes_in_use: int | None = None
    bytes_limit: int | None = None


@dataclass(frozen=True, kw_only=True)
class WorkerFacts:
    """Sent after a model is loaded and after each job. `model` is None while none is loaded."""

    devices: tuple[Device, ...] = ()
    model: str | None = None
    warm: frozenset[Shape] = field(default_factory=frozenset)
    versions: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Plain values, for `from_json`."""
        return {
            "devices": [asdict(device) for device in self.devices],
            "model": self.model,
            "warm": [shape.to_json() for shape in self.warm],
            "versions": self.versions,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """The facts that `to_json` wrote."""
        return cls(
            devices=tuple(Device(**device) for device in data["devices"]),
            model=data["model"],
            warm=frozenset(Shape.from_json(shape) for shape in data["warm"]),
            versions=data["versions"],
        )


@dataclass(frozen=True, kw_only=True)
class WorkerStatus:
    """What the worker is doing now, with a sentence for the user."""

    state: WorkerState
    detail: str


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """How a worker uses its devices: sizes of the mesh's axes (None: the studio chooses) and a folder of precompiled programs."""

    dp: int | None = None
    sp: int | None = None
    tp: int | None = None
    executables: Path | None = None

    def words(self) -> list[str]:
        """As options of the worker's command line."""
        given = [(field.name, getattr(self, field.name)) for field in fields(self)]
        return [word for name, value in given if value is not None for word in (f"--{name}", str(value))]
