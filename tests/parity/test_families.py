"""Every family equals diffusers: a tiny random checkpoint in the real layout, with the same prompt, pictures and seed, in
float32.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from diffusers import FirstBlockCacheConfig

from backend.errors import ModelError
from backend.models.wan.spec import SPECS
from tests.parity.tiny_checkpoints import HIDDEN, LAYERS
from tests.parity.tiny_runs import decode_reference, latents_of, run_reference, video_of
from tests.rounding import rounding

pytestmark = [pytest.mark.parity, pytest.mark.demo_model]

LATENT_TOLERANCE = 1e-3  # the project's bar
LEAST_PSNR = 50.0  # in dB over the video, pixels in [0, 1]; the project's bar
STEPS = (4, pytest.param(1, marks=pytest.mark.slow), pytest.param(8, marks=pytest.mark.slow))


def psnr(ours: np.ndarray, reference: np.ndarray) -> float:
    return float(-10 * np.log10(max(np.square(ours - reference).mean(), 1e-12)))


def cases() -> list[tuple[str, tuple[str, ...]]]:
    """Return each model with its input pictures."""
    found = []
    for spec in SPECS:
        ways = [()] if "t2v" in spec.tasks else []
        ways += [("image",)] if "i2v" in spec.tasks and spec.inputs.get("last_image") != "must" else []
        ways += [("image", "last_image")] if "last_image" in spec.inputs else []
        found += [(spec.name, way) for way in ways]
    return found


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("family, given", cases())
def test_latents_and_video_equal_diffusers(family, given, steps, tiny, pictures):
    made = tiny(family)
    request = made.request(steps=steps, **{name: pictures[name] for name in given})
    ours = latents_of(request, made.loaded)
    reference = run_reference(made, request)
    assert np.abs(ours - reference).max() <= LATENT_TOLERANCE
    assert psnr(video_of(request, made.loaded, ours), decode_reference(made, reference)) >= LEAST_PSNR
    assert made.loaded.model.spec.name == family


def test_each_expert_has_its_own_guidance(tiny):
    made = tiny("wan2.2-t2v")
    for guidance in ((4.0, 1.0), (4.0, 2.0)):
        request = made.request(guidance=guidance)
        assert np.abs(latents_of(request, made.loaded) - run_reference(made, request)).max() <= LATENT_TOLERANCE


@pytest.mark.slow
def test_pictures_prompts_and_experts_do_something(tiny, pictures):
    """The equality above is not an equality of constants: each of these changes the latents."""

    def latents(family: str, **changes) -> np.ndarray:
        return latents_of(tiny(family).request(**changes), tiny(family).loaded)

    swapped = {"image": pictures["last_image"], "last_image": pictures["image"]}
    assert np.abs(latents("wan2.1-flf2v", **pictures) - latents("wan2.1-flf2v", **swapped)).max() > 0.01
    both = latents("wan2.2-i2v", **pictures)
    for others in (swapped, {"image": pictures["image"]}):
        assert np.abs(latents("wan2.2-i2v", **others) - both).max() > 0.01
    assert np.abs(latents("wan2.2-t2v") - latents("wan2.2-t2v", guidance=(4.0, 2.0))).max() > 0.01


def test_guidance_runs_on_its_share_of_the_steps(tiny):
    """Guidance on half of the schedule equals diffusers' result if its guidance is removed halfway."""
    made = tiny("wan2.1-t2v")
    request = made.request(guidance_interval=(0.0, 0.5))
    pipeline = made.reference

    def stop_guiding(pipe, index, timestep, tensors):
        if index == 1:
            pipe._guidance_scale = 1.0
        return tensors

    reference = pipeline(
        prompt=request.prompt,
        negative_prompt=request.negative_prompt,
        height=64,
        width=64,
        num_frames=9,
        num_inference_steps=4,
        guidance_scale=4.0,
        generator=torch.Generator().manual_seed(5),
        output_type="latent",
        callback_on_step_end=stop_guiding,
    ).frames.numpy()
    assert np.abs(latents_of(request, made.loaded) - reference).max() <= LATENT_TOLERANCE


@pytest.mark.parametrize("threshold", [0.3, pytest.param(0.6, marks=pytest.mark.slow)])
def test_the_step_cache_equals_diffusers_first_block_cache(threshold, tiny):
    made = tiny("wan2.1-t2v")
    request = made.request(steps=8, guidance=(1.0,), step_cache=threshold)
    ours = latents_of(request, made.loaded)
    made.reference.transformer.enable_cache(FirstBlockCacheConfig(threshold=threshold))
    try:
        reference = run_reference(made, request, "first block cache", threshold)
    finally:
        made.reference.transformer.disable_cache()
    plain = run_reference(made, request)
    assert np.abs(ours - reference).max() <= LATENT_TOLERANCE
    assert np.abs(plain - reference).max() > 10 * LATENT_TOLERANCE  # at least one step was reused


def test_a_step_cache_that_never_reuses_changes_nothing(tiny):
    made = tiny("wan2.1-t2v")
    plain, cached = (latents_of(made.request(step_cache=threshold), made.loaded) for threshold in (0.0, 1e-9))
    bound = rounding(plain, guidance=4.0, additions=LAYERS * HIDDEN)  # the same sums in another program
    np.testing.assert_allclose(cached, plain, rtol=0, atol=bound)


def test_a_preset_of_another_kind_than_the_loaded_model_is_refused(tiny, pictures):
    request = tiny("wan2.1-i2v").request(image=pictures["image"])
    with pytest.raises(ModelError, match="is a wan2.1-t2v .*and the preset tiny-wan2.1-i2v is for another kind"):
        latents_of(request, tiny("wan2.1-t2v").loaded)
