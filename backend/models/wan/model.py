"""Wan's implementation of the protocol `backend.models.model.Model`: networks, programs, and generation of a video."""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from PIL import Image
from transformers import CLIPImageProcessorPil

from backend.models.common.context_windows import WindowContexts, WindowPrograms, make_window_programs
from backend.models.common.flat_attention import BlockCounts, Positions
from backend.models.common.networks import read_part, read_tokenizer
from backend.models.common.pixels import as_float32, image_to_pixels, replace_first_frames
from backend.models.common.programs import ClipPrograms, common_programs
from backend.models.common.step_cache import StepCache, describe_cache
from backend.models.common.text import TIED
from backend.models.common.whole_clip import CLIP, WholeClipModel, WholeClipStepContext, transformer_part
from backend.models.model import VIDEO, Conditions, Inputs, Latents, ModelPlan, PromptConditions, StepState, Weights
from backend.models.wan.conditions import EMBEDDINGS, branch_embeddings, encode_frames, encode_image_channels, pad_embeddings
from backend.models.wan.image_encoder import ImageEncoder
from backend.models.wan.original import map_file_names
from backend.models.wan.sparse_attention import make_sparse_plan
from backend.models.wan.spec import TEXT_TOKENS, WanSpec
from backend.models.wan.text_encoder import LENGTHS, TextEncoder
from backend.models.wan.transformer import Context, Denoiser, FirstFrames, ImageChannels, TextContext, layer_matrix_bytes
from backend.models.wan.vae import VideoAutoencoder
from backend.runtime.mesh import Layout, as_leaf
from backend.runtime.program import Compiler, Program
from backend.runtime.work import Call, Effects, OnHost, Put, Work, Zeros
from backend.sampling.solvers import SamplerState, StepInputs, take_guided_step
from backend.schemas.geometry import latent_frames
from backend.schemas.progressive import HALF, request_at_first_size
from backend.schemas.request import GenerationRequest
from backend.schemas.step_plan import StepPlan
from backend.schemas.windows import Window
from backend.weights.host_offload import is_offloaded, load_onto_devices
from backend.weights.read import checkpoint_shapes
from backend.weights.stacked import StackedWeights


@dataclasses.dataclass(frozen=True, kw_only=True)
class Programs(ClipPrograms):
    """The programs of `ClipPrograms`, and further programs of Wan. `sparse_step` also takes and returns `BlockCounts`."""

    text_layer: Program | None
    text_norm: Program | None
    copy_matrices: Program
    prepare_text: Program
    sparse_step: Program
    encode_first: Program
    encode_next: Program
    windows: WindowPrograms


class WanModel(WholeClipModel):
    """The `Model` of a Wan checkpoint. Methods take the weights as an argument."""

    spec: WanSpec
    _repeats = (1, 2, 4, 8, 16)
    _text_tokens = TEXT_TOKENS
    _text_options = {"tied": TIED}
    _layer_matrix_bytes = staticmethod(layer_matrix_bytes)

    def _make_encoders(self, plan: ModelPlan) -> None:
        lengths, config = text_lengths(plan.devices[0].platform), plan.configs.get("image_encoder")
        self._text_encoder = TextEncoder(plan.configs["text_encoder"], read_tokenizer(plan), lengths)
        self._image_encoder = None
        if config is not None:
            self._image_encoder = ImageEncoder(config, read_part(plan, "image_processor", CLIPImageProcessorPil.from_pretrained))

    def _make_programs(self, plan: ModelPlan, layout: Layout, denoiser: Denoiser | None = None, **own: Any) -> Any:
        networks = plan.configs, self._text_encoder, layout, self._image_encoder
        return make_programs(*networks, compiler=plan.compiler, denoiser=denoiser, **own)

    def _name_mapping(self, transformer: StackedWeights) -> Callable[[str], str]:
        return map_file_names(checkpoint_shapes(transformer))

    def _count_encoded(self, request: GenerationRequest) -> tuple[dict[str, int], int]:
        inputs = request.inputs()
        num_pictures = len(inputs.get("image", ())) + len(inputs.get("last_image", ()))
        tokens = {"text_encoder": math.prod(self._tokenize_prompts(request).ids.shape)}
        if self._image_encoder is not None:
            tokens["image_encoder"] = num_pictures * self._image_encoder.num_tokens
        if request.video:
            return tokens, latent_frames(request.overlap or request.num_frames, self.spec.scales[1])
        return tokens, self._num_encoded_frames(request) if num_pictures else 0

    def _num_encoded_frames(self, request: GenerationRequest) -> int:
        # images that become input channels are encoded as parts of a clip that is as long as the video
        return 1 if self.spec.conditioning == "first_frame" else request.geometry().num_latent_frames

    def _named_prompts(self, request: GenerationRequest) -> dict[str, str]:
        return dict(zip(EMBEDDINGS, super()._prompts(request), strict=False))

    def _prompts(self, request: GenerationRequest) -> list[str]:
        return list(self._named_prompts(request).values())

    def _encode_texts(self, weights: Weights, request: GenerationRequest) -> Effects[dict[str, Any]]:
        """Encode the texts to embeddings. Yields work.

        If the texts are padded to fewer than `TEXT_TOKENS` positions, the result also has `text_bias`.
        """
        programs, tokens, text = self._programs(request.is_guided), self._tokenize_prompts(request), weights["text_encoder"]
        if programs.layout.mesh.size == 1 and is_offloaded(text):
            # One chip would need 10.6 GiB for the whole text encoder.
            layer, norm = programs.text_layer, programs.text_norm
            embeddings = yield from self._text_encoder.embed_by_layers(layer, norm, text, tokens)
            padded = yield OnHost(pad_embeddings, (embeddings,))
        else:
            with load_onto_devices(text) as on_devices:
                embeddings = yield Call(programs.embed_text, (on_devices, tokens.ids, tokens.mask))
                padded = yield OnHost(pad_embeddings, (embeddings,))
        conditions = dict(zip(self._named_prompts(request), padded, strict=True))
        if tokens.bias is not None:
            conditions["text_bias"] = tokens.bias
        return conditions

    def encode(self, weights: Weights, request: GenerationRequest, inputs: Inputs) -> Effects[PromptConditions]:
        programs = self._programs(request.is_guided)
        conditions, half = (yield from self._encode_texts(weights, request)), {}
        images = [*inputs.get("image", ()), *inputs.get("last_image", ())]
        if self._image_encoder is not None:
            conditions["image_seen"] = yield from self._embed_images(weights, programs, images)
        for prefix, sized, found in (("", request, conditions), (HALF, request_at_first_size(request), half)):
            own = [*inputs.get(f"{prefix}image", ()), *inputs.get(f"{prefix}last_image", ())]
            if own:
                name, value = yield from self._encode_images(weights["vae"], sized, programs, own)
                found[name] = value
        for frames in inputs.get("video", ()):
            latents = yield from encode_frames(programs, weights["vae"], frames, self.spec.scales[1], self.dtype)
            conditions["first_frame" if request.extend else CLIP] = latents
        return PromptConditions(full=conditions, half=half)

    def _embed_images(self, weights: Weights, programs: Any, images: Sequence[Image.Image | np.ndarray]) -> Work:
        """Encode images, or arrays of their pixels, to tokens [N, tokens, D] float32. Yields work."""
        pixels = self._image_encoder.preprocess(images).astype(self.dtype)
        tokens = yield Call(programs.embed_image, (weights["image_encoder"], pixels))
        return (yield OnHost(as_float32, (tokens,)))

    def _encode_images(
        self, weights: Any, request: GenerationRequest, programs: Programs, images: Sequence[Image.Image]
    ) -> Effects[tuple[str, jax.Array]]:
        pixels = [image_to_pixels(image, self.dtype) for image in images]
        if self.spec.conditioning == "first_frame":
            latents = yield Call(programs.encode_image, (weights, pixels[0]))
            return "first_frame", (yield OnHost(as_float32, (latents,)))
        return "image_channels", (yield from encode_image_channels(programs, weights, request.geometry(), *pixels))

    def make_step_context(
        self, weights: Weights, request: GenerationRequest, conditions: Conditions, step_plan: StepPlan, step_state: StepState
    ) -> Effects[tuple[WholeClipStepContext, StepCache | BlockCounts | None]]:
        """See `Model`. A step cache in the result is empty, because the previous expert's cache is invalid for this expert.

        `BlockCounts` keep the previous expert's totals.
        """
        programs, has_nag = self._programs(step_plan.is_guided), request.uses_nag and not step_plan.is_guided
        texts = 2 if step_plan.is_guided or has_nag else 1
        embeddings, bias, image_tokens = yield from branch_embeddings(conditions, texts, self.dtype)
        image_arguments = () if self._image_encoder is None else (image_tokens,)
        transformer = weights[transformer_part(step_plan.expert)]
        text = yield Call(programs.prepare_text, (transformer, embeddings, bias, *image_arguments))
        if has_nag:
            text = dataclasses.replace(text, nag=(yield Put(np.float32(request.nag), programs.layout.replicated)))
        keep, tau = request.resolved_preset.sparse_keep, request.sparse if step_plan.is_sparse else 0.0
        sparse = make_sparse_plan(programs.denoiser.config, keep, tau)
        positions = yield from programs.denoiser.positions(self.step_shape(request), sparse=sparse)
        context = yield from self._make_context(programs, request, conditions, text, positions)
        spread = programs.denoiser.spread_matrices(transformer)
        copies = (yield Call(programs.copy_matrices, (spread,))) if spread else {}
        step_context = WholeClipStepContext(
            expert=step_plan.expert,
            is_guided=step_plan.is_guided,
            is_small=step_plan.is_small,
            programs=programs,
            context=context,
            copies=copies,
        )
        if tau:
            if isinstance(step_state, BlockCounts):
                return step_context, step_state
            totals = as_leaf(jax.ShapeDtypeStruct((2,), jnp.float32, sharding=programs.layout.replicated))
            return step_context, (yield Zeros(BlockCounts(totals=totals)))
        if not request.uses_step_cache:
            return step_context, None
        shape = (text.num_branches, positions.cosine.shape[1], text.key.shape[3] * text.key.shape[4])
        return step_context, (yield Zeros(describe_cache(programs.layout, shape, text.key.dtype)))

    def _make_context(
        self, programs: Programs, request: GenerationRequest, conditions: Conditions, text: TextContext, positions: Positions
    ) -> Effects[Context | WindowContexts]:
        """Build the inputs that are the same in all steps, for the whole video or for each context window. Yields work.

        Only the first window has the condition `first_frame`. The other windows generate from text only, for which the model was
        also trained. Every window needs the condition `image_channels`. It gets the channels of a shorter video that starts with
        the first image, because a window's first frame has the least weight where windows overlap. Only the last window has the
        last image.
        """
        sets: list[Mapping[str, Any]] = [conditions]
        length = self.step_shape(request)[2]
        if request.window_frames is not None and "image_channels" in conditions:
            channels = conditions["image_channels"]
            begin = end = yield OnHost(lambda xp, channels: channels[:, :, :length], (channels,))
            if request.last_image is not None:
                end = yield OnHost(
                    lambda xp, begin, channels: xp.concatenate([begin[:, :, :-1], channels[:, :, -1:]], axis=2), (begin, channels)
                )
            sets = [{**conditions, "image_channels": part} for part in (begin, begin, end)]
        elif request.window_frames is not None:
            others = {name: value for name, value in conditions.items() if name != "first_frame"}
            sets = [conditions, others, others]
        contexts = []
        for own in sets:
            condition = None
            if "first_frame" in own:
                condition = FirstFrames(latents=own["first_frame"])
            elif "image_channels" in own:
                condition = ImageChannels(values=own["image_channels"])
            condition = yield Put(condition, programs.layout.replicated)
            contexts.append(Context(text=text, positions=positions, condition=condition))
        if request.window_frames is None:
            return contexts[0]

        def for_window(window: Window) -> Work:
            yield from ()
            return contexts[0 if window.is_first else 2 if window.is_last else 1]

        return WindowContexts(programs=programs.windows, length=length, for_window=for_window)

    def finish(self, conditions: Conditions, latents: Latents) -> Work:
        """See `Model`. Replaces the first latent frames by the condition `first_frame`, if it exists."""
        if "first_frame" not in conditions:
            return latents
        return {VIDEO: (yield OnHost(replace_first_frames, (conditions["first_frame"], latents[VIDEO])))}


def text_lengths(platform: str) -> tuple[int, ...]:
    """Return the lengths, in tokens, to which text is padded.

    Shorter text needs a bias, and the TPU's attention kernel takes no bias.
    """
    return (TEXT_TOKENS,) if platform == "tpu" else LENGTHS


def make_programs(
    configs: Any,
    text_encoder: TextEncoder | None,
    layout: Layout,
    image_encoder: ImageEncoder | None,
    *,
    compiler: Compiler,
    denoiser: Denoiser | None = None,
    group: type[Programs] = Programs,
    saves_memory: bool = False,
    **own: Program,
) -> Programs:
    """Build the networks without weights, and return their programs on one mesh.

    `denoiser` replaces Wan's denoiser. `group` is the class of the result. With `saves_memory`, the autoencoder overwrites its
    caches, even if this takes more time. `own` are further programs, by the names of their fields in `group`, or replace Wan's
    programs.
    """
    denoiser, vae = denoiser or Denoiser(configs["transformer"], layout), VideoAutoencoder(configs["vae"], layout)
    vae.uses_up_caches |= saves_memory
    program = functools.partial(Program, layout=layout, compiler=compiler)
    encoding, donated = functools.partial(program, places=vae.encoded_sharding), (2,) if vae.uses_up_caches else ()

    def step(
        weights: StackedWeights, state: SamplerState, inputs: StepInputs, context: Context, counts: BlockCounts
    ) -> tuple[SamplerState, BlockCounts]:
        """Take one denoising step with Sol-Attn. Also return `counts`, increased by the block counts of this step."""
        velocity, found = denoiser.sparse_velocity(weights, state.sample, denoiser.times(inputs), context)
        return take_guided_step(state, velocity, inputs), BlockCounts(totals=counts.totals + found)

    fields: dict[str, Any] = common_programs(denoiser, vae, text_encoder, image_encoder, layout, compiler)
    fields |= (
        dict(
            text_layer=text_encoder
            and program("a layer of the text encoder", text_encoder.run_layer, key="text_layer", donated=(1,)),
            text_norm=text_encoder and program("the text encoder's norm", text_encoder.normalise, key="text_norm"),
            copy_matrices=program(
                "the expert's copies", denoiser.copy_matrices, key="expert_copies", places=denoiser.copies_sharding
            ),
            prepare_text=program("the prompt's keys", denoiser.prepare_text, key="prompt_keys", places=denoiser.text_sharding),
            sparse_step=program("the step with Sol-Attn", step, key="sparse_step", donated=(1, 4)),
            encode_first=encoding("the encoder's first frame", vae.encode_first, key="vae_encode_first"),
            encode_next=encoding("the encoder's next frames", vae.encode_next, key="vae_encode_next", donated=donated),
            windows=make_window_programs(layout, compiler),
        )
        | own
    )
    return group(**fields)
