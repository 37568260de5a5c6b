"""The generation of a video in segments, shared by both Animate models. Each segment continues the previous segment. The first
latent frame of every segment is the input image, and is removed from the finished video. From the second segment on, the second
latent frame is the last pixel frame of the previous segment. This pixel frame is decoded from the previous segment's latents,
then encoded alone. Each segment has its own noise. The denoising steps of a segment are Wan's steps. Source: diffusers
modular_pipelines/wan_animate_2 (`denoise.py`) and pipelines/wan/pipeline_wan_animate.py."""

import abc
import dataclasses
import functools
from types import ModuleType
from typing import Any

import jax
import numpy as np

from backend.models.common.pixels import as_float32, clip_to_pixels, image_to_pixels
from backend.models.common.whole_clip import WholeClipStepContext
from backend.models.model import VIDEO, Conditions, Inputs, Latents, ModelPlan, StepState, Weights
from backend.models.wan.conditions import encode_pixels
from backend.models.wan.model import Programs, WanModel
from backend.models.wan.transformer import Context, Denoiser
from backend.models.wan_animate.spec import SegmentSpec
from backend.runtime.mesh import Layout
from backend.runtime.program import Program
from backend.runtime.work import Call, Effects, OnHost, Work
from backend.sampling.solvers import SamplerState, StepInputs
from backend.schemas.driving_video import OVERLAP, count_segments
from backend.schemas.request import GenerationRequest
from backend.schemas.step_plan import StepPlan
from backend.schemas.windows import step_geometry

PICTURE = "picture"
"""Name of the condition with the input image's latents [1, C, 1, H, W]."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SegmentPrograms(Programs):
    """Wan's programs, and `last_frame`, which returns the last frame of decoded pixels."""

    last_frame: Program


@dataclasses.dataclass(frozen=True, kw_only=True)
class SegmentInputs:
    """The inputs that all segments share. They are the field `context` of a segment model's step context.
    `SegmentModel._make_segment_context` makes a `Context` for the steps of each segment from these inputs.

    Attributes:
        shared: text and rotary embedding, which are the same in all segments.
        conditions: the conditions of all segments. Each segment uses its part.
        clip: text and rotary embedding of the driving video, None if the transformer does not run on the driving video."""

    shared: Context
    conditions: Conditions
    clip: Context | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class SegmentStepState:
    """The `index` of the current segment, and the latents of the `previous` segment, None for the first segment. `context` has
    the inputs of the current segment's steps, None before the segment's first step."""

    index: int = 0
    previous: Any = None
    context: Context | None = None


class SegmentModel(WanModel, abc.ABC):
    """A `Model` that generates a video in segments. Methods take the weights as an argument. `segment` is the number of latent
    frames per segment, without the latent frame of the input image."""

    spec: SegmentSpec
    segment: int

    def __init__(self, plan: ModelPlan) -> None:
        assert plan.spec.chunk is not None, "the families of segment models set it"
        self.segment = plan.spec.chunk - 1
        super().__init__(plan)

    def _make_programs(self, plan: ModelPlan, layout: Layout, denoiser: Denoiser, **own: object) -> Any:
        last = Program("the last frame", _last, key="last_frame", layout=layout, compiler=plan.compiler)
        return super()._make_programs(plan, layout, denoiser, last_frame=last, **own)

    def latent_shape(self, request: GenerationRequest) -> tuple[int, int, int, int, int]:
        """See `WholeClipModel`. The shape has the frames of all segments, including each segment's latent frame of the image."""
        batch, channels, num_frames, height, width = self.step_shape(request)
        return batch, channels, num_frames * count_segments(request), height, width

    def step_shape(self, request: GenerationRequest) -> tuple[int, int, int, int, int]:
        batch, channels, num_frames, height, width = self._clip_shape(request)
        return batch, channels, num_frames + 1, height, width

    def _clip_shape(self, request: GenerationRequest) -> tuple[int, int, int, int, int]:
        """Return the shape of one segment's latents without the image's latent frame."""
        return step_geometry(request).latent_shape(self._guided.vae.latent_channels)

    def decode_flops(self, request: GenerationRequest) -> float:
        """See `Model`. Every segment except the last is decoded twice."""
        return (2 * count_segments(request) - 1) * self._guided.vae.decode_flops(step_geometry(request))

    def _encode_image(
        self, weights: Weights, request: GenerationRequest, programs: Programs, inputs: Inputs
    ) -> Effects[dict[str, Any]]:
        """Return Wan's conditions for the prompts and the input image, and `PICTURE`. Yields work."""
        conditions = yield from self._encode_texts(weights, request)
        image = image_to_pixels(inputs["image"][0], self.dtype)
        conditions[PICTURE] = yield OnHost(as_float32, ((yield Call(programs.encode_image, (weights["vae"], image))),))
        if self._image_encoder is not None:
            conditions["image_seen"] = yield from self._embed_images(weights, programs, inputs["image"])
        return conditions

    def make_step_context(
        self, weights: Weights, request: GenerationRequest, conditions: Conditions, step_plan: StepPlan, step_state: StepState
    ) -> Effects[tuple[WholeClipStepContext, SegmentStepState]]:
        """See `Model`. The field `context` of the result is `SegmentInputs`."""
        step_context, _ = yield from super().make_step_context(weights, request, conditions, step_plan, None)
        clip = yield from self._make_clip_context(weights, request, conditions, step_context.programs)
        inputs = SegmentInputs(shared=step_context.context, conditions=conditions, clip=clip)
        step_state = SegmentStepState() if step_state is None else dataclasses.replace(step_state, context=None)
        return dataclasses.replace(step_context, context=inputs), step_state

    def _make_clip_context(
        self, weights: Weights, request: GenerationRequest, conditions: Conditions, programs: Any
    ) -> Effects[Context | None]:
        yield from ()
        return None

    def _step(
        self,
        weights: Weights,
        request: GenerationRequest,
        step_context: WholeClipStepContext,
        state: SamplerState,
        step_inputs: StepInputs,
        step_state: SegmentStepState,
        index: int,
    ) -> Effects[tuple[SamplerState, SegmentStepState]]:
        if step_state.context is None:
            programs, vae, last_frame = step_context.programs, weights["vae"], None
            if step_state.previous is not None:  # decode the previous segment for its last pixel frame
                caches = None
                for place in range(1, self.segment + 1):
                    take = slice(place, place + 1)
                    frame = yield OnHost(lambda xp, latents, take=take: latents[:, :, take], (step_state.previous,))
                    if caches is None:
                        pixels, caches = yield Call(programs.decode_first, (vae, frame))
                    else:
                        pixels, caches = yield Call(programs.decode_next, (vae, frame, caches))
                last_frame = yield Call(programs.last_frame, (pixels,))
            context = yield from self._make_segment_context(weights, request, step_context, step_state.index, last_frame)
            step_state = dataclasses.replace(step_state, context=context)
        own = dataclasses.replace(step_context, context=step_state.context)
        state, _ = yield from super()._step(weights, request, own, state, step_inputs, None, index)
        return state, step_state

    @abc.abstractmethod
    def _make_segment_context(
        self,
        weights: Weights,
        request: GenerationRequest,
        step_context: WholeClipStepContext,
        index: int,
        last_frame: jax.Array | None,
    ) -> Effects[Context]:
        """Compute the inputs of the steps of segment `index`. Yields work. `step_context.context` is `SegmentInputs`.
        `last_frame` is the last pixel frame [1, 3, 1, height, width] of the previous segment, None for the first segment."""

    def _encode_segment_channels(
        self,
        programs: Programs,
        vae: Any,
        request: GenerationRequest,
        image: jax.Array | np.ndarray,
        last_frame: jax.Array | None,
        background: np.ndarray | None = None,
        is_known: np.ndarray | None = None,
    ) -> Work:
        """Encode the channels [1, 4 + C, 1 + F, H, W] float32 that the transformer reads besides a segment's noisy latents. The
        first latent frame is the image. The F other latent frames are an encoded clip: the `background`, uint8 [pixel frames,
        height, width, 3], or grey frames without a background. `last_frame` replaces the clip's first pixel frame, if given. The
        first four channels are a mask, 1 where pixels are given. These are the image, `last_frame`, and the pixels of the
        background where `is_known` [pixel frames, H, W] float32 is 1. Yields work."""
        geometry, dtype = step_geometry(request), self.dtype
        grey = np.zeros((1, 3, 1, geometry.height, geometry.width), dtype)
        first = None if last_frame is None else (yield OnHost(lambda xp, frame: frame.astype(dtype), (last_frame,)))

        def pixels(begin: int, end: int) -> Any:
            if begin == 0 and first is not None:
                return first
            if background is None:
                return np.repeat(grey, end - begin, axis=2)
            return clip_to_pixels(background[begin:end], dtype)

        clip = yield from encode_pixels(programs, vae, pixels, geometry.num_frames, self.spec.scales[1])
        known = np.zeros((geometry.num_frames, *clip.shape[3:]), np.float32) if is_known is None else is_known.copy()
        known[: 0 if last_frame is None else OVERLAP] = 1
        return (yield OnHost(functools.partial(_join_segment_channels, self.spec.scales[1], known), (image, clip)))

    def commit_chunk(
        self,
        weights: Weights,
        request: GenerationRequest,
        step_context: WholeClipStepContext,
        clean: Latents,
        step_state: SegmentStepState,
    ) -> Effects[SegmentStepState]:
        yield from ()
        return SegmentStepState(index=step_state.index + 1, previous=clean[VIDEO])

    def finish(self, conditions: Conditions, latents: Latents) -> Work:
        return {VIDEO: (yield OnHost(functools.partial(_drop_image_frames, self.segment + 1), (latents[VIDEO],)))}


def add_mask_channels(channels: int, xp: ModuleType, latents: jax.Array) -> jax.Array:
    """Put `channels` mask channels before the channels of latents [1, C, F, H, W]. The mask is 1: all pixels are given."""
    return xp.concatenate([xp.ones((1, channels, *latents.shape[2:]), np.float32), latents], axis=1)


def _last(pixels: jax.Array) -> jax.Array:
    return pixels[:, :, -1:]


def _join_segment_channels(mask_channels: int, known: np.ndarray, xp: ModuleType, image: jax.Array, clip: jax.Array) -> jax.Array:
    """Add mask channels to the latents of image and clip, and join both in time. See `SegmentModel._encode_segment_channels`.
    `known` [pixel frames, H, W] is 1 where the clip's pixels are given. A latent frame has one mask channel for each of its pixel
    frames. The single pixel frame of the clip's first latent frame fills all mask channels."""
    filled = np.concatenate([np.repeat(known[:1], mask_channels, axis=0), known[1:]])
    mask = filled.reshape(1, -1, mask_channels, *known.shape[1:]).swapaxes(1, 2)
    return xp.concatenate([add_mask_channels(mask_channels, xp, image), xp.concatenate([mask, clip], axis=1)], axis=2)


def _drop_image_frames(chunk: int, xp: ModuleType, latents: jax.Array) -> jax.Array:
    shape = latents.shape
    split = xp.asarray(latents).reshape(*shape[:2], -1, chunk, *shape[3:])
    return split[:, :, :, 1:].reshape(*shape[:2], -1, *shape[3:])
