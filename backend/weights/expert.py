"""A transformer's weights on the devices, with LoRAs merged in.

Merging reads the affected tensors from the checkpoint, changes them, and writes them to the devices. Removing a LoRA reads the
tensors from the checkpoint again. Therefore no copy of the original tensors is needed, and removed LoRAs leave no rounding
errors.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from backend.schemas.events import Event
from backend.weights.lora import ScaledLora, apply_loras
from backend.weights.read import LoadProgress, Part, checkpoint_shapes, load_stacked, write_stacked
from backend.weights.stacked import StackedWeights


class Expert:
    """One transformer. `weights` are the checkpoint's weights with `loras` merged."""

    def __init__(self, part: Part, described: StackedWeights, progress: LoadProgress, loras: Sequence[ScaledLora] = ()) -> None:
        self._part, self._described = part, described
        self.shapes = checkpoint_shapes(described)
        self.loras: tuple[ScaledLora, ...] | None = tuple(loras)  # None if a merge was interrupted
        self._changed_names = _changed_tensors(loras)  # tensors that differ from the checkpoint
        self.weights = load_stacked(part, described, functools.partial(apply_loras, self.loras), progress)

    def merge(self, loras: Sequence[ScaledLora], on_event: Callable[[Event], None]) -> None:
        """Merge these LoRAs and remove all others. Do nothing if exactly these LoRAs are merged already.

        Raises: ModelError if a file is missing.
        """
        if tuple(loras) == self.loras:
            return
        touched = self._changed_names | _changed_tensors(loras)
        self._changed_names, self.loras = touched, None
        total = sum(self._part.places[name].num_bytes for name in touched)
        adjust = functools.partial(apply_loras, tuple(loras))
        write_stacked(self._part, self._described, self.weights, touched, adjust, LoadProgress(total, on_event))
        self.loras = tuple(loras)
        self._changed_names = _changed_tensors(loras)


def _changed_tensors(loras: Sequence[ScaledLora]) -> set[str]:
    """Return the names of the tensors that these LoRAs change."""
    return {name for lora in loras for name in lora.file.changes}
