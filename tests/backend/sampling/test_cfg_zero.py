"""The guidance of CFG-Zero* equals diffusers' guider, and a skipped step changes only the noise level."""

import jax
import numpy as np
import torch
from diffusers.guiders import ClassifierFreeZeroStarGuidance

from backend.sampling.solvers import guide, guide_by_zero_star, make_schedule, make_step_inputs, start_state, take_still_step


def test_the_formula_is_diffusers_own():
    velocity = jax.random.normal(jax.random.key(1), (2, 4, 3, 8, 8))
    guider = ClassifierFreeZeroStarGuidance(guidance_scale=5.0, zero_init_steps=0)
    guider._step, guider._count_prepared = 3, 0
    prompted, unprompted = (torch.from_numpy(np.array(velocity[index : index + 1])) for index in (0, 1))
    expected = guider.forward(prompted, unprompted).pred.numpy()
    found = np.asarray(guide_by_zero_star(velocity, 5.0))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)  # sums of 768 products, in float32
    assert np.abs(found - np.asarray(guide(velocity, 5.0))).max() > 0.1


def test_parallel_branches_are_guided_as_ever():
    """The other branch is a multiple of the prompted velocity, so guidance changes nothing."""
    prompted = jax.random.normal(jax.random.key(2), (1, 4, 3, 8, 8))
    velocity = np.concatenate([prompted, 2 * prompted])
    np.testing.assert_allclose(guide_by_zero_star(velocity, 5.0), prompted, rtol=0, atol=1e-5)


def test_a_step_without_velocity_keeps_the_sample():
    noise = jax.random.normal(jax.random.key(3), (1, 4, 3, 8, 8))
    for solver in ("euler", "unipc"):
        schedule = make_schedule(solver, 10, 5.0)
        after = take_still_step(start_state(noise), make_step_inputs(schedule, 0, 5.0))
        np.testing.assert_allclose(after.clean, noise, rtol=0, atol=0)
        np.testing.assert_allclose(after.sample, noise, rtol=0, atol=1e-5)
