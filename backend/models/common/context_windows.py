"""A step in context windows: the step's own program on one window of the sampler's state after the other, blended by weight.

A solver's step is an affine function of the velocity, and weights add up to 1. So to blend the windows' next states is to take
one step with the blended velocity, and a window runs the very program that an ordinary video of its length runs.
"""

import dataclasses
from collections.abc import Generator
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from backend.runtime.mesh import Layout
from backend.runtime.program import Compiler, Program
from backend.runtime.work import Call, Effect, Zeros
from backend.sampling.solvers import SamplerState, StepInputs
from backend.schemas.windows import Window, windows_at


@dataclasses.dataclass(frozen=True, kw_only=True)
class WindowPrograms:
    """The two programs beside the step's own: `cut` takes a window out of the state, `add` adds its result to the blend."""

    cut: Program
    add: Program


class WindowContexts(Protocol):
    """The step's inputs that do not change, window by window; `length` in latent frames. `lead` latent frames lie before the
    video's own, and every window has them before it too. `programs` are those of the lane's mesh."""

    programs: WindowPrograms
    length: int
    lead: int

    def of(self, window: Window) -> Generator[Effect, Any, Any]:
        """Work: the inputs of this window."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ContextsByPlace:
    """`WindowContexts` that are the same for all windows between the first and the last."""

    programs: WindowPrograms
    length: int
    first: Any
    inner: Any
    last: Any
    lead: int = 0

    def of(self, window: Window) -> Generator[Effect, Any, Any]:
        """See `WindowContexts`."""
        yield from ()
        return self.first if window.is_first else self.last if window.is_last else self.inner


def make_window_programs(layout: Layout, compiler: Compiler) -> WindowPrograms:
    """On one mesh; latents lie whole on all devices."""
    cut = Program("a window of the latents", _cut, layout, key="window_cut", compiler=compiler)
    add = Program("the blend of windows", _add, layout, key="window_blend", donated=(0,), compiler=compiler)
    return WindowPrograms(cut=cut, add=add)


def step_in_windows(
    step: Program,
    weights: Any,
    state: SamplerState,
    step_inputs: StepInputs,
    contexts: WindowContexts,
    index: int,
) -> Generator[Effect, Any, SamplerState]:
    """Work: step `index` of the solver, window by window."""
    lead = contexts.lead
    windows = windows_at(index, state.sample.shape[2] - lead, contexts.length)
    leading = np.full(lead, 1 / len(windows), np.float32) if lead else None
    blend = yield Zeros(step.layout.replicate_shapes(state))
    for window in windows:
        begin, shares = np.int32(window.begin), np.array(window.weights, np.float32)
        context = yield from contexts.of(window)
        part = yield Call(contexts.programs.cut, (state, begin, shares, leading))
        part = yield Call(step, (weights, part, step_inputs, context))
        blend = yield Call(contexts.programs.add, (blend, part, begin, shares, leading))
    return blend


def _cut(state: Any, begin: jax.Array, shares: jax.Array, leading: jax.Array | None) -> Any:
    """The state's frames from `begin` on, as many as there are `shares`; before them as many as there are of `leading`."""
    lead = 0 if leading is None else len(leading)

    def cut(leaf: jax.Array) -> jax.Array:
        window = jax.lax.dynamic_slice_in_dim(leaf, lead + begin, len(shares), axis=2)
        return jnp.concatenate([leaf[:, :, :lead], window], axis=2) if lead else window

    return jax.tree.map(cut, state)


def _add(blend: SamplerState, part: SamplerState, begin: jax.Array, shares: jax.Array, leading: jax.Array | None) -> SamplerState:
    """The blend with the window's frames, each times its share [F], added from `begin` on, and its leading ones by theirs."""
    lead = 0 if leading is None else len(leading)

    def add(whole: jax.Array, frames: jax.Array) -> jax.Array:
        before = jax.lax.dynamic_slice_in_dim(whole, lead + begin, len(shares), axis=2)
        added = before + frames[:, :, lead:] * shares[:, None, None]
        whole = jax.lax.dynamic_update_slice_in_dim(whole, added, lead + begin, axis=2)
        if leading is None or not lead:
            return whole
        return whole.at[:, :, :lead].add(frames[:, :, :lead] * leading[:, None, None])

    return jax.tree.map(add, blend, part)
