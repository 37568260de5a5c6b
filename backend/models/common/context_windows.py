"""Denoising steps in context windows.

A step denoises each window of the latents separately, then blends the windows: it adds their results with weights. A solver's
next state is an affine function of the velocity, and the weights of all windows add up to 1. Therefore this gives the same result
as one step with the blended velocity. A window runs the same program as a video that is as long as the window.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from backend.runtime.mesh import Layout
from backend.runtime.program import Compiler, Program
from backend.runtime.work import Work
from backend.sampling.solvers import SamplerState
from backend.schemas.windows import Window


@dataclasses.dataclass(frozen=True, kw_only=True)
class WindowPrograms:
    """`cut` extracts a window from the sampler state. `add` adds a denoised window to the weighted sum of all windows."""

    cut: Program
    add: Program


@dataclasses.dataclass(frozen=True, kw_only=True)
class WindowContexts:
    """The inputs of the step program that are the same in all steps, for each window.

    Attributes:
        length: number of latent frames in a window.
        lead: number of latent frames before the first frame of the video, such as reference images. Every window includes them.
        for_window: computes the step program's inputs for a window. Yields work.
    """

    programs: WindowPrograms
    length: int
    lead: int = 0
    for_window: Callable[[Window], Work]


def make_window_programs(layout: Layout, compiler: Compiler) -> WindowPrograms:
    cut = Program("a window of the latents", _cut, layout, key="window_cut", compiler=compiler)
    add = Program("the blend of windows", _add, layout, key="window_blend", donated=(0,), compiler=compiler)
    return WindowPrograms(cut=cut, add=add)


def _cut(state: SamplerState, begin: jax.Array, shares: jax.Array, leading: jax.Array | None) -> SamplerState:
    """Return a window of the sampler state: `len(shares)` latent frames of the video, starting at latent frame `begin`.

    The window also has the `len(leading)` frames that precede the video, such as reference images.
    """
    lead = 0 if leading is None else len(leading)

    def cut(leaf: jax.Array) -> jax.Array:
        window = jax.lax.dynamic_slice_in_dim(leaf, lead + begin, len(shares), axis=2)
        return jnp.concatenate([leaf[:, :, :lead], window], axis=2) if lead else window

    return jax.tree.map(cut, state)


def _add(blend: SamplerState, part: SamplerState, begin: jax.Array, shares: jax.Array, leading: jax.Array | None) -> SamplerState:
    """Add a denoised window to `blend`, the weighted sum of all windows, starting at frame `begin`.

    The window's frames have the weights `shares` [F]. Frames that precede the video have the weights `leading`.
    """
    lead = 0 if leading is None else len(leading)

    def add(whole: jax.Array, frames: jax.Array) -> jax.Array:
        before = jax.lax.dynamic_slice_in_dim(whole, lead + begin, len(shares), axis=2)
        added = before + frames[:, :, lead:] * shares[:, None, None]
        whole = jax.lax.dynamic_update_slice_in_dim(whole, added, lead + begin, axis=2)
        if leading is None or not lead:
            return whole
        return whole.at[:, :, :lead].add(frames[:, :, :lead] * leading[:, None, None])

    return jax.tree.map(add, blend, part)
