"""Video to video gives what diffusers' `WanVideoToVideoPipeline` gives: its published pixels, the demo model, tiny checkpoints.

That pipeline has one transformer, and treats the 5B's VAE as a VAE of scale 8. Two experts and the 5B are compared with the
same loop, written out with diffusers' own networks and scheduler.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, UniPCMultistepScheduler, WanVideoToVideoPipeline
from PIL import Image

from backend.media.clips import read_part
from backend.models.wan import conditions, model, text_encoder
from backend.pipeline import load as load_module
from backend.schemas.clip import Part
from backend.schemas.request import GenerationRequest
from tests.clip_files import run_ffmpeg
from tests.gradients import without_gradients
from tests.kept import digest, kept
from tests.parity.conftest import PRESET
from tests.parity.published import GUIDANCE, SEED, TEXT_POSITIONS, Published, make_pipeline, make_published_preset
from tests.parity.test_parity import LATENT_TOLERANCE, LEAST_PSNR, psnr
from tests.parity.test_published import PROMPTS, ends
from tests.parity.tiny_preset import find_also
from tests.parity.tiny_runs import decode_reference, latents_of, video_of

pytestmark = [pytest.mark.parity, pytest.mark.demo_model]

# Source: huggingface/diffusers, commit 58eb52c0803ea9af3abec60841c2a093bdf1f951, tests/pipelines/wan/test_wan_video_to_video.py:
# 17 black frames of 16 x 16, 4 steps, guidance 6, strength 0.8 (the pipeline's own), seed 0.
PUBLISHED = Published(family="wan2.1-t2v", pixels=(
    0.4522, 0.4534, 0.4532, 0.4553, 0.4526, 0.4538, 0.4533, 0.4547,
    0.5130, 0.5176, 0.5286, 0.4958, 0.4955, 0.5381, 0.5154, 0.5195))  # fmt: skip
FRAMES, STEPS, THEIR_TOLERANCE = 17, 4, 1e-3


@pytest.fixture(scope="module")
def clip(tmp_path_factory) -> str:
    """A clip of 64 frames of moving colour, 96 x 96, at 16 frames per second."""
    path = tmp_path_factory.mktemp("clip") / "clip.mp4"
    moving = ["-f", "lavfi", "-i", "testsrc2=s=96x96:r=16:d=4"]
    run_ffmpeg(*moving, "-c:v", "libx264", "-crf", "8", "-pix_fmt", "yuv420p", str(path))
    return str(path)


def scheduler_of(request: GenerationRequest):
    if request.solver == "euler":
        return FlowMatchEulerDiscreteScheduler(shift=request.flow_shift)
    return UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=request.flow_shift)


def as_video_to_video(pipeline, scheduler) -> WanVideoToVideoPipeline:
    """Return the video-to-video pipeline with the other pipeline's networks."""
    parts = {name: pipeline.components[name] for name in ("tokenizer", "text_encoder", "transformer", "vae")}
    made = WanVideoToVideoPipeline(**parts, scheduler=scheduler)
    made.set_progress_bar_config(disable=True)
    return made


def run_reference(pipeline: WanVideoToVideoPipeline, request: GenerationRequest) -> np.ndarray:
    """Return diffusers' latents from the same frames that our pipeline starts with."""
    frames = list(read_part(request.video, Part.from_request(request)))
    return kept(lambda: _run_reference(pipeline, request, frames), weights_of(pipeline), request, *frames)


def weights_of(pipeline) -> str:
    """Return a digest of the networks' tensors and of the scheduler's settings."""
    parts = [pipeline.text_encoder, pipeline.transformer, pipeline.vae]
    tensors = [value.numpy() for part in parts for _, value in sorted(part.state_dict().items())]
    return digest(repr(pipeline.scheduler), *tensors)


def _run_reference(pipeline: WanVideoToVideoPipeline, request: GenerationRequest, frames: list[np.ndarray]) -> np.ndarray:
    return pipeline(
        video=[Image.fromarray(frame) for frame in frames],
        prompt=request.prompt,
        negative_prompt=request.negative_prompt,
        height=request.height,
        width=request.width,
        num_inference_steps=request.steps,
        guidance_scale=request.guidance[0],
        strength=request.strength,
        generator=torch.Generator().manual_seed(request.seed),
        output_type="latent",
    ).frames.numpy()


def published_pipeline(scheduler) -> WanVideoToVideoPipeline:
    return as_video_to_video(make_pipeline(PUBLISHED), scheduler)


def black_video(pipeline: WanVideoToVideoPipeline) -> np.ndarray:
    """Return their test's video, [frames, 3, height, width] in [0, 1]."""
    video = pipeline(
        video=[Image.new("RGB", (16, 16))] * FRAMES,
        **PROMPTS,
        height=16,
        width=16,
        num_inference_steps=STEPS,
        guidance_scale=GUIDANCE,
        max_sequence_length=TEXT_POSITIONS,
        generator=torch.Generator().manual_seed(SEED),
        output_type="np",
    ).frames[0]
    return video.transpose(0, 3, 1, 2)


@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning")
def test_diffusers_still_gives_what_it_publishes():
    """diffusers' test has a scheduler for noise instead of flow, for which no Wan was trained. It covers the networks and the
    loop.
    """
    video = black_video(published_pipeline(UniPCMultistepScheduler(flow_shift=3.0)))
    np.testing.assert_allclose(ends(video), PUBLISHED.pixels, atol=THEIR_TOLERANCE)


def test_we_give_what_the_published_networks_give_with_wans_scheduler(tmp_path, monkeypatch):
    """The networks, clip, steps, strength and seed are the same. With every Wan's scheduler, all pixels are compared instead of
    sixteen.
    """
    pipeline = make_pipeline(PUBLISHED)
    pipeline.save_pretrained(tmp_path / "model")
    expected = black_video(published_pipeline(pipeline.scheduler))
    preset = make_published_preset(PUBLISHED, tmp_path / "model")
    preset = preset.model_copy(update={"steps": STEPS, "num_frames": FRAMES, "frame_counts": (FRAMES,), "max_frames": FRAMES})
    for module in (text_encoder, conditions, model):
        monkeypatch.setattr(module, "TEXT_TOKENS", TEXT_POSITIONS)
    monkeypatch.setattr(model, "text_lengths", lambda platform: (TEXT_POSITIONS,))
    find_also(monkeypatch, preset)
    black = tmp_path / "black.gif"  # without loss
    run_ffmpeg("-f", "lavfi", "-i", f"color=black:s=16x16:r=10:d={FRAMES / 10}", str(black))
    request = GenerationRequest.from_preset(preset, **PROMPTS, seed=SEED, video=str(black), fps=10)
    assert not read_part(black, Part.from_request(request)).any() and (request.strength, request.num_steps) == (0.8, 3)
    loaded = load_module.load(preset, None, lambda event: None)
    video = video_of(request, loaded, latents_of(request, loaded)).transpose(0, 3, 1, 2)
    np.testing.assert_allclose(video, expected, atol=THEIR_TOLERANCE)


OFTEN = [("unipc", 0.8, 4.0), ("euler", 0.5, 4.0)]
MORE = [("unipc", 0.2, 1.0), ("unipc", 1.0, 4.0), ("unipc", 0.5, 1.0), ("euler", 1.0, 1.0), ("euler", 0.2, 4.0)]


@pytest.mark.parametrize("solver, strength, guidance", OFTEN + [pytest.param(*case, marks=pytest.mark.slow) for case in MORE])
def test_a_tiny_checkpoint_equals_diffusers(solver, strength, guidance, tiny, clip):
    made = tiny("wan2.1-t2v")
    request = made.request(steps=6, solver=solver, guidance=(guidance,), strength=strength, video=clip, trim=(0.5, 0.5 + 9 / 16))
    reference = as_video_to_video(made.reference, scheduler_of(request))
    ours, theirs = latents_of(request, made.loaded), run_reference(reference, request)
    assert np.abs(ours - theirs).max() <= LATENT_TOLERANCE
    assert psnr(video_of(request, made.loaded, ours), decode_reference(made, theirs)) >= LEAST_PSNR


@without_gradients
def by_hand(made, request: GenerationRequest) -> np.ndarray:
    """Run the loop of diffusers' pipeline with its own networks and scheduler. The timestep selects the expert, and the VAE's
    own scale applies.
    """
    pipeline = made.reference
    transformers = [pipeline.transformer, pipeline.transformer_2]
    vae, scheduler = pipeline.vae, scheduler_of(request)
    frames = (
        torch.from_numpy(read_part(request.video, Part.from_request(request)).copy()).permute(3, 0, 1, 2)[None].float() / 127.5
        - 1
    )
    mean, std = (torch.tensor(values).view(1, -1, 1, 1, 1) for values in (vae.config.latents_mean, vae.config.latents_std))
    clip = (vae.encode(frames).latent_dist.mode() - mean) / std
    texts = pipeline.encode_prompt(request.prompt, request.negative_prompt, True, max_sequence_length=512)
    noise = torch.randn(clip.shape, generator=torch.Generator().manual_seed(request.seed))
    scheduler.set_timesteps(request.steps)
    timesteps = scheduler.timesteps[request.steps - int(request.steps * request.strength) :]
    latents = scheduler.add_noise(clip, noise, timesteps[:1])
    boundary = pipeline.config.boundary_ratio
    for timestep in timesteps:
        expert = int(boundary is not None and timestep < boundary * 1000)
        velocities = [transformers[expert](latents, timestep[None], text, return_dict=False)[0] for text in texts]
        guided = velocities[1] + request.guidance[expert] * (velocities[0] - velocities[1])
        latents = scheduler.step(guided, timestep, latents, return_dict=False)[0]
    return latents.numpy()


@pytest.mark.parametrize(
    "family, strength",
    [
        ("wan2.2-t2v", 0.9),
        ("wan2.2-t2v", 0.3),
        *(pytest.param(family, 0.8, marks=pytest.mark.slow) for family in ("wan2.2-ti2v", "wan2.1-t2v")),
    ],
)
def test_two_experts_and_the_5b_follow_the_same_loop(family, strength, tiny, clip):
    """The last case shows that the loop by hand equals the pipeline."""
    made = tiny(family)
    request = made.request(steps=8, strength=strength, video=clip, trim=(0.5, 0.5 + 9 / 16))
    ours = latents_of(request, made.loaded)
    assert np.abs(ours - by_hand(made, request)).max() <= LATENT_TOLERANCE
    if family == "wan2.1-t2v":
        assert (
            np.abs(ours - run_reference(as_video_to_video(made.reference, scheduler_of(request)), request)).max()
            <= LATENT_TOLERANCE
        )


def test_the_demo_model_follows_it_too(loaded, reference_pipeline, clip):
    request = GenerationRequest.from_preset(
        PRESET, prompt="a blue circle moving right on a black background", steps=8, seed=11, video=clip, trim=(1.0, 2.0625)
    )
    ours = latents_of(request, loaded)
    assert np.abs(ours - by_hand(SimpleNamespace(reference=reference_pipeline), request)).max() <= LATENT_TOLERANCE


@pytest.mark.slow
def test_the_clip_its_part_and_its_strength_do_something(loaded, clip):
    base = GenerationRequest.from_preset(PRESET, prompt="a red circle", steps=4, seed=1, video=clip, trim=(0.0, 1.0625))
    latents = latents_of(base, loaded)
    for changes in ({"trim": (2.0, 3.0625)}, {"strength": 0.5}, {"seed": 2}, {"prompt": "a blue star"}):
        assert np.abs(latents_of(base.with_changes(**changes), loaded) - latents).max() > 0.05
