"""Context windows equal diffusers' own transformer, called window by window and blended by hand in plain PyTorch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from diffusers import UniPCMultistepScheduler, WanImageToVideoPipeline
from PIL import Image

from backend.pipeline.warm_up import calls
from backend.schemas.request import GenerationRequest
from backend.schemas.windows import windows_at
from backend.settings import PROJECT_FOLDER
from tests.gradients import without_gradients
from tests.kept import digest, kept
from tests.many_devices import environment
from tests.parity.conftest import PRESET
from tests.parity.tiny_checkpoints import make_checkpoint
from tests.parity.tiny_runs import Tiny, latents_of

pytestmark = [pytest.mark.parity, pytest.mark.demo_model]

LATENT_TOLERANCE = 1e-3  # the project's bar
FRAMES, WINDOW = 45, 5  # pixel frames of the video, latent frames of a window of the tiny presets: 17 pixel frames
FAMILIES = [
    "wan2.1-flf2v",
    "wan2.2-t2v",
    "wan2.2-ti2v",
]  # two pictures, two experts, a first frame; the demo model covers the plain case
MORE_FAMILIES = [pytest.param(family, marks=pytest.mark.slow) for family in ("wan2.1-t2v", "wan2.1-i2v", "wan2.2-i2v")]


def long_request(made: Tiny, pictures: dict[str, str], **changes) -> GenerationRequest:
    """Return a request of more than two windows, with all pictures that the family needs. The 5B gets one."""
    names = [name for name in ("image", "last_image") if name in made.preset.inputs]
    return made.request(**{"steps": 4, "num_frames": FRAMES} | {name: pictures[name] for name in names} | changes)


def by_hand(reference: Callable, weights: str, request: GenerationRequest, length: int) -> np.ndarray:
    """Return the latents of `blended_by_hand` with the pipeline from `reference`, whose weights have this digest."""
    frames = (request.num_frames - 1) // 4 + 1
    windows = [[w.begin, list(w.weights)] for index in range(request.steps) for w in windows_at(index, frames, length)]
    return kept(lambda: blended_by_hand(reference(), request, length), weights, request, length, windows)


@without_gradients
def blended_by_hand(reference, request: GenerationRequest, length: int) -> np.ndarray:
    """Run diffusers' loop with each step's velocity blended from windows of `length` latent frames. A window gets the
    pipeline's preparation for a video of its length from the picture. The 5B's later windows have no picture.
    """
    pipeline, is_first_frame = reference, bool(reference.config.expand_timesteps)
    scheduler = UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=request.flow_shift)
    scheduler.set_timesteps(request.steps)
    texts = pipeline.encode_prompt(request.prompt, request.negative_prompt, True, max_sequence_length=512)
    frames = (request.num_frames - 1) // 4 + 1
    vae_scale, channels = pipeline.vae_scale_factor_spatial, pipeline.vae.config.z_dim
    shape = (1, channels, frames, request.height // vae_scale, request.width // vae_scale)
    latents = torch.randn(shape, generator=torch.Generator().manual_seed(request.seed))
    pictures = [Image.open(path).convert("RGB") for path in (request.image, request.last_image) if path]
    first_frame, channels_of, seen = None, {}, None
    if pictures and is_first_frame:
        first_frame = _prepared(pipeline, request, pictures[:1], length)[1]
    elif pictures:
        plain = _prepared(pipeline, request, pictures[:1], length)[1]
        whole = _prepared(pipeline, request, pictures, frames)[1]
        channels_of = {False: plain, True: torch.cat([plain[:, :, :-1], whole[:, :, -1:]], dim=2)}
        if pipeline.config.image_encoder[0] is not None:
            seen = pipeline.encode_image(pictures if len(pictures) > 1 else pictures[0], "cpu")
    boundary, experts = pipeline.config.boundary_ratio, [pipeline.transformer, pipeline.transformer_2]
    for index, timestep in enumerate(scheduler.timesteps):
        expert = int(boundary is not None and timestep < boundary * 1000)
        blended, total = torch.zeros_like(latents), torch.zeros(frames)
        for window in windows_at(index, frames, length):
            place = slice(window.begin, window.begin + length)
            part, times = latents[:, :, place].clone(), timestep[None]
            if first_frame is not None and window.begin == 0:
                part[:, :, :1] = first_frame
            if is_first_frame:
                still = first_frame is not None and window.begin == 0
                mask = torch.ones(part.shape[2:])
                mask[0] = 0 if still else 1
                times = (mask[:, ::2, ::2] * timestep).flatten()[None]
            elif channels_of:
                part = torch.cat([part, channels_of[window.begin + length == frames and len(pictures) > 1]], dim=1)
            guided = [
                experts[expert](part, times, text, encoder_hidden_states_image=seen, return_dict=False)[0] for text in texts
            ]
            velocity = guided[1] + request.guidance[expert] * (guided[0] - guided[1])
            shares = torch.tensor(window.weights)
            blended[:, :, place] += velocity * shares[:, None, None]
            total[place] += shares
        torch.testing.assert_close(total, torch.ones(frames))
        latents = scheduler.step(blended, timestep, latents, return_dict=False)[0]
    if first_frame is not None:
        latents[:, :, :1] = first_frame
    return latents.numpy()


def _prepared(pipeline, request: GenerationRequest, pictures: list[Image.Image], frames: int):
    """Return the noise and the condition of diffusers' `prepare_latents` for a video of `frames` latent frames."""
    if not isinstance(pipeline, WanImageToVideoPipeline):
        pipeline = WanImageToVideoPipeline(**pipeline.components, expand_timesteps=pipeline.config.expand_timesteps)
    pixels = [pipeline.video_processor.preprocess(one, request.height, request.width) for one in pictures]
    last = pixels[1] if len(pixels) > 1 else None
    channels, size = pipeline.vae.config.z_dim, (request.height, request.width, 4 * frames - 3)
    generator = torch.Generator().manual_seed(0)
    made = pipeline.prepare_latents(pixels[0], 1, channels, *size, torch.float32, "cpu", generator, None, last)
    return made[:2]


@pytest.mark.parametrize("family", FAMILIES + MORE_FAMILIES)
def test_the_latents_are_those_of_diffusers_transformer_window_by_window(family, tiny, pictures):
    made = tiny(family)
    request = long_request(made, pictures)
    assert request.window_frames == 4 * WINDOW - 3
    ours = latents_of(request, made.loaded)
    assert np.abs(ours - by_hand(lambda: made.reference, made.weights, request, WINDOW)).max() <= LATENT_TOLERANCE
    assert np.abs(ours - latents_of(request.with_changes(context_windows=False), made.loaded)).max() > 20 * LATENT_TOLERANCE


@pytest.mark.slow  # tiny models above follow it
def test_the_demo_model_follows_it_too(loaded, reference_pipeline):
    request = GenerationRequest.from_preset(
        PRESET, prompt="a blue circle moving right on a black background", steps=6, seed=3, num_frames=65
    )
    assert (
        np.abs(
            latents_of(request, loaded) - by_hand(lambda: reference_pipeline, digest(Path(PRESET.model_source)), request, 9)
        ).max()
        <= LATENT_TOLERANCE
    )


def test_a_window_runs_the_program_of_an_ordinary_video_of_its_length(tiny, pictures):
    made = tiny("wan2.2-i2v")
    long, ordinary = (long_request(made, pictures, num_frames=count) for count in (FRAMES, 4 * WINDOW - 3))
    programs = [
        {
            call.program.variant_key(*call.arguments)
            for call in calls(made.loaded.model, request)
            if call.program.key == "denoise_step"
        }
        for request in (long, ordinary)
    ]
    assert programs[0] == programs[1] and len(programs[0]) == 1


def test_guidance_on_some_steps_and_nag_work_in_windows(tiny, pictures):
    made = tiny("wan2.1-t2v")
    plain = long_request(made, pictures, guidance_interval=(0.0, 0.5))
    others = [
        plain,
        plain.with_changes(nag=9.0),
        plain.with_changes(guidance_interval=(0.0, 1.0)),
        plain.with_changes(step_cache=0.5),
    ]
    latents = [latents_of(one, made.loaded) for one in others]
    assert all(np.isfinite(one).all() for one in latents)
    assert np.abs(latents[1] - latents[0]).max() > LATENT_TOLERANCE < np.abs(latents[2] - latents[0]).max()
    np.testing.assert_array_equal(latents[3], latents[0])  # the step cache is off


@pytest.mark.slow
def test_eight_devices_equal_one(pictures, tmp_path):
    folder = make_checkpoint("wan2.2-ti2v", tmp_path / "model")
    changes = {"image": pictures["image"], "num_frames": FRAMES, "guidance_interval": [0.0, 0.5]}
    made = SimpleNamespace(**{f"of_{count}": _on_devices(count, folder, changes, tmp_path) for count in (1, 8)})
    assert np.abs(made.of_8 - made.of_1).max() <= LATENT_TOLERANCE


def _on_devices(count: int, folder: Path, changes: dict, output: Path) -> np.ndarray:
    path = output / f"{count}.npy"
    words = [sys.executable, "-m", "tests.parity.mesh_family_run", "wan2.2-ti2v", str(folder), str(path), json.dumps(changes)]
    done = subprocess.run(words, cwd=PROJECT_FOLDER, env=os.environ | environment(count), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1].startswith("dp=2 sp=4" if count == 8 else "dp=1")
    return np.load(path)
