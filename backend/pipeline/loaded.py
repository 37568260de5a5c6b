"""A model with its weights on the devices."""

from __future__ import annotations

import dataclasses

from backend.families.family import Family, check_preset
from backend.families.model import Model, Weights
from backend.weights.expert import Expert
from presets import Preset


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A model with its weights. `experts` are its transformers, the high-noise one first; their weights are among `weights`.
    `source` is the folder or the Hub id that they came from."""

    source: str
    family: Family
    model: Model
    weights: Weights
    experts: tuple[Expert, ...]
    versions: dict[str, str]

    def check_preset(self, preset: Preset) -> None:
        """Raises: ModelError if the model is of another kind than the preset's."""
        check_preset(self.model.kind, preset, "that is loaded")
