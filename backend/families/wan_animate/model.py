"""Animate-2's networks and the work of making a video with them, segment by segment.

A segment begins with the last pixel frame of the one before, which is decoded for that and encoded again; the driving clip's part
goes through the transformer once. Then its steps are Wan's, from noise of its own. The picture is the first latent frame of every
segment, and is left out of the video.

Source: diffusers modular_pipelines/wan_animate_2 (`denoise.py`, `encoders.py`). There prompts are not cleaned, and pictures are
brought to the image encoder's size whole, without the checkpoint's own preprocessor.
"""

import dataclasses
import functools
import math
from collections.abc import Generator
from typing import Any

import jax
import numpy as np
import torch

from backend.contract.drive import OVERLAP, segments_of, words_of_clip
from backend.contract.request import GenerationRequest
from backend.contract.windows import step_geometry
from backend.families.kit.flat_attention import Positions
from backend.families.kit.networks import read_tokenizer
from backend.families.kit.pixels import as_float32, clip_pixels, pixels_of
from backend.families.kit.whole_clip import WholeClipLane, transformer_part
from backend.families.model import VIDEO, Carry, Conditions, Inputs, Latents, ModelPlan, Weights
from backend.families.wan.conditions import branch_embeddings, encode_frames, encode_pixels
from backend.families.wan.image_encoder import ImageEncoder
from backend.families.wan.model import Programs, WanModel, make_programs, text_lengths
from backend.families.wan.text_encoder import TextEncoder
from backend.families.wan.transformer import Context, ImageChannels, TextContext
from backend.families.wan_animate.family import AnimateKind
from backend.families.wan_animate.names import as_wan, plain_names
from backend.families.wan_animate.transformer import DrivenContext, DrivenDenoiser
from backend.runtime.driven_attention import ClipKeys
from backend.runtime.mesh import Layout
from backend.runtime.program import Program
from backend.runtime.work import Call, Effect, OnHost, Put, Work
from backend.sampling.plan import PlannedStep
from backend.sampling.solvers import SamplerState, StepInputs
from backend.weights.read import checkpoint_shapes
from backend.weights.stacked import StackedWeights

PICTURE, DRIVE = "picture", "drive"
"""Among the conditions: the picture's latents [1, C, 1, H, W], and those of all segments of the driving clip, one after another,
[1, C, F, H, W]. Then there is `drive_prompt_embeds`, and `drive_seen`, what the image encoder sees of the clip's first frame."""
CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)  # of CLIP's own training


@dataclasses.dataclass(frozen=True, kw_only=True)
class DrivenPrograms(Programs):
    """Wan's programs; `extract`, which makes the driving clip's keys; and `last_frame`, which cuts it out of decoded pixels."""

    extract: Program
    last_frame: Program


@dataclasses.dataclass(frozen=True, kw_only=True)
class DrivenLane(WholeClipLane):
    """What all steps share, of all segments: with the driving clip's text and places, and the conditions of which each segment
    takes its part."""

    clip_text: TextContext
    clip_positions: Positions
    conditions: Conditions


@dataclasses.dataclass(frozen=True, kw_only=True)
class Segment:
    """What the steps of one segment read: the picture's and the carried frame's channels, and the clip's keys."""

    condition: ImageChannels
    clip: ClipKeys


@dataclasses.dataclass(frozen=True, kw_only=True)
class SegmentCarry:
    """Which segment is next, the latents of the one before, and what its steps read, None until the first of them."""

    index: int = 0
    before: Any = None
    ready: Segment | None = None


class AnimateModel(WanModel):
    """One checkpoint of Animate-2 without its weights."""

    kind: AnimateKind

    def __init__(self, plan: ModelPlan) -> None:
        self._own_config = plan.configs["transformer"]
        self.segment = plan.kind.chunk - 1
        super().__init__(dataclasses.replace(plan, configs=as_wan(plan.configs)))

    def _make_encoders(self, plan: ModelPlan) -> None:
        lengths, config = text_lengths(plan.devices[0].platform), plan.configs.get("image_encoder")
        self._text_encoder = TextEncoder(plan.configs["text_encoder"], read_tokenizer(plan), lengths, is_cleaned=False)
        self._image_encoder = None if config is None or not plan.kind.has_image_encoder else ImageEncoder(config, None)

    def _make_programs(self, plan: ModelPlan, layout: Layout) -> DrivenPrograms:
        denoiser = DrivenDenoiser(self._own_config, layout)
        options = {"compiler": plan.compiler, "denoiser": denoiser}
        made = make_programs(plan.configs, self._text_encoder, layout, self._image_encoder, **options)
        fields = {field.name: getattr(made, field.name) for field in dataclasses.fields(made)}
        program = functools.partial(Program, layout=layout, compiler=plan.compiler)
        extract = program("the driving clip's keys", denoiser.extracted, key="clip_keys", places=denoiser.place_extracted)
        return DrivenPrograms(**fields, extract=extract, last_frame=program("the last frame", _last_frame, key="last_frame"))

    def _renamed(self, transformer: StackedWeights) -> Any:
        return plain_names(checkpoint_shapes(transformer))

    def latent_shape(self, request: GenerationRequest) -> tuple[int, int, int, int, int]:
        """See `WholeClipModel`: all segments one after another, each after the picture."""
        batch, channels, num_frames, height, width = self.step_shape(request)
        return batch, channels, num_frames * segments_of(request), height, width

    def step_shape(self, request: GenerationRequest) -> tuple[int, int, int, int, int]:
        """A segment's, after the picture."""
        batch, channels, num_frames, height, width = self._clip_shape(request)
        return batch, channels, num_frames + 1, height, width

    def _clip_shape(self, request: GenerationRequest) -> tuple[int, int, int, int, int]:
        """That of a segment of the clip."""
        return step_geometry(request).latent_shape(self._guided.vae.latent_channels)

    def decode_flops(self, request: GenerationRequest) -> float:
        """See `Model`; all segments but the last are decoded a second time, for the frame that is carried on."""
        return (2 * segments_of(request) - 1) * self._guided.vae.decode_flops(step_geometry(request))

    def _encoded(self, request: GenerationRequest) -> tuple[dict[str, int], int]:
        tokens = {"text_encoder": math.prod(self._tokens(request).ids.shape)}
        if self._image_encoder is not None:
            tokens["image_encoder"] = 2 * self._image_encoder.num_tokens
        return tokens, 1 + 2 * self.segment * segments_of(request)

    def _texts(self, request: GenerationRequest) -> dict[str, str]:
        """As Wan's, and the driving clip's."""
        return {**super()._texts(request), "drive_prompt_embeds": words_of_clip(request)}

    def encode(self, weights: Weights, request: GenerationRequest, inputs: Inputs) -> Generator[Effect, Any, Conditions]:
        """See `Model`; for the results see `PICTURE`."""
        programs, vae = self._programs(request.is_guided), weights["vae"]
        conditions = yield from self._encode_texts(weights, request)
        picture, clip = pixels_of(inputs["image"][0], np.float32), inputs["drive"][0]
        latents = yield Call(programs.encode_image, (vae, picture.astype(self.dtype)))
        conditions[PICTURE] = yield OnHost(as_float32, (latents,))
        if self._image_encoder is not None:
            conditions["image_seen"] = yield from self._seen(weights, programs, picture)
        encode = functools.partial(encode_frames, programs.encode_first, programs.encode_next, vae)
        pieces = []
        for frames in clip.segments(segments_of(request), self.kind.segment_frames):
            if not pieces and self._image_encoder is not None:
                conditions["drive_seen"] = yield from self._seen(weights, programs, clip_pixels(frames[:1], np.float32))
            pieces.append((yield from encode(frames, scale=self.kind.scales[1], dtype=self.dtype)))
        conditions[DRIVE] = yield OnHost(lambda xp, *pieces: xp.concatenate(pieces, axis=2), tuple(pieces))
        return conditions

    def _seen(self, weights: Weights, programs: Programs, picture: np.ndarray) -> Generator[Effect, Any, Any]:
        """Work: the image encoder's tokens [1, tokens, D] float32 of a picture [1, 3, 1, height, width] in [-1, 1]."""
        pixels = seen_pixels(picture[:, :, 0], self._image_encoder.size).astype(self.dtype)
        tokens = yield Call(programs.embed_image, (weights["image_encoder"], pixels))
        return (yield OnHost(as_float32, (tokens,)))

    def lane(
        self, weights: Weights, request: GenerationRequest, conditions: Conditions, planned: PlannedStep, carry: Carry
    ) -> Generator[Effect, Any, tuple[DrivenLane, SegmentCarry]]:
        """See `Model`: Wan's, with the driving clip's text."""
        lane, _ = yield from super().lane(weights, request, conditions, planned, None)
        programs = lane.programs
        copies = programs.layout.size("dp")  # each guidance branch's chips make the same keys
        embeddings, bias, seen = yield from self._clip_embeddings(conditions, copies)
        pictures = () if self._image_encoder is None else (seen,)
        text = yield Call(programs.prepare_text, (weights[transformer_part(0)], embeddings, bias, *pictures))
        positions = yield from programs.denoiser.clip_positions(self._clip_shape(request))
        shared = {field.name: getattr(lane, field.name) for field in dataclasses.fields(lane)}
        carry = SegmentCarry() if carry is None else dataclasses.replace(carry, ready=None)
        return DrivenLane(**shared, clip_text=text, clip_positions=positions, conditions=conditions), carry

    def _clip_embeddings(self, conditions: Conditions, copies: int) -> Generator[Effect, Any, tuple]:
        """Work: as `branch_embeddings`, of so many copies of the driving clip's text, the last one in the bias."""
        own = {"prompt_embeds": conditions["drive_prompt_embeds"]}
        if "text_bias" in conditions:
            own["text_bias"] = yield OnHost(lambda xp, bias: bias[-1:], (conditions["text_bias"],))
        if "drive_seen" in conditions:
            own["image_seen"] = conditions["drive_seen"]
        embeddings, bias, seen = yield from branch_embeddings(own, 1, self.dtype)

        def repeated(xp: Any, array: Any) -> Any:
            return xp.repeat(array, copies, axis=0)

        embeddings = yield OnHost(repeated, (embeddings,))
        if bias is not None:
            bias = yield OnHost(repeated, (bias,))
        return embeddings, bias, seen

    def _step(
        self,
        weights: Weights,
        request: GenerationRequest,
        lane: DrivenLane,
        state: SamplerState,
        row: StepInputs,
        carry: SegmentCarry,
        index: int,
    ) -> Generator[Effect, Any, tuple[SamplerState, SegmentCarry]]:
        """See `WholeClipModel`; before a segment's first step all is made that its steps read."""
        if carry.ready is None:
            carry = dataclasses.replace(carry, ready=(yield from self._segment(weights, request, lane, carry)))
        ready, shared = carry.ready, lane.context
        context = DrivenContext(text=shared.text, positions=shared.positions, condition=ready.condition, clip=ready.clip)
        state, _ = yield from super()._step(weights, request, dataclasses.replace(lane, context=context), state, row, None, index)
        return state, carry

    def _segment(
        self, weights: Weights, request: GenerationRequest, lane: DrivenLane, carry: SegmentCarry
    ) -> Generator[Effect, Any, Segment]:
        """Work: what the steps of the carry's segment read."""
        programs, layout, conditions = lane.programs, lane.layout, lane.conditions
        carried = yield from self._last_frame(programs, weights["vae"], carry.before)
        channels = yield from self._channels(programs, weights["vae"], request, conditions[PICTURE], carried)
        begin, end = carry.index * self.segment, (carry.index + 1) * self.segment
        clip = yield OnHost(lambda xp, whole: whole[:, :, begin:end], (conditions[DRIVE],))
        shown = yield OnHost(functools.partial(_with_mask, self.kind.scales[1]), (clip,))
        channels, clip, shown = yield Put((channels, clip, shown), layout.replicated)
        context = Context(text=lane.clip_text, positions=lane.clip_positions, condition=ImageChannels(values=shown))
        keys = yield Call(programs.extract, (weights[transformer_part(0)], clip, context))
        return Segment(condition=ImageChannels(values=channels), clip=keys)

    def _last_frame(self, programs: Programs, vae: Any, latents: Any) -> Generator[Effect, Any, Any]:
        """Work: the last pixel frame [1, 3, 1, height, width] of a segment's latents, which begin with the picture's; None
        without latents."""
        if latents is None:
            return None
        pixels, caches = None, None
        for index in range(1, self.kind.chunk):
            frame = yield OnHost(functools.partial(_frame, index), (latents,))
            if caches is None:
                pixels, caches = yield Call(programs.decode_first, (vae, frame))
            else:
                pixels, caches = yield Call(programs.decode_next, (vae, frame, caches))
        return (yield Call(programs.last_frame, (pixels,)))

    def _channels(
        self, programs: Programs, vae: Any, request: GenerationRequest, picture: Any, carried: Any
    ) -> Generator[Effect, Any, Any]:
        """Work: the channels [1, 4 + C, 1 + F, H, W] float32 beside a segment's noisy latents: the picture's, then those of a
        clip that begins with the `carried` frame and is grey after it, with a mask that says which of them are given."""
        geometry, dtype = step_geometry(request), self.dtype
        grey = np.zeros((1, 3, 1, geometry.height, geometry.width), dtype)
        first = grey if carried is None else (yield OnHost(lambda xp, frame: frame.astype(dtype), (carried,)))

        def pixels(begin: int, end: int) -> Any:
            return first if begin == 0 else np.repeat(grey, end - begin, axis=2)

        encoders = programs.encode_first, programs.encode_next
        clip = yield from encode_pixels(*encoders, vae, pixels, geometry.num_frames, self.kind.scales[1])
        given = 0 if carried is None else OVERLAP
        return (yield OnHost(functools.partial(_segment_channels, self.kind.scales[1], given), (picture, clip)))

    def settle(
        self, weights: Weights, request: GenerationRequest, lane: DrivenLane, clean: Latents, carry: SegmentCarry
    ) -> Generator[Effect, Any, SegmentCarry]:
        """See `Model`: the next segment is made ready before its first step, from these latents."""
        yield from ()
        return SegmentCarry(index=carry.index + 1, before=clean[VIDEO])

    def spared_steps(self, carry: Any) -> int:
        """None: there is no step cache."""
        return 0

    def _finish(self, conditions: Conditions, latents: Any) -> Work:
        """The latents without the picture's frame of each segment."""
        return (yield OnHost(functools.partial(_without_pictures, self.kind.chunk), (latents,)))


def seen_pixels(picture: np.ndarray, side: int) -> np.ndarray:
    """What CLIP's encoder takes, [1, 3, side, side] float32, of a whole picture [1, 3, height, width] in [-1, 1]."""
    resized = torch.nn.functional.interpolate(torch.from_numpy(picture), size=(side, side), mode="bicubic", align_corners=False)
    mean, std = (np.array(values, np.float32).reshape(1, 3, 1, 1) for values in (CLIP_MEAN, CLIP_STD))
    return (resized.numpy() * 0.5 + 0.5 - mean) / std


def _last_frame(pixels: jax.Array) -> jax.Array:
    """The last one [1, 3, 1, height, width] of frames [1, 3, F, height, width]."""
    return pixels[:, :, -1:]


def _frame(index: int, xp: Any, latents: Any) -> Any:
    return latents[:, :, index : index + 1]


def _with_mask(channels: int, xp: Any, latents: Any) -> Any:
    """Channels of ones before the latents: all of it is given."""
    return xp.concatenate([xp.ones((1, channels, *latents.shape[2:]), np.float32), latents], axis=1)


def _segment_channels(mask_channels: int, given: int, xp: Any, picture: Any, clip: Any) -> Any:
    """See `AnimateModel._channels`; `given` pixel frames of the clip are."""
    mask = np.zeros((1, mask_channels, *clip.shape[2:]), np.float32)
    mask[:, :, :given] = 1  # the first latent frame stands for one pixel frame, which fills all of its channels
    return xp.concatenate([_with_mask(mask_channels, xp, picture), xp.concatenate([mask, clip], axis=1)], axis=2)


def _without_pictures(chunk: int, xp: Any, latents: Any) -> Any:
    shape = latents.shape
    split = xp.asarray(latents).reshape(*shape[:2], -1, chunk, *shape[3:])
    return split[:, :, :, 1:].reshape(*shape[:2], -1, *shape[3:])
