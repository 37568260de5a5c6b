"""Video for an uploaded audio file, and audio for a clip, equal a plain loop over diffusers' classes as the makers describe it.

The given stream is encoded once and stays clean at timestep 0, while the other stream is denoised. float32, tiny random checkpoints.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from backend.media.audio_inputs import read_for_model, read_original
from backend.media.sound import Sound, read_sound
from backend.media.video import read_frames, write_frames
from backend.models.model import SOUND, VIDEO
from backend.pipeline import generate as pipeline_module
from backend.pipeline.inputs import open_inputs
from backend.schemas.request import GenerationRequest
from backend.schemas.sound import SoundPart
from tests.gradients import without_gradients
from tests.parity.ltx_runs import LATENT_TOLERANCE, Tiny
from tests.parity.tiny_ltx import KINDS, SIDE, pipeline_of
from training.sound_networks import log_mel_of

pytestmark = [pytest.mark.parity, pytest.mark.demo_model]

RATE = 44_100
FPS = 24


def by_turns(chosen: str) -> list:
    """Return all kinds, with all but the chosen kind marked as slow."""
    return [kind if kind == chosen else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS]


@pytest.fixture(scope="module")
def sweep(tmp_path_factory) -> Path:
    """A file of two seconds whose tone rises on the left and falls on the right."""
    time = np.arange(2 * RATE) / RATE
    left, right = np.sin(2 * np.pi * (200 + 300 * time) * time), np.sin(2 * np.pi * (900 - 200 * time) * time)
    path = tmp_path_factory.mktemp("sounds") / "sweep.wav"
    Sound(samples=0.5 * np.stack([left, right]).astype(np.float32), rate=RATE).write(path)
    return path


@pytest.fixture(scope="module")
def clip(tmp_path_factory) -> Path:
    """A silent clip of a brightening slope."""
    path = tmp_path_factory.mktemp("clips") / "slope.mp4"
    rows = np.linspace(0, 200, SIDE)[:, None, None] + np.zeros((SIDE, SIDE, 3))
    write_frames(((rows + 2 * number).clip(0, 255).astype(np.uint8) for number in range(17)), path, fps=FPS, comment="")
    return path


@pytest.mark.parametrize("kind", by_turns("ltx-2.3"))
def test_the_picture_follows_a_given_sound(tiny_ltx, sweep, kind, tmp_path):
    made = tiny_ltx(kind)
    request = made.request(steps=2, sound=str(sweep), sound_start=0.25, guidance=(2.0,))
    *_, last = pipeline_module.generate(request, made.loaded, tmp_path, lambda: False)
    video = _latents(tmp_path, "latents")
    length = made.loaded.model.latent_shapes(request)[SOUND][2]
    sound = encoded_sound(made, read_for_model(request.sound, SoundPart.from_request(request)), length)
    expected = _reference(made, request, {SOUND: sound})
    assert np.abs(_latents(tmp_path, "sound.latents") - sound).max() <= LATENT_TOLERANCE
    assert np.abs(video - expected).max() <= LATENT_TOLERANCE
    heard, given = read_sound(Path(last.result.path)), read_original(sweep, SoundPart.from_request(request))
    assert heard.rate == RATE and given.rate == RATE
    count = round(request.num_frames / request.fps * RATE)
    error = np.square(heard.samples[:, :count] - given.samples).mean()
    assert 10 * np.log10(np.square(given.samples).mean() / error) > 20  # AAC's own loss is far smaller


@pytest.mark.parametrize("kind", by_turns("ltx-2.0"))
def test_a_sound_is_made_for_a_clip(tiny_ltx, clip, kind, tmp_path):
    made = tiny_ltx(kind)
    request = made.request(steps=2, video=str(clip), make="sound", sound_guidance=2.0)
    *_, last = pipeline_module.generate(request, made.loaded, tmp_path, lambda: False)
    given = encoded_video(made, request)
    expected = _reference(made, request, {VIDEO: given})
    assert np.abs(_latents(tmp_path, "latents") - given).max() <= LATENT_TOLERANCE
    assert np.abs(_latents(tmp_path, "sound.latents") - expected).max() <= LATENT_TOLERANCE
    shown, own = np.stack(list(read_frames(Path(last.result.path)))), open_inputs(request)["video"][0]
    assert last.result.has_sound and np.abs(shown.astype(int) - own).mean() < 1  # the clip's own pixels, through H.264


def _latents(folder: Path, name: str) -> np.ndarray:
    from safetensors.numpy import load_file

    return load_file(folder / "stage2_latents.safetensors")[name]


@without_gradients
def encoded_sound(made: Tiny, samples: np.ndarray, length: int) -> np.ndarray:
    """Return diffusers' `length` normalised latents [1, C, L, M] of the audio, float32 [2, N]."""
    vae, samples = made.parts["audio_vae"], torch.from_numpy(samples)[None]
    config = vae.config
    padded = torch.nn.functional.pad(samples, (0, length * 4 * config.mel_hop_length - samples.shape[2]))
    mel = log_mel_of(padded, config.sample_rate, config.mel_hop_length, config.mel_bins)[:, :, : 4 * length]
    latents = vae.encode(mel).latent_dist.mode()
    packed = (latents.transpose(1, 2).flatten(2) - vae.latents_mean) / vae.latents_std
    return packed.unflatten(2, (latents.shape[1], -1)).transpose(1, 2).numpy()


@without_gradients
def encoded_video(made: Tiny, request: GenerationRequest) -> np.ndarray:
    vae = made.parts["vae"]
    frames = torch.from_numpy(open_inputs(request)["video"][0]).permute(3, 0, 1, 2)[None].float() / 127.5 - 1
    latents = vae.encode(frames).latent_dist.mode()
    return ((latents - vae.latents_mean.view(1, -1, 1, 1, 1)) / vae.latents_std.view(1, -1, 1, 1, 1)).numpy()


def encoded_texts(made: Tiny, request: GenerationRequest) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return the connectors' embeddings of the prompt and of the negative prompt, for both streams."""
    pipeline, texts = pipeline_of(made.parts), []
    for prompt in (request.prompt, request.negative_prompt):
        embeds, mask, *_ = pipeline.encode_prompt(prompt, do_classifier_free_guidance=False)
        texts.append(made.parts["connectors"](embeds, mask)[:2])
    return texts


def begun_scheduler(made: Tiny, request: GenerationRequest) -> Any:
    """Return diffusers' scheduler with the base model's levels."""
    tokens = int(np.prod(made.loaded.model.latent_shapes(request)[VIDEO][2:]))
    mu = 0.95 + (tokens - 1024) * (2.05 - 0.95) / (4096 - 1024)
    made.parts["scheduler"].set_timesteps(sigmas=np.linspace(1.0, 1 / request.steps, request.steps), mu=mu)
    return made.parts["scheduler"]


@without_gradients
def _reference(made: Tiny, request: GenerationRequest, given: dict[str, np.ndarray]) -> np.ndarray:
    """Return the clean, normalised latents of the generated stream, from a plain loop with classifier-free guidance."""
    shapes = made.loaded.model.latent_shapes(request)
    generator = torch.Generator().manual_seed(request.seed)
    states = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    states |= {name: torch.from_numpy(array) for name, array in given.items()}
    (name,) = shapes.keys() - given.keys()
    scale = request.guidance[0] if name == VIDEO else request.sound_guidance
    texts, scheduler = encoded_texts(made, request), begun_scheduler(made, request)
    for step, sigma in enumerate(scheduler.sigmas[:-1]):
        levels = {one: (torch.zeros(1) if one in given else 1000 * sigma[None]) for one in shapes}
        clean = [states[name] - sigma * velocities(made, states, levels, text, request)[name] for text in texts]
        guided = clean[0] + (scale - 1) * (clean[0] - clean[1])
        velocity = (states[name] - guided) / sigma
        states[name] = states[name] + (scheduler.sigmas[step + 1] - sigma) * velocity
    return states[name].numpy()


def velocities(made: Tiny, states, levels, text, request: GenerationRequest, tokens=None) -> dict[str, torch.Tensor]:
    """Return the velocities of diffusers' transformer. `levels` [1] are the timesteps of the streams. `tokens` [1, S] are the
    timesteps of their tokens, if these differ.
    """
    video, sound = states[VIDEO], states[SOUND]
    frames, height, width = video.shape[2:]
    tokens = {VIDEO: levels[VIDEO][:, None].expand(1, frames * height * width), SOUND: levels[SOUND]} | (tokens or {})
    video_out, sound_out = made.parts["transformer"](
        video.flatten(2).transpose(1, 2),
        sound.transpose(1, 2).flatten(2),
        *text,
        timestep=tokens[VIDEO],
        audio_timestep=tokens[SOUND],
        sigma=levels[VIDEO],
        audio_sigma=levels[SOUND],
        num_frames=frames,
        height=height,
        width=width,
        fps=float(request.fps),
        audio_num_frames=sound.shape[2],
        use_cross_timestep=made.loaded.model.spec.crosses_timesteps,
        return_dict=False,
    )
    return {
        VIDEO: video_out.transpose(1, 2).reshape(video.shape),
        SOUND: sound_out.unflatten(2, (sound.shape[1], -1)).transpose(1, 2),
    }
