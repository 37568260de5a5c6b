"""The noise that ancestral steps add, made on the devices: it depends on the seed, the stream and the step alone, so a denoising
that goes on from its file gets the same, and so does every mesh.

Source of the rule: Lightricks/LTX-2, `ltx_pipelines/distilled.py`, which draws it from a generator of its own, seeded 10,000
above the video's seed. Its numbers are the graphics card's; ours are those of jax's Threefry generator.
"""

import dataclasses
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np

from backend.sampling.solvers import SamplerState, Schedule

SEED_OFFSET = 10_000  # published, see above


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class FreshNoise:
    """The noise of one step: the `key` [2] uint32 of the video, the step's number, and the standard deviation; scalars."""

    key: np.ndarray | jax.Array
    step: np.int32 | jax.Array
    deviation: np.float32 | jax.Array


def fresh_noise(schedule: Schedule, seed: int, index: int) -> FreshNoise | None:
    """That of step `index`, 0 or more; None if the solver adds none."""
    if schedule.noise is None:
        return None
    own = seed + SEED_OFFSET
    key = np.array([own >> 32 & 0xFFFFFFFF, own & 0xFFFFFFFF], np.uint32)
    return FreshNoise(key=key, step=np.int32(index), deviation=np.float32(schedule.noise[index]))


def with_noise(state: SamplerState, noise: FreshNoise, stream: int) -> SamplerState:
    """The state after the step, with its noise added to the sample. `stream` is the stream's number: each has its own."""
    key = jax.random.wrap_key_data(cast(jax.Array, noise.key), impl="threefry2x32")  # inside a program it is one
    own = jax.random.fold_in(jax.random.fold_in(key, stream), noise.step)
    drawn = jax.random.normal(own, state.sample.shape, jnp.float32)
    return dataclasses.replace(state, sample=state.sample + noise.deviation * drawn)
