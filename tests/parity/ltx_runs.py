"""Tiny checkpoints of LTX-2 run by our code and by diffusers: the fixture `tiny_ltx`, imported by the conftest, and shared
helpers.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, LTXEulerAncestralRFScheduler
from diffusers.schedulers import scheduling_ltx_euler_ancestral_rf as ancestral_module
from PIL import Image
from safetensors.numpy import load_file

from backend.media.sound import Sound
from backend.models.model import SOUND, VIDEO
from backend.pipeline import generate as pipeline_module
from backend.pipeline import load as load_module
from backend.pipeline.loaded import LoadedModel
from backend.sampling.fresh_noise import add_fresh_noise, make_fresh_noise
from backend.sampling.solvers import schedule_for_request, start_state
from backend.schemas.events import Finished
from backend.schemas.request import GenerationRequest
from presets import Preset
from tests.gradients import without_gradients
from tests.kept import digest, kept
from tests.parity.tiny_ltx import make_parts, make_preset, pipeline_of, write_checkpoint
from tests.parity.tiny_preset import find_also

LATENT_TOLERANCE = 1e-3  # the project's bar
LEAST_PSNR = 50.0  # in dB over the video, pixels in [0, 1]; the project's bar
LEAST_SNR = 40.0  # in dB over the waveform; the project's bar
ALL = dict(sound_guidance=7.0, perturbed_guidance=(1.0, 0.5), modality_guidance=(3.0, 2.0), guidance_rescale=(0.7, 0.3))
OFF = dict(guidance=(1.0,), sound_guidance=1.0)
DISTILLED, ANCESTRAL = OFF | dict(solver="ltx-distilled"), OFF | dict(solver="ltx-ancestral")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tiny:
    """A checkpoint of one kind, loaded by our code and by diffusers."""

    preset: Preset
    loaded: LoadedModel
    parts: dict[str, Any]

    @functools.cached_property
    def weights(self) -> str:
        """A digest of the checkpoint's files."""
        return digest(Path(self.preset.model))

    def request(self, **changes) -> GenerationRequest:
        own = dict(prompt="a dog barks at the sea", negative_prompt="silence", seed=5, num_frames=9)
        return GenerationRequest.from_preset(self.preset, **own | changes)


@pytest.fixture(scope="session")
def tiny_ltx(tmp_path_factory, caches_in_a_folder_of_their_own) -> Callable[[str], Tiny]:
    """A factory that creates each kind once. Requests find its preset by name."""
    with pytest.MonkeyPatch.context() as patch:
        presets = find_also(patch)

        @functools.cache
        def make(kind: str) -> Tiny:
            parts = make_parts(kind)
            folder = write_checkpoint(parts, tmp_path_factory.mktemp(kind) / "model")
            preset = presets[f"tiny-{kind}"] = make_preset(kind, folder)
            return Tiny(preset=preset, loaded=load_module.load(preset, None, lambda event: None), parts=parts)

        yield make


def run_reference(made: Tiny, request: GenerationRequest) -> tuple[np.ndarray, np.ndarray]:
    """Return diffusers' latents of picture and sound, normalised like ours."""
    return kept_streams(lambda: _reference(made, request), made, request)


def kept_streams(
    make: Callable[[], tuple[np.ndarray, np.ndarray]], made: Tiny, request: GenerationRequest, *changes: object
) -> tuple[np.ndarray, np.ndarray]:
    """Return the latents of both streams from `make`, or from the file of an earlier call (`kept`). `changes` are the facts
    besides checkpoint and request.
    """
    both = kept(lambda: np.concatenate([latents.ravel() for latents in make()]), made.weights, request, *changes)
    shapes = made.loaded.model.latent_shapes(request)
    video, sound = np.split(both, [math.prod(shapes[VIDEO])])
    return video.reshape(shapes[VIDEO]), sound.reshape(shapes[SOUND])


def _reference(made: Tiny, request: GenerationRequest) -> tuple[np.ndarray, np.ndarray]:
    given = {"image": Image.open(request.image), "image_crf": 0} if request.image else {}
    parts = made.parts | {"scheduler": scheduler_of(made, request)}
    return normalised(made, *pipeline_of(parts, bool(request.image))(**given, **arguments_of(made, request)))


def arguments_of(made: Tiny, request: GenerationRequest) -> dict[str, Any]:
    """Return the arguments that all of diffusers' pipelines of LTX-2 take from a request."""
    steps = (
        {"num_inference_steps": request.steps}
        if request.solver == "ltx"
        else {"sigmas": schedule_for_request(request).sigmas[:-1]}
    )
    return dict(
        prompt=request.prompt,
        negative_prompt=request.negative_prompt,
        height=request.height,
        width=request.width,
        num_frames=request.num_frames,
        frame_rate=float(request.fps),
        **steps,
        guidance_scale=request.guidance[0],
        audio_guidance_scale=request.guidance[0] if request.sound_guidance is None else request.sound_guidance,
        stg_scale=request.perturbed_guidance[0],
        audio_stg_scale=request.perturbed_guidance[1],
        modality_scale=request.modality_guidance[0],
        audio_modality_scale=request.modality_guidance[1],
        guidance_rescale=request.guidance_rescale[0],
        audio_guidance_rescale=request.guidance_rescale[1],
        spatio_temporal_guidance_blocks=[2],
        use_cross_timestep=made.loaded.model.spec.crosses_timesteps,
        generator=torch.Generator().manual_seed(request.seed),
        output_type="latent",
        return_dict=False,
    )


def normalised(made: Tiny, video: torch.Tensor, sound: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Return the latents that diffusers' pipelines give, normalised like ours."""
    vae, sound_vae = made.parts["vae"], made.parts["audio_vae"]
    video = (video - vae.latents_mean.view(1, -1, 1, 1, 1)) / vae.latents_std.view(1, -1, 1, 1, 1)
    packed = (sound.transpose(1, 2).flatten(2) - sound_vae.latents_mean) / sound_vae.latents_std
    return video.numpy(), packed.unflatten(2, (sound.shape[1], -1)).transpose(1, 2).numpy()


def scheduler_of(made: Tiny, request: GenerationRequest) -> Any:
    """Return diffusers' scheduler for the request's solver, as the checkpoints name it. Given levels stay unchanged."""
    if request.solver == "ltx":
        return made.parts["scheduler"]
    if request.solver == "ltx-distilled":
        options = dict(use_dynamic_shifting=False, shift_terminal=None)
        return FlowMatchEulerDiscreteScheduler.from_config(made.parts["scheduler"].config, **options)
    scheduler = ancestral_scheduler()
    scheduler.noises = [noises_of(made, request, index) for index in range(request.steps)]
    return scheduler


def noises_of(made: Tiny, request: GenerationRequest, index: int) -> list[torch.Tensor]:
    """Return our unweighted noise of a step in the layouts of diffusers' pipelines: the video's tokens, its latents after the
    first frame, and the audio tokens.
    """
    noise = dataclasses.replace(make_fresh_noise(schedule_for_request(request), request.seed, index), deviation=1.0)
    shapes = made.loaded.model.latent_shapes(request)
    states = (add_fresh_noise(start_state(jnp.zeros(shapes[name])), noise, stream) for stream, name in enumerate((VIDEO, SOUND)))
    video, sound = (torch.from_numpy(np.array(state.sample)) for state in states)
    return [video.flatten(2).transpose(1, 2), video[:, :, 1:], sound.transpose(1, 2).flatten(2)]


def ancestral_scheduler() -> LTXEulerAncestralRFScheduler:
    class Ancestral(LTXEulerAncestralRFScheduler):
        """A scheduler that uses `noises` by step, selected by the sample's shape. It appends the last level itself."""

        noises: list[list[torch.Tensor]]

        def set_timesteps(self, num_inference_steps=None, device=None, sigmas=None, timesteps=None, mu=None) -> None:
            super().set_timesteps(device=device, sigmas=[*sigmas, 0.0])
            self.timesteps = self.timesteps[:-1]

        def step(self, model_output, timestep, sample, **options) -> Any:
            with pytest.MonkeyPatch.context() as patch:
                fits = [noise for noise in self.noises[self.step_index or 0] if noise.shape == sample.shape]
                patch.setattr(ancestral_module, "randn_tensor", lambda shape, **given: fits[0])
                return super().step(model_output, timestep, sample, **options)

    return Ancestral()


def finished(made: Tiny, request: GenerationRequest) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return our latents of both streams, and the waveform [channels, samples]."""
    with tempfile.TemporaryDirectory() as folder:
        *_, last = pipeline_module.generate(request, made.loaded, Path(folder), lambda: False)
        assert isinstance(last, Finished) and last.result.has_sound, last
        latents = load_file(Path(folder) / "stage2_latents.safetensors")
        return latents["latents"], latents["sound.latents"], Sound.read(Path(folder) / "stage3_sound.wav").samples


@without_gradients
def decoded(made: Tiny, video: np.ndarray, sound: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    vae, sound_vae, vocoder = (made.parts[name] for name in ("vae", "audio_vae", "vocoder"))
    plain = torch.from_numpy(video) * vae.latents_std.view(1, -1, 1, 1, 1) + vae.latents_mean.view(1, -1, 1, 1, 1)
    pixels = vae.decode(plain, return_dict=False)[0][0].permute(1, 2, 3, 0)
    packed = torch.from_numpy(sound).transpose(1, 2).flatten(2) * sound_vae.latents_std + sound_vae.latents_mean
    spectrum = sound_vae.decode(packed.unflatten(2, (sound.shape[1], -1)).transpose(1, 2), return_dict=False)[0]
    return ((pixels + 1) / 2).clamp(0, 1).numpy(), vocoder(spectrum)[0].numpy()
