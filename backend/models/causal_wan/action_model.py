"""The `Model` of Matrix-Game 2.0, which generates a video block by block, steered by keyboard and mouse.

All frames of a block have the same action: the states of the keys, and the mouse's movement. The first frames of a block also see
the last actions of the previous block, which are in the step state.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, cast

import numpy as np

from backend.models.causal_wan.action_spec import ActionWanSpec, diffusers_name
from backend.models.causal_wan.action_transformer import ActionDenoiser, SteeredContext
from backend.models.causal_wan.actions import Steering
from backend.models.causal_wan.model import BlockStepContext, BlockStepState, CausalWanModel, check_unguided, noise_key_data
from backend.models.causal_wan.transformer import Window
from backend.models.common.pixels import image_to_pixels
from backend.models.common.whole_clip import transformer_part
from backend.models.model import (
    VIDEO,
    AttentionLengths,
    Conditions,
    Inputs,
    Latents,
    ModelPlan,
    PromptConditions,
    StepState,
    Weights,
)
from backend.models.wan.conditions import encode_image_channels
from backend.models.wan.image_encoder import WholeImageEncoder
from backend.models.wan.transformer import ImageChannels
from backend.runtime.mesh import Layout
from backend.runtime.work import Call, Effects, OnHost, Put
from backend.schemas.request import GenerationRequest
from backend.schemas.step_plan import StepPlan
from backend.weights.stacked import StackedWeights

STILL_FRAMES = 30
"""Number of different latent frames in a clip that is grey after its first frame. All later latent frames equal the last of them.

Derived from diffusers' `WanEncoder3d` with two residual blocks per level, whose causal convolutions see two frames back. There
are 9 such convolutions at the latent frame rate, 4 and a stride at twice that rate, and 9 and a stride at the pixel frame rate.
Together they reach 112 pixel frames back, so latent frame 29 is the first that does not see the image.
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ActionState:
    """The field `own` of Matrix-Game's `BlockStepState`.

    `past_actions` [pixel frames, keys and mouse values] are the actions of the latest pixel frames, None before the first block.
    The next block sees `steering`, and the input channels `channels`.
    """

    past_actions: np.ndarray | None
    steering: Steering
    channels: ImageChannels


@dataclasses.dataclass(frozen=True, kw_only=True)
class ActionInputs:
    """The field `own` of Matrix-Game's `BlockStepContext`. All blocks share it until the action changes.

    `action` [keys and mouse values] is the action in every frame. `channels` is the condition `image_channels`.
    """

    action: np.ndarray
    channels: Any


class ActionWanModel(CausalWanModel):
    """The `Model` of a Matrix-Game 2.0 checkpoint. Methods take the weights as an argument."""

    spec: ActionWanSpec
    _saves_memory = False  # its videos are small

    def _make_encoders(self, plan: ModelPlan) -> None:
        self._text_encoder, self._image_encoder = None, WholeImageEncoder(plan.configs["image_encoder"])

    def _make_denoiser(self, plan: ModelPlan, layout: Layout, window: Window) -> ActionDenoiser:
        image_width = plan.configs["image_encoder"]["hidden_size"]
        return ActionDenoiser(plan.configs["transformer"], layout, window, self.spec.shape, image_width)

    def _name_mapping(self, transformer: StackedWeights) -> Callable[[str], str]:
        return diffusers_name

    def notes(self, request: GenerationRequest) -> list[str]:
        return ["The model reads no prompt: it only names the video"] if request.prompt else []

    def prompts_for_all_programs(self, example: str) -> list[str]:
        return [example]

    def encode(self, weights: Weights, request: GenerationRequest, inputs: Inputs) -> Effects[PromptConditions]:
        """Encode the request to conditions: the action to `keyboard` and `mouse`, the image to `image_seen` and `image_channels`.

        `image_channels` covers the first `STILL_FRAMES` latent frames. Raises: RequestError for an unknown action.
        """
        keyboard, mouse = (np.array(numbers, np.float32) for numbers in self.spec.encode_action(request.action))
        conditions: dict[str, Any] = {"keyboard": keyboard} | ({"mouse": mouse} if len(mouse) else {})
        images = list(inputs.get("image", ()))
        if not images:
            return PromptConditions(full=conditions)
        programs = self._programs(False)
        conditions["image_seen"] = yield from self._embed_images(weights, programs, images)
        geometry = request.geometry()
        max_frames = 1 + (STILL_FRAMES - 1) * geometry.temporal_scale
        geometry = dataclasses.replace(geometry, num_frames=min(request.num_frames, max_frames))
        pixels = image_to_pixels(images[0], self.dtype)
        conditions["image_channels"] = yield from encode_image_channels(programs, weights["vae"], geometry, pixels)
        return PromptConditions(full=conditions)

    def _count_encoded(self, request: GenerationRequest) -> tuple[dict[str, int], int]:
        num_images = len(request.inputs().get("image", ()))
        frames = min(request.geometry().num_latent_frames, STILL_FRAMES) if num_images else 0
        return {"image_encoder": num_images * self._image_encoder.num_tokens}, frames

    def make_step_context(
        self, weights: Weights, request: GenerationRequest, conditions: Conditions, step_plan: StepPlan, step_state: StepState
    ) -> Effects[tuple[BlockStepContext, BlockStepState]]:
        """See `Model`. Raises: RequestError if the step has guidance."""
        check_unguided(step_plan)
        programs = self._programs(False)
        image = yield OnHost(lambda xp, image: image.astype(self.dtype), (conditions["image_seen"],))
        text = yield Call(programs.prepare_text, (weights[transformer_part(0)], None, None, image))
        noise_key = yield Put(noise_key_data(request.seed), programs.layout.replicated)
        own = ActionInputs(
            action=np.concatenate([conditions[name] for name in ("keyboard", "mouse") if name in conditions]),
            channels=conditions["image_channels"],
        )
        step_context = BlockStepContext(expert=0, is_guided=False, programs=programs, text=text, noise_key=noise_key, own=own)
        past_actions = None if step_state is None else step_state.own.past_actions
        if step_state is None:
            step_state = yield from self._make_first_state(programs, request)
        return step_context, (yield from self._add_steering(request, step_context, step_state, past_actions))

    def _make_block_context(self, step_context: BlockStepContext, step_state: BlockStepState) -> SteeredContext:
        own: ActionState = step_state.own
        return SteeredContext(
            text=step_context.text, positions=step_state.positions, condition=own.channels, steering=own.steering
        )

    def commit_chunk(
        self,
        weights: Weights,
        request: GenerationRequest,
        step_context: BlockStepContext,
        clean: Latents,
        step_state: BlockStepState,
    ) -> Effects[BlockStepState]:
        committed = yield from super().commit_chunk(weights, request, step_context, clean, step_state)
        before = self._earlier_actions(step_context, step_state.own.past_actions)
        block_actions = np.tile(step_context.own.action, (self.spec.shape.stride * clean[VIDEO].shape[2], 1))
        past_actions = np.concatenate([before, block_actions])[-len(before) :]
        return (yield from self._add_steering(request, step_context, committed, past_actions))

    def _add_steering(
        self,
        request: GenerationRequest,
        step_context: BlockStepContext,
        step_state: BlockStepState,
        past_actions: np.ndarray | None,
    ) -> Effects[BlockStepState]:
        denoiser, own = cast(ActionDenoiser, step_context.programs.denoiser), step_context.own
        frames = self._block_shape(request, step_state.first)[2]
        # Leave out the action in the block's last pixel frame: a latent frame sees only actions before its last pixel frame.
        block_actions = np.tile(own.action, (self.spec.shape.stride * frames - 1, 1))
        actions = np.concatenate([self._earlier_actions(step_context, past_actions), block_actions])
        steering = yield from denoiser.block_steering(actions, step_state.first, frames)
        numbers = np.arange(step_state.first, step_state.first + frames)
        numbers = np.minimum(numbers, own.channels.shape[2] - 1)  # later frames equal the last
        channels = yield OnHost(lambda xp, channels: xp.take(channels, numbers, axis=2), (own.channels,))
        condition = yield Put(ImageChannels(values=channels), step_context.layout.replicated)
        state = ActionState(past_actions=past_actions, steering=steering, channels=condition)
        return dataclasses.replace(step_state, own=state)

    def _earlier_actions(self, step_context: BlockStepContext, past_actions: np.ndarray | None) -> np.ndarray:
        """Return the actions of earlier blocks that the next block sees. Before the first block, repeat the current action."""
        shape = self.spec.shape
        return np.tile(step_context.own.action, (shape.reach - shape.stride + 1, 1)) if past_actions is None else past_actions

    def attention_lengths(self, request: GenerationRequest) -> AttentionLengths:
        """See `Model`. A block's tokens attend to the keys of all frames in the window, and to the image's tokens."""
        return dataclasses.replace(super().attention_lengths(request), text=self._image_encoder.num_tokens)
