"""A model with its weights on the devices."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Protocol

from backend.models.model import Model, Weights
from backend.models.spec import Family, check_preset
from backend.weights.cached_network import CachedNetwork
from backend.weights.expert import Expert
from presets import Preset


class ModelCache(Protocol):
    """What a run asks of the kept models; see `backend.pipeline.model_cache`."""

    @property
    def knows_devices(self) -> bool:
        """Whether what programs need is of interest."""

    def reserve_program_memory(self, loaded: LoadedModel, needed: int) -> None:
        """Programs of this model are about to run, which take so many bytes of each device beside its weights."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A model with its weights: its `networks` by the checkpoint's part, which other models may share. `source` is the folder or
    the Hub id that they came from; `model_cache` are the models that the worker keeps beside it, None if it keeps none."""

    source: str
    family: Family
    model: Model
    networks: Mapping[str, CachedNetwork]
    versions: dict[str, str]
    model_cache: ModelCache | None = None

    @property
    def weights(self) -> Weights:
        """The networks' arrays."""
        return {part: network.weights for part, network in self.networks.items()}

    @property
    def experts(self) -> tuple[Expert, ...]:
        """Its transformers, the high-noise one first."""
        return tuple(network.expert for network in self.networks.values() if network.expert is not None)

    def check_preset(self, preset: Preset) -> None:
        """Raises: ModelError if the model is of another kind than the preset's."""
        check_preset(self.model.kind, preset, "that is loaded")
