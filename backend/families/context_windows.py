"""A step in context windows: the step's own program on one window of the sampler's state after the other, blended by weight.

A solver's step is an affine function of the velocity, and weights add up to 1. So to blend the windows' next states is to take
one step with the blended velocity, and a window runs the very program that an ordinary video of its length runs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Generator
from typing import Any

import jax
import numpy as np

from backend.contract.windows import windows_at
from backend.runtime.mesh import Layout
from backend.runtime.program import Compiler, Program
from backend.runtime.work import Call, Effect, Zeros
from backend.sampling.solvers import SamplerState, StepInputs


@dataclasses.dataclass(frozen=True, kw_only=True)
class WindowPrograms:
    """The two programs beside the step's own: `cut` takes a window out of the state, `add` adds its result to the blend."""

    cut: Program
    add: Program


@dataclasses.dataclass(frozen=True, kw_only=True)
class WindowContexts:
    """The step's inputs that do not change, of the first window, of those between and of the last; `length` in latent frames.
    `programs` are those of the lane's mesh."""

    programs: WindowPrograms
    length: int
    first: Any
    inner: Any
    last: Any


def make_window_programs(layout: Layout, compiler: Compiler) -> WindowPrograms:
    """On one mesh; latents lie whole on all devices."""
    cut = Program("a window of the latents", _cut, layout, key="window_cut", compiler=compiler)
    add = Program("the blend of windows", _add, layout, key="window_blend", donated=(0,), compiler=compiler)
    return WindowPrograms(cut=cut, add=add)


def step_in_windows(
    step: Program,
    weights: Any,
    state: SamplerState,
    row: StepInputs,
    contexts: WindowContexts,
    index: int,
) -> Generator[Effect, Any, SamplerState]:
    """Work: step `index` of the solver, window by window."""
    replicated = step.layout.replicated
    blend = yield Zeros(jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=replicated), state))
    for window in windows_at(index, state.sample.shape[2], contexts.length):
        begin, shares = np.int32(window.begin), np.array(window.weights, np.float32)
        context = contexts.first if window.is_first else contexts.last if window.is_last else contexts.inner
        part = yield Call(contexts.programs.cut, (state, begin, shares))
        part = yield Call(step, (weights, part, row, context))
        blend = yield Call(contexts.programs.add, (blend, part, begin, shares))
    return blend


def _cut(state: SamplerState, begin: jax.Array, shares: jax.Array) -> SamplerState:
    """The state's frames from `begin` on, as many as there are `shares`."""
    return jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, begin, len(shares), axis=2), state)


def _add(blend: SamplerState, part: SamplerState, begin: jax.Array, shares: jax.Array) -> SamplerState:
    """The blend with the window's frames, each times its share [F], added from `begin` on."""

    def add(whole: jax.Array, frames: jax.Array) -> jax.Array:
        before = jax.lax.dynamic_slice_in_dim(whole, begin, len(shares), axis=2)
        return jax.lax.dynamic_update_slice_in_dim(whole, before + frames * shares[:, None, None], begin, axis=2)

    return jax.tree.map(add, blend, part)
