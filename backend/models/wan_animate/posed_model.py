"""Animate-1's networks and the generation of a video in segments (see the module `segments`). Source: diffusers
pipelines/wan/pipeline_wan_animate.py. With a background clip and a mask, the model replaces a person in the background clip. The
background is encoded just before a segment's steps, because the last frame of the previous segment replaces the first frame of
the segment's background."""

import dataclasses
import functools
from types import ModuleType
from typing import cast

import jax
import numpy as np

from backend.media.driving_video import split_into_segments
from backend.models.common.pixels import clip_to_pixels
from backend.models.common.whole_clip import WholeClipStepContext, transformer_part
from backend.models.model import Inputs, ModelPlan, PromptConditions, Weights
from backend.models.wan.conditions import encode_frames
from backend.models.wan.transformer import ImageChannels
from backend.models.wan_animate.posed_transformer import AT_ONCE, SPAN, PosedContext, PosedDenoiser
from backend.models.wan_animate.segments import PICTURE, SegmentInputs, SegmentModel, SegmentPrograms
from backend.runtime.mesh import STACKED_TEXT_HEADS, Layout, with_sharding
from backend.runtime.program import Program
from backend.runtime.work import Call, Effects, OnHost, Put
from backend.schemas.driving_video import count_segments
from backend.schemas.request import GenerationRequest

POSE, FACES, BACKGROUND, KNOWN = "pose", "faces", "background", "known"
"""Names of conditions, each with the values of all segments one after another. `POSE`: the poses' latents [1, C, F, H, W].
`FACES`: uint8 [segments, frames, side, side, 3]. `BACKGROUND`: the background clip, uint8 [segments, frames, height, width, 3].
`KNOWN`: 1 where the background stays, float32 [segments, frames, H, W]."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PosedPrograms(SegmentPrograms):
    """The programs of `SegmentPrograms`, and two programs for faces."""

    motion: Program
    face_keys: Program


class PosedModel(SegmentModel):
    """The `Model` of an Animate-1 checkpoint. Methods take the weights as an argument."""

    def _make_programs(self, plan: ModelPlan, layout: Layout) -> PosedPrograms:
        denoiser = PosedDenoiser(plan.configs["transformer"], layout)
        program = functools.partial(Program, layout=layout, compiler=plan.compiler)
        keys_place = functools.partial(with_sharding, sharding=layout.sharding(STACKED_TEXT_HEADS))
        return super()._make_programs(
            plan,
            layout,
            denoiser,
            group=PosedPrograms,
            motion=program("the face's motion", denoiser.motion, key="face_motion"),
            face_keys=program("the face's keys", denoiser.face_keys, key="face_keys", places=keys_place),
        )

    def _count_encoded(self, request: GenerationRequest) -> tuple[dict[str, int], int]:
        """See `WholeClipModel`. The count includes the latent frames that are encoded before each segment's steps."""
        tokens, _ = super()._count_encoded(request)
        return tokens, 1 + 2 * self.segment * count_segments(request)

    def encode(self, weights: Weights, request: GenerationRequest, inputs: Inputs) -> Effects[PromptConditions]:
        """See `Model`. Adds `PICTURE`, `POSE` and `FACES` to Wan's conditions. With a background clip, also adds `BACKGROUND` and
        `KNOWN`."""
        programs = self._programs(request.is_guided)
        conditions = yield from self._encode_image(weights, request, programs, inputs)
        segmentation = {"count": count_segments(request), "length": self.spec.segment_frames, "repeats_turning_frame": False}
        poses = []
        for frames in inputs["drive"][0].segments(**segmentation):
            poses.append((yield from encode_frames(programs, weights["vae"], frames, self.spec.scales[1], self.dtype)))
        conditions[POSE] = yield OnHost(lambda xp, *pieces: xp.concatenate(pieces, axis=2), tuple(poses))
        conditions[FACES] = np.stack(list(inputs["face"][0].segments(**segmentation)))
        if inputs.get("video"):
            conditions[BACKGROUND] = np.stack(list(split_into_segments(iter(inputs["video"][0]), **segmentation)))
            scale = self.spec.scales[0]
            is_known = (~mask[::scale, ::scale] for mask in inputs["mask"][0])
            conditions[KNOWN] = np.stack(list(split_into_segments(is_known, **segmentation))).astype(np.float32)
        return PromptConditions(full=conditions)

    def _make_segment_context(
        self,
        weights: Weights,
        request: GenerationRequest,
        step_context: WholeClipStepContext,
        index: int,
        last_frame: jax.Array | None,
    ) -> Effects[PosedContext]:
        programs, inputs = step_context.programs, cast(SegmentInputs, step_context.context)
        conditions, shared = inputs.conditions, inputs.shared
        clip = [None if name not in conditions else conditions[name][index] for name in (BACKGROUND, KNOWN)]
        channels = yield from self._encode_segment_channels(
            programs, weights["vae"], request, conditions[PICTURE], last_frame, *clip
        )
        begin, end = index * self.segment, (index + 1) * self.segment
        pose = yield OnHost(lambda xp, whole: whole[:, :, begin:end], (conditions[POSE],))
        transformer, frames = weights[transformer_part(0)], conditions[FACES][index]
        # The orthogonal directions of motion vectors, [out, motion] float32.
        span = yield OnHost(
            lambda xp, span: xp.linalg.qr(span.astype(np.float32) + np.float32(1e-8))[0], (transformer.outer[SPAN],)
        )
        blank = [np.zeros_like(frames[:1])] if step_context.is_guided else []  # for the branch with the negative prompt
        batches = np.concatenate([frames, *blank])
        batches = np.concatenate([batches, np.repeat(batches[-1:], -len(batches) % AT_ONCE, axis=0)])
        motions = []
        for start in range(0, len(batches), AT_ONCE):
            faces = clip_to_pixels(batches[start : start + AT_ONCE], self.dtype)[0].swapaxes(0, 1)
            motions.append((yield Call(programs.motion, (transformer, faces, span))))
        motion = yield OnHost(functools.partial(_stack_branches, len(frames), step_context.is_guided), tuple(motions))
        face = yield Call(programs.face_keys, (transformer, motion))
        channels, pose = yield Put((channels, pose), programs.layout.replicated)
        condition = ImageChannels(values=channels)
        return PosedContext(text=shared.text, positions=shared.positions, condition=condition, pose=pose, face=face)


def _stack_branches(count: int, is_guided: bool, xp: ModuleType, *motions: jax.Array) -> jax.Array:
    """Join batches of motion vectors, and return the vectors of each guidance branch: [branches, count, out]. The branch with the
    prompt gets the first `count` vectors. With guidance, the next vector is the vector of a blank face. The branch with the
    negative prompt gets `count` copies of this vector."""
    joined = xp.concatenate(motions)
    given = joined[None, :count]
    return xp.concatenate([given, xp.repeat(joined[None, count : count + 1], count, axis=1)]) if is_guided else given
