"""What the layers of the families' video autoencoders have in common on one chip: its strip of columns from the first
convolution to the last, on `kernels.causal_conv`.

Every function sees arrays [F, W, H, C] of the strip, channels and rows padded with zeros; `backend.models.common.strips` cuts the
picture. A picture that lies on its side has its rows as columns here.
"""

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from kernels.causal_conv import Edges, Epilogue, norm_and_silu

KEPT_FRAMES = 2
Caches = dict[Any, jax.Array]
Weights = Mapping[str, jax.Array]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chip:
    """One chip's part of the work: the mesh's `axes` over which the strips lie, and how the picture lies in them."""

    axes: tuple[str, ...]
    is_turned: bool
    interpret: bool

    @property
    def is_last(self) -> jax.Array | bool:
        """Whether the last strip is this chip's."""
        return jax.lax.axis_index(self.axes) == jax.lax.axis_size(self.axes) - 1 if self.axes else True


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
    """One module of the network."""

    name: str
    module: Any

    @property
    def is_residual(self) -> bool:
        """Whether it is a residual block: norm, convolution, norm, convolution, and what is added to them."""
        return hasattr(self.module, "norm1")

    @property
    def first_norm(self) -> str | None:
        """The norm with SiLU at its beginning, which the step before it computes."""
        return f"{self.name}.norm1" if self.is_residual else None


class StripRunner(abc.ABC):
    """Runs the encoder or the decoder on one chip. `after` are the caches that it leaves, as a family names them; `before` those
    of the last call; `widths` are the real channels of each norm by its name, `rows` the picture's rows."""

    def __init__(self, chip: Chip, weights: Weights, widths: Mapping[str, int], before: Caches | None, rows: int) -> None:
        self._chip, self._weights, self._widths, self._before, self._rows = chip, weights, widths, before, rows
        self._later_frames = 1  # frames of a later latent frame here, where the first one has a single frame
        self.after: Caches = {}

    @property
    def rows(self) -> int:
        """The picture's rows in the latest array; the rows after them are zero."""
        return self._rows

    def _through(
        self, steps: Sequence[Step], last: str, total: jax.Array | None, normalised: jax.Array | None
    ) -> tuple[jax.Array, jax.Array]:
        """The steps; each also computes the norm at the beginning of the next, the last step the norm `last`."""
        for step, following in zip(steps, [*(step.first_norm for step in steps[1:]), last], strict=True):
            assert total is not None, "each step keeps its sum"
            total, normalised = self._run(step, total, normalised, following)
        assert total is not None and normalised is not None, "the last step makes the norm `last`"
        return total, normalised

    def _run(self, step: Step, total: jax.Array, normalised: jax.Array | None, following: str | None):
        """The sum after one step, and its normalised form if a norm is `following`."""
        if not step.is_residual:
            return self._sample(step, total, following)
        second = dataclasses.replace(self._epilogue(f"{step.name}.norm2"), keeps_sum=False)
        assert normalised is not None, "the step before made the first norm"
        _, hidden = self._convolve(f"{step.name}.conv1", normalised, second)
        assert hidden is not None, "`second` has a norm"
        return self._convolve(f"{step.name}.conv2", hidden, self._epilogue(following, self._added(step, total)))

    @abc.abstractmethod
    def _sample(self, step: Step, total: jax.Array, following: str | None) -> tuple[jax.Array, jax.Array | None]:
        """As `_run`, for a module that is no residual block."""

    @abc.abstractmethod
    def _added(self, step: Step, total: jax.Array) -> jax.Array:
        """What is added to a residual block's convolutions."""

    @abc.abstractmethod
    def _convolve(self, name: str, frames: jax.Array, epilogue: Epilogue) -> tuple[jax.Array | None, jax.Array | None]:
        """A convolution that sees two frames back."""

    def _summed(self, name: str, frames: jax.Array, epilogue: Epilogue | None = None) -> jax.Array:
        """A convolution without a norm."""
        total, _ = self._convolve(name, frames, epilogue or Epilogue())
        assert total is not None, "the epilogue keeps the sum"
        return total

    def _exchange(self, place: Any, frames: jax.Array) -> jax.Array:
        """The frames kept at this place by the last call. Keeps the present ones: at least two frames, as whole arrays, so that
        no frame is copied out of one."""
        assert self._before is not None, "only later calls read what was kept"
        before = self._before[place]
        self.after[place] = frames if len(frames) >= KEPT_FRAMES else jnp.concatenate([before, frames])[-KEPT_FRAMES:]
        return before

    def _edges(self, before: jax.Array | None, frames: jax.Array, *, repeats: bool = False) -> Edges:
        """The neighbouring chips' nearest columns; at the picture's sides zero, or its own columns if it `repeats`."""
        inputs = [frames] if before is None else [before[-KEPT_FRAMES:], frames]
        first, last = (jnp.concatenate([array[:, side] for array in inputs]) for side in (slice(0, 1), slice(-1, None)))
        axes = self._chip.axes
        chips = jax.lax.axis_size(axes) if axes else 1
        if chips == 1:
            return Edges(left=first, right=last) if repeats else Edges(left=jnp.zeros_like(first), right=jnp.zeros_like(first))
        left = jax.lax.ppermute(last, axes, [(chip, chip + 1) for chip in range(chips - 1)])
        right = jax.lax.ppermute(first, axes, [(chip + 1, chip) for chip in range(chips - 1)])
        if not repeats:
            return Edges(left=left, right=right)
        place = jax.lax.axis_index(axes)
        return Edges(left=jnp.where(place == 0, first, left), right=jnp.where(place == chips - 1, last, right))

    def _epilogue(self, norm: str | None, *residuals: jax.Array) -> Epilogue:
        """The sum, and if a norm follows, its normalised form."""
        if norm is None:
            return Epilogue(residuals=residuals)
        weight, width = self._norm(norm)
        return Epilogue(residuals=residuals, norm=weight, norm_width=width)

    def _normalise(self, total: jax.Array, norm: str | None) -> jax.Array | None:
        """The norm with SiLU outside a convolution."""
        return None if norm is None else norm_and_silu(total.astype(jnp.float32), *self._norm(norm)).astype(total.dtype)

    def _norm(self, name: str) -> tuple[jax.Array, int]:
        return self._weights[f"{name}.gamma"], self._widths[name]

    def _only_rows(self, frames: jax.Array) -> jax.Array:
        """Zero in the rows that pad the picture."""
        return jnp.where(jnp.arange(frames.shape[2])[:, None] < self._rows, frames, 0)
