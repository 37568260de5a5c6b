"""Every family gives diffusers' result: a tiny random checkpoint in the real layout, same prompt, pictures and seed, float32."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import FirstBlockCacheConfig, WanImageToVideoPipeline, WanPipeline
from PIL import Image
from safetensors.numpy import load_file

from backend import components as components_module
from backend import pipeline as pipeline_module
from backend import request as request_module
from backend.components import Components
from backend.events import Finished
from backend.families import FAMILIES
from backend.request import GenerationRequest
from presets import Preset, load_preset
from tests.parity.tiny_checkpoints import make_checkpoint, make_preset

pytestmark = [pytest.mark.parity, pytest.mark.demo_model]

LATENT_TOLERANCE = 1e-3  # the project's bar
LEAST_PSNR = 50.0  # in dB over the video, pixels in [0, 1]; the project's bar
SIZE = dict(width=64, height=64, num_frames=9)
STEPS = (1, 4, 8)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tiny:
    """One family's checkpoint, loaded by us and by diffusers."""

    preset: Preset
    components: Components
    reference: WanPipeline | WanImageToVideoPipeline

    def request(self, **changes) -> GenerationRequest:
        prompt, negative = "a large yellow circle drifts up over a navy background", "a white star"
        return GenerationRequest.from_preset(self.preset, prompt=prompt, negative_prompt=negative, seed=5, **SIZE | changes)


@pytest.fixture(scope="module", autouse=True)
def torch_on_one_thread():
    """Networks this small run 25 times faster so, on two cores that others use too (measured)."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory, caches_in_a_folder_of_their_own) -> Callable[[str], Tiny]:
    """Makes each family once; requests find its preset by name."""
    presets: dict[str, Preset] = {}

    @functools.cache
    def make(family: str) -> Tiny:
        folder = make_checkpoint(family, tmp_path_factory.mktemp(family))
        preset = presets[f"tiny-{family}"] = make_preset(family, folder)
        kind = WanImageToVideoPipeline if preset.tasks == ("i2v",) else WanPipeline
        reference = kind.from_pretrained(folder)
        reference.set_progress_bar_config(disable=True)
        return Tiny(preset=preset, components=components_module.load(preset, None, lambda event: None), reference=reference)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(request_module, "load_preset", lambda name: presets[name] if name in presets else load_preset(name))
        yield make


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> dict[str, str]:
    """A first and a last frame of the videos' size, so that nothing is resized on the way."""
    folder, paths = tmp_path_factory.mktemp("pictures"), {}
    rows, columns = np.mgrid[:64, :64]
    for name, column in (("image", 20), ("last_image", 44)):
        inside = (rows - 30) ** 2 + (columns - column) ** 2 < 12**2
        pixels = np.where(inside[..., None], (242, 218, 50), (14, 20, 82)).astype(np.uint8)
        paths[name] = str(folder / f"{name}.png")
        Image.fromarray(pixels).save(paths[name])
    return paths


def run_ours(tiny: Tiny, request: GenerationRequest, folder: Path) -> tuple[np.ndarray, np.ndarray, Finished]:
    """Latents after all steps, video [F, H, W, 3] in [0, 1], and the last event."""
    last = list(pipeline_module.generate(request, tiny.components, folder, lambda: False))[-1]
    latents = load_file(folder / "stage2_latents.safetensors")["latents"]
    frames = pipeline_module.decode_frames(tiny.components.guided, tiny.components.vae_weights, latents)
    video = np.concatenate([np.asarray(frame) for frame in frames], axis=2)[0].transpose(1, 2, 3, 0)
    return latents, (video + 1) / 2, last


def run_reference(tiny: Tiny, request: GenerationRequest) -> np.ndarray:
    """diffusers' latents."""
    pipeline = tiny.reference
    if request.task == "i2v" and not isinstance(pipeline, WanImageToVideoPipeline):
        pipeline = WanImageToVideoPipeline(**pipeline.components, expand_timesteps=pipeline.config.expand_timesteps)
        pipeline.set_progress_bar_config(disable=True)
    names = ("image", "last_image")
    images = {name: Image.open(path).convert("RGB") for name in names if (path := getattr(request, name))}
    second = {"guidance_scale_2": request.guidance[1]} if len(request.guidance) > 1 else {}
    return pipeline(
        prompt=request.prompt, negative_prompt=request.negative_prompt, height=request.height, width=request.width,
        num_frames=request.num_frames, num_inference_steps=request.steps, guidance_scale=request.guidance[0], **second,
        generator=torch.Generator().manual_seed(request.seed), output_type="latent", **images,
    ).frames.numpy()  # fmt: skip


@torch.no_grad()
def decode_reference(tiny: Tiny, latents: np.ndarray) -> np.ndarray:
    vae = tiny.reference.vae
    mean, std = (torch.tensor(values).view(1, -1, 1, 1, 1) for values in (vae.config.latents_mean, vae.config.latents_std))
    video = vae.decode(torch.from_numpy(latents) * std + mean).sample
    return ((video[0].permute(1, 2, 3, 0) + 1) / 2).numpy()


def psnr(ours: np.ndarray, reference: np.ndarray) -> float:
    return float(-10 * np.log10(max(np.square(ours - reference).mean(), 1e-12)))


def cases() -> list[tuple[str, tuple[str, ...], int]]:
    """Family, the pictures that it is given, and steps."""
    found = []
    for family in FAMILIES:
        ways = [()] if "t2v" in family.tasks else []
        ways += [("image",)] if "i2v" in family.tasks and not family.needs_last_image else []
        ways += [("image", "last_image")] if family.takes_last_image else []
        found += [(family.name, way, steps) for way in ways for steps in STEPS]
    return found


@pytest.mark.parametrize("family, given, steps", cases())
def test_latents_and_video_equal_diffusers(family, given, steps, tiny, pictures, tmp_path):
    made = tiny(family)
    request = made.request(steps=steps, **{name: pictures[name] for name in given})
    ours, our_video, _ = run_ours(made, request, tmp_path)
    reference = run_reference(made, request)
    assert np.abs(ours - reference).max() <= LATENT_TOLERANCE
    assert psnr(our_video, decode_reference(made, reference)) >= LEAST_PSNR
    assert made.components.family.name == family


def test_each_expert_has_its_own_guidance(tiny, tmp_path):
    made = tiny("wan2.2-t2v")
    for guidance in ((4.0, 1.0), (4.0, 2.0)):
        request = made.request(guidance=guidance)
        assert np.abs(run_ours(made, request, tmp_path)[0] - run_reference(made, request)).max() <= LATENT_TOLERANCE


def test_pictures_prompts_and_experts_do_something(tiny, pictures, tmp_path):
    """Equality above is not that of constants: each of these changes the latents."""

    def latents(family: str, **changes) -> np.ndarray:
        return run_ours(tiny(family), tiny(family).request(**changes), tmp_path)[0]

    swapped = {"image": pictures["last_image"], "last_image": pictures["image"]}
    for family in ("wan2.1-flf2v", "wan2.2-i2v"):
        assert np.abs(latents(family, **pictures) - latents(family, **swapped)).max() > 0.01
    assert np.abs(latents("wan2.2-i2v", **pictures) - latents("wan2.2-i2v", image=pictures["image"])).max() > 0.01
    assert np.abs(latents("wan2.2-t2v") - latents("wan2.2-t2v", guidance=(4.0, 2.0))).max() > 0.01


def test_guidance_runs_on_its_share_of_the_steps(tiny, tmp_path):
    """Half of the schedule guided is what diffusers gives when its guidance is taken away halfway."""
    made = tiny("wan2.1-t2v")
    request = made.request(guidance_interval=(0.0, 0.5))
    pipeline = made.reference

    def stop_guiding(pipe, index, timestep, tensors):
        if index == 1:
            pipe._guidance_scale = 1.0
        return tensors

    reference = pipeline(
        prompt=request.prompt, negative_prompt=request.negative_prompt, height=64, width=64, num_frames=9, num_inference_steps=4,
        guidance_scale=4.0, generator=torch.Generator().manual_seed(5), output_type="latent", callback_on_step_end=stop_guiding,
    ).frames.numpy()  # fmt: skip
    assert np.abs(run_ours(made, request, tmp_path)[0] - reference).max() <= LATENT_TOLERANCE


@pytest.mark.parametrize("threshold", [0.3, 0.6])
def test_the_step_cache_equals_diffusers_first_block_cache(threshold, tiny, tmp_path):
    made = tiny("wan2.1-t2v")
    request = made.request(steps=8, guidance=(1.0,), step_cache=threshold)
    ours, _, last = run_ours(made, request, tmp_path)
    made.reference.transformer.enable_cache(FirstBlockCacheConfig(threshold=threshold))
    try:
        reference = run_reference(made, request)
    finally:
        made.reference.transformer.disable_cache()
    plain = run_reference(made, request)
    assert np.abs(ours - reference).max() <= LATENT_TOLERANCE
    assert np.abs(plain - reference).max() > 10 * LATENT_TOLERANCE  # something was reused


def test_a_step_cache_that_never_reuses_changes_nothing(tiny, tmp_path):
    made = tiny("wan2.1-t2v")
    plain, cached = (run_ours(made, made.request(step_cache=threshold), tmp_path)[0] for threshold in (0.0, 1e-9))
    np.testing.assert_allclose(cached, plain, atol=1e-5)  # the same sums in another program
