"""Latents are enlarged to twice the size. The low frequencies stay, the high frequencies come from the noise, and the solver
restarts at the new noise level.
"""

import numpy as np
import pytest
import scipy.fft

from backend.sampling.enlarging import enlarge_noisy_latents, resize_latents
from backend.sampling.solvers import (
    make_schedule,
    make_step_inputs,
    schedule_for_request,
    start_state,
    take_guided_step,
)
from backend.schemas.progressive import num_half_size_steps
from backend.schemas.request import example_request
from backend.schemas.step_plan import plan_steps, rescale_sigma
from presets import load_preset

RNG = np.random.default_rng(3)
WAN = load_preset("wan2.1-t2v-14b-720p")


@pytest.mark.parametrize("small, full", [((4, 6), (8, 12)), ((23, 40), (45, 80))])
def test_frequencies_are_the_latents_and_the_noises(small, full):
    latents, noise = (RNG.standard_normal((1, 2, 3, *size)).astype(np.float32) for size in (small, full))
    sigma, growth = 0.8, np.sqrt(np.prod(full) / np.prod(small))
    scale = growth / (1 + (growth - 1) * sigma)
    found = scipy.fft.dctn(enlarge_noisy_latents(latents, noise, sigma=sigma), axes=(-2, -1), norm="ortho")
    expected = sigma * scipy.fft.dctn(noise, axes=(-2, -1), norm="ortho")
    expected[..., : small[0], : small[1]] = scipy.fft.dctn(latents, axes=(-2, -1), norm="ortho")
    np.testing.assert_allclose(found, scale * expected, rtol=0, atol=1e-4)


def test_noise_stays_white_and_a_flat_picture_keeps_its_colour():
    noise = [RNG.standard_normal((1, 64, 8, *size)).astype(np.float32) for size in ((8, 8), (16, 16))]
    sigma = 0.7
    flat = (1 - sigma) * np.full((1, 64, 8, 8, 8), 2.0, np.float32)
    made, level = enlarge_noisy_latents(flat + sigma * noise[0], noise[1], sigma=sigma), rescale_sigma(sigma, 2.0)
    assert abs(made.mean() - (1 - level) * 2.0) < 0.02
    assert abs((made - made.mean((1, 2), keepdims=True)).std() / level - 1) < 0.02
    np.testing.assert_allclose(resize_latents(flat, 16, 16), np.full((1, 64, 8, 16, 16), flat.flat[0]), rtol=1e-5)


@pytest.mark.parametrize("solver", ["unipc", "euler", "euler-distilled"])
def test_steps_before_are_the_plain_schedules_and_those_after_begin_again(solver):
    request = example_request(WAN, solver=solver, progressive=2)
    plain, found, first = make_schedule(solver, 50, 5.0), schedule_for_request(request), num_half_size_steps(request)
    for name in ("sigmas", "timesteps", "corrector", "predictor"):
        np.testing.assert_array_equal(getattr(found, name)[:first], getattr(plain, name)[:first])
    np.testing.assert_array_equal(found.sigmas[first + 1 :], plain.sigmas[first + 1 :])
    np.testing.assert_array_equal(found.timesteps[first + 1 :], plain.timesteps[first + 1 :])
    growth = np.sqrt(90 * 160 / (46 * 80))
    assert found.enlarged_at == plain.sigmas[first] and np.isclose(
        found.sigmas[first], rescale_sigma(plain.sigmas[first], growth)
    )
    assert np.isclose(found.timesteps[first], 1000 * found.sigmas[first])
    np.testing.assert_array_equal(found.corrector[first], [1, 0, 0, 0, 0])
    assert found.predictor[first][2] == 0  # no estimate of an earlier step is used
    assert schedule_for_request(example_request(WAN)).enlarged_at is None


@pytest.mark.parametrize("solver", ["unipc", "euler"])
def test_a_perfect_model_comes_to_the_data_from_the_new_level(solver):
    """Every solver reaches the point whose true velocity it is given."""
    request = example_request(WAN, solver=solver, progressive=3)
    schedule, first = schedule_for_request(request), num_half_size_steps(request)
    data, noise = (RNG.standard_normal((1, 2, 3, 4, 4)).astype(np.float32) for _ in range(2))
    level = schedule.sigmas[first]
    state = start_state((1 - level) * data + level * noise)
    for index in range(first, 50):
        velocity = (state.sample - data) / schedule.sigmas[index]
        state = take_guided_step(state, velocity, make_step_inputs(schedule, index, 1.0))
    np.testing.assert_allclose(state.sample, data, rtol=0, atol=1e-3)


def test_experts_follow_the_rewound_noise_levels():
    """The step after the transition may belong to the high-noise expert again."""
    request = example_request(load_preset("wan2.2-i2v-a14b-720p"), progressive=1)
    plan, first = plan_steps(request), num_half_size_steps(request)
    assert [step.is_small for step in plan] == [True] * first + [False] * (40 - first)
    for step, timestep in zip(plan, schedule_for_request(request).timesteps, strict=True):
        assert step.expert == int(timestep < 900)
