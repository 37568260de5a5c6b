"""Compare the samplers of models for one to four steps with their formulas in float64, written here in plain NumPy."""

import math
from typing import get_args

import jax.numpy as jnp
import numpy as np
import pytest

from backend.sampling.fresh_noise import add_fresh_noise, make_fresh_noise
from backend.sampling.solvers import ADDS_NOISE, make_schedule, start_state, take_step
from presets.loader import FEW_STEPS, Solver

SHAPE = (1, 4, 3, 2, 2)
RCM = [
    (80.0, [0.987654, 0.933781, 0.852895, 0.608979], [988, 932, 852, 608]),
    (200.0, [0.995025, 0.933781, 0.852895, 0.608979], [996, 932, 852, 608]),
]
"""For each `sigma_max` of TurboDiffusion's scripts, the published noise levels, and 1000 times each level in bfloat16."""
CASES = [(solver, steps) for solver, most in FEW_STEPS.items() for steps in range(1, most + 1)]


@pytest.mark.parametrize("solver", ["rcm", "rcm-ode"])
@pytest.mark.parametrize(("sigma_max", "levels", "timesteps"), RCM)
@pytest.mark.parametrize("steps", [1, 2, 3, 4])
def test_rcm_takes_the_first_published_levels(solver, sigma_max, levels, timesteps, steps):
    schedule = make_schedule(solver, steps, 5.0, sigma_max=sigma_max)
    np.testing.assert_allclose(schedule.sigmas, [*levels[:steps], 0], rtol=0, atol=5e-7)  # six published digits
    np.testing.assert_array_equal(schedule.timesteps, timesteps[:steps])
    assert schedule.timesteps.tolist() == jnp.asarray(1000 * schedule.sigmas[:-1]).astype(jnp.bfloat16).tolist()


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_dmd_takes_the_first_published_levels(steps):
    schedule = make_schedule("dmd", steps, 8.0)
    np.testing.assert_array_equal(schedule.sigmas, np.float32([1.0, 0.757, 0.522][:steps] + [0]))
    np.testing.assert_allclose(schedule.timesteps, [1000, 757, 522][:steps], atol=1e-4)


def formula_levels(solver: Solver, steps: int) -> list[float]:
    if solver == "dmd":
        return [1.0, 0.757, 0.522][:steps]
    angles = [math.atan(80.0), 1.5, 1.4, 1.0][:steps]
    return [math.sin(angle) / (math.sin(angle) + math.cos(angle)) for angle in angles]


@pytest.mark.parametrize(("solver", "steps"), CASES)
def test_each_step_equals_the_formula(solver, steps):
    rng = np.random.default_rng(steps)
    start, *velocities = rng.standard_normal((1 + steps, *SHAPE))
    levels, schedule = [*formula_levels(solver, steps), 0.0], make_schedule(solver, steps, 5.0)
    expected = levels[0] * start
    state = start_state(jnp.asarray(start, jnp.float32) * np.float32(schedule.start_scale))
    for index, velocity in enumerate(velocities):
        level, following = levels[index], levels[index + 1]
        drawn = rng.standard_normal(SHAPE)
        if solver == "rcm-ode":
            expected = expected - (level - following) * velocity
        else:
            expected = (1 - following) * (expected - level * velocity) + following * drawn
        step = schedule.sigmas[index], schedule.corrector[index], schedule.predictor[index]
        state = take_step(state, jnp.asarray(velocity, jnp.float32), *step)
        sample = np.asarray(state.sample)
        if solver in ADDS_NOISE:
            sample = sample + schedule.noise[index] * drawn.astype(np.float32)
        np.testing.assert_allclose(sample, expected, rtol=0, atol=3e-6, err_msg=f"step {index}")  # float32: some sums of 1 to 4
        state = start_state(jnp.asarray(sample))


@pytest.mark.parametrize(("solver", "steps"), [case for case in CASES if case[0] != "rcm-ode"])
def test_the_noise_of_the_last_step_is_multiplied_by_0(solver, steps):
    noise = make_fresh_noise(make_schedule(solver, steps, 5.0), 7, steps - 1)
    assert noise.deviation == 0 and noise.step == steps - 1
    state = start_state(jnp.linspace(-3.0, 3.0, 48).reshape(SHAPE))
    np.testing.assert_array_equal(add_fresh_noise(state, noise).sample, state.sample)


def test_the_listed_solvers_add_noise_and_no_others():
    assert {solver for solver in get_args(Solver) if make_schedule(solver, 3, 3.0).noise is not None} == {*ADDS_NOISE}


def test_only_rcm_scales_the_noise_from_which_a_video_starts():
    scales = {solver: make_schedule(solver, 3, 3.0).start_scale for solver in get_args(Solver)}
    assert scales.pop("rcm") == scales.pop("rcm-ode") == pytest.approx(0.987654, abs=5e-7)
    assert {*scales.values()} == {1.0}
