"""The fresh noise that the steps of some solvers add, drawn on the devices.

The noise depends only on the seed, the stream (video or audio) and the step. Therefore it is the same for a resumed video, and
on every mesh. Source: Lightricks/LTX-2, `ltx_pipelines/distilled.py`, which uses a separate generator with the video's seed +
10,000. The same seed gives other values than in LTX-2, because this module uses jax's Threefry generator.
"""

import dataclasses
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np

from backend.sampling.solvers import SamplerState, Schedule

SEED_OFFSET = 10_000  # added to the video's seed for the key of this noise, as in LTX-2


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class FreshNoise:
    """The values that determine the noise of one step: the random key [2] uint32 of the video, the index of the step, and the
    standard deviation of the noise.
    """

    key: np.ndarray | jax.Array
    step: np.int32 | jax.Array
    deviation: np.float32 | jax.Array


def make_fresh_noise(schedule: Schedule, seed: int, index: int) -> FreshNoise | None:
    """Return the noise of step `index`, counted from 0, None if the solver adds no noise."""
    if schedule.noise is None:
        return None
    own = seed + SEED_OFFSET
    key = np.array([own >> 32 & 0xFFFFFFFF, own & 0xFFFFFFFF], np.uint32)
    return FreshNoise(key=key, step=np.int32(index), deviation=np.float32(schedule.noise[index]))


def add_fresh_noise(state: SamplerState, noise: FreshNoise, stream: int = 0) -> SamplerState:
    """Add a step's noise to the sample of the state after that step. The `stream` (video or audio) has its own noise."""
    key = jax.random.wrap_key_data(cast(jax.Array, noise.key), impl="threefry2x32")  # inside a program, the key is a jax array
    own = jax.random.fold_in(jax.random.fold_in(key, stream), noise.step)
    drawn = jax.random.normal(own, state.sample.shape, jnp.float32)
    return dataclasses.replace(state, sample=state.sample + noise.deviation * drawn)
