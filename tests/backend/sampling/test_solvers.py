"""Compare the two solvers with diffusers' schedulers for the same velocities."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, LTXEulerAncestralRFScheduler, UniPCMultistepScheduler

from backend.sampling.solvers import add_noise, make_schedule, start_state, take_step

SHAPE = (1, 4, 3, 2, 2)


def reference_scheduler(solver: str, flow_shift: float):
    if solver.startswith("euler"):
        return FlowMatchEulerDiscreteScheduler(shift=flow_shift)
    return UniPCMultistepScheduler(
        prediction_type="flow_prediction", use_flow_sigmas=True, num_train_timesteps=1000, flow_shift=flow_shift
    )


@pytest.mark.parametrize("solver", ["unipc", "euler", "euler-distilled"])
@pytest.mark.parametrize("steps", [1, 2, 3, 4, 20, 50])
@pytest.mark.parametrize("flow_shift", [1.0, 3.0, 12.0])
def test_equals_diffusers(solver, steps, flow_shift):
    scheduler, schedule = reference_scheduler(solver, flow_shift), make_schedule(solver, steps, flow_shift)
    even = {"sigmas": [1 - step / steps for step in range(steps)]} if solver == "euler-distilled" else {}
    scheduler.set_timesteps(steps, **even)
    np.testing.assert_allclose(schedule.sigmas, scheduler.sigmas.numpy(), atol=1e-6)
    np.testing.assert_allclose(schedule.timesteps, scheduler.timesteps.numpy(), atol=1e-3)
    rng = np.random.default_rng(steps)
    sample = torch.from_numpy(rng.standard_normal(SHAPE, np.float32))
    state = start_state(jnp.asarray(sample.numpy()))
    for index, timestep in enumerate(scheduler.timesteps):
        velocity = rng.standard_normal(SHAPE, np.float32)
        sample = scheduler.step(torch.from_numpy(velocity), timestep, sample, return_dict=False)[0]
        state = take_step(state, velocity, schedule.sigmas[index], schedule.corrector[index], schedule.predictor[index])
        # diffusers computes the coefficients in float32, where log and expm1 lose up to 1e-5 over fifty steps
        np.testing.assert_allclose(state.sample, sample.numpy(), atol=5e-5, err_msg=f"step {index}")


def test_the_last_sample_is_the_clean_estimate():
    schedule = make_schedule("unipc", 3, 3.0)
    state = start_state(jnp.ones(SHAPE))
    for index in range(3):
        state = take_step(
            state, jnp.full(SHAPE, 0.3), schedule.sigmas[index], schedule.corrector[index], schedule.predictor[index]
        )
    np.testing.assert_array_equal(state.sample, state.clean)


def test_four_distilled_steps_are_those_that_the_loras_were_trained_on():
    schedule = make_schedule("euler-distilled", 4, 5.0)  # ModelTC/LightX2V: 1000, 750, 500, 250, shifted by 5
    np.testing.assert_allclose(schedule.timesteps, [1000, 937.5, 833.3333, 625], atol=1e-3)


@pytest.mark.parametrize(("steps", "tokens"), [(2, 8), (8, 1024), (30, 6144), (40, 14_080)])
def test_ltx_shifts_by_the_videos_tokens_and_ends_at_a_tenth(steps, tokens):
    scheduler = FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True, shift_terminal=0.1)
    mu = 0.95 + (2.05 - 0.95) / (4096 - 1024) * (tokens - 1024)  # diffusers, LTX2Pipeline: calculate_shift
    scheduler.set_timesteps(steps, sigmas=np.linspace(1.0, 1 / steps, steps), mu=mu)
    schedule = make_schedule("ltx", steps, 1.0, num_tokens=tokens)
    np.testing.assert_allclose(schedule.sigmas, scheduler.sigmas.numpy(), atol=1e-6)
    assert schedule.sigmas[-2] == pytest.approx(0.1)


def test_ltx_in_eight_steps_has_its_makers_levels_and_in_fewer_some_of_them():
    eight, three = (make_schedule("ltx-distilled", steps, 1.0).sigmas for steps in (8, 3))
    np.testing.assert_allclose(eight, [1, 0.99375, 0.9875, 0.98125, 0.975, 0.909375, 0.725, 0.421875, 0], atol=1e-6)
    assert set(three) < set(eight) and (three[0], three[-1]) == (1, 0)


@pytest.mark.parametrize("steps", [1, 2, 3, 8])
def test_an_ancestral_step_with_noise_equals_diffusers(steps):
    schedule, rng = make_schedule("ltx-ancestral", steps, 1.0), np.random.default_rng(steps)
    scheduler = LTXEulerAncestralRFScheduler()
    scheduler.set_timesteps(sigmas=schedule.sigmas.tolist())
    np.testing.assert_allclose(schedule.timesteps, scheduler.timesteps[:-1].numpy(), atol=1e-3)
    sample = torch.from_numpy(rng.standard_normal(SHAPE, np.float32))
    state, theirs, ours = (
        start_state(jnp.asarray(sample.numpy())),
        torch.Generator().manual_seed(1),
        torch.Generator().manual_seed(1),
    )
    for index in range(steps):
        velocity = rng.standard_normal(SHAPE, np.float32)
        sample = scheduler.step(torch.from_numpy(velocity), scheduler.timesteps[index], sample, theirs, return_dict=False)[0]
        state = take_step(state, velocity, schedule.sigmas[index], schedule.corrector[index], schedule.predictor[index])
        noisy = state.sample + schedule.noise[index] * torch.randn(SHAPE, generator=ours).numpy()
        state = dataclasses.replace(state, sample=noisy)
        np.testing.assert_allclose(state.sample, sample.numpy(), atol=1e-5, err_msg=f"step {index}")  # float32: three products


def test_only_the_ancestral_solver_asks_for_noise_and_its_last_step_for_none():
    assert make_schedule("ltx-ancestral", 8, 1.0).noise[-1] == 0
    assert all(make_schedule(solver, 8, 1.0).noise is None for solver in ("unipc", "euler", "lcm", "ltx", "ltx-distilled"))


def test_an_unknown_solver_is_refused():
    with pytest.raises(ValueError, match="must be one of unipc, euler, euler-distilled, lcm, ltx, ltx-distilled, ltx-ancestral"):
        make_schedule("heun", 4, 3.0)


def test_three_steps_with_fresh_noise_are_those_that_were_trained():
    schedule = make_schedule("lcm", 3, 5.0)  # SkyworkAI/Matrix-Game: 1000, 666, 333, shifted by 5
    np.testing.assert_allclose(schedule.timesteps, [1000.0, 908.84, 713.98], atol=5e-3)


@pytest.mark.parametrize("solver", ["unipc", "euler"])
@pytest.mark.parametrize(("steps", "last"), [(4, 3), (4, 1), (20, 16), (5, 5), (50, 2)])
def test_the_last_steps_of_a_clip_equal_diffusers(solver, steps, last):
    """diffusers' video-to-video pipelines drop the first timesteps, add noise at the first remaining timestep, and step on from
    there.
    """
    scheduler, schedule = reference_scheduler(solver, 3.0), make_schedule(solver, steps, 3.0, last)
    scheduler.set_timesteps(steps)
    timesteps = scheduler.timesteps[steps - last :]
    np.testing.assert_allclose(schedule.timesteps, timesteps.numpy(), atol=1e-3)
    rng = np.random.default_rng(last)
    clip, noise = (torch.from_numpy(rng.standard_normal(SHAPE, np.float32)) for _ in range(2))
    if solver == "unipc":
        sample = scheduler.add_noise(clip, noise, timesteps[:1])
    else:
        sample = scheduler.scale_noise(clip, timesteps[:1], noise)
    state = start_state(add_noise(jnp.asarray(clip.numpy()), jnp.asarray(noise.numpy()), schedule.sigmas[0]))
    np.testing.assert_allclose(state.sample, sample.numpy(), atol=1e-6)
    for index, timestep in enumerate(timesteps):
        velocity = rng.standard_normal(SHAPE, np.float32)
        sample = scheduler.step(torch.from_numpy(velocity), timestep, sample, return_dict=False)[0]
        state = take_step(state, velocity, schedule.sigmas[index], schedule.corrector[index], schedule.predictor[index])
        np.testing.assert_allclose(state.sample, sample.numpy(), atol=5e-5, err_msg=f"step {index}")


def test_all_steps_are_the_last_ones():
    for solver in ("unipc", "euler", "euler-distilled", "lcm"):
        whole, last = make_schedule(solver, 6, 3.0), make_schedule(solver, 6, 3.0, 6)
        for name in ("sigmas", "timesteps", "corrector", "predictor"):
            np.testing.assert_array_equal(getattr(whole, name), getattr(last, name))
