"""HunyuanVideo 1.5 gives diffusers' result: a tiny random checkpoint in the real layout, same prompt, picture and seed, float32."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.numpy import load_file

from backend.contract import request as request_module
from backend.contract.request import GenerationRequest
from backend.pipeline import generate as pipeline_module
from backend.pipeline import load as load_module
from backend.pipeline.load import LoadedModel
from presets import Preset, load_preset
from tests.parity.tiny_hunyuan import KINDS, SIDE, make_parts, make_preset, pipeline_of, write_checkpoint

pytestmark = [pytest.mark.parity, pytest.mark.demo_model, pytest.mark.usefixtures("torch_on_one_thread")]

LATENT_TOLERANCE = 1e-3  # the project's bar
LEAST_PSNR = 50.0  # in dB over the video, pixels in [0, 1]; the project's bar
QUOTES = 'a shop with the sign "Café 24" and a poster that says “open”, slow pan'
PLAIN = "a fox in the snow"
LONG = " ".join(["a very long story about many different things that happen one after another"] * 12)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tiny:
    """One kind's checkpoint, loaded by us and by diffusers."""

    preset: Preset
    loaded: LoadedModel
    reference: Any

    def request(self, **changes) -> GenerationRequest:
        return GenerationRequest.from_preset(self.preset, **dict(prompt=QUOTES, seed=5, steps=4, num_frames=9) | changes)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory, caches_in_a_folder_of_their_own) -> Callable[[str], Tiny]:
    """Makes each kind once; requests find its preset by name."""
    presets: dict[str, Preset] = {}

    @functools.cache
    def make(kind: str) -> Tiny:
        parts = make_parts(kind)
        folder = write_checkpoint(parts, tmp_path_factory.mktemp(kind) / "model")
        preset = presets[f"tiny-{kind}"] = make_preset(kind, folder)
        loaded = load_module.load(preset, None, lambda event: None)
        return Tiny(preset=preset, loaded=loaded, reference=pipeline_of(parts))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(request_module, "load_preset", lambda name: presets[name] if name in presets else load_preset(name))
        yield make


@pytest.fixture(scope="module")
def picture(tmp_path_factory) -> str:
    """As large as the video, so that nothing is resized on the way."""
    rows, columns = np.mgrid[:SIDE, :SIDE]
    pixels = np.stack([4 * rows, 255 - 3 * columns, (rows * columns) % 256], -1).astype(np.uint8)
    path = tmp_path_factory.mktemp("pictures") / "first.png"
    Image.fromarray(pixels).save(path)
    return str(path)


def run_ours(made: Tiny, request: GenerationRequest, folder: Path) -> np.ndarray:
    """The latents after all steps."""
    list(pipeline_module.generate(request, made.loaded, folder, lambda: False))
    return load_file(folder / "stage2_latents.safetensors")["latents"]


def video_of(made: Tiny, request: GenerationRequest, latents: np.ndarray) -> np.ndarray:
    """[F, H, W, 3] in [0, 1]."""
    frames = pipeline_module.decode_frames(made.loaded, request, latents)
    video = np.concatenate([np.asarray(frame) for frame in frames], axis=2)[0].transpose(1, 2, 3, 0)
    return (video + 1) / 2


def run_reference(made: Tiny, request: GenerationRequest) -> np.ndarray:
    """diffusers' latents of the same request."""
    pipeline = made.reference
    pipeline.guider = pipeline.guider.new(guidance_scale=request.guidance[0])
    given = {"image": Image.open(request.image)} if request.image else {"height": request.height, "width": request.width}
    return pipeline(
        **given,
        prompt=request.prompt,
        negative_prompt=request.negative_prompt,
        num_frames=request.num_frames,
        num_inference_steps=request.steps,
        generator=torch.Generator().manual_seed(request.seed),
        output_type="latent",
    ).frames.numpy()


@torch.no_grad()
def decode_reference(made: Tiny, latents: np.ndarray) -> np.ndarray:
    vae = made.reference.vae
    video = vae.decode(torch.from_numpy(latents) / vae.config.scaling_factor).sample
    return ((video[0].permute(1, 2, 3, 0) + 1) / 2).clamp(0, 1).numpy()


def psnr(ours: np.ndarray, reference: np.ndarray) -> float:
    return float(-10 * np.log10(max(np.square(ours - reference).mean(), 1e-12)))


CASES = [
    *[(kind, 6.0, QUOTES, PLAIN, steps) for kind in KINDS[:2] for steps in (1, 4, 8)],
    *[(KINDS[2], 1.0, QUOTES, "", steps) for steps in (1, 4, 8)],
    (KINDS[0], 1.0, PLAIN, "", 4),
    (KINDS[0], 6.0, PLAIN, LONG, 4),
    (KINDS[0], 6.0, LONG, "", 4),
    (KINDS[1], 1.0, QUOTES, "", 4),
    (KINDS[1], 6.0, PLAIN, QUOTES, 4),
]


@pytest.mark.parametrize(("kind", "guidance", "prompt", "negative", "steps"), CASES)
def test_latents_and_video_equal_diffusers(kind, guidance, prompt, negative, steps, tiny, picture, tmp_path):
    made = tiny(kind)
    image = {"image": picture} if "i2v" in kind else {}
    request = made.request(guidance=(guidance,), prompt=prompt, negative_prompt=negative, steps=steps, **image)
    ours, reference = run_ours(made, request, tmp_path), run_reference(made, request)
    assert np.abs(ours - reference).max() <= LATENT_TOLERANCE
    assert psnr(video_of(made, request, ours), decode_reference(made, reference)) >= LEAST_PSNR
    assert made.loaded.model.kind.name == kind
