"""The `Model` of causal Wan, which generates a video block by block.

The sampler is consistency sampling: a step estimates the clean latents, then adds fresh noise for the next noise level. The noise
depends only on the seed, the block and the step. It is drawn on the devices.

If the request has too few steps for the first block, all steps of this block run in the request's first step. For this block, the
request's other steps then do nothing. Source: thu-ml/Causal-Forcing configs/causal_forcing_dmd_framewise_2step.yaml,
`denoising_step_list_first_chunk`.

The past is the keys and values of earlier blocks. Models with `recaches` (LongLive) recompute the past when the prompt changes.
They commit the blocks in the attention window again, in order, with the new prompt. Source: NVlabs/LongLive v1.0,
pipeline/interactive_causal_inference.py, `global_sink`. That code recomputes all blocks in one pass, in which a block also sees
the later blocks.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from PIL import Image

from backend.chips import GIB, memory_bytes
from backend.errors import RequestError
from backend.models.causal_wan.spec import CausalWanSpec
from backend.models.causal_wan.transformer import BlockDenoiser, Past, Window
from backend.models.common.flat_attention import Positions
from backend.models.common.pixels import image_to_pixels
from backend.models.common.whole_clip import transformer_part
from backend.models.model import VIDEO, AttentionLengths, Conditions, Latents, ModelPlan, StepState, Weights
from backend.models.wan.conditions import branch_embeddings, encode_pixels
from backend.models.wan.model import Programs, WanModel
from backend.models.wan.text_encoder import TextTokens
from backend.models.wan.transformer import Context, TextContext
from backend.runtime.mesh import Layout, with_sharding
from backend.runtime.program import Program
from backend.runtime.work import Call, Effects, Put, Zeros
from backend.sampling.solvers import SamplerState, StepInputs, make_schedule, make_step_inputs
from backend.schemas.request import GenerationRequest
from backend.schemas.step_plan import StepPlan
from backend.weights.stacked import StackedWeights

# A step with at least this noise level is the first step of its schedule. Schedules start at 1, except for rounding errors.
ALL_NOISE = 0.999
FIRST_BLOCK = "first_block"  # name of the condition with the input image's latents [1, C, F, H, W] float32


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockPrograms(Programs):
    """Wan's programs, and `settle`, which computes the keys and values of a finished block for the later blocks."""

    denoiser: BlockDenoiser
    settle: Program


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockStepState:
    """The step state before or during a block, here called the current block.

    Attributes:
        past: the keys and values that the current block sees.
        first: the number of the current block's first latent frame.
        clean: the clean latents of the blocks in the attention window, each with the number of its first latent frame. Empty for
            models that do not recompute the past for a new prompt.
        uncounted: the number of earlier latent frames that `past.frames` does not count. They had left the attention window when
            a new prompt recomputed the past.
        own: further inputs of the current block, which a family adds.
    """

    past: Past
    first: int
    positions: Positions
    clean: tuple[tuple[int, jax.Array], ...] = ()
    uncounted: int = 0
    own: Any = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockStepContext:
    """The inputs that all steps of a video share until the prompt changes.

    `noise_key` is the key of the random generator for the steps' fresh noise. `image_latents` are the latents of an input image,
    which becomes the first block, as a still clip. `own` has further inputs, which a family adds.
    """

    expert: int
    is_guided: bool
    programs: BlockPrograms
    text: TextContext
    noise_key: jax.Array
    image_latents: jax.Array | None = None
    own: Any = None

    @property
    def layout(self) -> Layout:
        return self.programs.layout


class CausalWanModel(WanModel):
    """The `Model` of a causal Wan checkpoint. Methods take the weights as an argument."""

    spec: CausalWanSpec
    # True if one small chip has no memory for the decoder's old and new caches beside the past blocks' keys.
    _saves_memory = True

    def _make_programs(self, plan: ModelPlan, layout: Layout) -> BlockPrograms:
        spec = self.spec
        window = Window(frames=spec.window, sink=spec.sink, trained=spec.trained)
        denoiser = self._make_denoiser(plan, layout, window)

        def step(
            weights: StackedWeights, state: SamplerState, inputs: StepInputs, context: Context, past: Past, noise_key: jax.Array
        ) -> tuple[SamplerState, Past]:
            velocity, ring = denoiser.block_velocity(weights, state.sample, inputs.timestep, context, past)
            clean = state.sample - inputs.sigma * velocity
            following = inputs.sigma * inputs.predictor[0]  # the next noise level: `predictor[0]` is its ratio to `sigma`
            noise = draw_noise(noise_key, past.frames, inputs.sigma, clean.shape)
            state = SamplerState(
                sample=following * noise + (1 - following) * clean, before=state.sample, clean=clean, older=state.clean
            )
            return state, dataclasses.replace(past, ring=ring)

        program = functools.partial(Program, layout=layout, compiler=plan.compiler)
        own = {
            "step": program(
                "the denoising step",
                step,
                key="denoise_step",
                donated=(1, 4),
                places=lambda shapes: (with_sharding(shapes[0], layout.replicated), denoiser.past_sharding(shapes[1])),
            ),
            "settle": program(
                "a finished block's keys", denoiser.commit_chunk, key="settle", donated=(3,), places=denoiser.past_sharding
            ),
        }
        memory = memory_bytes(plan.devices[0].device_kind)
        is_small = layout.mesh.size == 1 and memory is not None and memory <= 16 * GIB
        saves = self._saves_memory and is_small
        return super()._make_programs(plan, layout, denoiser, group=BlockPrograms, saves_memory=saves, **own)

    def _make_denoiser(self, plan: ModelPlan, layout: Layout, window: Window) -> BlockDenoiser:
        return BlockDenoiser(plan.configs["transformer"], layout, window)

    def _tokenize_prompts(self, request: GenerationRequest) -> TextTokens:
        if request.action is not None:
            request = request.model_copy(update={"prompt": f"{request.prompt}, {request.action}"})
        return super()._tokenize_prompts(request)

    def _num_encoded_frames(self, request: GenerationRequest) -> int:
        return self._block_shape(request, 0)[2]

    def _encode_images(
        self, weights: Any, request: GenerationRequest, programs: BlockPrograms, images: Sequence[Image.Image]
    ) -> Effects[tuple[str, jax.Array]]:
        pixels, scale = image_to_pixels(images[0], self.dtype), self.spec.scales[1]
        num_frames = 1 + scale * (self._block_shape(request, 0)[2] - 1)

        def still_frames(begin: int, end: int) -> np.ndarray:
            return np.repeat(pixels, end - begin, axis=2)

        return FIRST_BLOCK, (yield from encode_pixels(programs, weights, still_frames, num_frames, scale))

    def make_step_context(
        self, weights: Weights, request: GenerationRequest, conditions: Conditions, step_plan: StepPlan, step_state: StepState
    ) -> Effects[tuple[BlockStepContext, BlockStepState]]:
        """See `Model`. If `spec.recaches` is true, recompute the keys and values of earlier blocks for the new prompt.

        Raises: RequestError if the step has guidance.
        """
        check_unguided(step_plan)
        programs = self._programs(False)
        embeddings, bias, _ = yield from branch_embeddings(conditions, 1, self.dtype)
        text = yield Call(programs.prepare_text, (weights[transformer_part(0)], embeddings, bias))
        if step_state is None:
            step_state = yield from self._make_first_state(programs, request)
        elif self.spec.recaches:
            step_state = yield from self._recache_past(weights, request, programs, text, step_state)
        noise_key = yield Put(noise_key_data(request.seed, step_state.uncounted), programs.layout.replicated)
        image_latents = yield Put(conditions.get(FIRST_BLOCK), programs.layout.replicated)
        return BlockStepContext(
            expert=0, is_guided=False, programs=programs, text=text, noise_key=noise_key, image_latents=image_latents
        ), step_state

    def _recache_past(
        self, weights: Weights, request: GenerationRequest, programs: BlockPrograms, text: TextContext, step_state: BlockStepState
    ) -> Effects[BlockStepState]:
        """Commit the clean blocks in the attention window again, with the keys and values `text` of the new prompt.

        The sink is recomputed only if the whole video is still in the window. Otherwise, the blocks see the sink's keys as they
        are rotated for the video's next block.
        """
        spec, denoiser, first = self.spec, programs.denoiser, step_state.first
        is_whole = first <= spec.window
        counted = 0 if is_whole else spec.sink
        past = dataclasses.replace(step_state.past, frames=(yield Put(np.int32(counted), programs.layout.replicated)))
        oldest = first - (spec.window - counted)
        for begin, clean in step_state.clean:
            if begin >= oldest:
                positions = yield from denoiser.block_positions(clean.shape, begin)
                following = begin + clean.shape[2] if is_whole else first
                rotation = denoiser.sink_rotation(following, self._block_shape(request, following)[2])
                context = Context(text=text, positions=positions, condition=None)
                arguments = (weights[transformer_part(0)], clean, context, past, rotation)
                past = yield Call(programs.settle, arguments)
                counted += clean.shape[2]
        return dataclasses.replace(step_state, past=past, uncounted=first - counted)

    def _make_first_state(self, programs: BlockPrograms, request: GenerationRequest) -> Effects[BlockStepState]:
        past = yield Zeros(programs.denoiser.describe_past(self.latent_shape(request), self.dtype))
        positions = yield from programs.denoiser.block_positions(self._block_shape(request, 0), 0)
        return BlockStepState(past=past, first=0, positions=positions)

    def _make_block_context(self, step_context: BlockStepContext, step_state: BlockStepState) -> Context:
        return Context(text=step_context.text, positions=step_state.positions, condition=None)

    def _block_shape(self, request: GenerationRequest, first: int) -> tuple[int, ...]:
        batch, channels, frames, height, width = self.latent_shape(request)
        return batch, channels, max(1, min(self.spec.chunk, frames - first)), height, width

    def _step(
        self,
        weights: Weights,
        request: GenerationRequest,
        step_context: BlockStepContext,
        state: SamplerState,
        step_inputs: StepInputs,
        step_state: BlockStepState,
        index: int,
    ) -> Effects[tuple[SamplerState, BlockStepState]]:
        """See `WholeClipModel`. If the block is a still clip of the input image, the steps only insert the clip's latents."""
        if step_state.first == 0 and step_context.image_latents is not None:
            return dataclasses.replace(state, sample=step_context.image_latents, clean=step_context.image_latents), step_state
        levels = [step_inputs]
        if step_state.first == 0 and request.steps < self.spec.first_steps:
            # all steps of the first block run in the request's first step; in later steps, do nothing
            schedule = make_schedule(request.solver, self.spec.first_steps, request.flow_shift)
            is_first = float(step_inputs.sigma) >= ALL_NOISE
            indices = range(schedule.steps if is_first else 0)
            levels = [make_step_inputs(schedule, index, float(step_inputs.guidance)) for index in indices]
        for own in levels:
            context = self._make_block_context(step_context, step_state)
            arguments = (weights[transformer_part(0)], state, own, context, step_state.past, step_context.noise_key)
            state, past = yield Call(step_context.programs.step, arguments)
            step_state = dataclasses.replace(step_state, past=past)
        return state, step_state

    def commit_chunk(
        self,
        weights: Weights,
        request: GenerationRequest,
        step_context: BlockStepContext,
        clean: Latents,
        step_state: BlockStepState,
    ) -> Effects[BlockStepState]:
        """See `Model`. The keys and values of the clean latents replace the ones that the block's last step stored."""
        clean = clean[VIDEO]
        denoiser, first = step_context.programs.denoiser, step_state.first + clean.shape[2]
        shape = self._block_shape(request, first)
        rotation, context = denoiser.sink_rotation(first, shape[2]), self._make_block_context(step_context, step_state)
        arguments = (weights[transformer_part(0)], clean, context, step_state.past, rotation)
        past = yield Call(step_context.programs.settle, arguments)
        positions = yield from denoiser.block_positions(shape, first)
        blocks = ()
        if self.spec.recaches:  # the blocks that must be committed again if the prompt changes
            blocks = (*step_state.clean, (step_state.first, clean))
            blocks = tuple(block for block in blocks if block[0] >= first - self.spec.window)
        return dataclasses.replace(step_state, past=past, first=first, positions=positions, clean=blocks)

    def step_shape(self, request: GenerationRequest) -> tuple[int, ...]:
        return self._block_shape(request, 0)

    def attention_lengths(self, request: GenerationRequest) -> AttentionLengths:
        denoiser = self._programs(False).denoiser
        keys = denoiser.window.frames * denoiser.frame_tokens(self.step_shape(request))
        return dataclasses.replace(super().attention_lengths(request), keys=keys)


def check_unguided(step_plan: StepPlan) -> None:
    """Check that a step has no guidance. Raises: RequestError if it has guidance."""
    if step_plan.is_guided:
        raise RequestError(
            f"guidance={step_plan.guidance:g}", "must be 1 for a model that generates videos live", "leave guidance out"
        )


def noise_key_data(seed: int, uncounted: int = 0) -> np.ndarray:
    """Return the key data [2] uint32 for jax's Threefry generator, which draws the same numbers on every device and mesh.

    A new prompt can reduce `past.frames`, and then `draw_noise` would draw the noise of an earlier block for a later block.
    Therefore the key also depends on `BlockStepState.uncounted`.
    """
    return np.array([(seed >> 32) ^ uncounted, seed & 0xFFFFFFFF], np.uint32)


def draw_noise(noise_key: jax.Array, frames: jax.Array, sigma: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Draw float32 noise for a step at noise level `sigma`, in the block that starts after `frames` latent frames."""
    key = jax.random.wrap_key_data(noise_key, impl="threefry2x32")
    step = jax.lax.bitcast_convert_type(sigma.astype(jnp.float32), jnp.int32)
    return jax.random.normal(jax.random.fold_in(jax.random.fold_in(key, frames), step), shape, jnp.float32)
