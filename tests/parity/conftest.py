"""Run the demo checkpoint with our pipeline and with diffusers' pipelines on the same request."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, UniPCMultistepScheduler, WanImageToVideoPipeline, WanPipeline
from PIL import Image

from backend.media.pictures import crop_to, load_checked_image
from backend.pipeline import load as load_module
from backend.schemas.request import GenerationRequest
from presets import load_preset
from tests.gradients import without_gradients
from tests.kept import digest, kept
from tests.parity.ltx_runs import tiny_ltx
from tests.parity.tiny_runs import pictures, tiny

__all__ = ["pictures", "tiny", "tiny_ltx"]

PRESET = load_preset("wan-tiny")


@pytest.fixture(scope="session", autouse=True)
def caches_in_a_folder_of_their_own(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STUDIO_DATA_DIR", str(tmp_path_factory.mktemp("data")))
        yield


@pytest.fixture(scope="session")
def loaded(caches_in_a_folder_of_their_own):
    return load_module.load(PRESET, None, lambda event: None)


@pytest.fixture(scope="session")
def reference_pipeline() -> WanPipeline:
    pipeline = WanPipeline.from_pretrained(PRESET.model_source)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


@pytest.fixture(scope="session")
def picture(tmp_path_factory) -> Path:
    """A first frame whose sides no block divides: 130 x 110, a yellow disc on navy."""
    rows, columns = np.mgrid[:110, :130]
    inside = (rows - 60) ** 2 + (columns - 50) ** 2 < 15**2
    pixels = np.where(inside[..., None], (242, 218, 50), (14, 20, 82)).astype(np.uint8)
    path = tmp_path_factory.mktemp("pictures") / "disc.png"
    Image.fromarray(pixels).save(path)
    return path


def run_reference(request: GenerationRequest, pipeline: WanPipeline) -> tuple[np.ndarray, np.ndarray]:
    """Run the same request with diffusers: the text or the image pipeline, with the request's solver."""
    given = [] if request.image is None else [_image(request)]
    facts = (digest(Path(PRESET.model_source)), request, *map(np.asarray, given))
    latents = kept(lambda: _latents(request, pipeline), "latents", *facts)
    return latents, kept(lambda: _decode(pipeline, torch.from_numpy(latents)), "video", *facts)


def _image(request: GenerationRequest) -> Image.Image:
    return crop_to(load_checked_image(request.image), request.width, request.height)


def _latents(request: GenerationRequest, pipeline: WanPipeline) -> np.ndarray:
    pipeline = _with_solver(pipeline, request)
    arguments = dict(
        prompt=request.prompt,
        negative_prompt=request.negative_prompt,
        height=request.height,
        width=request.width,
        num_frames=request.num_frames,
        num_inference_steps=request.steps,
        guidance_scale=request.guidance[0],
        generator=torch.Generator().manual_seed(request.seed),
        output_type="latent",
    )
    if request.task == "i2v":
        arguments["image"] = _image(request)
        pipeline = WanImageToVideoPipeline(**pipeline.components, expand_timesteps=True)
        pipeline.set_progress_bar_config(disable=True)
    return pipeline(**arguments).frames.numpy()


def _with_solver(pipeline: WanPipeline, request: GenerationRequest) -> WanPipeline:
    if request.solver == "euler":
        pipeline.scheduler = FlowMatchEulerDiscreteScheduler(shift=request.flow_shift)
    else:
        pipeline.scheduler = UniPCMultistepScheduler(
            prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=request.flow_shift
        )
    return pipeline


@without_gradients
def _decode(pipeline, latents: torch.Tensor) -> np.ndarray:
    mean, std = (
        torch.tensor(values).view(1, -1, 1, 1, 1)
        for values in (pipeline.vae.config.latents_mean, pipeline.vae.config.latents_std)
    )
    video = pipeline.vae.decode(latents * std + mean).sample
    return ((video[0].permute(1, 2, 3, 0) + 1) / 2).numpy()
