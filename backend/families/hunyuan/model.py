"""HunyuanVideo 1.5's networks, their programs, and the work from a request to pixels. See `backend.families.model.Model`."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Generator
from typing import Any

import jax
import numpy as np
from transformers import AutoTokenizer, PreTrainedTokenizerBase, SiglipImageProcessorPil

from backend.chips import memory_bytes
from backend.contract.request import GenerationRequest
from backend.errors import ModelError
from backend.families.hunyuan import image_encoder, text_encoder
from backend.families.hunyuan.conditions import PREFIXES, beside, pixels_of, quoted_embeddings, text_conditions
from backend.families.hunyuan.family import AGAIN, TEXT_TOKENS, context_tokens
from backend.families.hunyuan.image_encoder import ImageEncoder
from backend.families.hunyuan.quoted_text import TIED, QuotedTextEncoder
from backend.families.hunyuan.text_encoder import LENGTHS, MOST_TOKENS, TextEncoder
from backend.families.hunyuan.transformer import Context, Denoiser, layer_matrix_bytes
from backend.families.hunyuan.vae import VideoAutoencoder
from backend.families.layouts import plan_layouts
from backend.families.model import AttentionLengths, Carry, Conditions, Inputs, ModelPlan, Network, Weights
from backend.families.step_cache import StepCache, place_cached
from backend.families.whole_clip import WholeClipLane, WholeClipModel
from backend.runtime.mesh import Layout
from backend.runtime.program import Compiler, Program
from backend.runtime.work import Call, Effect, OnHost, Put, Work, Zeros
from backend.sampling.plan import PlannedStep
from backend.sampling.solvers import SamplerState, StepInputs, take_guided_step
from backend.weights.parking import device_bytes, on_devices, parked, should_park
from backend.weights.stacked import StackedWeights


@dataclasses.dataclass(frozen=True, kw_only=True)
class Encoders:
    """What turns prompts and pictures into embeddings; `image` is None for a model of text to video only."""

    text: TextEncoder
    quoted: QuotedTextEncoder
    image: ImageEncoder | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Programs:
    """One mesh, the networks laid out on it, and their programs in the order in which a video runs them."""

    layout: Layout
    denoiser: Denoiser
    vae: VideoAutoencoder
    embed_text: Program
    embed_quoted: Program
    embed_image: Program | None
    encode_image: Program
    embed_still: Program
    step: Program
    cached_step: Program
    decode_first: Program
    decode_next: Program


class HunyuanModel(WholeClipModel):
    """One HunyuanVideo 1.5 checkpoint without its weights."""

    def __init__(self, plan: ModelPlan) -> None:
        self.kind, self.dtype, self._configs = plan.kind, plan.dtype, plan.configs
        self._encoders = _make_encoders(plan)
        self._guided, self._unguided = (
            make_programs(plan.configs, self._encoders, layout, plan.compiler)
            for layout in plan_layouts(plan, layer_matrix_bytes)
        )
        self.networks = tuple(self._networks(plan))

    def _networks(self, plan: ModelPlan) -> Generator[Network]:
        layout, vae, encoders = self._guided.layout, self._guided.vae, self._encoders
        denoise, encode = frozenset({"denoise"}), frozenset({"encode"})
        described = self._describe_text(plan)
        yield Network(part="text_encoder", stages=encode, described=described, renamed=text_encoder.installed_name)
        quoted = encoders.quoted.describe_weights(self.dtype, layout)
        yield Network(part="text_encoder_2", stages=encode, described=quoted, tied=TIED)
        if encoders.image is not None:
            described = encoders.image.describe_weights(self.dtype, layout)
            yield Network(part="image_encoder", stages=encode, described=described, renamed=image_encoder.installed_name)
        transformer = self._guided.denoiser.describe_weights(self.dtype)
        yield Network(part="transformer", stages=denoise, described=transformer, expert=0)
        yield Network(
            part="vae",
            stages=encode | denoise | {"decode"},
            described=vae.describe_weights(self.dtype),
            arrange=vae.arrange,
            arranged=vae.describe_arranged(self.dtype),
        )

    def _describe_text(self, plan: ModelPlan) -> dict[str, jax.ShapeDtypeStruct]:
        """The text encoder's weights where they rest: on the host if the devices have too little room beside the others."""
        described = self._encoders.text.describe_weights(self.dtype, self._guided.layout)
        others = device_bytes(self._guided.vae.describe_arranged(self.dtype))
        if "denoise" in plan.stages:
            others += device_bytes(self._guided.denoiser.describe_weights(self.dtype))
        memory = memory_bytes(plan.devices[0].device_kind)
        return parked(described) if should_park(device_bytes(described) + others, memory) else described

    def notes(self, request: GenerationRequest) -> list[str]:
        """Which prompts are cut."""
        return list(self._encoders.text.tokenize(_prompts(request)).notes)

    def prompts_for_all_programs(self, example: str) -> list[str]:
        """Prompts of each length that text is padded to; one prompt if there is one length, or no tokenizer to measure them."""
        times = (1, 4, 16, 48) if self._encoders.text.has_lengths else (1,)
        return [" ".join([example] * count) for count in times]

    def _encoded(self, request: GenerationRequest) -> tuple[dict[str, int], int]:
        prompts, num_pictures = _prompts(request), len(request.inputs().get("image", ()))
        text, quoted = self._encoders.text.tokenize(prompts), self._encoders.quoted.tokenize(prompts)
        tokens = {"text_encoder": math.prod(text.ids.shape), "text_encoder_2": math.prod(quoted.ids.shape)}
        if num_pictures:
            tokens["image_encoder"] = num_pictures * self._encoders.image.num_tokens
        return tokens, num_pictures

    def encode(self, weights: Weights, request: GenerationRequest, inputs: Inputs) -> Generator[Effect, Any, Conditions]:
        """See `Model`; the module `conditions` lists the results."""
        programs, prompts = self._programs(request.is_guided), _prompts(request)
        text, quoted = self._encoders.text.tokenize(prompts), self._encoders.quoted.tokenize(prompts)
        with on_devices(weights["text_encoder"]) as resting:
            embeddings = yield Call(programs.embed_text, (resting, text.ids))
            letters = yield Call(programs.embed_quoted, (weights["text_encoder_2"], quoted.ids, quoted.counts))
            conditions = yield OnHost(text_conditions, (embeddings, text.counts, letters, quoted.counts))
        for picture in inputs.get("image", ()):
            pixels = self._encoders.image.preprocess(picture).astype(self.dtype)
            seen = yield Call(programs.embed_image, (weights["image_encoder"], pixels))
            latents = yield Call(programs.encode_image, (weights["vae"], pixels_of(picture, self.dtype)))
            conditions["image_embeds"] = yield OnHost(_as_float32, (seen,))
            conditions["first_frame"] = yield OnHost(_as_float32, (latents,))
        return conditions

    def lane(
        self, weights: Weights, request: GenerationRequest, conditions: Conditions, planned: PlannedStep, carry: Carry
    ) -> Generator[Effect, Any, tuple[WholeClipLane, StepCache | None]]:
        """The tokens that do not depend on the step, and the other inputs placed for the programs."""
        del carry  # there is one expert, but its guided steps' cache is of no use to the others
        programs, branches = self._programs(planned.is_guided), 2 if planned.is_guided else 1
        picture = conditions.get("image_embeds")
        of_branches = tuple({name: conditions[prefix + name] for name in _TEXT} for prefix in PREFIXES[:branches])
        num_seen = 0 if picture is None else picture.shape[1]
        tokens = yield OnHost(functools.partial(beside, num_seen=num_seen, dtype=self.dtype), of_branches)
        tokens = yield Put(tokens, programs.layout.replicated)
        quoted = yield OnHost(quoted_embeddings, of_branches)
        still = yield Call(programs.embed_still, (weights["transformer"], quoted, picture))
        first_frame = yield Put(conditions.get("first_frame"), programs.layout.replicated)
        room = programs.denoiser.room_for(tokens.order.shape[1])
        positions = yield from programs.denoiser.positions(self.latent_shape(request), room)
        context = Context(tokens=tokens, still=still, positions=positions, first_frame=first_frame)
        lane = WholeClipLane(expert=planned.expert, is_guided=planned.is_guided, programs=programs, context=context)
        cache = (yield Zeros(programs.denoiser.describe_cache(context))) if request.step_cache else None
        return lane, cache

    def decode(self, weights: Weights, request: GenerationRequest, latents: Any, carry: Carry) -> Work:
        """One latent frame: pixels [1, 3, 1 or 4, height, width], and the caches after it."""
        programs = self._programs(request.is_guided)
        if carry is not None:
            return (yield Call(programs.decode_next, (weights["vae"], latents, carry)))
        room = yield Zeros(programs.vae.describe_keys(self.latent_shape(request), self.dtype)["decoder"])
        return (yield Call(programs.decode_first, (weights["vae"], latents, room)))

    def attention_lengths(self, request: GenerationRequest) -> AttentionLengths:
        """The lengths after `backend.runtime.joint_attention` has spread the attention over the chips; as "text" the attention of
        the prompt's tokens to themselves."""
        programs, shape = self._programs(request.is_guided), self.latent_shape(request)
        layout, branches = programs.layout, 2 if request.is_guided else 1
        heads, sp = programs.denoiser.heads // layout.size("tp"), layout.size("sp")
        group, others = math.gcd(heads, sp), context_tokens(self._configs)
        room = programs.denoiser.room_for(others)
        own_queries = programs.denoiser.padded_tokens(shape, room) * group // sp
        return AttentionLengths(
            heads=heads // group,
            head_width=programs.denoiser.head_width,
            queries=own_queries if room and group == sp else own_queries + others,
            keys=programs.denoiser.num_tokens(shape) + others,
            text_heads=heads,
            text_queries=TEXT_TOKENS,
            text=TEXT_TOKENS,
            batch=max(1, branches // layout.size("dp")),
        )


_TEXT = ("prompt_embeds", "prompt_embeds_mask", "prompt_embeds_2", "prompt_embeds_mask_2")


def make_programs(configs: Any, encoders: Encoders, layout: Layout, compiler: Compiler) -> Programs:
    """The networks without weights, and their programs, on one mesh."""
    denoiser, vae = Denoiser(configs["transformer"], layout), VideoAutoencoder(configs["vae"], layout)
    program = functools.partial(Program, layout=layout, compiler=compiler)
    donated = (2,) if vae.uses_up_caches else ()
    decoding = functools.partial(program, donated=donated, places=vae.place_decoded)
    embed_image = None
    if encoders.image is not None:
        embed_image = program("the image encoder", encoders.image.embed, key="image_embed")
    return Programs(
        layout=layout,
        denoiser=denoiser,
        vae=vae,
        embed_text=program("the text encoder", encoders.text.embed, key="text_encode"),
        embed_quoted=program("the encoder of quoted text", encoders.quoted.embed, key="quoted_encode"),
        embed_image=embed_image,
        encode_image=program("the encoder", vae.encode_image, key="image_encode"),
        embed_still=program("the prompt's tokens", denoiser.embed_still, key="prompt_tokens"),
        step=program("the denoising step", _step_function(denoiser), key="denoise_step", donated=(1,)),
        cached_step=program(
            "the denoising step with its cache",
            _cached_step_function(denoiser),
            key="denoise_step_cached",
            donated=(1, 4),
            places=functools.partial(place_cached, layout),
        ),
        decode_first=decoding("the decoder's first frame", vae.decode_first, key="vae_decode_first"),
        decode_next=decoding("the decoder", vae.decode_next, key="vae_decode_next"),
    )


def _step_function(denoiser: Denoiser) -> Callable:
    def step(weights: StackedWeights, state: SamplerState, inputs: StepInputs, context: Context) -> SamplerState:
        """One guided solver step; latents [1, C, F, H, W] float32."""
        velocity = denoiser.velocity(weights, state.sample, inputs.timestep, inputs.next_timestep, context)
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
        times = inputs.timestep, inputs.next_timestep
        velocity, cache = denoiser.cached_velocity(weights, state.sample, *times, context, cache, threshold)
        return take_guided_step(state, velocity, inputs), cache

    return step


def _make_encoders(plan: ModelPlan) -> Encoders:
    """Raises: ModelError for a tokenizer or a preprocessor that cannot be read."""
    configs = plan.configs
    tokenizer = _tokenizer(plan, "tokenizer")
    if tokenizer is not None and not tokenizer.chat_template:
        raise ModelError("The checkpoint's tokenizer folder has no chat template:", "the prompt is read as a chat", AGAIN)
    lengths = (MOST_TOKENS,) if plan.devices[0].platform == "tpu" else LENGTHS
    image = None
    if plan.kind.has_image_encoder:
        image = ImageEncoder(configs["image_encoder"], _read(plan, "feature_extractor", SiglipImageProcessorPil.from_pretrained))
    return Encoders(
        text=TextEncoder(configs["text_encoder"], tokenizer, lengths),
        quoted=QuotedTextEncoder(configs["text_encoder_2"], _tokenizer(plan, "tokenizer_2")),
        image=image,
    )


def _tokenizer(plan: ModelPlan, name: str) -> PreTrainedTokenizerBase | None:
    return _read(plan, name, AutoTokenizer.from_pretrained)


def _read(plan: ModelPlan, name: str, read: Callable) -> Any:
    """What `read` makes of a folder of the checkpoint; None without a checkpoint. Raises: ModelError."""
    if plan.folder is None:
        return None
    try:
        if not (plan.folder / name).is_dir():
            raise FileNotFoundError
        return read(plan.folder / name)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"The checkpoint's {name} folder cannot be read", f"({type(error).__name__})", AGAIN) from error


def _prompts(request: GenerationRequest) -> list[str]:
    """The prompt, and under guidance the negative prompt."""
    return [request.prompt, request.negative_prompt] if request.is_guided else [request.prompt]


def _as_float32(xp: Any, array: jax.Array) -> jax.Array:
    return array.astype(np.float32)
