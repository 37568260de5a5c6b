"""What models share whose video is one chunk: two meshes' programs, steps with and without a `StepCache`, pieces of one latent
frame."""

from __future__ import annotations

import dataclasses
from collections.abc import Generator
from typing import Any, Protocol

import jax.numpy as jnp

from backend.contract.request import GenerationRequest
from backend.contract.windows import step_geometry
from backend.families.arithmetic import encoder_flops
from backend.families.context_windows import WindowContexts, step_in_windows
from backend.families.family import Kind
from backend.families.model import VIDEO, Carry, Conditions, Latents, Network, States, Weights
from backend.families.step_cache import StepCache
from backend.families.video_autoencoder import StreamedAutoencoder
from backend.runtime.mesh import Layout
from backend.runtime.program import Program
from backend.runtime.work import Call, Effect, Work
from backend.sampling.solvers import SamplerState, StepInputs, noised, schedule_of, start
from backend.weights.stacked import Stacks

CLIP = "clip"
"""The name of the condition that holds the latents [1, C, F, H, W] of a clip that the video begins with, float32."""


class Programs(Protocol):
    """One mesh, the networks laid out on it, and the programs that every such model has. The step's take weights, the state, the
    step's inputs and the lane's `context`; the cached one also the cache and its threshold."""

    layout: Layout
    vae: StreamedAutoencoder
    step: Program
    cached_step: Program


@dataclasses.dataclass(frozen=True, kw_only=True)
class WholeClipLane:
    """What all steps of one expert, guided or not, share. `context` are the step's inputs that do not change, of the whole
    video or of its context windows; `copies` are matrices of the expert that every chip has whole while its steps run."""

    expert: int
    is_guided: bool
    programs: Any
    context: Any | WindowContexts
    copies: Stacks = dataclasses.field(default_factory=dict)

    @property
    def layout(self) -> Layout:
        return self.programs.layout


class WholeClipModel:
    """The part of a `Model` that follows from one chunk. A step's carry is its `StepCache`, None without one."""

    decode_stride = 1
    kind: Kind
    dtype: jnp.dtype
    networks: tuple[Network, ...]
    _guided: Programs
    _unguided: Programs

    def layout(self, is_guided: bool) -> Layout:
        """See `Model`."""
        return self._programs(is_guided).layout

    def latent_shapes(self, request: GenerationRequest) -> dict[str, tuple[int, ...]]:
        """See `Model`."""
        return {VIDEO: self.latent_shape(request)}

    def latent_shape(self, request: GenerationRequest) -> tuple[int, int, int, int, int]:
        """The shape of the video's latents, B C F H W."""
        return request.geometry().latent_shape(self._guided.vae.latent_channels)

    def step_shape(self, request: GenerationRequest) -> tuple[int, int, int, int, int]:
        """The shape of what a step's program sees: the latents, or a window of them."""
        if request.window_frames is None:
            return self.latent_shape(request)
        return step_geometry(request).latent_shape(self._guided.vae.latent_channels)

    def encode_flops(self, request: GenerationRequest) -> float:
        """See `Model`."""
        tokens, num_frames = self._encoded(request)
        described = {network.part: network.described for network in self.networks}
        pictures = self._guided.vae.encode_flops(request.geometry(), num_frames) if num_frames else 0.0
        return pictures + sum(encoder_flops(described[part], count) for part, count in tokens.items())

    def _encoded(self, request: GenerationRequest) -> tuple[dict[str, int], int]:
        """How many tokens each encoder reads, by its part, and how many latent frames the video autoencoder encodes."""
        raise NotImplementedError

    def decode_flops(self, request: GenerationRequest) -> float:
        """See `Model`."""
        return self._guided.vae.decode_flops(request.geometry())

    def start(self, request: GenerationRequest, conditions: Conditions, noise: Latents) -> States:
        """The state that holds only noise, or a clip's latents at the noise level of the first step."""
        drawn = jnp.asarray(noise[VIDEO])
        if CLIP not in conditions:
            return {VIDEO: start(drawn)}
        return {VIDEO: start(noised(jnp.asarray(conditions[CLIP]), drawn, schedule_of(request).sigmas[0]))}

    def step(
        self,
        weights: Weights,
        request: GenerationRequest,
        lane: WholeClipLane,
        states: States,
        row: StepInputs,
        carry: Carry,
        index: int,
    ) -> Generator[Effect, Any, tuple[States, Carry]]:
        """See `Model`."""
        state, carry = yield from self._step(weights, request, lane, states[VIDEO], row, carry, index)
        return {VIDEO: state}, carry

    def _step(
        self,
        weights: Weights,
        request: GenerationRequest,
        lane: WholeClipLane,
        state: SamplerState,
        row: StepInputs,
        carry: StepCache | None,
        index: int,
    ) -> Generator[Effect, Any, tuple[SamplerState, StepCache | None]]:
        """The step of the video's state."""
        programs, own = lane.programs, weights[transformer_part(lane.expert)]
        if lane.copies:
            own = own.with_stacks(lane.copies)
        if request.window_frames is not None:
            return (yield from step_in_windows(programs.step, own, state, row, lane.context, index)), None
        arguments = (own, state, row, lane.context)
        if carry is None:
            return (yield Call(programs.step, arguments)), None
        return (yield Call(programs.cached_step, (*arguments, carry, jnp.float32(request.step_cache))))

    def settle(self, weights: Weights, request: GenerationRequest, lane: WholeClipLane, clean: Latents, carry: Carry) -> Work:
        """Does nothing."""
        yield from ()
        return carry

    def finish(self, conditions: Conditions, latents: Latents) -> Work:
        """See `Model`."""
        return {VIDEO: (yield from self._finish(conditions, latents[VIDEO]))}

    def _finish(self, conditions: Conditions, latents: Any) -> Work:
        """The video's latents as they are: all frames are denoised alike."""
        yield from ()
        return latents

    def spared_steps(self, carry: StepCache | None) -> int:
        """See `Model`."""
        return 0 if carry is None else int(carry.reused)

    def _programs(self, is_guided: bool) -> Any:
        return self._guided if is_guided else self._unguided


def transformer_part(expert: int) -> str:
    """The checkpoint's folder of a transformer, the high-noise one first."""
    return "transformer" if expert == 0 else f"transformer_{expert + 1}"
