"""Animate-2's networks and the generation of a video in segments (see the module `segments`). Source: diffusers
modular_pipelines/wan_animate_2 (`denoise.py`, `encoders.py`). As in that code, prompts are not cleaned, and images are resized to
the image encoder's size without cropping. The checkpoint's preprocessor is not used."""

import dataclasses
import functools
import math
from types import ModuleType
from typing import Any, cast

import jax

from backend.models.common.networks import read_tokenizer
from backend.models.common.whole_clip import WholeClipStepContext, transformer_part
from backend.models.model import AttentionLengths, Conditions, Inputs, ModelPlan, PromptConditions, Weights
from backend.models.wan.conditions import branch_embeddings, encode_frames
from backend.models.wan.image_encoder import WholeImageEncoder
from backend.models.wan.model import text_lengths
from backend.models.wan.text_encoder import TextEncoder
from backend.models.wan.transformer import Context, ImageChannels
from backend.models.wan_animate.names import map_file_names, with_wan_config
from backend.models.wan_animate.segments import PICTURE, SegmentInputs, SegmentModel, SegmentPrograms, add_mask_channels
from backend.models.wan_animate.transformer import DrivenContext, DrivenDenoiser
from backend.runtime.driven_attention import describe_clip_keys
from backend.runtime.mesh import Layout
from backend.runtime.program import Program
from backend.runtime.work import Call, Effects, OnHost, Put
from backend.schemas.driving_video import count_segments, driving_prompt
from backend.schemas.request import GenerationRequest
from backend.weights.read import checkpoint_shapes
from backend.weights.stacked import StackedWeights

DRIVE = "drive"
"""Name of the condition with the latents of all segments of the driving video, one after another, [1, C, F, H, W]. Other
conditions are `drive_prompt_embeds`, and `drive_seen`, the image encoder's tokens of the driving video's first frame."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DrivenPrograms(SegmentPrograms):
    """The programs of `SegmentPrograms`, and `extract`, which extracts the driving video's keys and values."""

    extract: Program


class AnimateModel(SegmentModel):
    """The `Model` of an Animate-2 checkpoint. Methods take the weights as an argument."""

    def __init__(self, plan: ModelPlan) -> None:
        self._own_config = plan.configs["transformer"]
        super().__init__(dataclasses.replace(plan, configs=with_wan_config(plan.configs)))

    def _make_encoders(self, plan: ModelPlan) -> None:
        lengths, config = text_lengths(plan.devices[0].platform), plan.configs.get("image_encoder")
        self._text_encoder = TextEncoder(plan.configs["text_encoder"], read_tokenizer(plan), lengths, is_cleaned=False)
        self._image_encoder = None if config is None or not self.spec.has_image_encoder else WholeImageEncoder(config)

    def _make_programs(self, plan: ModelPlan, layout: Layout) -> DrivenPrograms:
        denoiser = DrivenDenoiser(self._own_config, layout)
        program = functools.partial(Program, layout=layout, compiler=plan.compiler)
        places = functools.partial(describe_clip_keys, layout)
        extract = program("the driving clip's keys", denoiser.extracted, key="clip_keys", places=places)
        return super()._make_programs(plan, layout, denoiser, group=DrivenPrograms, extract=extract)

    def _name_mapping(self, transformer: StackedWeights) -> object:
        return map_file_names(checkpoint_shapes(transformer))

    def _count_encoded(self, request: GenerationRequest) -> tuple[dict[str, int], int]:
        """See `WholeClipModel`. The count includes the latent frames that are encoded before each segment's steps."""
        tokens = {"text_encoder": math.prod(self._tokenize_prompts(request).ids.shape)}
        if self._image_encoder is not None:
            tokens["image_encoder"] = 2 * self._image_encoder.num_tokens
        return tokens, 1 + 2 * self.segment * count_segments(request)

    def _named_prompts(self, request: GenerationRequest) -> dict[str, str]:
        return {**super()._named_prompts(request), "drive_prompt_embeds": driving_prompt(request)}

    def encode(self, weights: Weights, request: GenerationRequest, inputs: Inputs) -> Effects[PromptConditions]:
        programs = self._programs(request.is_guided)
        conditions = yield from self._encode_image(weights, request, programs, inputs)
        pieces = []
        for frames in inputs["drive"][0].segments(count_segments(request), self.spec.segment_frames):
            if self._image_encoder is not None and not pieces:
                conditions["drive_seen"] = yield from self._embed_images(weights, programs, frames[:1])
            pieces.append((yield from encode_frames(programs, weights["vae"], frames, self.spec.scales[1], self.dtype)))
        conditions[DRIVE] = yield OnHost(lambda xp, *pieces: xp.concatenate(pieces, axis=2), tuple(pieces))
        return PromptConditions(full=conditions)

    def _make_clip_context(
        self, weights: Weights, request: GenerationRequest, conditions: Conditions, programs: Any
    ) -> Effects[Context]:
        """See `SegmentModel`."""
        clip_conditions = {"prompt_embeds": conditions["drive_prompt_embeds"]}
        if "text_bias" in conditions:  # one row per prompt; the last row is for the driving video's prompt
            clip_conditions["text_bias"] = yield OnHost(lambda xp, bias: bias[-1:], (conditions["text_bias"],))
        if "drive_seen" in conditions:
            clip_conditions["image_seen"] = conditions["drive_seen"]
        embeddings, bias, image_tokens = yield from branch_embeddings(clip_conditions, 1, self.dtype)
        copies = programs.layout.size("dp")  # each index on dp needs a copy of the prompt, because dp divides the batch

        def repeat(xp: ModuleType, array: jax.Array) -> Any:
            return xp.repeat(array, copies, axis=0)

        embeddings = yield OnHost(repeat, (embeddings,))
        if bias is not None:
            bias = yield OnHost(repeat, (bias,))
        image_arguments = () if self._image_encoder is None else (image_tokens,)
        text = yield Call(programs.prepare_text, (weights[transformer_part(0)], embeddings, bias, *image_arguments))
        positions = yield from programs.denoiser.clip_positions(self._clip_shape(request))
        return Context(text=text, positions=positions, condition=None)

    def attention_lengths(self, request: GenerationRequest) -> AttentionLengths:
        """See `WholeClipModel`. Adds the attention in which each latent frame attends to one latent frame of the driving video.
        If a chip has the queries of the whole video, all latent frames of the driving video count. Otherwise, the largest number
        of latent frames counts to which a chip's queries can attend."""
        lengths, shape = super().attention_lengths(request), self._clip_shape(request)
        denoiser = self._guided.denoiser
        frame = denoiser.num_tokens(shape) // shape[2]
        is_whole = lengths.queries >= denoiser.num_tokens(self.step_shape(request))
        frames = shape[2] if is_whole else -(-lengths.queries // frame) + 1
        return dataclasses.replace(lengths, beside=(frame, frames * lengths.heads * lengths.batch))

    def _make_segment_context(
        self,
        weights: Weights,
        request: GenerationRequest,
        step_context: WholeClipStepContext,
        index: int,
        last_frame: jax.Array | None,
    ) -> Effects[DrivenContext]:
        programs, inputs = step_context.programs, cast(SegmentInputs, step_context.context)
        conditions, shared = inputs.conditions, inputs.shared
        channels = yield from self._encode_segment_channels(programs, weights["vae"], request, conditions[PICTURE], last_frame)
        begin, end = index * self.segment, (index + 1) * self.segment
        clip = yield OnHost(lambda xp, whole: whole[:, :, begin:end], (conditions[DRIVE],))
        clip_channels = yield OnHost(functools.partial(add_mask_channels, self.spec.scales[1]), (clip,))
        channels, clip, clip_channels = yield Put((channels, clip, clip_channels), programs.layout.replicated)
        assert inputs.clip is not None, "`_make_clip_context` makes it"
        context = dataclasses.replace(inputs.clip, condition=ImageChannels(values=clip_channels))
        keys = yield Call(programs.extract, (weights[transformer_part(0)], clip, context))
        return DrivenContext(text=shared.text, positions=shared.positions, condition=ImageChannels(values=channels), clip=keys)
