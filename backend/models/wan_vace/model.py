"""VACE's networks and the generation of a video. Everything is as in plain Wan, except the inputs for the control blocks."""

import dataclasses
from types import ModuleType
from typing import Any

import jax
import numpy as np

from backend.media.source import build_source
from backend.models.common.context_windows import WindowContexts
from backend.models.common.flat_attention import Positions
from backend.models.common.pixels import clip_to_pixels, image_to_pixels, join_frames
from backend.models.model import VIDEO, Conditions, Inputs, Latents, ModelPlan, PromptConditions, Weights
from backend.models.wan.conditions import encode_pixels
from backend.models.wan.model import Programs, WanModel
from backend.models.wan.transformer import TextContext
from backend.models.wan_vace.conditions import CONTROL, REFERENCES, mask_channels
from backend.models.wan_vace.transformer import ControlContext, ControlledDenoiser
from backend.runtime.mesh import Layout
from backend.runtime.work import Call, Effects, OnHost, Put, Work
from backend.schemas.request import GenerationRequest
from backend.schemas.windows import Window


class VaceModel(WanModel):
    """The `Model` of a VACE checkpoint. One latent frame per reference image precedes the latent frames of the video."""

    def _plan_layouts(self, plan: ModelPlan) -> tuple[Layout, Layout]:
        """Plan the layouts as if the control blocks were additional layers, because they are as large as layers."""
        config = plan.configs["transformer"]
        blocks = config["num_layers"] + len(config["vace_layers"])
        return super()._plan_layouts(
            dataclasses.replace(plan, configs={**plan.configs, "transformer": {**config, "num_layers": blocks}})
        )

    def _make_programs(self, plan: ModelPlan, layout: Layout) -> Programs:
        return super()._make_programs(plan, layout, ControlledDenoiser(plan.configs["transformer"], layout))

    def latent_shape(self, request: GenerationRequest) -> tuple[int, int, int, int, int]:
        batch, channels, num_frames, height, width = super().latent_shape(request)
        return (batch, channels, num_frames + len(request.references), height, width)

    def step_shape(self, request: GenerationRequest) -> tuple[int, int, int, int, int]:
        # every context window includes the latent frames of the reference images
        if request.window_frames is None:
            return self.latent_shape(request)
        batch, channels, num_frames, height, width = super().step_shape(request)
        return (batch, channels, num_frames + len(request.references), height, width)

    def _count_encoded(self, request: GenerationRequest) -> tuple[dict[str, int], int]:
        tokens, _ = super()._count_encoded(request)
        passes = 2 if request.inputs().keys() - {"references"} else 1
        return tokens, passes * request.geometry().num_latent_frames + len(request.references)

    def encode(self, weights: Weights, request: GenerationRequest, inputs: Inputs) -> Effects[PromptConditions]:
        conditions: dict[str, Any] = yield from self._encode_texts(weights, request)
        programs, vae = self._programs(request.is_guided), weights["vae"]
        source = build_source(request, inputs)
        geometry = request.geometry()

        def encode_part(is_new: bool) -> Effects[jax.Array]:
            """Encode the clip with the area that stays in grey if `is_new`, else with the area to regenerate in grey. Without a
            source, encode a grey clip."""

            def pixels(begin: int, end: int) -> np.ndarray:
                if source is None:
                    return np.zeros((1, 3, end - begin, geometry.height, geometry.width), self.dtype)
                own = clip_to_pixels(source.frames[begin:end], np.float32)
                return np.where(source.is_new[begin:end] == is_new, own, np.float32(0)).astype(self.dtype)

            return (yield from encode_pixels(programs, vae, pixels, geometry.num_frames, geometry.temporal_scale))

        regenerated = yield from encode_part(True)
        unchanged = regenerated if source is None else (yield from encode_part(False))
        parts = unchanged, regenerated, mask_channels(geometry, source)
        conditions[CONTROL] = yield OnHost(
            lambda xp, *parts: xp.concatenate([part.astype(np.float32) for part in parts], axis=1), parts
        )
        if request.references:
            frames = []
            for image in reversed(inputs["references"]):
                frames.append((yield Call(programs.encode_image, (vae, image_to_pixels(image, self.dtype)))))
            conditions[REFERENCES] = yield OnHost(join_frames, tuple(frames))
        return PromptConditions(full=conditions)

    def _make_context(
        self, programs: Programs, request: GenerationRequest, conditions: Conditions, text: TextContext, positions: Positions
    ) -> Effects[ControlContext | WindowContexts]:
        """See `WanModel`. Each window reads its part of the control latents, after the latents of the reference images."""

        def join(xp: ModuleType, control: jax.Array, references: jax.Array | None = None) -> jax.Array:
            if references is not None:
                missing = control.shape[1] - references.shape[1]
                padded = xp.pad(references, ((0, 0), (0, missing), (0, 0), (0, 0), (0, 0)))
                control = xp.concatenate([padded, control], axis=2)
            return control.astype(self.dtype)

        control = yield OnHost(join, tuple(conditions[name] for name in (CONTROL, REFERENCES) if name in conditions))
        control, scale = yield Put((control, np.float32(request.control_scale)), programs.layout.replicated)
        whole = ControlContext(text=text, positions=positions, condition=None, control=control, scale=scale)
        if request.window_frames is None:
            return whole
        lead = len(request.references)
        length = self.step_shape(request)[2] - lead

        def for_window(window: Window) -> Effects[ControlContext]:
            place = np.int32(window.begin), np.zeros(length, np.float32), np.zeros(lead, np.float32) if lead else None
            return dataclasses.replace(whole, control=(yield Call(programs.windows.cut, (control, *place))))

        return WindowContexts(programs=programs.windows, length=length, lead=lead, for_window=for_window)

    def finish(self, conditions: Conditions, latents: Latents) -> Work:
        """See `Model`. Removes the latent frames of the reference images."""
        if REFERENCES not in conditions:
            return latents
        count = conditions[REFERENCES].shape[2]
        return {VIDEO: (yield OnHost(lambda xp, latents: latents[:, :, count:], (latents[VIDEO],)))}
