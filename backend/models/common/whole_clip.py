"""The shared code of models whose video is one chunk. They decode one latent frame at a time.

Guided and unguided steps have separate programs, because they can have different meshes.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from backend.checkpoints.json_files import Config
from backend.models.common.arithmetic import encoder_flops
from backend.models.common.flat_attention import BlockCounts
from backend.models.common.modules import to_transformers_5_name
from backend.models.common.networks import DECODE, DENOISE, ENCODE, encoder_network, place_transformers, text_network
from backend.models.common.step_cache import StepCache
from backend.models.model import (
    VIDEO,
    AttentionLengths,
    Conditions,
    Inputs,
    Latents,
    ModelPlan,
    Network,
    PromptConditions,
    States,
    StepState,
    Weights,
)
from backend.models.plans import plan_layouts
from backend.runtime.mesh import Layout, with_sharding
from backend.runtime.work import Call, Effects, Work, Zeros
from backend.sampling.fresh_noise import make_fresh_noise
from backend.sampling.solvers import ADDS_NOISE, SamplerState, StepInputs, add_noise, schedule_for_request, start_state
from backend.schemas.progressive import request_at_first_size
from backend.schemas.request import GenerationRequest
from backend.schemas.step_plan import StepPlan, num_zero_steps
from backend.schemas.windows import step_geometry, windows_at
from backend.weights.host_offload import device_bytes
from backend.weights.stacked import StackedWeights, Stacks

CLIP = "clip"
"""The name of the condition with the latents of a clip from which the video starts, float32 [1, C, F, H, W]."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class WholeClipStepContext:
    """The data that all steps with the same expert, guidance and size share.

    `context` has the inputs of the step program that are the same in all steps, or is `WindowContexts`. `copies` are the matrices
    of the expert that are copied to every chip while the expert's steps run.
    """

    expert: int
    is_guided: bool
    is_small: bool = False
    programs: Any
    context: Any
    copies: Stacks = dataclasses.field(default_factory=dict)

    @property
    def layout(self) -> Layout:
        return self.programs.layout


class WholeClipModel:
    """The methods of a `Model` whose video is one chunk.

    A family sets the attributes and writes the methods that have no value here. It can override any other method.

    The step state is a `StepCache` with the step cache, and `BlockCounts` in steps with Sol-Attn. With MagCache, it is the change
    that all layers made to the tokens, [B, S, D]. Other requests have no step state.
    """

    decode_stride = preview_stride = 1
    segment: int | None = None
    # One number for each padded length of text: how often an example prompt must be repeated to need this length.
    _repeats: ClassVar[tuple[int, ...]]
    _text_tokens: int  # number of tokens of a prompt that the transformer sees
    _text_options: ClassVar[dict[str, Any]] = {}  # further fields of the text encoder's `Network`
    # The function of (config, itemsize) that returns the bytes of each matrix of a layer by name, for `plan_layouts`.
    _layer_matrix_bytes: ClassVar[Callable[[Config, int], dict[str, int]]]
    _text_encoder: Any  # None for models without this encoder, like `_image_encoder`
    _image_encoder: Any
    # Sets both encoders. Raises: ModelError for a broken tokenizer or preprocessor.
    _make_encoders: Callable[[ModelPlan], None]
    # Builds the networks and their programs on one mesh. `common_programs` returns most of the programs.
    _make_programs: Callable[[ModelPlan, Layout], Any]
    # Returns each encoder's number of tokens, by its folder's name, and the number of latent frames that the VAE encodes.
    _count_encoded: Callable[[GenerationRequest], tuple[dict[str, int], int]]
    # See `Model`. The family chooses the names of conditions, except `CLIP`.
    encode: Callable[[Weights, GenerationRequest, Inputs], Effects[PromptConditions]]
    # See `Model`. Returns a `WholeClipStepContext`, and the step state for the first step in this context.
    make_step_context: Callable[[Weights, GenerationRequest, Conditions, StepPlan, StepState], Effects[tuple[Any, StepState]]]

    def __init__(self, plan: ModelPlan) -> None:
        self.spec, self.dtype, self._configs = plan.spec, plan.dtype, plan.configs
        self._make_encoders(plan)
        self._guided, self._unguided = (self._make_programs(plan, layout) for layout in self._plan_layouts(plan))
        self.networks = place_transformers(self._list_networks(plan), plan)

    def _plan_layouts(self, plan: ModelPlan) -> tuple[Layout, Layout]:
        return plan_layouts(plan, type(self)._layer_matrix_bytes)

    def _list_networks(self, plan: ModelPlan) -> Iterator[Network]:
        denoiser, vae = self._guided.denoiser, self._guided.vae
        yield from self._encoder_networks(plan)
        for expert in range(self.spec.num_experts):
            # Each expert needs its own description of the weights, because callers compare descriptions by identity.
            described = denoiser.describe_weights(self.dtype)
            renamed = self._name_mapping(described)
            yield Network(part=transformer_part(expert), stages=DENOISE, described=described, expert=expert, renamed=renamed)
        # Denoising also needs the autoencoder, because it decodes previews.
        yield Network(
            part="vae",
            stages=ENCODE | DENOISE | DECODE,
            described=vae.describe_weights(self.dtype),
            arrange=vae.arrange,
            arranged=vae.describe_arranged(self.dtype),
        )

    def _encoder_networks(self, plan: ModelPlan) -> Iterator[Network]:
        if self._text_encoder is not None:
            num_experts = self.spec.num_experts if "denoise" in plan.stages else 0
            denoiser = self._guided.denoiser
            transformer = denoiser.describe_weights(self.dtype)
            copies = denoiser.copies_sharding(denoiser.spread_matrices(transformer))  # exist while an expert's steps run
            others = num_experts * device_bytes(transformer) + device_bytes(copies)
            others += device_bytes(self._guided.vae.describe_arranged(self.dtype))
            yield text_network(self._text_encoder, plan, self._guided.layout, others, **self._text_options)
        if self._image_encoder is not None:
            yield encoder_network("image_encoder", self._image_encoder, plan, self._guided.layout, renamed=to_transformers_5_name)

    def _name_mapping(self, transformer: StackedWeights) -> Callable[[str], str]:
        """Return a function that converts a tensor's name in a file to its name in diffusers' module."""
        return str

    def notes(self, request: GenerationRequest) -> list[str]:
        return list(self._tokenize_prompts(request).notes)

    def prompts_for_all_programs(self, example: str) -> list[str]:
        """See `Model`. Without a tokenizer, returns only one prompt."""
        times = self._repeats if self._text_encoder.has_several_lengths else (1,)
        return [" ".join([example] * count) for count in times]

    def _prompts(self, request: GenerationRequest) -> list[str]:
        return [request.prompt, request.negative_prompt] if request.reads_negative_prompt else [request.prompt]

    def _tokenize_prompts(self, request: GenerationRequest) -> Any:
        return self._text_encoder.tokenize(self._prompts(request))

    def layout(self, is_guided: bool) -> Layout:
        return self._programs(is_guided).layout

    def latent_shapes(self, request: GenerationRequest) -> dict[str, tuple[int, ...]]:
        return {VIDEO: self.latent_shape(request)}

    def latent_shape(self, request: GenerationRequest) -> tuple[int, int, int, int, int]:
        return request.geometry().latent_shape(self._guided.vae.latent_channels)

    def step_shape(self, request: GenerationRequest) -> tuple[int, int, int, int, int]:
        """Return the shape of the latents that a step reads, B C F H W: the whole video or one context window."""
        if request.window_frames is None:
            return self.latent_shape(request)
        return step_geometry(request).latent_shape(self._guided.vae.latent_channels)

    def encode_flops(self, request: GenerationRequest) -> float:
        tokens, num_frames = self._count_encoded(request)
        described: dict[str, Any] = {network.part: network.described for network in self.networks}
        sizes = {one.geometry() for one in (request, request_at_first_size(request))} if num_frames else ()
        pictures = sum(self._guided.vae.encode_flops(geometry, num_frames) for geometry in sizes)
        return pictures + sum(encoder_flops(described[part], count) for part, count in tokens.items())

    def decode_flops(self, request: GenerationRequest) -> float:
        return self._guided.vae.decode_flops(request.geometry())

    def start(self, request: GenerationRequest, conditions: Conditions, noise: Latents) -> States:
        """See `Model`. The state is scaled noise, or a clip's latents with noise up to the level of the first step."""
        drawn, schedule = jnp.asarray(noise[VIDEO]), schedule_for_request(request)
        if CLIP not in conditions:
            return {VIDEO: start_state(drawn * np.float32(schedule.start_scale))}
        return {VIDEO: start_state(add_noise(jnp.asarray(conditions[CLIP]), drawn, schedule.sigmas[0]))}

    def step(
        self,
        weights: Weights,
        request: GenerationRequest,
        step_context: WholeClipStepContext,
        states: States,
        step_inputs: StepInputs,
        step_state: StepState,
        index: int,
    ) -> Effects[tuple[States, StepState]]:
        state, step_state = yield from self._step(weights, request, step_context, states[VIDEO], step_inputs, step_state, index)
        if request.solver in ADDS_NOISE:
            noise = make_fresh_noise(schedule_for_request(request), request.seed, index)
            state = yield Call(step_context.programs.add_noise, (state, noise))
        return {VIDEO: state}, step_state

    def _step(
        self,
        weights: Weights,
        request: GenerationRequest,
        step_context: WholeClipStepContext,
        state: SamplerState,
        step_inputs: StepInputs,
        step_state: StepState,
        index: int,
    ) -> Effects[tuple[SamplerState, StepState]]:
        """Take one denoising step without fresh noise. Return the sampler state and the step state. Yields work."""
        programs, own = step_context.programs, weights[transformer_part(step_context.expert)]
        if step_context.is_guided and index < num_zero_steps(request):
            return (yield Call(programs.still_step, (state, step_inputs))), None
        if step_context.copies:
            own = own.with_stacks(step_context.copies)
        if request.window_frames is not None:
            contexts = step_context.context
            windows = windows_at(index, state.sample.shape[2] - contexts.lead, contexts.length)
            leading = np.full(contexts.lead, 1 / len(windows), np.float32) if contexts.lead else None
            blend = yield Zeros(with_sharding(state, programs.layout.replicated))
            for window in windows:
                place = np.int32(window.begin), np.array(window.weights, np.float32), leading
                context = yield from contexts.for_window(window)
                part = yield Call(contexts.programs.cut, (state, *place))
                part = yield Call(programs.step, (own, part, step_inputs, context))
                blend = yield Call(contexts.programs.add, (blend, part, *place))
            return blend, None
        arguments = (own, state, step_inputs, step_context.context)
        if isinstance(step_state, BlockCounts):
            return (yield Call(programs.sparse_step, (*arguments, step_state)))
        if request.cfg_zero and step_context.is_guided:
            return (yield Call(programs.zero_star_step, arguments)), None
        if request.mag_cache and step_state is None:
            return (yield Call(programs.kept_step, arguments))
        if request.mag_cache:
            outer = dataclasses.replace(own, stacks={})
            return (yield Call(programs.reused_step, (outer, *arguments[1:], step_state))), step_state
        if step_state is None:
            return (yield Call(programs.small_step if step_context.is_small else programs.step, arguments)), None
        return (yield Call(programs.cached_step, (*arguments, step_state, jnp.float32(request.step_cache))))

    def decode(self, weights: Weights, request: GenerationRequest, latents: jax.Array, step_state: StepState) -> Work:
        """Decode one latent frame to pixels [1, 3, 1 or 4, height, width]. Also return the new caches. Yields work."""
        programs = self._programs(request.is_guided)
        if step_state is not None:
            return (yield Call(programs.decode_next, (weights["vae"], latents, step_state)))
        room = yield from self._first_decode_arguments(request)
        return (yield Call(programs.decode_first, (weights["vae"], latents, *room)))

    def preview(self, weights: Weights, request: GenerationRequest, latents: jax.Array) -> Work:
        return (yield from self.decode(weights, request, latents, None))[0]

    def _first_decode_arguments(self, request: GenerationRequest) -> Work:
        """Return further arguments of `decode_first`, which follow the weights and latents. Yields work."""
        yield from ()
        return ()

    def attention_lengths(self, request: GenerationRequest) -> AttentionLengths:
        """See `Model`. The sizes are for one chip, after `backend.runtime.ulysses` has exchanged tokens for heads."""
        programs, shape = self._programs(request.is_guided), self.step_shape(request)
        layout, denoiser, branches = programs.layout, programs.denoiser, 2 if request.is_guided else 1
        heads, sp = denoiser.heads // layout.size("tp"), layout.size("sp")
        beside, group = self._num_other_tokens(request), math.gcd(heads, sp)
        padded = denoiser.padded_tokens(shape, beside)
        return AttentionLengths(
            heads=heads // group,
            head_width=denoiser.head_width,
            queries=padded * group // sp,
            keys=denoiser.num_tokens(shape) + beside,
            text_heads=heads,
            text_queries=padded // sp,
            text=self._text_tokens,
            batch=max(1, branches // layout.size("dp")),
        )

    def _num_other_tokens(self, request: GenerationRequest) -> int:
        """Return the number of tokens in self-attention that are not tokens of the video."""
        return 0

    def commit_chunk(
        self, weights: Weights, request: GenerationRequest, step_context: object, clean: Latents, step_state: StepState
    ) -> Work:
        yield from ()
        return step_state

    def finish(self, conditions: Conditions, latents: Latents) -> Work:
        """See `Model`. Returns the latents unchanged. Families override this method to insert or remove latent frames."""
        yield from ()
        return latents

    def skipped_steps(self, step_state: StepState) -> int:
        return int(step_state.reused) if isinstance(step_state, StepCache) else 0

    def _programs(self, is_guided: bool) -> Any:
        return self._guided if is_guided else self._unguided


def transformer_part(expert: int) -> str:
    return "transformer" if expert == 0 else f"transformer_{expert + 1}"
