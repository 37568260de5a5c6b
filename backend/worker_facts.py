"""What the worker tells of itself besides its state: devices and their memory, the model, the shapes that are compiled."""

from dataclasses import asdict, dataclass, field
from typing import Any, Self

from backend.shapes import Shape


@dataclass(frozen=True, kw_only=True)
class Device:
    """One device as JAX names it. Bytes are None where the device does not tell."""

    name: str
    kind: str
    bytes_in_use: int | None = None
    bytes_limit: int | None = None


@dataclass(frozen=True, kw_only=True)
class WorkerFacts:
    """Sent after a model was loaded and after each job. `model` is None while none is loaded."""

    devices: tuple[Device, ...] = ()
    model: str | None = None
    warm: frozenset[Shape] = field(default_factory=frozenset)
    versions: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Plain values, for `from_json`."""
        return {
            "devices": [asdict(device) for device in self.devices], "model": self.model,
            "warm": [shape.to_json() for shape in self.warm], "versions": self.versions,
        }  # fmt: skip

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """The facts that `to_json` wrote."""
        return cls(
            devices=tuple(Device(**device) for device in data["devices"]), model=data["model"],
            warm=frozenset(Shape.from_json(shape) for shape in data["warm"]), versions=data["versions"],
        )  # fmt: skip
