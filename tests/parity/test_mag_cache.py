"""MagCache equals diffusers' own hook, and its measurement equals diffusers' calibration."""

import dataclasses

import numpy as np
import pytest
from diffusers.hooks import MagCacheConfig, apply_mag_cache
from diffusers.hooks.mag_cache import MagCacheBlockHook

from backend.pipeline.cache_calibration import disable_shortcuts, measure_ratios
from backend.pipeline.encoding import encode_conditions
from backend.pipeline.preparing import prepare
from backend.pipeline.run import Run
from backend.schemas.step_plan import plan_steps
from presets import loader
from tests.parity.test_families import LATENT_TOLERANCE
from tests.parity.tiny_runs import diffusers_latents, latents_of, run_reference

pytestmark = [pytest.mark.parity, pytest.mark.demo_model]

RATIOS = (1.0, 1.01, 0.98, 0.99, 0.985, 0.98, 0.97, 0.97, 0.95, 0.93)
STEPS = len(RATIOS)
NAMES = "mag_cache_leader_block_hook", "mag_cache_block_hook"


@pytest.fixture(autouse=True)
def presets_in_few_steps_take_it(monkeypatch):
    """Allow MagCache for tiny presets, which have four steps."""
    monkeypatch.setattr(loader, "LEAST_STEPS", 1)


def hooked(transformers, **options):
    """Add diffusers' hooks to the transformers, and return a function that removes them."""
    for transformer in transformers:
        apply_mag_cache(transformer, MagCacheConfig(num_inference_steps=STEPS, **options))

    def undo():
        for transformer in transformers:
            for module in transformer.modules():
                if hasattr(module, "_diffusers_hook"):
                    for name in NAMES:
                        module._diffusers_hook.remove_hook(name, recurse=False)

    return undo


@pytest.mark.parametrize(
    ("family", "guidance"),
    [("wan2.1-t2v", 4.0), ("wan2.2-ti2v", 4.0), pytest.param("wan2.1-t2v", 1.0, marks=pytest.mark.slow)],
)
def test_latents_equal_diffusers_with_its_hook(family, guidance, tiny):
    made = dataclasses.replace(tiny(family))  # a separate pipeline, because a pipeline that had another hook ignores this one
    pairs = tuple(one for ratio in RATIOS for one in (ratio, ratio))
    request = made.request(steps=STEPS, guidance=(guidance,), mag_cache=0.1, mag_ratios=pairs)
    options = dict(threshold=0.1, max_skip_steps=4, retention_ratio=0.2, mag_ratios=list(RATIOS))
    undo = hooked([made.reference.transformer], **options)
    try:
        reference = run_reference(made, request, "mag cache", *map(str, options.values()))
    finally:
        undo()
    assert sum(step.reuses for step in plan_steps(request)) >= 4
    assert np.abs(latents_of(request, made.loaded) - reference).max() <= LATENT_TOLERANCE
    plain = run_reference(made, request.with_changes(mag_cache=0.0), "no cache")
    assert np.abs(plain - reference).max() > 10 * LATENT_TOLERANCE  # at least one step was reused


def test_what_is_measured_is_what_diffusers_measures(tiny, tmp_path, monkeypatch):
    made = dataclasses.replace(tiny("wan2.1-t2v"))
    request = disable_shortcuts(made.request(steps=STEPS))
    found = {}

    def kept(self, state, residual, calibrate=MagCacheBlockHook._perform_calibration_step):
        calibrate(self, state, residual)
        found[self.state_manager._context.name] = list(state.calibration_ratios)

    monkeypatch.setattr(MagCacheBlockHook, "_perform_calibration_step", kept)
    undo = hooked([made.reference.transformer], calibrate=True)
    try:
        diffusers_latents(made, request)
    finally:
        undo()
    run = Run(request=request, loaded=made.loaded, folder=tmp_path, is_cancelled=lambda: False)
    list(prepare(run, ("encode", "denoise")))
    ratios = end_of(measure_ratios(run, end_of(encode_conditions(run))))
    np.testing.assert_allclose(ratios.prompt, found["cond"], rtol=0, atol=2e-4)  # five digits, and sums of 1e-6
    np.testing.assert_allclose(ratios.other, found["uncond"], rtol=0, atol=2e-4)


def end_of(events):
    while True:
        try:
            next(events)
        except StopIteration as end:
            return end.value


@pytest.mark.parametrize("family", ["wan2.2-t2v", "wan2.1-vace"])
def test_other_transformers_reuse_only_if_they_may(family, tiny):
    """Each of two experts has its own steps. The hints of control blocks are part of the reused output."""
    made = tiny(family)
    plain, strict, loose = (
        latents_of(made.request(steps=6, mag_cache=error, mag_ratios=(ratio, ratio) if error else ()), made.loaded)
        for error, ratio in ((0.0, 1.0), (0.1, 2.0), (0.1, 1.0))
    )
    assert np.abs(strict - plain).max() <= LATENT_TOLERANCE
    assert np.abs(loose - plain).max() > 10 * LATENT_TOLERANCE
