"""Cycles of the project's Pallas kernels on a chip. XLA's cost model has no estimates for these kernels."""

from __future__ import annotations

import dataclasses
import math
import re

from backend.chips import Chip
from backend.models.model import AttentionLengths
from backend.tpu_analysis.hlo_cost import Instruction, largest_bytes
from kernels.attention import bundles_a_tile, predicted_bundles

KERNEL_CHIP = {"v5e": "v5e", "v5p": "v5p", "v6e": "v6e", "tpu7x": "v7x"}
# CONVOLUTION_CYCLES: the cycles of `kernels.causal_conv`, divided by the cycles of its matrix products in whole tiles.
# ELEMENT_CYCLES: the kernel's additional cycles for each normalised element.
# Both are measured in libtpu's schedules of six shapes for v6e (docs/lab/tpu-kernels.md).
CONVOLUTION_CYCLES, ELEMENT_CYCLES = 1.1, 3 / 1024
# Maps kernels of block-sparse attention to a kind of operation and to the cycles for each operation of this kind. The cost
# estimate of the kernel's Pallas call has the number of operations. The cycles are measured in libtpu's schedules for v6e
# (docs/lab/tpu-kernels.md).
SPARSE_CYCLES = {
    "block_sparse_short_": ("flops", 3.56 / (1024 * 4 * 128)),
    "block_sparse_looped_": ("flops", 2.95 / (1024 * 4 * 128)),  # Sol-Attn: lists with 15 % of the key blocks, and block means
    "block_sparse_": ("flops", 2.52 / (1024 * 4 * 128)),
    "sum_linear_attention": ("transcendentals", 0.0071),
    "add_linear_attention": ("transcendentals", 0.0088),
    "largest_scores": ("flops", 0.0018),
}
_ESTIMATE = re.compile(r'"(flops|transcendentals|bytes_accessed)":"?(\d+)')


@dataclasses.dataclass(frozen=True, kw_only=True)
class KernelCost:
    """A function that returns the cycles of a Pallas call on one device.

    An attention kernel needs one cycle for each instruction bundle of its static schedule. The table of block sizes has the
    number of bundles for tuned shapes. For other shapes, the number is estimated from the number of score tiles (8 x 128). On v5e
    and v5p, this time can be below the time of the matrix products at the chip's peak. Then the longer time counts.

    Memory traffic limits the passes around the attention. Their time is the number of moved bytes divided by the bandwidth of the
    HBM. The number of moved bytes is the call's own estimate. Without an estimate, it is twice the number of bytes that the pass
    writes.
    """

    chip: Chip
    lengths: AttentionLengths | None

    def __call__(self, instruction: Instruction) -> float:
        lengths = self.lengths
        estimate = {name: int(value) for name, value in _ESTIMATE.findall(instruction.text)}
        if "causal_conv" in instruction.text:
            return self._convolution(estimate)
        sparse = next((costs for name, costs in SPARSE_CYCLES.items() if name in instruction.text), None)
        if sparse is not None:
            kind, cycles = sparse
            moved = estimate["bytes_accessed"] / self.chip.hbm_bytes_per_second * self.chip.clock_hz
            return max(estimate[kind] * cycles, moved)
        if "attention_" not in instruction.text:
            moved = estimate.get("bytes_accessed") or 2 * largest_bytes(instruction.shape)
            return moved / self.chip.hbm_bytes_per_second * self.chip.clock_hz
        form = "constant" if "attention_constant" in instruction.text else "online"
        if "/cond/" in instruction.text or form == "constant":
            frame, heads = lengths.beside or (0, 0)
            # The attention to a driving video's frames has the shape [frames, tokens of a frame, width]
            if frame and f",{frame}," in instruction.shape.partition("]")[0]:
                return self._attention(frame, frame, heads, form)
            return self._attention(lengths.queries, lengths.keys, lengths.heads * lengths.batch, form)
        return self._attention(lengths.text_queries, lengths.text, lengths.text_heads * lengths.batch, "online")

    def _convolution(self, estimate: dict[str, int]) -> float:
        """Return the larger of two numbers of cycles: for a convolution's arithmetic and for its memory traffic.

        Both are computed from the call's own cost estimate.
        """
        products = CONVOLUTION_CYCLES * estimate["flops"] / self.chip.peak_flops * self.chip.clock_hz
        moved = estimate["bytes_accessed"] / self.chip.hbm_bytes_per_second * self.chip.clock_hz
        return max(products + ELEMENT_CYCLES * estimate["transcendentals"], moved)

    def _attention(self, queries: int, keys: int, heads: int, form: str) -> float:
        chip = KERNEL_CHIP[self.chip.name]
        bundles = predicted_bundles(chip, queries, keys, heads, form)
        if bundles is None:
            bundles = math.ceil(queries / 8) * math.ceil(keys / 128) * heads * bundles_a_tile(chip, form)
        flops = 4 * queries * keys * heads * self.lengths.head_width
        return max(bundles, flops / self.chip.peak_flops * self.chip.clock_hz)
