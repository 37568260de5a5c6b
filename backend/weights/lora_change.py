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
_NEEDED = {"LoRA": LORA, "LoHa": LOHA[:4]}
_SHORTEST = torch.finfo(torch.float32).eps  # minimum length of a row or column, to avoid a division by zero

Factors = Mapping[str, torch.Tensor]


@dataclasses.dataclass(kw_only=True)
class Change:
    """One tensor's change.

    `factors` maps roles (names in `KINDS`, `MAGNITUDES` and `DIFFERENCE`) to tensors of the file. The product of the factors in
    `KINDS` is multiplied by alpha / rank. A file can store several tensors as one matrix, with the rows of each tensor below the
    rows of the previous tensor.
    `parts` is the number of these tensors, and `part` is the index of this tensor, from 0.
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
        if kinds and (missing := _find_missing_factor(kinds[0], self.factors)):
            return f"lacks {missing} of {kinds[0]}"
        difference = self.factors.get(DIFFERENCE)
        is_other_size = difference is not None and math.prod(difference.shape) != math.prod(shape) * self.parts
        if is_other_size or not self._product_fits(shape):
            return f"has {kinds[0] if kinds else 'a difference'} of another size"
        return "" if self._magnitude_fits(shape) else "has a DoRA magnitude of another size"

    def compute_change(self, tensor: torch.Tensor) -> torch.Tensor:
        """Compute the change at scale 1 in float32, with the shape of `tensor`. With DoRA, the change also rescales the rows or
        columns of the weight to the lengths in the file."""
        base, total = tensor.float(), torch.zeros(tensor.shape)
        factors = {role: read_tensor(place).float() for role, place in self.factors.items()}
        if DIFFERENCE in factors:
            total += self._own_rows(factors.pop(DIFFERENCE)).reshape(base.shape)
        lengths = next((factors.pop(role) for role in MAGNITUDES if role in factors), None)
        if factors:
            total += self._compute_scaled_rows(factors, base.shape)
        if lengths is None:
            return total
        of_rows = self._has_row_lengths(base.shape)
        return _rescale_to_lengths(base + total, self._own_rows(lengths) if of_rows else lengths, axis=0 if of_rows else 1) - base

    def _compute_scaled_rows(self, factors: dict[str, torch.Tensor], shape: Sequence[int]) -> torch.Tensor:
        """Return the product of the factors, multiplied by alpha / rank.

        If the file stores several tensors as one matrix, return only this tensor's rows.
        """
        if "up" in factors:  # selecting the rows before the multiplication saves time
            product, rank = _multiply_factors(factors | {"up": self._own_rows(factors["up"])}, shape)
        else:
            product, rank = _multiply_factors(factors, (shape[0] * self.parts, *shape[1:]))
            product = self._own_rows(product)
        return product if self.alpha is None or rank is None else product * (self.alpha / rank)

    def _own_rows(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the rows of the tensor with the index `part`. The given array stacks the rows of `parts` tensors."""
        return tensor if self.parts == 1 else tensor.chunk(self.parts)[self.part]

    def _has_row_lengths(self, shape: Sequence[int]) -> bool:
        """Return whether DoRA's magnitudes are the lengths of the tensor's rows, not of its columns."""
        if ROWS_MAGNITUDE in self.factors:
            return True
        lengths = self.factors[MAGNITUDE].shape
        return len(lengths) < 2 or lengths[0] == shape[0] * self.parts

    def _product_fits(self, shape: Sequence[int]) -> bool:
        """Return whether the factors' product has this shape, without computing it."""
        blank = {
            role: torch.empty(place.shape, device="meta")
            for role, place in self.factors.items()
            if role not in (*MAGNITUDES, DIFFERENCE)
        }
        whole = (shape[0] * self.parts, *shape[1:])
        try:
            return not blank or tuple(_multiply_factors(blank, whole)[0].shape) == whole
        except (RuntimeError, ValueError, IndexError, TypeError):
            return False

    def _magnitude_fits(self, shape: Sequence[int]) -> bool:
        """Return whether the shape of DoRA's magnitudes fits the tensor. True without DoRA.

        Return False for lengths of columns if the file stores several tensors as one matrix. A column of this matrix runs
        through all the tensors, and its length is not the length of one tensor's column.
        """
        place = next((self.factors[role] for role in MAGNITUDES if role in self.factors), None)
        if place is None:
            return True
        if self._has_row_lengths(shape):
            return len(shape) > 1 and math.prod(place.shape) == shape[0] * self.parts
        return self.parts == 1 and len(shape) > 1 and math.prod(place.shape) == shape[1]


def _find_missing_factor(kind: str, factors: Mapping[str, object]) -> str:
    """Return the role of the first missing factor, "" if no factor is missing."""
    needed = _NEEDED.get(kind)
    if needed is None:
        pairs = ((f"lokr_w{number}", f"lokr_w{number}_a", f"lokr_w{number}_b") for number in (1, 2))
        needed = [name for whole, *halves in pairs for name in ([whole] if not set(halves) & factors.keys() else halves)]
    elif kind == "LoHa" and {"hada_t1", "hada_t2"} & factors.keys():
        needed = LOHA
    return next((name for name in needed if name not in factors), "")


def _multiply_factors(factors: Factors, shape: Sequence[int]) -> tuple[torch.Tensor, int | None]:
    """Multiply the factors and reshape the product to this shape. Also return the rank by which alpha is divided, None if alpha
    is not divided.

    Raises: RuntimeError if the factors do not fit each other or the shape.
    """
    if "up" in factors:
        down, up = (factors[role].flatten(1) for role in LORA)
        return (up @ down).reshape(len(up), *shape[1:]), len(down)
    if "hada_w1_a" in factors:
        return _multiply_loha(factors, shape), len(factors["hada_w1_b"])
    return _multiply_lokr(factors, shape)


def _multiply_loha(factors: Factors, shape: Sequence[int]) -> torch.Tensor:
    """Compute LoHa: the elementwise product of two low-rank matrices."""
    halves = []
    for number in (1, 2):
        left, right, core = (factors.get(f"hada_{name}") for name in (f"w{number}_a", f"w{number}_b", f"t{number}"))
        halves.append(_multiply_low_rank(left, right, core))
    return _reshape_product(halves[0] * halves[1], shape)


def _multiply_lokr(factors: Factors, shape: Sequence[int]) -> tuple[torch.Tensor, int | None]:
    """Compute LoKr: the Kronecker product of two matrices, each whole or of low rank."""
    first, second = factors.get("lokr_w1"), factors.get("lokr_w2")
    rank = next((len(factors[name]) for name in ("lokr_w2_b", "lokr_w1_b") if name in factors), None)
    if "lokr_w1_a" in factors:
        first = factors["lokr_w1_a"] @ factors["lokr_w1_b"]
    if "lokr_w2_a" in factors:
        second = _multiply_low_rank(factors["lokr_w2_a"], factors["lokr_w2_b"], factors.get("lokr_t2"))
    assert first is not None and second is not None, "a LoKr has both"
    first = first.reshape(*first.shape, *[1] * (second.ndim - first.ndim))
    return _reshape_product(torch.kron(first, second), shape), rank


def _multiply_low_rank(left: torch.Tensor, right: torch.Tensor, core: torch.Tensor | None) -> torch.Tensor:
    """Multiply `left` [rows, rank] by `right` [rank, columns].

    With a `core` [rank, rank, ...], return the product of `left`, `core` and `right`, [rows, columns, ...]. In this case `left`
    is [rank, rows].
    """
    return left @ right if core is None else torch.einsum("ij...,jc,ir->rc...", core, right, left)


def _reshape_product(product: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """Reshape the product. Raises: RuntimeError unless the product has as many rows and as many elements as `shape`."""
    if product.shape[0] != shape[0]:
        raise RuntimeError(f"{product.shape[0]} rows")
    return product.reshape(tuple(shape))


def _rescale_to_lengths(tensor: torch.Tensor, lengths: torch.Tensor, axis: int) -> torch.Tensor:
    """Rescale the rows (axis 0) or the columns (axis 1) of the tensor to these Euclidean lengths."""
    others = [other for other in range(tensor.ndim) if other != axis]
    norms = tensor.norm(dim=others, keepdim=True).clamp_min(_SHORTEST)
    return tensor * (lengths.reshape(norms.shape) / norms)
