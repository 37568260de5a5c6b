"""A model with its weights on the devices."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from backend.models.model import Model, Weights
from backend.models.spec import Family
from backend.runtime.context import RuntimeContext
from backend.weights.cached_network import CachedNetwork
from backend.weights.expert import Expert


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A model with its weights, whose networks, by part of the checkpoint, other models may share. `source` is the folder or Hub
    id of the checkpoint. `reserve_program_memory` is the method of the `ModelCache` that holds this model."""

    source: str
    family: Family
    model: Model
    networks: Mapping[str, CachedNetwork]
    versions: dict[str, str]
    reserve_program_memory: Callable[[LoadedModel, Callable[[], int]], None]
    runtime: RuntimeContext

    @property
    def weights(self) -> Weights:
        return {part: network.weights for part, network in self.networks.items()}

    @property
    def experts(self) -> tuple[Expert, ...]:
        """The transformers, the high-noise expert first."""
        return tuple(network.expert for network in self.networks.values() if network.expert is not None)
