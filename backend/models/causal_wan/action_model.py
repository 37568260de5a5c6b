"""Matrix-Game 2.0's programs, and the work of making a video block by block as keyboard and mouse say. See
`backend.models.model.Model`.

What is done in a block is one action, the same in all its frames. A block's first frames still see what was done at the end of
the block before, so the carry keeps that.
"""

import dataclasses
import functools
from collections.abc import Callable, Generator
from typing import Any, cast

import numpy as np

from backend.models.causal_wan.action_spec import ActionWanKind, diffusers_name
from backend.models.causal_wan.action_transformer import ActionDenoiser, SteeredContext
from backend.models.causal_wan.actions import Steering
from backend.models.causal_wan.model import BlockStepContext, BlockStepState, CausalWanModel, check_unguided, noise_key_data
from backend.models.causal_wan.picture import STILL_FRAMES, WholePictureEncoder, cut_block_channels
from backend.models.causal_wan.transformer import Window
from backend.models.common.pixels import as_dtype, as_float32, pixels_of
from backend.models.common.whole_clip import transformer_part
from backend.models.model import VIDEO, AttentionLengths, Conditions, Inputs, Latents, ModelPlan, StepState, Weights
from backend.models.wan.conditions import encode_clip, image_channels, picture_mask
from backend.models.wan.transformer import ImageChannels
from backend.runtime.mesh import Layout
from backend.runtime.work import Call, Effect, OnHost, Put, Zeros
from backend.sampling.plan import StepPlan
from backend.schemas.request import GenerationRequest
from backend.weights.stacked import StackedWeights


@dataclasses.dataclass(frozen=True, kw_only=True)
class ActionStepState(BlockStepState):
    """The past of the next block, what was `done` before it [pixel frames, keys and mouse], which is None at the beginning, and
    the block's own `steering` and `channels`, None until its lane is made."""

    done: np.ndarray | None
    steering: Steering | None = None
    channels: ImageChannels | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class ActionStepContext(BlockStepContext):
    """What the blocks with one action share: what is `done` in each of their frames [keys and mouse], and the `channels` of the
    picture [1, 4 + C, latent frames, H, W], on the host."""

    done: np.ndarray
    channels: Any

    def block_context(self, step_state: ActionStepState) -> SteeredContext:
        """What a block's steps read besides its latents."""
        assert step_state.steering is not None, "the lane has made it"
        return SteeredContext(
            text=self.text, positions=step_state.positions, condition=step_state.channels, steering=step_state.steering
        )


class ActionWanModel(CausalWanModel):
    """One checkpoint of Matrix-Game 2.0 without its weights."""

    kind: ActionWanKind

    def _make_encoders(self, plan: ModelPlan) -> None:
        self._text_encoder, self._image_encoder = None, WholePictureEncoder(plan.configs["image_encoder"], None)

    def _make_denoiser(self, plan: ModelPlan, layout: Layout, window: Window) -> ActionDenoiser:
        image_width = plan.configs["image_encoder"]["hidden_size"]
        return ActionDenoiser(plan.configs["transformer"], layout, window, self.kind.shape, image_width)

    def _renamed(self, transformer: StackedWeights) -> Callable[[str], str]:
        return diffusers_name

    def notes(self, request: GenerationRequest) -> list[str]:
        """That the prompt changes nothing, if there is one."""
        return ["The model reads no prompt: it only names the video"] if request.prompt else []

    def prompts_for_all_programs(self, example: str) -> list[str]:
        """One: the model reads none."""
        return [example]

    def encode(self, weights: Weights, request: GenerationRequest, inputs: Inputs) -> Generator[Effect, Any, Conditions]:
        """Encode the action as `keyboard` and `mouse`, and the image, if given, as `image_seen` and `image_channels`.

        `image_channels` covers the first `STILL_FRAMES` latent frames. Raises: RequestError for an unknown action.
        """
        keyboard, mouse = (np.array(numbers, np.float32) for numbers in self.kind.encode_action(request.action))
        conditions: dict[str, Any] = {"keyboard": keyboard} | ({"mouse": mouse} if len(mouse) else {})
        pictures = list(inputs.get("image", ()))
        if not pictures:
            return conditions
        programs = self._programs(False)
        seen = self._image_encoder.preprocess(pictures).astype(self.dtype)
        tokens = yield Call(programs.embed_image, (weights["image_encoder"], seen))
        conditions["image_seen"] = yield OnHost(as_float32, (tokens,))
        geometry = request.geometry()
        most = 1 + (STILL_FRAMES - 1) * geometry.temporal_scale
        geometry = dataclasses.replace(geometry, num_frames=min(request.num_frames, most))
        pixels = pixels_of(pictures[0], self.dtype)
        pieces = yield from encode_clip(programs.encode_first, programs.encode_next, weights["vae"], geometry, pixels)
        mask = picture_mask(geometry, has_last=False)
        conditions["image_channels"] = yield OnHost(image_channels, (mask, *pieces))
        return conditions

    def _encoded(self, request: GenerationRequest) -> tuple[dict[str, int], int]:
        num_pictures = len(self._input_images(request))
        frames = min(request.geometry().num_latent_frames, STILL_FRAMES) if num_pictures else 0
        return {"image_encoder": num_pictures * self._image_encoder.num_tokens}, frames

    def make_step_context(
        self, weights: Weights, request: GenerationRequest, conditions: Conditions, step_plan: StepPlan, step_state: StepState
    ) -> Generator[Effect, Any, tuple[ActionStepContext, ActionStepState]]:
        """The picture's keys and values, and before the first block an empty past. Raises: RequestError under guidance."""
        check_unguided(step_plan)
        programs = self._programs(False)
        image = yield OnHost(as_dtype(self.dtype), (conditions["image_seen"],))
        text = yield Call(programs.prepare_text, (weights[transformer_part(0)], None, None, image))
        noise_key = yield Put(noise_key_data(request.seed), programs.layout.replicated)
        step_context = ActionStepContext(
            expert=0,
            is_guided=False,
            programs=programs,
            text=text,
            noise_key=noise_key,
            done=np.concatenate([conditions[name] for name in ("keyboard", "mouse") if name in conditions]),
            channels=conditions["image_channels"],
            image_latents=None,
        )
        if step_state is None:
            past = yield Zeros(programs.denoiser.describe_past(self.latent_shape(request), self.dtype))
            begun = yield from self._make_step_state(programs, request, past, 0)
            step_state = _make_action_state(begun, None)
        return step_context, (yield from self._add_steering(request, step_context, step_state))

    def commit_chunk(
        self,
        weights: Weights,
        request: GenerationRequest,
        step_context: ActionStepContext,
        clean: Latents,
        step_state: ActionStepState,
    ) -> Generator[Effect, Any, ActionStepState]:
        """See `Model`: the clean block's keys and values replace those of its last step."""
        settled = yield from super().commit_chunk(weights, request, step_context, clean, step_state)
        shape = self.kind.shape
        of_block = np.tile(step_context.done, (shape.stride * clean[VIDEO].shape[2], 1))
        before = _earlier_actions(step_state, step_context, shape.reach - shape.stride + 1)
        done = np.concatenate([before, of_block])[-len(before) :]
        return (yield from self._add_steering(request, step_context, _make_action_state(settled, done)))

    def _add_steering(
        self, request: GenerationRequest, step_context: ActionStepContext, step_state: ActionStepState
    ) -> Generator[Effect, Any, ActionStepState]:
        """The carry with the next block's steering and channels, as the lane has them."""
        denoiser = cast(ActionDenoiser, step_context.programs.denoiser)
        shape, frames = self.kind.shape, self._block_shape(request, step_state.first)[2]
        before = _earlier_actions(step_state, step_context, shape.reach - shape.stride + 1)
        of_block = np.tile(
            step_context.done, (shape.stride * frames - 1, 1)
        )  # nothing sees what is done in a block's last pixel frame
        steering = yield from denoiser.block_steering(np.concatenate([before, of_block]), step_state.first, frames)
        channels = yield OnHost(
            functools.partial(cut_block_channels, first=step_state.first, frames=frames), (step_context.channels,)
        )
        condition = yield Put(ImageChannels(values=channels), step_context.layout.replicated)
        return dataclasses.replace(step_state, steering=steering, channels=condition)

    def attention_lengths(self, request: GenerationRequest) -> AttentionLengths:
        """Of a block's tokens to all that the ring holds, and to the picture's."""
        return dataclasses.replace(super().attention_lengths(request), text=self._image_encoder.num_tokens)


def _earlier_actions(step_state: ActionStepState, step_context: ActionStepContext, count: int) -> np.ndarray:
    """What was done in so many pixel frames before the carry's block; at the video's beginning, what its first frame does."""
    return np.tile(step_context.done, (count, 1)) if step_state.done is None else step_state.done


def _make_action_state(step_state: BlockStepState, done: np.ndarray | None) -> ActionStepState:
    return ActionStepState(past=step_state.past, first=step_state.first, positions=step_state.positions, done=done)
