"""The noise of an ancestral step depends on the seed, the stream and the step, and on nothing else."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from backend.sampling.fresh_noise import add_fresh_noise, make_fresh_noise
from backend.sampling.solvers import Schedule, make_schedule, start_state

SHAPE = (1, 8, 5, 16, 16)


def schedule() -> Schedule:
    return make_schedule("ltx-ancestral", 8, 1.0)


def drawn(seed: int = 5, stream: int = 0, index: int = 3) -> np.ndarray:
    """Return the noise before it is weighted."""
    noise = dataclasses.replace(make_fresh_noise(schedule(), seed, index), deviation=np.float32(1))
    return np.asarray(jax.jit(lambda noise: add_fresh_noise(start_state(jnp.zeros(SHAPE)), noise, stream).sample)(noise))


def test_it_is_normal_and_the_same_again():
    values = drawn()
    assert abs(values.mean()) < 0.05 and abs(values.std() - 1) < 0.05  # 10,240 values: five standard errors
    np.testing.assert_array_equal(values, drawn())


def test_it_is_another_for_each_seed_stream_and_step():
    others = [drawn(seed=6), drawn(seed=5 + 2**32), drawn(stream=1), drawn(index=4)]
    assert all(abs(np.corrcoef(drawn().ravel(), other.ravel())[0, 1]) < 0.05 for other in others)


def test_a_step_adds_as_much_as_its_schedule_says_and_other_solvers_none():
    noise = make_fresh_noise(schedule(), 5, 3)
    state = add_fresh_noise(start_state(jnp.ones(SHAPE)), noise, 0)
    np.testing.assert_allclose(state.sample, 1 + schedule().noise[3] * drawn(), atol=1e-6)  # float32: one product
    assert make_fresh_noise(make_schedule("ltx-distilled", 8, 1.0), 5, 3) is None
