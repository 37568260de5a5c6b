"""Facts about TPU chips, from Google Cloud's public TPU pages (cloud.google.com/tpu/docs/v5e, v5p, v6e, tpu7x), per jax device.

A v7x chip appears as two jax devices, so each device has half of the chip's figures. The pages do not state clock rates. The
clock rates here follow from the published peak and the size of the matrix units, and agree with the compiler's cycle counts.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

GIB = 2**30


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chip:
    """The figures of one jax device. `interconnect_bytes_per_second` is the sum of all links, in one direction.

    `peak_flops` is the rate of bfloat16 products. Products of `fast_format` run at twice this rate.
    """

    name: str
    hbm_bytes: int
    peak_flops: float
    clock_hz: float
    hbm_bytes_per_second: float
    interconnect_bytes_per_second: float
    fast_format: Literal["int8", "fp8"]


CHIPS = {
    "v5e": Chip(name="v5e", hbm_bytes=16 * GIB, peak_flops=197e12, clock_hz=1.5e9, hbm_bytes_per_second=819e9,
                interconnect_bytes_per_second=1600e9 / 8 / 2, fast_format="int8"),
    "v5p": Chip(name="v5p", hbm_bytes=95 * GIB, peak_flops=459e12, clock_hz=1.75e9, hbm_bytes_per_second=2765e9,
                interconnect_bytes_per_second=4800e9 / 8 / 2, fast_format="int8"),
    "v6e": Chip(name="v6e", hbm_bytes=32 * GIB, peak_flops=918e12, clock_hz=1.75e9, hbm_bytes_per_second=1640e9,
                interconnect_bytes_per_second=3584e9 / 8 / 2, fast_format="int8"),
    "tpu7x": Chip(name="tpu7x", hbm_bytes=96 * GIB, peak_flops=2307e12 / 2, clock_hz=2.2e9, hbm_bytes_per_second=7380e9 / 2,
                  interconnect_bytes_per_second=9600e9 / 8 / 2 / 2, fast_format="fp8"),
}  # fmt: skip

DEVICE_KINDS = {
    "TPU v5 lite": "v5e", "TPU v5e": "v5e", "TPU v5": "v5p", "TPU v5p": "v5p", "TPU v6 lite": "v6e", "TPU v6e": "v6e",
    "TPU7x": "tpu7x", "TPU v7x": "tpu7x",
}  # fmt: skip

TOPOLOGIES = ("v5e:2x4", "v5p:2x2x2", "v6e:1x1", "v6e:2x2", "v6e:2x4", "v6e:4x4", "tpu7x:2x2x1")
"""The slices with which `check-tpu` is tested. The compiler supports more."""


_SQUARES = {"1x1": 1, "2x2": 4, "2x4": 8, "4x4": 16}
SLICES = {"v5e": _SQUARES, "v6e": _SQUARES, "v5p": {"2x2x1": 4, "2x2x2": 8, "2x2x4": 16}, "tpu7x": {"2x2x1": 8, "2x2x2": 16}}
"""The larger slices that `check-tpu` tries for a preset that does not fit: shape and number of jax devices, smallest first."""


def chip_of(topology: str) -> Chip:
    """Return the chip of a topology such as "v6e:2x4". Raises: KeyError for an unknown chip."""
    return CHIPS[topology.partition(":")[0]]


def memory_bytes(device_kind: str) -> int | None:
    """Return the bytes of HBM of a jax device by its `device_kind`, None if it is not a known TPU."""
    name = DEVICE_KINDS.get(device_kind)
    return None if name is None else CHIPS[name].hbm_bytes


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepFlops:
    """Floating-point operations of one denoising step, for all guidance branches. A multiply-add counts as two.

    `attention` counts the operations of attention, whose heads have `head_width` channels. `matmul` counts all other operations.
    `quantized` counts the part of `matmul` whose operands have the number format `format`.
    """

    attention: float
    matmul: float
    head_width: int
    quantized: float = 0.0
    format: Literal["off", "int8", "fp8"] = "off"

    @property
    def total(self) -> float:
        return self.attention + self.matmul

    def roofline_seconds(self, chip: Chip, num_devices: int) -> float:
        """Return the seconds of a step if all operations run at the peak rate."""
        return self.attention / chip.peak_flops / num_devices + self.matmul_seconds(chip, num_devices)

    def matmul_seconds(self, chip: Chip, num_devices: int) -> float:
        """Return the seconds of the operations in `matmul` at the peak rate of their number formats."""
        saved = self.quantized / 2 if self.format == chip.fast_format else 0.0
        return (self.matmul - saved) / chip.peak_flops / num_devices

    def floor_seconds(self, chip: Chip, num_devices: int) -> float:
        """Return the seconds of a step if attention runs at the lower rate that `head_width` allows on the matrix unit."""
        slowdown = 1.0 + 0.5 * (_matrix_depth(chip) / min(self.head_width, _matrix_depth(chip)) - 1)
        return self.attention * slowdown / chip.peak_flops / num_devices + self.matmul_seconds(chip, num_devices)


def _matrix_depth(chip: Chip) -> int:
    return 256 if chip.name in ("v6e", "tpu7x") else 128
