"""The shared layers of the families' video autoencoders on one TPU chip, built on `kernels.causal_conv`.

A chip computes one strip of columns through the whole network. All arrays are [F, W, H, C] of the strip, with channels and rows
padded with zeros. If rows and columns of the frames are swapped, the columns in this module are rows of the video.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from kernels.causal_conv import Edges, Epilogue, norm_and_silu

KEPT_FRAMES = 2
Caches = dict[Any, jax.Array]
Weights = Mapping[str, jax.Array]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chip:
    """The settings of one chip: the mesh axes over which the strips are divided, and whether rows and columns are swapped.

    `interpret` is true if the kernel runs in interpret mode.
    """

    axes: tuple[str, ...]
    is_transposed: bool
    interpret: bool

    @property
    def is_last(self) -> jax.Array | bool:
        return jax.lax.axis_index(self.axes) == jax.lax.axis_size(self.axes) - 1 if self.axes else True


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
    """A module of the network, such as a residual block, with its name in the network."""

    name: str
    module: Any

    @property
    def first_norm(self) -> str | None:
        """The name of the norm with which a residual block starts, None for other modules.

        The previous module computes this norm and the SiLU after it. A residual block is norm, convolution, norm, convolution,
        and a shortcut that is added.
        """
        return f"{self.name}.norm1" if hasattr(self.module, "norm1") else None


class StripRunner:
    """Runs the encoder or the decoder on one chip.

    Each module returns two arrays: its output, and its output after the norm and SiLU with which the next module starts. `widths`
    are the numbers of channels of each norm without padding. `before` and `after` are the caches from the previous call, and for
    the next. `rows` is the number of rows of the network's input, without padding.
    """

    # (step, total, following) -> outputs of a module that is not a residual block, like the results of `_run`
    _sample: Callable[[Any, jax.Array, str | None], tuple[jax.Array, jax.Array | None]]
    _shortcut: Callable[[Any, jax.Array], jax.Array]  # (step, total) -> a residual block's shortcut, which is added to its result
    # (name, frames, epilogue) -> the sum of a convolution, bias and residuals, and this sum after norm and SiLU. The convolution
    # also sees two earlier frames. None replaces an array that `epilogue` does not request.
    _convolve: Callable[[str, jax.Array, Epilogue], tuple[jax.Array | None, jax.Array | None]]

    def __init__(self, chip: Chip, weights: Weights, widths: Mapping[str, int], before: Caches | None, rows: int) -> None:
        self._chip, self._weights, self._widths, self._before, self._rows = chip, weights, widths, before, rows
        # Number of frames per latent frame at the current layer. The video's first latent frame is an exception: it has one.
        self._later_frames = 1
        self.after: Caches = {}

    @property
    def rows(self) -> int:
        """Number of rows of the current layer's input, without padding. The padding rows at the end are zero."""
        return self._rows

    def _run_steps(
        self, steps: Sequence[Step], last: str, total: jax.Array | None, normalised: jax.Array | None
    ) -> tuple[jax.Array, jax.Array]:
        """Run the modules `steps` in turn. Return the last module's output, and this output after the norm `last` and SiLU."""
        for step, following in zip(steps, [*(step.first_norm for step in steps[1:]), last], strict=True):
            assert total is not None, "each step keeps its sum"
            total, normalised = self._run(step, total, normalised, following)
        assert total is not None and normalised is not None, "the last step computes the norm `last`"
        return total, normalised

    def _run(self, step: Step, total: jax.Array, normalised: jax.Array | None, following: str | None):
        """Run one module. Return its output, and this output after the norm `following` and SiLU (None without `following`)."""
        if step.first_norm is None:
            return self._sample(step, total, following)
        second = dataclasses.replace(self._make_epilogue(f"{step.name}.norm2"), keeps_sum=False)
        assert normalised is not None, "the previous step computed the first norm"
        _, hidden = self._convolve(f"{step.name}.conv1", normalised, second)
        assert hidden is not None, "`second` has a norm"
        return self._convolve(f"{step.name}.conv2", hidden, self._make_epilogue(following, self._shortcut(step, total)))

    def _convolve_sum(self, name: str, frames: jax.Array, epilogue: Epilogue | None = None) -> jax.Array:
        total, _ = self._convolve(name, frames, epilogue or Epilogue())
        assert total is not None, "the epilogue keeps the sum"
        return total

    def _swap_cache(self, place: object, frames: jax.Array) -> jax.Array:
        """Return the frames that the previous call cached under the key `place`. Cache the current frames for the next call.

        A convolution needs only the last two frames. The new cache still has all current frames, because extracting two frames
        would copy them.
        """
        assert self._before is not None, "only later calls read the cache"
        before = self._before[place]
        self.after[place] = frames if len(frames) >= KEPT_FRAMES else jnp.concatenate([before, frames])[-KEPT_FRAMES:]
        return before

    def _make_edges(self, before: jax.Array | None, frames: jax.Array, *, repeats: bool = False) -> Edges:
        """Return the columns to the left and right of this chip's strip, from the strips of the neighbouring chips.

        Columns outside of the video are zero. If `repeats` is true, they are copies of the video's border column instead.
        """
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

    def _make_epilogue(self, norm: str | None, *residuals: jax.Array) -> Epilogue:
        """Return the `Epilogue` that adds `residuals`, and that also returns the sum after the norm `norm` and SiLU."""
        if norm is None:
            return Epilogue(residuals=residuals)
        weight, width = self._norm_weight(norm)
        return Epilogue(residuals=residuals, norm=weight, norm_width=width)

    def _normalise(self, total: jax.Array, norm: str | None) -> jax.Array | None:
        return None if norm is None else norm_and_silu(total.astype(jnp.float32), *self._norm_weight(norm)).astype(total.dtype)

    def _norm_weight(self, name: str) -> tuple[jax.Array, int]:
        return self._weights[f"{name}.gamma"], self._widths[name]

    def _zero_padding_rows(self, frames: jax.Array) -> jax.Array:
        return jnp.where(jnp.arange(frames.shape[2])[:, None] < self._rows, frames, 0)
