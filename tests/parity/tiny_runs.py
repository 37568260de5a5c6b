"""Tiny checkpoints run by our code and by diffusers: the fixtures of this folder, imported by its conftest."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import WanImageToVideoPipeline, WanPipeline, WanVACEPipeline
from PIL import Image
from safetensors.numpy import load_file

from backend.pipeline import generate as pipeline_module
from backend.pipeline import load as load_module
from backend.pipeline.decoding import decode_pieces
from backend.pipeline.loaded import LoadedModel
from backend.pipeline.run import Run
from backend.schemas.events import Decoding, VideoResult
from backend.schemas.request import GenerationRequest
from presets import Preset
from tests.gradients import without_gradients
from tests.kept import digest, kept
from tests.parity.tiny_checkpoints import make_checkpoint, make_preset
from tests.parity.tiny_preset import find_also

SIZE = dict(width=64, height=64, num_frames=9)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tiny:
    """A checkpoint of one family, loaded by our code and by diffusers."""

    preset: Preset
    loaded: LoadedModel

    @functools.cached_property
    def reference(self) -> WanPipeline | WanImageToVideoPipeline | WanVACEPipeline:
        """diffusers' pipeline, created only if it must run."""
        kind = WanImageToVideoPipeline if self.preset.tasks == ("i2v",) else WanPipeline
        kind = WanVACEPipeline if "control" in self.preset.takes else kind
        pipeline = kind.from_pretrained(self.preset.model)
        pipeline.set_progress_bar_config(disable=True)
        return pipeline

    @functools.cached_property
    def weights(self) -> str:
        """A digest of the checkpoint's files."""
        return digest(Path(self.preset.model))

    def request(self, **changes) -> GenerationRequest:
        prompt, negative = "a large yellow circle drifts up over a navy background", "a white star"
        return GenerationRequest.from_preset(self.preset, prompt=prompt, negative_prompt=negative, seed=5, **SIZE | changes)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory, caches_in_a_folder_of_their_own) -> Callable[[str], Tiny]:
    """A factory that creates each family once. Requests find its preset by name."""
    with pytest.MonkeyPatch.context() as patch:
        presets = find_also(patch)

        @functools.cache
        def make(family: str) -> Tiny:
            folder = make_checkpoint(family, tmp_path_factory.mktemp(family))
            preset = presets[f"tiny-{family}"] = make_preset(family, folder)
            return Tiny(preset=preset, loaded=load_module.load(preset, None, lambda event: None))

        yield make


@pytest.fixture(scope="session")
def pictures(tmp_path_factory) -> dict[str, str]:
    """A first and a last frame of the videos' size, so that nothing is resized."""
    folder, paths = tmp_path_factory.mktemp("pictures"), {}
    rows, columns = np.mgrid[:64, :64]
    for name, column in (("image", 20), ("last_image", 44)):
        inside = (rows - 30) ** 2 + (columns - column) ** 2 < 12**2
        pixels = np.where(inside[..., None], (242, 218, 50), (14, 20, 82)).astype(np.uint8)
        paths[name] = str(folder / f"{name}.png")
        Image.fromarray(pixels).save(paths[name])
    return paths


def latents_of(request: GenerationRequest, loaded: LoadedModel, folder: Path | None = None) -> np.ndarray:
    """Return the latents after all steps. The run ends before decoding. With a `folder`, the run continues from its files;
    otherwise all is computed.
    """
    with contextlib.ExitStack() as stack:
        place = folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for event in stack.enter_context(contextlib.closing(pipeline_module.generate(request, loaded, place, lambda: False))):
            if isinstance(event, Decoding):
                break
        return load_file(place / "stage2_latents.safetensors")["latents"]


def video_of(request: GenerationRequest, loaded: LoadedModel, latents: np.ndarray) -> np.ndarray:
    """Decode these latents to a video [F, H, W, 3] in [0, 1]."""
    pieces = decode_pieces(Run(request=request, loaded=loaded, folder=Path(), is_cancelled=lambda: False), latents)
    video = np.concatenate([np.asarray(frames) for frames, _ in pieces], axis=2)[0].transpose(1, 2, 3, 0)
    return (video + 1) / 2


def finished(request: GenerationRequest, loaded: LoadedModel) -> tuple[np.ndarray, VideoResult]:
    """Return the newly computed latents after all steps, and the result of the finished video."""
    with tempfile.TemporaryDirectory() as folder:
        *_, last = pipeline_module.generate(request, loaded, Path(folder), lambda: False)
        return load_file(Path(folder) / "stage2_latents.safetensors")["latents"], last.result


def run_reference(tiny: Tiny, request: GenerationRequest, *changes: object) -> np.ndarray:
    """Return diffusers' latents. `changes` are the test's changes of the reference: facts of `kept`."""
    return kept(lambda: diffusers_latents(tiny, request), tiny.weights, request, *changes)


def diffusers_latents(tiny: Tiny, request: GenerationRequest) -> np.ndarray:
    """Return the same latents, always newly computed."""
    pipeline = tiny.reference
    if request.task == "i2v" and not isinstance(pipeline, WanImageToVideoPipeline):
        pipeline = WanImageToVideoPipeline(**pipeline.components, expand_timesteps=pipeline.config.expand_timesteps)
        pipeline.set_progress_bar_config(disable=True)
    names = ("image", "last_image")
    images = {name: Image.open(path).convert("RGB") for name in names if (path := getattr(request, name))}
    second = {"guidance_scale_2": request.guidance[1]} if len(request.guidance) > 1 else {}
    return pipeline(
        prompt=request.prompt,
        negative_prompt=request.negative_prompt,
        height=request.height,
        width=request.width,
        num_frames=request.num_frames,
        num_inference_steps=request.steps,
        guidance_scale=request.guidance[0],
        **second,
        generator=torch.Generator().manual_seed(request.seed),
        output_type="latent",
        **images,
    ).frames.numpy()


def decode_reference(tiny: Tiny, latents: np.ndarray) -> np.ndarray:
    """Return the video of diffusers' decoder, [F, H, W, 3] in [0, 1]."""
    return kept(lambda: _decode_reference(tiny, latents), tiny.weights, latents)


@without_gradients
def _decode_reference(tiny: Tiny, latents: np.ndarray) -> np.ndarray:
    vae = tiny.reference.vae
    mean, std = (torch.tensor(values).view(1, -1, 1, 1, 1) for values in (vae.config.latents_mean, vae.config.latents_std))
    video = vae.decode(torch.from_numpy(latents) * std + mean).sample
    return ((video[0].permute(1, 2, 3, 0) + 1) / 2).numpy()
