"""A transformer's weights on the devices, with LoRAs merged in, and exactly without them again.

Merging reads the tensors that change from the checkpoint and writes them changed; taking a LoRA away reads them once more. So
no copy of the originals is kept, and rounding leaves no trace of what was merged before.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from backend.contract.events import Event
from backend.weights.lora import ScaledLora, adjusted
from backend.weights.read import Part, Progress, checkpoint_shapes, load_stacked, write_stacked
from backend.weights.stacked import StackedWeights


class Expert:
    """One transformer. `weights` are those of the checkpoint with `loras` merged."""

    def __init__(self, part: Part, described: StackedWeights, progress: Progress, loras: Sequence[ScaledLora] = ()) -> None:
        self._part, self._described = part, described
        self.shapes = checkpoint_shapes(described)
        self.loras: tuple[ScaledLora, ...] | None = tuple(loras)  # None where merging was broken off
        self._dirty = _changed(loras)  # tensors that are not the checkpoint's own
        self.weights = load_stacked(part, described, functools.partial(adjusted, self.loras), progress)

    def merge(self, loras: Sequence[ScaledLora], on_event: Callable[[Event], None]) -> None:
        """Merge these LoRAs and no others; nothing is done where that is so. Raises: ModelError where a file has gone."""
        if tuple(loras) == self.loras:
            return
        touched = self._dirty | _changed(loras)
        self._dirty, self.loras = touched, None
        total = sum(self._part.places[name].num_bytes for name in touched)
        adjust = functools.partial(adjusted, tuple(loras))
        write_stacked(self._part, self._described, self.weights, touched, adjust, Progress(total, on_event))
        self.loras = tuple(loras)
        self._dirty = _changed(loras)


def _changed(loras: Sequence[ScaledLora]) -> set[str]:
    """The tensors that any of these changes."""
    return {name for lora in loras for name in lora.file.changes}
