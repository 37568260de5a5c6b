"""Arithmetic that one guided step needs, and the least time it can take on a slice."""

from __future__ import annotations

import dataclasses

from backend.architecture import Architecture
from backend.tpu.chips import Chip

TEXT_TOKENS = 512


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepFlops:
    """Floating-point operations of one denoising step, all branches together; a multiplication and an addition are two."""

    attention: float
    matmul: float

    @property
    def total(self) -> float:
        return self.attention + self.matmul

    def roofline_seconds(self, chip: Chip, num_devices: int) -> float:
        """At the peak rate throughout."""
        return self.total / chip.peak_flops / num_devices

    def floor_seconds(self, chip: Chip, num_devices: int, head_width: int) -> float:
        """With scores at the rate that a contraction over `head_width` allows where the matrix unit is 256 deep."""
        slowdown = 1.0 + 0.5 * (_matrix_depth(chip) / min(head_width, _matrix_depth(chip)) - 1)
        return (self.attention * slowdown + self.matmul) / chip.peak_flops / num_devices


def _matrix_depth(chip: Chip) -> int:
    return 256 if chip.name in ("v6e", "tpu7x") else 128


def step_flops(architecture: Architecture, num_tokens: int, branches: int) -> StepFlops:
    """Of one transformer call a branch: self-attention, cross-attention to 512 text positions, projections, feed-forward."""
    config = architecture.transformer
    width = config["num_attention_heads"] * config["attention_head_dim"]
    layers = config["num_layers"] * branches
    attention = 4 * num_tokens**2 * width * layers
    cross = 4 * num_tokens * TEXT_TOKENS * width * layers
    projections = 2 * num_tokens * width * width * 6 * layers
    feed_forward = 2 * num_tokens * width * config["ffn_dim"] * 2 * layers
    return StepFlops(attention=attention, matmul=cross + projections + feed_forward)
