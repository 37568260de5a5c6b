"""The samplers of models for one to four steps equal diffusers' pipelines with a plain scheduler of the same formulas, on tiny random
checkpoints, float32.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, WanImageToVideoPipeline
from PIL import Image

from backend.models.common.whole_clip import CLIP
from backend.models.model import VIDEO
from backend.schemas.request import GenerationRequest
from backend.schemas.step_plan import plan_steps
from tests.parity.tiny_preset import find_also
from tests.parity.tiny_runs import Tiny, finished, latents_of

pytestmark = [pytest.mark.parity, pytest.mark.demo_model]

TOLERANCE = 1e-4  # float32 networks; the order of float32 sums leaves about 1e-5
SIGMA_MAX = 200.0


@functools.cache
def few_steps() -> type:
    """Return the class of the scheduler, whose base is imported only when a test needs it."""

    class FewSteps(FlowMatchEulerDiscreteScheduler):
        """A scheduler that computes in float64 from the formulas of rCM and DMD. It draws the studio's fresh noise."""

        def __init__(self, request: GenerationRequest) -> None:
            super().__init__()
            self.request, self.index = request, 0
            angles = [math.atan(SIGMA_MAX), 1.5, 1.4, 1.0][: request.steps]
            self.levels = [math.sin(angle) / (math.sin(angle) + math.cos(angle)) for angle in angles]
            if request.solver == "dmd":
                self.levels = [1.0, 0.757, 0.522][: request.steps]

        def set_timesteps(self, *given: object, **named: object) -> None:
            self.timesteps = torch.tensor([1000 * level for level in self.levels])
            if self.request.solver != "dmd":
                self.timesteps = self.timesteps.bfloat16().float()

        def step(
            self, velocity: torch.Tensor, timestep: torch.Tensor, sample: torch.Tensor, **named: object
        ) -> tuple[torch.Tensor]:
            level, following = [*self.levels, 0.0][self.index :][:2]
            velocity, sample = velocity.double(), sample.double()
            if self.request.solver == "rcm-ode":
                sample = sample - (level - following) * velocity
            else:
                drawn = fresh_noise(self.request.seed, self.index, tuple(sample.shape))
                sample = (1 - following) * (sample - level * velocity) + following * drawn
            self.index += 1
            return (sample.float(),)

    return FewSteps


def fresh_noise(seed: int, step: int, shape: tuple[int, ...]) -> torch.Tensor:
    key = jax.random.wrap_key_data(jnp.array([0, seed + 10_000], jnp.uint32), impl="threefry2x32")
    return torch.from_numpy(np.array(jax.random.normal(jax.random.fold_in(jax.random.fold_in(key, 0), step), shape)))


@pytest.fixture
def distilled(tiny, monkeypatch) -> Callable[[str], Tiny]:
    """A factory of tiny checkpoints whose presets offer the samplers, without guidance."""

    def make(family: str) -> Tiny:
        made = tiny(family)
        facts = {"solvers": ("rcm", "rcm-ode", "dmd"), "solver": "rcm", "sigma_max": SIGMA_MAX, "max_steps": 4}
        preset = made.preset.model_copy(update=facts | {"guidance": tuple(1.0 for _ in made.preset.guidance)})
        find_also(monkeypatch, preset)
        return dataclasses.replace(made, preset=preset)

    return make


def reference_latents(made: Tiny, request: GenerationRequest) -> np.ndarray:
    pipeline, scheduler = made.reference, few_steps()(request)
    images = {"image": Image.open(request.image).convert("RGB")} if request.image else {}
    if images and not isinstance(pipeline, WanImageToVideoPipeline):
        pipeline = WanImageToVideoPipeline(**pipeline.components, expand_timesteps=pipeline.config.expand_timesteps)
        pipeline.set_progress_bar_config(disable=True)
    noise = torch.randn(made.loaded.model.latent_shape(request), generator=torch.Generator().manual_seed(request.seed))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "scheduler", scheduler)
        return pipeline(
            prompt=request.prompt,
            height=request.height,
            width=request.width,
            num_frames=request.num_frames,
            num_inference_steps=request.steps,
            guidance_scale=1.0,
            latents=scheduler.levels[0] * noise,
            output_type="latent",
            **images,
        ).frames.numpy()


CASES = [
    ("wan2.1-t2v", "rcm", 4),
    ("wan2.1-t2v", "dmd", 3),
    ("wan2.2-i2v", "rcm-ode", 4),
    ("wan2.2-i2v", "rcm", 3),
    ("wan2.2-ti2v", "dmd", 3),
]


@pytest.mark.parametrize("family, solver, steps", CASES)
def test_whole_videos_equal_the_formulas(family, solver, steps, distilled, pictures):
    made = distilled(family)
    image = {} if family == "wan2.1-t2v" else {"image": pictures["image"]}
    request = made.request(solver=solver, steps=steps, **image)
    assert np.abs(latents_of(request, made.loaded) - reference_latents(made, request)).max() <= TOLERANCE


@pytest.mark.parametrize("steps", [1, 2, 3, 4])
def test_the_result_reports_an_expert_that_no_step_uses(steps, distilled, pictures):
    made = distilled("wan2.2-i2v")
    request = made.request(steps=steps, image=pictures["image"])
    assert [step.expert for step in plan_steps(request)] == [0, 0, *[1] * (steps - 2)][:steps]
    note = "The low-noise expert was not used, because no step is below its noise level; more steps use it"
    assert finished(request, made.loaded)[1].notes == ((note,) if steps < 3 else ())


def test_a_video_starts_from_scaled_noise_and_a_clip_at_its_own_level(distilled):
    made, rng = distilled("wan2.1-t2v"), np.random.default_rng(1)
    request = made.request(steps=4)
    noise, clip = rng.standard_normal((2, *made.loaded.model.latent_shape(request)), np.float32)
    start = made.loaded.model.start
    level = SIGMA_MAX / (1 + SIGMA_MAX)
    np.testing.assert_allclose(start(request, {}, {VIDEO: noise})[VIDEO].sample, level * noise, rtol=1e-6)
    restyled = request.with_changes(video="/clip.mp4", trim=(0.0, 9 / 16), strength=0.5)
    level = math.tan(1.4) / (1 + math.tan(1.4))  # the level before the third step
    mixed = start(restyled, {CLIP: clip}, {VIDEO: noise})[VIDEO].sample
    np.testing.assert_allclose(mixed, (1 - level) * clip + level * noise, atol=1e-6)  # float32: one sum
    np.testing.assert_array_equal(start(request.with_changes(solver="dmd", steps=3), {}, {VIDEO: noise})[VIDEO].sample, noise)
