"""A transformer's weights, on the devices or on the host, with LoRAs merged in. Merging and removing a LoRA read the affected
tensors from the checkpoint. Therefore no copy of the original tensors is needed, and no rounding errors remain.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import jax

from backend.schemas.events import Event
from backend.weights.host_offload import copy_to_devices, is_offloaded, move_to_host
from backend.weights.lora import ScaledLora, apply_loras
from backend.weights.read import LoadProgress, Part, checkpoint_shapes, load_stacked, write_stacked
from backend.weights.stacked import StackedWeights


class Expert:
    """One transformer. `weights` are the checkpoint's weights with `loras` merged. Offloaded weights are read and merged on the
    devices, by programs, then moved to the host.
    """

    def __init__(self, part: Part, described: StackedWeights, progress: LoadProgress, loras: Sequence[ScaledLora] = ()) -> None:
        self._part, self._described, self._is_offloaded = part, copy_to_devices(described), is_offloaded(described)
        self.shapes = checkpoint_shapes(described)
        self.loras: tuple[ScaledLora, ...] | None = tuple(loras)  # None if a merge was interrupted
        self._changed_names = _changed_tensors(loras)  # tensors that differ from the checkpoint
        weights = load_stacked(part, self._described, functools.partial(apply_loras, self.loras), progress)
        self.weights = move_to_host(weights) if self._is_offloaded else weights

    def merge(self, loras: Sequence[ScaledLora], on_event: Callable[[Event], None]) -> None:
        """Merge these LoRAs and remove all others. Do nothing if exactly these LoRAs are merged already. Raises: ModelError if a
        file is missing."""
        if tuple(loras) == self.loras:
            return
        touched = self._changed_names | _changed_tensors(loras)
        self._changed_names, self.loras = touched, None
        total = sum(self._part.places[name].num_bytes for name in touched)
        adjust = functools.partial(apply_loras, tuple(loras))
        # Wait for the copies: an unfinished copy would overwrite the values that `write_stacked` writes.
        weights = jax.block_until_ready(copy_to_devices(self.weights)) if self._is_offloaded else self.weights
        write_stacked(self._part, self._described, weights, touched, adjust, LoadProgress(total, on_event))
        self.weights = move_to_host(weights) if self._is_offloaded else weights
        self.loras = tuple(loras)
        self._changed_names = _changed_tensors(loras)


def _changed_tensors(loras: Sequence[ScaledLora]) -> set[str]:
    return {name for lora in loras for name in lora.file.changes}
