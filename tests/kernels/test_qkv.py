"""Compare the TPU's passes around the attention, in the interpreter, with the plain forms."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

from kernels.qkv import LOG2_E, Preparation, group_heads, normalise_heads, prepare, ungroup_heads

LENGTH, HEADS, WIDTH = 256, 4, 128


def preparation() -> Preparation:
    return Preparation(eps=1e-6, groups=2)


@pytest.fixture(scope="module")
def arrays():
    keys = jax.random.split(jax.random.key(0), 7)
    shape = (1, LENGTH, HEADS * WIDTH)
    projected = tuple((jax.random.normal(key, shape) * 2).astype(jnp.bfloat16) for key in keys[:3])
    norms = tuple(1 + 0.2 * jax.random.normal(key, shape[2:]) for key in keys[3:5])
    angle = jnp.repeat(jax.random.uniform(keys[5], (LENGTH, WIDTH // 2)) * 6, 2, axis=1)
    return projected, norms, (jnp.cos(angle), jnp.sin(angle))


@pytest.fixture(scope="module")
def both(arrays):
    plain = prepare(*arrays, preparation())
    with pltpu.force_tpu_interpret_mode():
        passes = prepare(*arrays, dataclasses.replace(preparation(), use_pallas=True))
    return plain, passes


def close(ours: jax.Array, reference: jax.Array) -> None:
    """Compare the pass with the plain form. Each rounds to bfloat16, the plain form after the norm and after the rotation: 2^-8
    of values up to 8, thrice.
    """
    np.testing.assert_allclose(ours.astype(jnp.float32), reference.astype(jnp.float32), atol=3 * 8 * 2**-8, rtol=2**-7)


def test_the_query_is_normed_rotated_and_scaled(both):
    plain, passes = both
    close(passes.query, plain.query.astype(jnp.float32) * (LOG2_E * WIDTH**-0.5))


def test_the_keys_lose_their_mean_and_values_only_move(both, arrays):
    plain, passes = both
    wide = plain.key.astype(jnp.float32)
    close(passes.key, wide - wide.mean(2, keepdims=True))
    assert (passes.value == group_heads(arrays[0][2], 2)).all()


def test_the_bounds_are_those_of_the_arrays(both):
    passes = both[1]

    def heads(array):  # [groups, B, S, W / groups] -> [B, S, H, D]
        return ungroup_heads(array).astype(jnp.float32).reshape(1, LENGTH, HEADS, WIDTH)

    for name in ("query", "key"):
        norm = jnp.linalg.norm(heads(getattr(passes, name)), axis=3).max(1)
        np.testing.assert_allclose(getattr(passes.bounds, name), norm, rtol=1e-5)  # float32 sums in another order
    np.testing.assert_array_equal(passes.bounds.value, jnp.abs(heads(passes.value)).max((1, 3)))


def test_groups_come_back_together(arrays):
    value = arrays[0][2]
    assert (ungroup_heads(group_heads(value, 4)) == value).all()
    with pltpu.force_tpu_interpret_mode():
        assert (ungroup_heads(group_heads(value, 4), use_pallas=True) == value).all()


def test_what_the_passes_cannot_do_is_refused(arrays):
    projected, norms, tables = arrays
    with pytest.raises(NotImplementedError, match="set use_pallas=False with tp"):
        prepare(projected, norms, tables, dataclasses.replace(preparation(), use_pallas=True, channel_axis="tp"))
    short = tuple(array[:, :100] for array in projected)
    with pytest.raises(NotImplementedError, match="a multiple of 128 tokens, not 100"):
        prepare(short, norms, tuple(table[:100] for table in tables), dataclasses.replace(preparation(), use_pallas=True))


@pytest.fixture(scope="module")
def own_angles(arrays):
    """Return tables of angles that differ per head, half as wide as the heads."""
    angle = jax.random.uniform(jax.random.key(8), (LENGTH, HEADS * WIDTH // 2)) * 6
    return jnp.cos(angle), jnp.sin(angle)


def test_the_halves_of_each_head_turn_by_its_own_angles(arrays, own_angles):
    projected, norms, how = *arrays[:2], dataclasses.replace(preparation(), head_width=WIDTH)
    plain = prepare(projected, norms, own_angles, how)
    with pltpu.force_tpu_interpret_mode():
        passes = prepare(projected, norms, own_angles, dataclasses.replace(how, use_pallas=True))
    close(passes.query, plain.query.astype(jnp.float32) * (LOG2_E * WIDTH**-0.5))
    wide = plain.key.astype(jnp.float32)
    close(passes.key, wide - wide.mean(2, keepdims=True))
    for name, head in (("key", 3), ("query", 0)):  # with numpy, for two heads
        own, columns = projected[("query", "key").index(name)], slice(head * WIDTH, (head + 1) * WIDTH)
        wide = np.asarray(own.astype(jnp.float32))[0]
        wide = (wide / np.sqrt((wide**2).mean(1, keepdims=True)) * np.asarray(norms[("query", "key").index(name)]))[:, columns]
        first, second = np.split(wide, 2, axis=1)
        cosine, sine = (np.asarray(table)[:, head * WIDTH // 2 : (head + 1) * WIDTH // 2] for table in own_angles)
        turned = np.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=1)
        close(ungroup_heads(getattr(plain, name))[0, :, columns], jnp.asarray(turned))


def test_own_angles_of_an_odd_number_of_heads_are_refused(arrays, own_angles):
    projected, norms = (tuple(array[..., : 3 * WIDTH] for array in one) for one in arrays[:2])
    tables = tuple(table[:, : 3 * WIDTH // 2] for table in own_angles)
    how = dataclasses.replace(preparation(), groups=1, use_pallas=True, head_width=WIDTH)
    with pytest.raises(NotImplementedError, match="an even number of heads of width 128"):
        prepare(projected, norms, tables, how)


def test_a_norm_over_each_head_has_its_own_weight(arrays):
    projected, norms, tables = arrays
    norms, how = tuple(norm[:WIDTH] for norm in norms), dataclasses.replace(preparation(), norms_heads=True)
    plain = prepare(projected, norms, tables, how)
    with pltpu.force_tpu_interpret_mode():
        passes = prepare(projected, norms, tables, dataclasses.replace(how, use_pallas=True))
    close(passes.query, plain.query.astype(jnp.float32) * (LOG2_E * WIDTH**-0.5))
    wide = plain.key.astype(jnp.float32)
    close(passes.key, wide - wide.mean(2, keepdims=True))
    close(group_heads(passes.mean, 2), wide.mean(2, keepdims=True))
    heads = projected[0].astype(jnp.float32).reshape(1, LENGTH, HEADS, WIDTH)
    length = jnp.linalg.norm(normalise_heads(projected[0], jnp.ones(WIDTH), eps=0.0).reshape(heads.shape), axis=3)
    np.testing.assert_allclose(length, WIDTH**0.5, rtol=2**-7)  # bfloat16
