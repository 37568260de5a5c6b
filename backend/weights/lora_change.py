"""Compute the change of one tensor by a LoRA file: LoRA, LoHa, LoKr, a difference, and each of these with DoRA.
Sources: LoRA arXiv:2106.09685; LoHa and LoKr KohakuBlueleaf/LyCORIS lycoris/functional (loha.py, lokr.py) and huggingface/peft
tuners/loha, tuners/lokr; DoRA arXiv:2402.09353, peft tuners/lora/dora.py, LyCORIS apply_weight_decompose.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import torch

from backend.checkpoints.tensors import TensorPlace
from backend.weights.read import read_tensor

LORA = ("down", "up")
LOHA = ("hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b", "hada_t1", "hada_t2")
LOKR = ("lokr_w1", "lokr_w1_a", "lokr_w1_b", "lokr_w2", "lokr_w2_a", "lokr_w2_b", "lokr_t2")
KINDS = {"LoRA": LORA, "LoHa": LOHA, "LoKr": LOKR}
ROWS_MAGNITUDE, MAGNITUDE = "lora_magnitude_vector", "dora_scale"
"""DoRA's magnitudes, the Euclidean lengths of a weight's rows or columns. peft stores lengths of rows. LyCORIS stores lengths of
rows or columns, depending on the shape."""
MAGNITUDES = (ROWS_MAGNITUDE, MAGNITUDE)
DIFFERENCE = "difference"
_SHORTEST = torch.finfo(torch.float32).eps  # minimum length of a row or column, to avoid a division by zero

Factors = Mapping[str, torch.Tensor]


@dataclasses.dataclass(kw_only=True)
class Change:
    """One tensor's change. `factors` maps roles (names in `KINDS`, `MAGNITUDES` and `DIFFERENCE`) to tensors of the file. The
    product of the factors in `KINDS` is multiplied by alpha / rank.

    A file can store `parts` tensors as one matrix, each below the previous. `part` is the index of this tensor.
    """

    part: int = 0
    parts: int = 1
    alpha: float | None = None
    factors: dict[str, TensorPlace] = dataclasses.field(default_factory=dict)

    def find_problem(self, shape: Sequence[int]) -> str:
        """Return why these factors cannot change a tensor of this shape, "" if they can."""
        kinds = [kind for kind, roles in KINDS.items() if any(role in self.factors for role in roles)]
        if len(kinds) > 1:
            return f"mixes {' and '.join(kinds)}"
        if not kinds and DIFFERENCE not in self.factors:
            return "has no factors"
        needed = []
        if kinds == ["LoKr"]:
            pairs = ((f"lokr_w{number}", f"lokr_w{number}_a", f"lokr_w{number}_b") for number in (1, 2))
            needed = [name for whole, *halves in pairs for name in (halves if {*halves} & self.factors.keys() else [whole])]
        elif kinds == ["LoHa"]:
            needed = LOHA if {"hada_t1", "hada_t2"} & self.factors.keys() else LOHA[:4]
        elif kinds:
            needed = LORA
        if missing := next((name for name in needed if name not in self.factors), ""):
            return f"lacks {missing} of {kinds[0]}"
        difference = self.factors.get(DIFFERENCE)
        fits = difference is None or math.prod(difference.shape) == math.prod(shape) * self.parts
        whole, others = (shape[0] * self.parts, *shape[1:]), (*MAGNITUDES, DIFFERENCE)
        shapes = {role: torch.empty(place.shape, device="meta") for role, place in self.factors.items() if role not in others}
        try:
            fits = fits and (not shapes or tuple(_multiply_factors(shapes, whole)[0].shape) == whole)
        except (RuntimeError, ValueError, IndexError, TypeError):
            fits = False
        if not fits:
            return f"has {kinds[0] if kinds else 'a difference'} of another size"
        magnitude = next((self.factors[role] for role in MAGNITUDES if role in self.factors), None)
        if magnitude is None:
            return ""
        # A column of a matrix with several tensors runs through them all, so its length is not the length of one column.
        of_rows = self._has_row_lengths(shape)
        can_fit = len(shape) > 1 and (of_rows or self.parts == 1)
        has_size = can_fit and math.prod(magnitude.shape) == (whole[0] if of_rows else shape[1])
        return "" if has_size else "has a DoRA magnitude of another size"

    def compute_change(self, tensor: torch.Tensor) -> torch.Tensor:
        """Compute the change at scale 1 in float32, with the shape of `tensor`. With DoRA, the change also rescales the rows or
        columns of the weight to the lengths in the file."""
        base, total = tensor.float(), torch.zeros(tensor.shape)
        factors = {role: read_tensor(place).float() for role, place in self.factors.items()}
        if DIFFERENCE in factors:
            total += self._own_rows(factors.pop(DIFFERENCE)).reshape(base.shape)
        lengths = next((factors.pop(role) for role in MAGNITUDES if role in factors), None)
        if factors:
            if "up" in factors:  # selecting the rows before the multiplication saves time
                product, rank = _multiply_factors(factors | {"up": self._own_rows(factors["up"])}, base.shape)
            else:
                product, rank = _multiply_factors(factors, (base.shape[0] * self.parts, *base.shape[1:]))
                product = self._own_rows(product)
            total += product if self.alpha is None or rank is None else product * (self.alpha / rank)
        if lengths is None:
            return total
        axis = 1
        if self._has_row_lengths(base.shape):
            lengths, axis = self._own_rows(lengths), 0
        changed, others = base + total, [other for other in range(base.ndim) if other != axis]
        norms = changed.norm(dim=others, keepdim=True).clamp_min(_SHORTEST)
        return changed * (lengths.reshape(norms.shape) / norms) - base

    def _own_rows(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor if self.parts == 1 else tensor.chunk(self.parts)[self.part]

    def _has_row_lengths(self, shape: Sequence[int]) -> bool:
        """Return whether DoRA's magnitudes are the lengths of the tensor's rows, not of its columns."""
        if ROWS_MAGNITUDE in self.factors:
            return True
        lengths = self.factors[MAGNITUDE].shape
        return len(lengths) < 2 or lengths[0] == shape[0] * self.parts


def _multiply_factors(factors: Factors, shape: Sequence[int]) -> tuple[torch.Tensor, int | None]:
    """Multiply the factors and reshape the product to this shape. Also return the rank by which alpha is divided, None if alpha
    is not divided.

    LoHa is the elementwise product of two matrices of low rank. LoKr is the Kronecker product of two matrices, each whole or of
    low rank. Raises: RuntimeError if the factors do not fit each other or the shape.
    """
    if "up" in factors:
        down, up = (factors[role].flatten(1) for role in LORA)
        return (up @ down).reshape(len(up), *shape[1:]), len(down)
    if "hada_w1_a" in factors:
        halves = ((f"hada_w{number}_a", f"hada_w{number}_b", f"hada_t{number}") for number in (1, 2))
        first, second = (_multiply_low_rank(*map(factors.get, names)) for names in halves)
        product, rank = first * second, len(factors["hada_w1_b"])
    else:
        first, second = factors.get("lokr_w1"), factors.get("lokr_w2")
        rank = next((len(factors[name]) for name in ("lokr_w2_b", "lokr_w1_b") if name in factors), None)
        if "lokr_w1_a" in factors:
            first = factors["lokr_w1_a"] @ factors["lokr_w1_b"]
        if "lokr_w2_a" in factors:
            second = _multiply_low_rank(factors["lokr_w2_a"], factors["lokr_w2_b"], factors.get("lokr_t2"))
        assert first is not None and second is not None, "a LoKr has both"
        product = torch.kron(first.reshape(*first.shape, *[1] * (second.ndim - first.ndim)), second)
    if product.shape[0] != shape[0]:
        raise RuntimeError(f"{product.shape[0]} rows")
    return product.reshape(tuple(shape)), rank


def _multiply_low_rank(left: torch.Tensor, right: torch.Tensor, core: torch.Tensor | None) -> torch.Tensor:
    """Multiply `left` [rows, rank] by `right` [rank, columns], or `left` [rank, rows], `core` [rank, rank, ...] and `right` to
    [rows, columns, ...]."""
    return left @ right if core is None else torch.einsum("ij...,jc,ir->rc...", core, right, left)
