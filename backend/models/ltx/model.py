"""LTX-2's networks, their programs, and the work from a request to pixels and audio. See `backend.models.model.Model`."""

import dataclasses
import functools
import math
from collections.abc import Iterator
from types import ModuleType
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from backend.media.control import control_frame
from backend.models.common.arithmetic import encoder_flops
from backend.models.common.networks import DECODE, DENOISE, ENCODE, encoder_network, read_tokenizer, text_network
from backend.models.common.pixels import as_float32, clip_to_pixels, image_to_pixels, join_frames, replace_first_frames
from backend.models.common.whole_clip import WholeClipModel
from backend.models.ltx.autoencoders import SoundNetworks, VideoAutoencoder
from backend.models.ltx.guidance import Branches, Scales, guide_estimate, make_scales
from backend.models.ltx.in_context import CONTROL, NOISE, control_noise, step_control
from backend.models.ltx.spec import UPSAMPLER, LtxSpec
from backend.models.ltx.text_encoder import Connectors, TextEncoder, installed_name
from backend.models.ltx.transformer import Context, Denoiser, keeps_first_sound, layer_matrix_bytes
from backend.models.ltx.upsampler import LatentUpsampler
from backend.models.model import (
    SOUND,
    VIDEO,
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
from backend.runtime.mesh import Layout
from backend.runtime.program import Compiler, Program
from backend.runtime.work import Call, Effects, OnHost, Put, Work
from backend.sampling.fresh_noise import FreshNoise, add_fresh_noise, make_fresh_noise
from backend.sampling.solvers import (
    Schedule,
    StepInputs,
    add_noise,
    schedule_for_request,
    start_state,
    take_step,
)
from backend.schemas.extension import Appended
from backend.schemas.progressive import HALF, num_half_size_steps, request_at_first_size
from backend.schemas.request import GenerationRequest
from backend.schemas.sound import SoundPart, keeps_clip_audio
from backend.schemas.step_plan import StepPlan
from backend.weights.host_offload import device_bytes, load_onto_devices
from backend.weights.stacked import StackedWeights

STREAMS = (VIDEO, SOUND)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Programs:
    """The networks on one mesh, and their programs. Each set of guidance branches has its own step program."""

    layout: Layout
    compiler: Compiler
    denoiser: Denoiser
    vae: VideoAutoencoder
    sound: SoundNetworks
    encode_text: Program
    encode_image: Program
    prepare_text: Program
    decode: Program
    preview: Program
    encode_sound: Program
    decode_sound: Program
    vocode: Program
    enlarge: Program | None  # None for a checkpoint without a latent upsampler

    @functools.lru_cache(maxsize=8)  # noqa: B019  the programs live as long as their worker's model
    def step(self, branches: Branches, given: str | None, is_refining: bool) -> Program:
        run = functools.partial(_step, self.denoiser, branches, given)
        name, key = ("the refining step", "refining_step") if is_refining else ("the denoising step", "denoise_step")
        return Program(name, run, key=key, donated=(1,), layout=self.layout, compiler=self.compiler)


def _step(
    denoiser: Denoiser,
    branches: Branches,
    given: str | None,
    weights: StackedWeights,
    states: States,
    step_inputs: StepInputs,
    context: Context,
    scales: tuple[Scales, Scales],
    noise: FreshNoise | None,
) -> States:
    """Take one guided denoising step of the two streams, video and audio. `given` is the name of the stream that the user gave as
    a whole, or None. This stream stays unchanged, at timestep 0. `noise` is the fresh noise of an ancestral step, None for other
    steps."""
    beginnings = {VIDEO: context.first_frame, SOUND: context.first_sound}
    # The latents of images and clips are inserted before the guidance, so that `Scales.rescale` includes them.
    for name, first in beginnings.items():
        if first is not None:
            drawn = states[name].sample
            begun = replace_first_frames(jnp, first, drawn)
            begun = begun if name == VIDEO else jnp.where(keeps_first_sound(context), begun, drawn)
            states = {**states, name: dataclasses.replace(states[name], sample=begun)}
    control = states[CONTROL].sample if CONTROL in states else context.control
    pieces = [latents for latents in (states[VIDEO].sample, context.keyframes, control) if latents is not None]
    joined = jnp.concatenate([latents.reshape(*latents.shape[:2], -1) for latents in pieces], axis=2)
    seen = {VIDEO: joined, SOUND: states[SOUND].sample}
    timesteps = tuple(jnp.zeros_like(step_inputs.timestep) if name == given else step_inputs.timestep for name in STREAMS)
    velocities = denoiser.velocities(weights, *seen.values(), timesteps, context)
    named = zip(STREAMS, velocities, scales, strict=True)
    clean = {name: guide_estimate(seen[name], own, branches, scale, step_inputs) for name, own, scale in named}
    made = {}
    for name in STREAMS:
        if name != given:
            state, own = states[name], clean[name]
            shape = state.sample.shape
            if own.shape != shape:  # leave out the tokens of keyframes and of a control clip at the end
                own = own[:, :, : math.prod(shape[2:])].reshape(shape)
            sigma = step_inputs.sigma
            velocity = (state.sample - own) / sigma
            made[name] = take_step(state, velocity, sigma, step_inputs.corrector, step_inputs.predictor)
    if noise is not None:
        made = {name: add_fresh_noise(state, noise, STREAMS.index(name)) for name, state in made.items()}
    return {**states, **made, **step_control(states, clean[VIDEO], context, step_inputs, noise is not None)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class LtxStepContext:
    expert: int
    is_guided: bool
    is_refining: bool
    programs: Programs
    branches: Branches
    given: str | None
    context: Context
    scales: tuple[Scales, Scales]
    schedule: Schedule

    @property
    def layout(self) -> Layout:
        return self.programs.layout


class LtxModel(WholeClipModel):
    """An LTX-2 checkpoint without its weights. A video is one chunk. It is decoded in one piece, because the decoder is not
    causal. A preview decodes only the first latent frame, which is much less work. The result is similar to the finished video's
    first frame."""

    spec: LtxSpec
    _text_encoder: TextEncoder
    decode_stride = 1 << 30
    _layer_matrix_bytes = staticmethod(layer_matrix_bytes)

    def _make_encoders(self, plan: ModelPlan) -> None:
        configs = plan.configs
        self._text_encoder = TextEncoder(configs["text_encoder"], read_tokenizer(plan))
        self._text_tokens = self._text_encoder.length
        self._connectors = Connectors(configs["connectors"], self._text_tokens)
        self._upsampler = None
        if self.spec.refines:
            self._upsampler = LatentUpsampler(configs[UPSAMPLER], configs["vae"].get("scaling_factor", 1.0))

    def _make_programs(self, plan: ModelPlan, layout: Layout) -> Programs:
        configs, program = plan.configs, functools.partial(Program, layout=layout, compiler=plan.compiler)
        denoiser = Denoiser(configs["transformer"], layout, self.spec.crosses_timesteps)
        vae, sound = VideoAutoencoder(configs["vae"], layout), SoundNetworks(configs["audio_vae"], configs["vocoder"], layout)
        return Programs(
            layout=layout,
            compiler=plan.compiler,
            denoiser=denoiser,
            vae=vae,
            sound=sound,
            encode_text=program("the text encoder", self._encode_text, key="text_encode"),
            encode_image=program("the encoder", vae.encode, key="image_encode"),
            prepare_text=program("the prompt's tokens", denoiser.embed_text, key="prompt_tokens"),
            encode_sound=program("the encoder of sound", sound.encode, key="sound_encode"),
            decode=program("the decoder", vae.decode, key="vae_decode", places=vae.decoded_sharding),
            preview=program("the decoder of previews", vae.decode, key="vae_preview", places=vae.decoded_sharding),
            decode_sound=program("the sound's spectrum", sound.decode, key="sound_decode"),
            vocode=program("the vocoder", sound.vocode, key="vocoder"),
            enlarge=program("the latent upsampler", self._upsampler.enlarge, key="latent_upsampler") if self._upsampler else None,
        )

    def _encode_text(self, encoder: Any, connectors: Any, ids: jax.Array, mask: jax.Array) -> tuple[jax.Array, jax.Array]:
        return self._connectors.embed(connectors, self._text_encoder.states(encoder, ids, mask), mask)

    def _list_networks(self, plan: ModelPlan) -> Iterator[Network]:
        layout, denoiser, vae, sound = (getattr(self._guided, name) for name in ("layout", "denoiser", "vae", "sound"))
        transformer = denoiser.describe_weights(self.dtype)
        others = device_bytes(transformer) if "denoise" in plan.stages else 0
        yield text_network(self._text_encoder, plan, layout, others, renamed=installed_name)
        yield encoder_network("connectors", self._connectors, plan, layout)
        yield Network(part="transformer", stages=DENOISE, described=transformer, expert=0)
        yield Network(part="vae", stages=ENCODE | DENOISE | DECODE, described=vae.describe_weights(self.dtype))
        yield Network(part="audio_vae", stages=ENCODE | DECODE, described=sound.describe_weights("audio_vae", self.dtype))
        if self._upsampler:
            yield Network(part=UPSAMPLER, stages=DENOISE, described=self._upsampler.describe_weights(self.dtype, layout))
        yield Network(part="vocoder", stages=DECODE, described=sound.describe_weights("vocoder", self.dtype))

    def latent_shapes(self, request: GenerationRequest) -> dict[str, tuple[int, ...]]:
        """See `Model`. Audio latents are [1, C, L, mel bins], as long as the video."""
        channels, bins = self.spec.sound_shape
        length = round(request.num_frames / request.fps * self.spec.sound_latents)
        return {VIDEO: self.latent_shape(request), SOUND: (1, channels, length, bins)}

    def _given_sound_shape(self, request: GenerationRequest) -> tuple[int, ...]:
        """Return the shape of the latents of an audio input or a clip's audio. The latents are as long as the video. If the video
        extends a clip, the latents are only as long as the part of the clip that the video keeps."""
        shape = self.latent_shapes(request)[SOUND]
        if not keeps_clip_audio(request):
            return shape
        seconds = SoundPart.from_clip(request, 0.0).seconds
        return *shape[:2], max(1, int(seconds * self.spec.sound_latents + 1e-6)), shape[3]

    def encode(self, weights: Weights, request: GenerationRequest, inputs: Inputs) -> Effects[PromptConditions]:
        programs, tokens, conditions = self._programs(request.is_guided), self._tokenize_prompts(request), {}
        with load_onto_devices(weights["text_encoder"]) as resting:
            made = yield Call(programs.encode_text, (resting, weights["connectors"], tokens.ids, tokens.mask))
            for name, embeddings in zip(_TEXTS, made, strict=True):
                conditions[name] = yield OnHost(as_float32, (embeddings,))
        half: dict[str, np.ndarray] = {}
        for prefix, found in (("", conditions), (HALF, half)):
            # The keyframes have the order of `Appended.frames`. The keys of `inputs` are a prefix plus a role, such as "image".
            placed = list(zip(request.keyframe_at, inputs.get(f"{prefix}keyframes", ()), strict=False))
            at_start = [*inputs.get(f"{prefix}image", ()), *(picture for place, picture in placed if place == 0)]
            later = [*(picture for place, picture in placed if place > 0), *inputs.get(f"{prefix}last_image", ())]
            for name, pictures in (("first_frame", at_start), ("keyframes", later)):
                latents = []
                for picture in pictures:
                    latents.append((yield Call(programs.encode_image, (weights["vae"], image_to_pixels(picture, self.dtype)))))
                if latents:
                    found[name] = yield OnHost(join_frames, tuple(latents))
        for frames in inputs.get("control", ()):
            shown = np.stack([control_frame(frame, request.control_kind) for frame in frames])
            latents = yield Call(programs.encode_image, (weights["vae"], clip_to_pixels(shown, self.dtype)))
            conditions[CONTROL] = yield OnHost(as_float32, (latents,))
        for frames in inputs.get("video", ()):
            latents = yield Call(programs.encode_image, (weights["vae"], clip_to_pixels(frames, self.dtype)))
            conditions["first_frame" if request.extend else _GIVEN[VIDEO]] = yield OnHost(as_float32, (latents,))
        for samples in inputs.get("sound", ()):
            spectrum = programs.sound.spectrum(samples, self._given_sound_shape(request)[2])
            latents = yield Call(programs.encode_sound, (weights["audio_vae"], spectrum))
            conditions["first_sound" if keeps_clip_audio(request) else _GIVEN[SOUND]] = yield OnHost(as_float32, (latents,))
        return PromptConditions(full=conditions, half=half)

    def make_step_context(
        self, weights: Weights, request: GenerationRequest, conditions: Conditions, step_plan: StepPlan, step_state: StepState
    ) -> Effects[tuple[LtxStepContext, None]]:
        branches = Branches(
            has_negative=step_plan.is_guided,
            has_perturbed=self.spec.can_perturb and any(scale > 0 for scale in request.perturbed_guidance),
            has_isolated=any(scale > 1 for scale in request.modality_guidance),
        )
        negative, perturbed, isolated = dataclasses.astuple(branches)
        prompts = (0, *[1] * negative, *[0] * (perturbed + isolated))  # the prompt of each branch, 1 for the negative prompt
        # The layout for guided steps divides the branches over dp, which needs an even number of branches.
        programs = self._programs(len(prompts) % 2 == 0)
        rows = functools.partial(_stack_branch_texts, texts=prompts, dtype=self.dtype)
        texts = yield OnHost(rows, tuple(conditions[name] for name in _TEXTS))
        text, sound_text = yield Call(programs.prepare_text, (weights["transformer"], *texts))
        shapes = self.latent_shapes(request)
        places = yield from programs.denoiser.places(shapes[VIDEO], shapes[SOUND][2], request.fps, Appended.from_request(request))
        first_sound, is_heard = None, None
        if keeps_clip_audio(request):  # zeros for a silent clip, so that clips with and without audio use the same program
            is_heard = np.float32("first_sound" in conditions)
            silence = np.zeros(self._given_sound_shape(request), np.float32)
            first_sound = conditions.get("first_sound", silence)
        shared = {
            "perturbed": np.array([0] * (1 + negative) + [1] * perturbed + [0] * isolated, np.float32),
            "isolated": np.array([0] * (1 + negative + perturbed) + [1] * isolated, np.float32),
            "first_frame": conditions.get("first_frame"),
            "keyframes": conditions.get("keyframes"),
            "control": conditions.get(CONTROL),
            "control_noise": control_noise(request),
            "first_sound": first_sound,
            "is_heard": is_heard,
        }
        shared, scales = yield Put((shared, make_scales(request)), programs.layout.replicated)
        context = Context(text=text, sound_text=sound_text, places=places, **shared)
        step_context = LtxStepContext(
            expert=0,
            is_guided=step_plan.is_guided,
            is_refining=not step_plan.is_small and num_half_size_steps(request) > 0,
            programs=programs,
            branches=branches,
            given=next((name for name in STREAMS if _GIVEN[name] in conditions), None),
            context=context,
            scales=scales,
            schedule=schedule_for_request(request),
        )
        return step_context, None

    def encode_flops(self, request: GenerationRequest) -> float:
        described: dict[str, Any] = {network.part: network.described for network in self.networks}
        count = math.prod(self._tokenize_prompts(request).ids.shape)
        text = sum(encoder_flops(described[part], count) for part in ("text_encoder", "connectors"))
        num_pictures = bool(request.image) + bool(request.last_image) + len(request.keyframes)
        vae = cast(VideoAutoencoder, self._guided.vae)
        sizes = {one.geometry() for one in (request, request_at_first_size(request))} if num_pictures else ()
        shown = num_pictures * sum(vae.encode_flops(geometry) for geometry in sizes)
        if request.control:
            geometry = request.geometry()
            sides = {side: getattr(geometry, side) // request.control_downscale for side in ("width", "height")}
            shown += vae.encode_flops(dataclasses.replace(geometry, **sides), request.num_frames)
        return text + shown

    def start(self, request: GenerationRequest, conditions: Conditions, noise: Latents) -> States:
        """See `Model`. A control clip with noise gets its own sampler state."""
        given = {name: conditions.get(_GIVEN[name]) for name in STREAMS}
        states = {}
        for name, drawn in noise.items():
            latents = jnp.asarray(drawn if given[name] is None else given[name])
            states[name] = start_state(latents)
            if given[name] is not None:  # clean latents, as a copy, because a step's program overwrites each array of the state
                states[name] = dataclasses.replace(states[name], clean=jnp.array(latents, copy=True))
        if (share := control_noise(request)) is not None:
            clean = jnp.asarray(conditions[CONTROL])
            drawn = np.random.default_rng((request.seed, NOISE)).standard_normal(clean.shape, np.float32)
            states[CONTROL] = start_state(add_noise(clean, jnp.asarray(drawn), share))
        return states

    def step(
        self,
        weights: Weights,
        request: GenerationRequest,
        step_context: LtxStepContext,
        states: States,
        step_inputs: StepInputs,
        step_state: StepState,
        index: int,
    ) -> Effects[tuple[States, None]]:
        noise = make_fresh_noise(step_context.schedule, request.seed, index)
        arguments = (weights["transformer"], states, step_inputs, step_context.context, step_context.scales, noise)
        return (
            yield Call(step_context.programs.step(step_context.branches, step_context.given, step_context.is_refining), arguments)
        ), None

    def finish(self, conditions: Conditions, latents: Latents) -> Work:
        """See `Model`."""
        latents = {name: latents[name] for name in STREAMS}
        for name, first in ((VIDEO, "first_frame"), (SOUND, "first_sound")):
            if first in conditions:
                latents = {**latents, name: (yield OnHost(replace_first_frames, (conditions[first], latents[name])))}
        return latents

    def enlarge(self, weights: Weights, request: GenerationRequest, latents: jax.Array) -> Work:
        programs = self._programs(request.is_guided)
        latents = yield Put(latents, programs.layout.replicated)
        return (yield Call(programs.enlarge, (weights[UPSAMPLER], weights["vae"], latents)))

    def decode(self, weights: Weights, request: GenerationRequest, latents: jax.Array, step_state: StepState) -> Work:
        return (yield Call(self._programs(request.is_guided).decode, (weights["vae"], latents))), None

    def preview(self, weights: Weights, request: GenerationRequest, latents: jax.Array) -> Work:
        return (yield Call(self._programs(request.is_guided).preview, (weights["vae"], latents)))

    def decode_sound(self, weights: Weights, request: GenerationRequest, latents: jax.Array) -> Work:
        programs = self._programs(request.is_guided)
        spectrum = yield Call(programs.decode_sound, (weights["audio_vae"], latents))
        return (yield Call(programs.vocode, (weights["vocoder"], spectrum)))

    def _num_other_tokens(self, request: GenerationRequest) -> int:
        return Appended.from_request(request).num_tokens


_TEXTS = ("prompt_embeds", "sound_prompt_embeds")
_GIVEN = {VIDEO: "given_video", SOUND: "given_sound"}  # conditions with the latents of a stream that the user gave as a whole


def _stack_branch_texts(
    xp: ModuleType, *embeddings: jax.Array, texts: tuple[int, ...], dtype: jnp.dtype
) -> tuple[jax.Array, ...]:
    """Stack the embeddings of each branch's prompt. `texts` is the index of each branch's prompt."""
    return tuple(xp.stack([array[row] for row in texts]).astype(dtype) for array in embeddings)
