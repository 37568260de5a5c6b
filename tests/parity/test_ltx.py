"""LTX-2 gives diffusers' picture and sound: tiny random checkpoints in the real layout, same prompt, picture and seed, float32."""

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

from backend.contract import settings as settings_module
from backend.contract.events import Finished, Step
from backend.contract.request import GenerationRequest
from backend.families.model import SOUND, VIDEO
from backend.media.sound import Sound
from backend.pipeline import generate as pipeline_module
from backend.pipeline import load as load_module
from backend.pipeline.loaded import LoadedModel
from backend.sampling.fresh_noise import fresh_noise, with_noise
from backend.sampling.solvers import schedule_of, start
from presets import Preset, load_preset
from tests.kept import digest, kept
from tests.parity.tiny_ltx import KINDS, SIDE, make_parts, make_preset, pipeline_of, write_checkpoint
from tests.parity.tiny_runs import video_of

pytestmark = [pytest.mark.parity, pytest.mark.demo_model]

LATENT_TOLERANCE = 1e-3  # the project's bar
LEAST_PSNR = 50.0  # in dB over the video, pixels in [0, 1]; the project's bar
LEAST_SNR = 40.0  # in dB over the waveform; the project's bar
ALL = dict(sound_guidance=7.0, perturbed_guidance=(1.0, 0.5), modality_guidance=(3.0, 2.0), guidance_rescale=(0.7, 0.3))
OFF = dict(guidance=(1.0,), sound_guidance=1.0)
DISTILLED, ANCESTRAL = OFF | dict(solver="ltx-distilled"), OFF | dict(solver="ltx-ancestral")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tiny:
    """One kind's checkpoint, loaded by us and by diffusers."""

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


@pytest.fixture(scope="module")
def tiny(tmp_path_factory, caches_in_a_folder_of_their_own) -> Callable[[str], Tiny]:
    """Makes each kind once; requests find its preset by name."""
    presets: dict[str, Preset] = {}

    @functools.cache
    def make(kind: str) -> Tiny:
        parts = make_parts(kind)
        folder = write_checkpoint(parts, tmp_path_factory.mktemp(kind) / "model")
        preset = presets[f"tiny-{kind}"] = make_preset(kind, folder)
        return Tiny(preset=preset, loaded=load_module.load(preset, None, lambda event: None), parts=parts)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(settings_module, "load_preset", lambda name: presets[name] if name in presets else load_preset(name))
        yield make


@pytest.fixture(scope="module")
def picture(tmp_path_factory) -> str:
    """As large as the video, so that nothing is resized on the way."""
    rows, columns = np.mgrid[:SIDE, :SIDE]
    pixels = np.stack([4 * rows, 255 - 3 * columns, (rows * columns) % 256], -1).astype(np.uint8)
    path = tmp_path_factory.mktemp("pictures") / "first.png"
    Image.fromarray(pixels).save(path)
    return str(path)


def run_reference(made: Tiny, request: GenerationRequest) -> tuple[np.ndarray, np.ndarray]:
    """diffusers' latents of picture and sound, normalised as ours are."""
    return kept_streams(lambda: _reference(made, request), made, request)


def kept_streams(
    make: Callable[[], tuple[np.ndarray, np.ndarray]], made: Tiny, request: GenerationRequest, *changes: object
) -> tuple[np.ndarray, np.ndarray]:
    """The latents of both streams that `make` gives, of which `changes` are what decides them besides checkpoint and request: `kept`."""
    both = kept(lambda: np.concatenate([latents.ravel() for latents in make()]), made.weights, request, *changes)
    shapes = made.loaded.model.latent_shapes(request)
    video, sound = np.split(both, [math.prod(shapes[VIDEO])])
    return video.reshape(shapes[VIDEO]), sound.reshape(shapes[SOUND])


def _reference(made: Tiny, request: GenerationRequest) -> tuple[np.ndarray, np.ndarray]:
    given = {"image": Image.open(request.image), "image_crf": 0} if request.image else {}
    parts = made.parts | {"scheduler": scheduler_of(made, request)}
    return normalised(made, *pipeline_of(parts, bool(request.image))(**given, **arguments_of(made, request)))


def arguments_of(made: Tiny, request: GenerationRequest) -> dict[str, Any]:
    """What all of diffusers' pipelines of LTX-2 take of a request."""
    steps = {"num_inference_steps": request.steps} if request.solver == "ltx" else {"sigmas": schedule_of(request).sigmas[:-1]}
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
        use_cross_timestep=made.loaded.model.kind.crosses_timesteps,
        generator=torch.Generator().manual_seed(request.seed),
        output_type="latent",
        return_dict=False,
    )


def normalised(made: Tiny, video: torch.Tensor, sound: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """The latents that diffusers' pipelines give, normalised as ours are."""
    vae, sound_vae = made.parts["vae"], made.parts["audio_vae"]
    video = (video - vae.latents_mean.view(1, -1, 1, 1, 1)) / vae.latents_std.view(1, -1, 1, 1, 1)
    packed = (sound.transpose(1, 2).flatten(2) - sound_vae.latents_mean) / sound_vae.latents_std
    return video.numpy(), packed.unflatten(2, (sound.shape[1], -1)).transpose(1, 2).numpy()


def scheduler_of(made: Tiny, request: GenerationRequest) -> Any:
    """diffusers' for the request's solver, as the checkpoints name it: with the given levels unchanged if they are given."""
    if request.solver == "ltx":
        return made.parts["scheduler"]
    if request.solver == "ltx-distilled":
        options = dict(use_dynamic_shifting=False, shift_terminal=None)
        return FlowMatchEulerDiscreteScheduler.from_config(made.parts["scheduler"].config, **options)
    scheduler = Ancestral()
    scheduler.noises = [noises_of(made, request, index) for index in range(request.steps)]
    return scheduler


def noises_of(made: Tiny, request: GenerationRequest, index: int) -> list[torch.Tensor]:
    """Our noise of a step, before its weight, as diffusers' pipelines hold the streams: the video's tokens, its latents after the
    first frame, and the sound's tokens."""
    noise = dataclasses.replace(fresh_noise(schedule_of(request), request.seed, index), deviation=1.0)
    shapes = made.loaded.model.latent_shapes(request)
    states = (with_noise(start(jnp.zeros(shapes[name])), noise, stream) for stream, name in enumerate((VIDEO, SOUND)))
    video, sound = (torch.from_numpy(np.array(state.sample)) for state in states)
    return [video.flatten(2).transpose(1, 2), video[:, :, 1:], sound.transpose(1, 2).flatten(2)]


class Ancestral(LTXEulerAncestralRFScheduler):
    """Takes `noises` by step, of which the one that has the sample's shape is meant, and appends the last level itself."""

    noises: list[list[torch.Tensor]]

    def set_timesteps(self, num_inference_steps=None, device=None, sigmas=None, timesteps=None, mu=None) -> None:
        super().set_timesteps(device=device, sigmas=[*sigmas, 0.0])
        self.timesteps = self.timesteps[:-1]

    def step(self, model_output, timestep, sample, **options) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            fits = [noise for noise in self.noises[self.step_index or 0] if noise.shape == sample.shape]
            patch.setattr(ancestral_module, "randn_tensor", lambda shape, **given: fits[0])
            return super().step(model_output, timestep, sample, **options)


def finished(made: Tiny, request: GenerationRequest) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Our latents of both streams, and the waveform [channels, samples]."""
    with tempfile.TemporaryDirectory() as folder:
        *_, last = pipeline_module.generate(request, made.loaded, Path(folder), lambda: False)
        assert isinstance(last, Finished) and last.result.has_sound, last
        latents = load_file(Path(folder) / "stage2_latents.safetensors")
        return latents["latents"], latents["sound.latents"], Sound.read(Path(folder) / "stage3_sound.wav").samples


CASES = [(KINDS[0], {}, 2), (KINDS[1], ALL, 2), (KINDS[2], ANCESTRAL, 8)]
MORE_CASES = [
    (KINDS[1], OFF, 2),
    (KINDS[2], ALL, 2),
    (KINDS[1], DISTILLED, 8),
    (KINDS[2], ALL, 8),
    (KINDS[2], DISTILLED, 1),  # with one step "ltx" divides 0 by 0 in diffusers
    (KINDS[2], DISTILLED, 2),
    (KINDS[2], DISTILLED, 8),
    (KINDS[2], ANCESTRAL, 1),
    (KINDS[2], ANCESTRAL, 2),
    (KINDS[0], dict(guidance=(1.0,), sound_guidance=5.0), 2),
    (KINDS[0], ALL, 8),
    (KINDS[1], ALL, 8),
    (KINDS[1], dict(ALL, guidance=(1.0,), sound_guidance=1.0), 2),
]


@pytest.mark.parametrize("kind, changes, steps", CASES + [pytest.param(*case, marks=pytest.mark.slow) for case in MORE_CASES])
def test_picture_and_sound_equal_diffusers(tiny, kind, changes, steps):
    made = tiny(kind)
    request = made.request(steps=steps, **changes)
    video, sound, _ = finished(made, request)
    expected = run_reference(made, request)
    assert np.abs(video - expected[0]).max() <= LATENT_TOLERANCE and np.abs(sound - expected[1]).max() <= LATENT_TOLERANCE


PICTURE_CASES = [(KINDS[0], OFF, 2), (KINDS[1], OFF, 2), (KINDS[2], ALL, 2)]
MORE_PICTURE_CASES = [
    (KINDS[2], OFF, 2),
    (KINDS[2], ANCESTRAL, 8),
    (KINDS[2], ALL, 8),
    (KINDS[2], DISTILLED, 8),
    (KINDS[2], ANCESTRAL, 1),
]


@pytest.mark.parametrize(
    "kind, changes, steps", PICTURE_CASES + [pytest.param(*case, marks=pytest.mark.slow) for case in MORE_PICTURE_CASES]
)
def test_a_picture_is_the_first_frame(tiny, picture, kind, changes, steps):
    made = tiny(kind)
    request = made.request(steps=steps, image=picture, **changes)
    video, sound, _ = finished(made, request)
    expected = run_reference(made, request)
    assert np.abs(video - expected[0]).max() <= LATENT_TOLERANCE and np.abs(sound - expected[1]).max() <= LATENT_TOLERANCE


@pytest.mark.parametrize("stop", [pytest.param(1, marks=pytest.mark.slow), 5])
def test_ancestral_steps_go_on_after_a_stop_and_end_the_same(tiny, tmp_path, stop):
    """Bit for bit, although each step's noise is made anew."""
    made = tiny(KINDS[2])
    request = made.request(steps=8, **ANCESTRAL)
    events = pipeline_module.generate(request, made.loaded, tmp_path, lambda: False)
    for event in events:
        if isinstance(event, Step) and event.index == stop:
            events.close()
    rest = list(pipeline_module.generate(request, made.loaded, tmp_path, lambda: False))
    assert [event.index for event in rest if isinstance(event, Step)][-1] == 8 and isinstance(rest[-1], Finished)
    assert 0 < sum(isinstance(event, Step) for event in rest) <= 8 - stop
    latents, (video, sound, _) = load_file(tmp_path / "stage2_latents.safetensors"), finished(made, request)
    np.testing.assert_array_equal(latents["latents"], video)
    np.testing.assert_array_equal(latents["sound.latents"], sound)


@pytest.mark.parametrize("kind", [KINDS[0], pytest.param(KINDS[1], marks=pytest.mark.slow), KINDS[2]])
def test_latents_become_diffusers_pixels_and_waveform(tiny, kind):
    made = tiny(kind)
    request = made.request(steps=2, **OFF)
    video, sound, waveform = finished(made, request)
    pixels, expected = _decoded(made, video, sound)
    error = np.square(video_of(request, made.loaded, video).clip(0, 1) - pixels).mean()
    assert -10 * np.log10(max(error, 1e-12)) >= LEAST_PSNR
    noise = np.square(waveform - expected[:, : waveform.shape[1]]).mean()
    assert 10 * np.log10(np.square(expected).mean() / max(noise, 1e-12)) >= LEAST_SNR


@torch.no_grad()
def _decoded(made: Tiny, video: np.ndarray, sound: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    vae, sound_vae, vocoder = (made.parts[name] for name in ("vae", "audio_vae", "vocoder"))
    plain = torch.from_numpy(video) * vae.latents_std.view(1, -1, 1, 1, 1) + vae.latents_mean.view(1, -1, 1, 1, 1)
    pixels = vae.decode(plain, return_dict=False)[0][0].permute(1, 2, 3, 0)
    packed = torch.from_numpy(sound).transpose(1, 2).flatten(2) * sound_vae.latents_std + sound_vae.latents_mean
    spectrum = sound_vae.decode(packed.unflatten(2, (sound.shape[1], -1)).transpose(1, 2), return_dict=False)[0]
    return ((pixels + 1) / 2).clamp(0, 1).numpy(), vocoder(spectrum)[0].numpy()
