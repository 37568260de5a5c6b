"""Wan 2.2 TI2V extends a clip. The reference is diffusers' own networks and scheduler in the loop of its image-to-video
pipeline. The loop has the latents of several frames in place of the picture's latents.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from diffusers import UniPCMultistepScheduler
from PIL import Image

from backend.media.clips import read_part
from backend.media.video import read_frames, write_exact_frames
from backend.pipeline.generate import generate
from backend.schemas.clip import Part
from backend.schemas.request import GenerationRequest
from tests.gradients import without_gradients
from tests.parity.conftest import PRESET
from tests.parity.test_parity import LATENT_TOLERANCE
from tests.parity.test_video_to_video import clip  # noqa: F401, a fixture
from tests.parity.tiny_runs import latents_of

pytestmark = [pytest.mark.parity, pytest.mark.demo_model]


@without_gradients
def by_hand(pipeline, request: GenerationRequest) -> np.ndarray:
    """Run the loop by hand. The given latent frames stay unchanged at timestep 0; the others begin as noise."""
    frames = (
        torch.from_numpy(read_part(request.video, Part.from_request(request)).copy()).permute(3, 0, 1, 2)[None].float() / 127.5
        - 1
    )
    vae, config = pipeline.vae, pipeline.vae.config
    mean, std = (torch.tensor(values).view(1, -1, 1, 1, 1) for values in (config.latents_mean, config.latents_std))
    given = (vae.encode(frames).latent_dist.mode() - mean) / std
    count, scale = given.shape[2], pipeline.vae_scale_factor_spatial
    shape = (1, config.z_dim, (request.num_frames - 1) // 4 + 1, request.height // scale, request.width // scale)
    latents = torch.randn(shape, generator=torch.Generator().manual_seed(request.seed))
    is_new = torch.ones(shape)
    is_new[:, :, :count] = 0
    whole = torch.cat([given, torch.zeros(*shape[:2], shape[2] - count, *shape[3:])], dim=2)
    texts = pipeline.encode_prompt(request.prompt, request.negative_prompt, True, max_sequence_length=512)
    scheduler = UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=request.flow_shift)
    scheduler.set_timesteps(request.steps)
    for timestep in scheduler.timesteps:
        shown = (1 - is_new) * whole + is_new * latents
        times = (is_new[0, 0, :, ::2, ::2] * timestep).flatten()[None]
        velocities = [pipeline.transformer(shown, times, text, return_dict=False)[0] for text in texts]
        guided = velocities[1] + request.guidance[0] * (velocities[0] - velocities[1])
        latents = scheduler.step(guided, timestep, latents, return_dict=False)[0]
    return ((1 - is_new) * whole + is_new * latents).numpy()


@pytest.mark.parametrize(("num_frames", "overlap"), [(9, 5), (17, 9), (9, 1)])
def test_the_latents_are_those_of_the_loop_with_several_frames(num_frames, overlap, tiny, clip):  # noqa: F811
    made = tiny("wan2.2-ti2v")
    request = made.request(num_frames=num_frames, video=clip, extend="after", overlap=overlap, trim=(0.5, 2.5))
    ours = latents_of(request, made.loaded)
    assert np.abs(ours - by_hand(made.reference, request)).max() <= LATENT_TOLERANCE
    without = made.request(num_frames=num_frames)
    assert np.abs(ours - latents_of(without, made.loaded)).max() > 20 * LATENT_TOLERANCE


@pytest.mark.slow  # tiny models above follow it, and tests/wan_ui/edit extends clips with the demo model
def test_the_demo_model_follows_it_too_and_the_clips_own_pixels_begin_the_video(loaded, reference_pipeline, clip, tmp_path):  # noqa: F811
    prompt = "a blue circle moving right on a black background"
    request = GenerationRequest.from_preset(PRESET, prompt=prompt, steps=6, seed=3, video=clip, extend="after", overlap=5)
    assert np.abs(latents_of(request, loaded) - by_hand(reference_pipeline, request)).max() <= LATENT_TOLERANCE
    *_, final = generate(request, loaded, tmp_path, lambda: False)
    frames, given = np.stack(list(read_frames(tmp_path / "video.mp4"))), read_part(clip, Part.from_request(request))
    assert len(frames) == final.result.num_frames == 17
    light = (frames[:5].astype(float) - given) @ (0.2126, 0.7152, 0.0722)  # an mp4 halves the resolution of colours
    assert 20 * np.log10(255 / np.sqrt((light**2).mean())) >= 35


def test_a_picture_and_a_clip_of_one_frame_are_the_same(tiny, pictures, tmp_path):
    made = tiny("wan2.2-ti2v")
    frame = np.asarray(Image.open(pictures["image"]).convert("RGB"))
    write_exact_frames([frame] * 4, tmp_path / "still.mp4", fps=16)
    assert all((one == frame).all() for one in read_frames(tmp_path / "still.mp4"))
    of_clip = made.request(video=str(tmp_path / "still.mp4"), extend="after", overlap=1)
    of_picture = made.request(image=pictures["image"])
    np.testing.assert_allclose(latents_of(of_clip, made.loaded), latents_of(of_picture, made.loaded), atol=1e-5, rtol=0)
