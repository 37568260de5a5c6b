"""Wan's networks, their programs, and the work from a request to pixels. See `backend.families.model.Model`."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Generator, Sequence
from typing import Any

import jax
import numpy as np
from PIL import Image
from transformers import AutoTokenizer, CLIPImageProcessorPil, PreTrainedTokenizerBase

from backend.chips import memory_bytes
from backend.contract.geometry import latent_frames
from backend.contract.request import GenerationRequest
from backend.errors import ModelError
from backend.families.context_windows import ContextsByPlace, WindowContexts, WindowPrograms, make_window_programs
from backend.families.layouts import plan_layouts
from backend.families.model import AttentionLengths, Carry, Conditions, Inputs, ModelPlan, Network, Weights
from backend.families.step_cache import StepCache
from backend.families.wan.attention import Positions
from backend.families.wan.conditions import (
    EMBEDDINGS,
    branch_embeddings,
    condition_of,
    encode_clip,
    encode_frames,
    image_channels,
    padded_embeddings,
    picture_mask,
    pixels_of,
    window_conditions,
)
from backend.families.wan.family import AGAIN, TEXT_TOKENS
from backend.families.wan.image_encoder import ImageEncoder, short_name
from backend.families.wan.original import file_names
from backend.families.wan.text_encoder import LENGTHS, TIED, TextEncoder, TextTokens
from backend.families.wan.transformer import Context, Denoiser, TextContext, layer_matrix_bytes
from backend.families.wan.vae import VideoAutoencoder
from backend.families.whole_clip import CLIP, WholeClipLane, WholeClipModel, transformer_part
from backend.runtime.mesh import Layout
from backend.runtime.program import Compiler, Program
from backend.runtime.work import Call, Effect, OnHost, Put, Work, Zeros
from backend.sampling.plan import PlannedStep
from backend.sampling.solvers import SamplerState, StepInputs, take_guided_step
from backend.weights.parking import device_bytes, on_devices, parked, should_park
from backend.weights.read import checkpoint_shapes
from backend.weights.stacked import StackedWeights


@dataclasses.dataclass(frozen=True, kw_only=True)
class Programs:
    """One mesh, the networks laid out on it, and their programs in the order in which a video runs them."""

    layout: Layout
    denoiser: Denoiser
    vae: VideoAutoencoder
    embed_text: Program | None
    embed_image: Program | None
    copy_matrices: Program
    prepare_text: Program
    encode_image: Program
    encode_first: Program
    encode_next: Program
    step: Program
    cached_step: Program
    windows: WindowPrograms
    decode_first: Program
    decode_next: Program


class WanModel(WholeClipModel):
    """One Wan checkpoint without its weights."""

    def __init__(self, plan: ModelPlan) -> None:
        self.kind, self.dtype, configs = plan.kind, plan.dtype, plan.configs
        lengths = text_lengths(plan.devices[0].platform)
        self._text_encoder = TextEncoder(configs["text_encoder"], _tokenizer(plan), lengths)
        self._image_encoder = _image_encoder(plan)
        self._guided, self._unguided = (self._make_programs(plan, layout) for layout in self._plan_layouts(plan))
        self.networks = tuple(self._networks(plan))

    def _plan_layouts(self, plan: ModelPlan) -> tuple[Layout, Layout]:
        return plan_layouts(plan, layer_matrix_bytes)

    def _make_programs(self, plan: ModelPlan, layout: Layout) -> Programs:
        return make_programs(plan.configs, self._text_encoder, layout, self._image_encoder, compiler=plan.compiler)

    def _networks(self, plan: ModelPlan) -> Generator[Network]:
        layout, vae = self._guided.layout, self._guided.vae
        denoise, encode = frozenset({"denoise"}), frozenset({"encode"})
        if self._text_encoder is not None:
            yield Network(part="text_encoder", stages=encode, described=self._describe_text(plan), tied=TIED)
        if self._image_encoder is not None:
            described = self._image_encoder.describe_weights(self.dtype, layout)
            yield Network(part="image_encoder", stages=encode, described=described, renamed=short_name)
        for expert in range(self.kind.num_experts):
            transformer = self._guided.denoiser.describe_weights(self.dtype)  # each its own, so that they are told apart
            renamed = file_names(checkpoint_shapes(transformer))
            yield Network(part=transformer_part(expert), stages=denoise, described=transformer, expert=expert, renamed=renamed)
        yield Network(
            part="vae",
            stages=encode | denoise | {"decode"},
            described=vae.describe_weights(self.dtype),
            arrange=vae.arrange,
            arranged=vae.describe_arranged(self.dtype),
        )

    def _describe_text(self, plan: ModelPlan) -> dict[str, jax.ShapeDtypeStruct]:
        """The text encoder's weights where they rest: on the host if the devices have too little room beside the others."""
        described = self._text_encoder.describe_weights(self.dtype, self._guided.layout)
        num_experts = self.kind.num_experts if "denoise" in plan.stages else 0
        others = num_experts * device_bytes(self._guided.denoiser.describe_weights(self.dtype))
        others += device_bytes(self._guided.vae.describe_arranged(self.dtype))
        others += self._copies_bytes()
        memory = memory_bytes(plan.devices[0].device_kind)
        return parked(described) if should_park(device_bytes(described, TIED) + others, memory) else described

    def _copies_bytes(self) -> int:
        """Bytes on each device of the matrices that it has whole while an expert's steps run."""
        denoiser = self._guided.denoiser
        return device_bytes(denoiser.place_copies(denoiser.spread_matrices(denoiser.describe_weights(self.dtype))))

    def notes(self, request: GenerationRequest) -> list[str]:
        """Which prompts are cut."""
        return list(self._tokens(request).notes)

    def prompts_for_all_programs(self, example: str) -> list[str]:
        """Prompts of each length that text is padded to; one prompt if there is no tokenizer to measure lengths."""
        times = (1, 2, 4, 8, 16) if self._text_encoder.has_tokenizer else (1,)
        return [" ".join([example] * count) for count in times]

    def _tokens(self, request: GenerationRequest) -> TextTokens:
        """The prompt's tokens, and those of the negative prompt if it is read; their shapes if there is no tokenizer."""
        prompts = [request.prompt, request.negative_prompt] if request.reads_negative_prompt else [request.prompt]
        if not self._text_encoder.has_tokenizer:
            return self._text_encoder.describe_tokens(len(prompts))
        return self._text_encoder.tokenize(prompts)

    def _encoded(self, request: GenerationRequest) -> tuple[dict[str, int], int]:
        num_pictures = len(self._pictures_of(request))
        tokens = {"text_encoder": math.prod(self._tokens(request).ids.shape)}
        if self._image_encoder is not None:
            tokens["image_encoder"] = num_pictures * self._image_encoder.num_tokens
        if request.video:
            return tokens, latent_frames(request.overlap or request.num_frames, self.kind.scales[1])
        return tokens, self._frames_encoded(request) if num_pictures else 0

    def _frames_encoded(self, request: GenerationRequest) -> int:
        """Latent frames of the clip that the pictures are given as."""
        return 1 if self.kind.conditioning == "first_frame" else request.geometry().num_latent_frames

    @staticmethod
    def _pictures_of(request: GenerationRequest) -> list[str]:
        inputs = request.inputs()
        return [*inputs.get("image", ()), *inputs.get("last_image", ())]

    def encode(self, weights: Weights, request: GenerationRequest, inputs: Inputs) -> Generator[Effect, Any, Conditions]:
        """See `Model`; the module `conditions` lists the results."""
        programs, tokens = self._programs(request.is_guided), self._tokens(request)
        with on_devices(weights["text_encoder"]) as text:
            embeddings = yield Call(programs.embed_text, (text, tokens.ids, tokens.mask))
            padded = yield OnHost(padded_embeddings, (embeddings,))
        conditions = dict(zip(EMBEDDINGS, padded, strict=False))
        if tokens.bias is not None:
            conditions["text_bias"] = tokens.bias
        pictures = [*inputs.get("image", ()), *inputs.get("last_image", ())]
        if self._image_encoder is not None:
            pixels = self._image_encoder.preprocess(pictures).astype(self.dtype)
            image_tokens = yield Call(programs.embed_image, (weights["image_encoder"], pixels))
            conditions["image_seen"] = yield OnHost(_as_float32, (image_tokens,))
        if pictures:
            name, value = yield from self._encode_pictures(weights["vae"], request, programs, pictures)
            conditions[name] = value
        for frames in inputs.get("video", ()):
            encoders = programs.encode_first, programs.encode_next
            latents = yield from encode_frames(*encoders, weights["vae"], frames, self.kind.scales[1], self.dtype)
            conditions["first_frame" if request.extend else CLIP] = latents
        return conditions

    def _encode_pictures(
        self, weights: Any, request: GenerationRequest, programs: Programs, pictures: Sequence[Image.Image]
    ) -> Generator[Effect, Any, tuple[str, Any]]:
        geometry, pixels = request.geometry(), [pixels_of(picture, self.dtype) for picture in pictures]
        if self.kind.conditioning == "first_frame":
            latents = yield Call(programs.encode_image, (weights, pixels[0]))
            return "first_frame", (yield OnHost(_as_float32, (latents,)))
        pieces = yield from encode_clip(programs.encode_first, programs.encode_next, weights, geometry, *pixels)
        mask = picture_mask(geometry, has_last=len(pixels) > 1)
        return "image_channels", (yield OnHost(image_channels, (mask, *pieces)))

    def lane(
        self, weights: Weights, request: GenerationRequest, conditions: Conditions, planned: PlannedStep, carry: Carry
    ) -> Generator[Effect, Any, tuple[WholeClipLane, StepCache | None]]:
        """Keys and values of the text and the pictures for one expert, and its other inputs placed for its programs."""
        del carry  # the last expert's cache is of no use to this one
        programs, has_nag = self._programs(planned.is_guided), request.uses_nag and not planned.is_guided
        texts = 2 if planned.is_guided or has_nag else 1
        embeddings, bias, image_tokens = yield from branch_embeddings(conditions, texts, self.dtype)
        image_arguments = () if self._image_encoder is None else (image_tokens,)
        transformer = weights[transformer_part(planned.expert)]
        text = yield Call(programs.prepare_text, (transformer, embeddings, bias, *image_arguments))
        if has_nag:
            text = dataclasses.replace(text, nag=(yield Put(np.float32(request.nag), programs.layout.replicated)))
        positions = yield from programs.denoiser.positions(self.step_shape(request))
        context = yield from self._context(programs, request, conditions, text, positions)
        spread = programs.denoiser.spread_matrices(transformer)
        copies = (yield Call(programs.copy_matrices, (spread,))) if spread else {}
        lane = WholeClipLane(
            expert=planned.expert, is_guided=planned.is_guided, programs=programs, context=context, copies=copies
        )
        cache = (yield Zeros(programs.denoiser.describe_cache(text, positions))) if request.uses_step_cache else None
        return lane, cache

    def _context(
        self, programs: Programs, request: GenerationRequest, conditions: Conditions, text: TextContext, positions: Positions
    ) -> Generator[Effect, Any, Context | WindowContexts]:
        """Work: a lane's inputs that do not change, or those of its context windows, from the text's keys and the tokens'
        positions, which are placed already."""
        plain = functools.partial(Context, text=text, positions=positions)
        if request.window_frames is None:
            return plain(condition=(yield Put(condition_of(conditions), programs.layout.replicated)))
        length = self.step_shape(request)[2]
        names, contexts = ("first", "inner", "last"), {}
        for name, own in zip(
            names, (yield from window_conditions(conditions, length, request.last_image is not None)), strict=True
        ):
            contexts[name] = plain(condition=(yield Put(condition_of(own), programs.layout.replicated)))
        return ContextsByPlace(programs=programs.windows, length=length, **contexts)

    def _finish(self, conditions: Conditions, latents: Any) -> Work:
        """Latents with the clean ones of what is given as their first frames, if the kind conditions on those."""
        if "first_frame" not in conditions:
            return latents
        return (yield OnHost(_with_first_frames, (conditions["first_frame"], latents)))

    def decode(self, weights: Weights, request: GenerationRequest, latents: Any, carry: Carry) -> Work:
        """One latent frame: pixels [1, 3, 1 or 4, height, width], and the caches after it."""
        programs = self._programs(request.is_guided)
        if carry is None:
            return (yield Call(programs.decode_first, (weights["vae"], latents)))
        return (yield Call(programs.decode_next, (weights["vae"], latents, carry)))

    def attention_lengths(self, request: GenerationRequest) -> AttentionLengths:
        """The lengths after `backend.runtime.ulysses` has spread the attention over the chips."""
        programs, shape = self._programs(request.is_guided), self.step_shape(request)
        layout, branches = programs.layout, 2 if request.is_guided else 1
        heads, sp = programs.denoiser.heads // layout.size("tp"), layout.size("sp")
        padded, group = programs.denoiser.padded_tokens(shape), math.gcd(heads, sp)
        return AttentionLengths(
            heads=heads // group,
            head_width=programs.denoiser.head_width,
            queries=padded * group // sp,
            keys=programs.denoiser.num_tokens(shape),
            text_heads=heads,
            text_queries=padded // sp,
            text=TEXT_TOKENS,
            batch=max(1, branches // layout.size("dp")),
        )


def text_lengths(platform: str) -> tuple[int, ...]:
    """The lengths that text is padded to. On a TPU only the full one: its kernel takes no bias for shortened padding."""
    return (TEXT_TOKENS,) if platform == "tpu" else LENGTHS


def make_programs(
    configs: Any,
    text_encoder: TextEncoder | None,
    layout: Layout,
    image_encoder: ImageEncoder | None,
    *,
    compiler: Compiler,
    denoiser: Denoiser | None = None,
) -> Programs:
    """The networks without weights, and their programs, on one mesh. A `denoiser` takes the place of the plain one."""
    denoiser, vae = denoiser or Denoiser(configs["transformer"], layout), VideoAutoencoder(configs["vae"], layout)
    program = functools.partial(Program, layout=layout, compiler=compiler)
    donated = (2,) if vae.uses_up_caches else ()
    step, cached_step = _step_function(denoiser), _cached_step_function(denoiser)
    embed_text = embed_image = None
    if text_encoder is not None:
        embed_text = program("the text encoder", text_encoder.embed, key="text_encode")
    if image_encoder is not None:
        embed_image = program("the image encoder", image_encoder.embed, key="image_embed")
    return Programs(
        layout=layout,
        denoiser=denoiser,
        vae=vae,
        embed_text=embed_text,
        embed_image=embed_image,
        copy_matrices=program("the expert's copies", denoiser.copy_matrices, key="expert_copies", places=denoiser.place_copies),
        prepare_text=program("the prompt's keys", denoiser.prepare_text, key="prompt_keys", places=denoiser.place_text),
        encode_image=program("the encoder", vae.encode_image, key="image_encode"),
        encode_first=program("the encoder's first frame", vae.encode_first, key="vae_encode_first", places=vae.place_encoded),
        encode_next=program(
            "the encoder's next frames",
            vae.encode_next,
            key="vae_encode_next",
            donated=donated,
            places=vae.place_encoded,
        ),
        step=program("the denoising step", step, key="denoise_step", donated=(1,)),
        cached_step=program(
            "the denoising step with its cache",
            cached_step,
            key="denoise_step_cached",
            donated=(1, 4),
            places=denoiser.place_cached,
        ),
        windows=make_window_programs(layout, compiler),
        decode_first=program("the decoder's first frame", vae.decode_first, key="vae_decode_first", places=vae.place_decoded),
        decode_next=program("the decoder", vae.decode_next, key="vae_decode_next", donated=donated, places=vae.place_decoded),
    )


def _step_function(denoiser: Denoiser) -> Callable:
    def step(
        weights: StackedWeights,
        state: SamplerState,
        inputs: StepInputs,
        context: Context,
    ) -> SamplerState:
        """One guided solver step; latents [1, C, F, H, W] float32."""
        velocity = denoiser.velocity(weights, state.sample, inputs.timestep, context)
        return take_guided_step(state, velocity, inputs)

    return step


def _cached_step_function(denoiser: Denoiser) -> Callable:
    def step(
        weights: StackedWeights,
        state: SamplerState,
        inputs: StepInputs,
        context: Context,
        cache: StepCache,
        threshold: jax.Array,
    ) -> tuple[SamplerState, StepCache]:
        """The same, but reuses the last full step's work if the first layer shows that little has changed."""
        sample = state.sample
        velocity, cache = denoiser.cached_velocity(weights, sample, inputs.timestep, context, cache, threshold)
        return take_guided_step(state, velocity, inputs), cache

    return step


def _tokenizer(plan: ModelPlan) -> PreTrainedTokenizerBase | None:
    if plan.folder is None:
        return None
    try:
        return AutoTokenizer.from_pretrained(plan.folder / "tokenizer")
    except (OSError, ValueError, KeyError) as error:
        raise ModelError("The checkpoint's tokenizer folder cannot be read", f"({type(error).__name__})", AGAIN) from error


def _image_encoder(plan: ModelPlan) -> ImageEncoder | None:
    config = plan.configs.get("image_encoder")
    if config is None:
        return None
    if plan.folder is None:
        return ImageEncoder(config, None)
    try:
        return ImageEncoder(config, CLIPImageProcessorPil.from_pretrained(plan.folder / "image_processor"))
    except (OSError, ValueError) as error:
        raise ModelError("The checkpoint's image_processor folder cannot be read", f"({type(error).__name__})", AGAIN) from error


def _as_float32(xp: Any, array: jax.Array) -> jax.Array:
    return array.astype(np.float32)


def _with_first_frames(xp: Any, first: jax.Array, latents: jax.Array) -> jax.Array:
    return xp.concatenate([first, latents[:, :, first.shape[2] :]], axis=2)
