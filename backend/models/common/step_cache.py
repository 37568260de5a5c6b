"""The step cache: a step that differs little from the last full one reuses what the layers after the first added then.

Source: first-block caching as in chengzeyi/ParaAttention and diffusers' `FirstBlockCacheConfig`.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from backend.runtime.mesh import Layout, as_leaf, with_sharding


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class StepCache:
    """What the first layer, and all layers after it, added to the tokens in the last step that ran them all, [B, S, D].
    Scalars: `is_filled` once there was such a step, and how many steps have `reused` it."""

    first: jax.Array
    rest: jax.Array
    is_filled: jax.Array
    reused: jax.Array


def describe_cache(layout: Layout, shape: tuple[int, int, int], dtype: jnp.dtype) -> StepCache:
    """Shapes and places of an empty cache for tokens [B, S, D]."""
    tokens = as_leaf(jax.ShapeDtypeStruct(shape, dtype, sharding=layout.sharding(layout.tokens)))
    flag, count = (as_leaf(jax.ShapeDtypeStruct((), one, sharding=layout.replicated)) for one in (bool, jnp.int32))
    return StepCache(first=tokens, rest=tokens, is_filled=flag, reused=count)


def cached_sharding(layout: Layout, shapes: tuple[Any, StepCache]) -> tuple[Any, StepCache]:
    """Where the result of a step with a cache lies: the state on all devices, the cache as `describe_cache` says."""
    state, cache = shapes
    tokens = layout.sharding(layout.tokens)
    cache = dataclasses.replace(
        layout.replicate_shapes(cache), first=with_sharding(cache.first, tokens), rest=with_sharding(cache.rest, tokens)
    )
    return layout.replicate_shapes(state), cache


def reuse_or_run(
    layout: Layout,
    cache: StepCache,
    threshold: jax.Array,
    num_tokens: int,
    hidden: jax.Array,
    first: jax.Array,
    run_rest: Callable[[], jax.Array],
) -> tuple[jax.Array, StepCache]:
    """What the layers after the first add, and the cache after this step. `hidden` are the tokens before the first layer, `first`
    those after it, of which `num_tokens` are real; `run_rest` gives the tokens after all layers.

    The layers are not run if the first one's change of the tokens differs from its change in the last full step by less than
    `threshold`, relatively, in every branch.
    """
    change = first - hidden
    reuses = cache.is_filled & (_relative_change(change, cache.first, num_tokens) <= threshold)
    rest = jax.lax.cond(reuses, lambda: cache.rest, lambda: run_rest() - first)
    first_change = jnp.where(reuses, cache.first, change)
    return rest, StepCache(
        first=layout.constrain(first_change, layout.tokens),
        rest=layout.constrain(rest, layout.tokens),
        is_filled=jnp.ones_like(cache.is_filled),
        reused=cache.reused + reuses,
    )


def _relative_change(change: jax.Array, before: jax.Array, num_tokens: int) -> jax.Array:
    """The mean size of the difference over that of `before`: the largest of the branches; padding does not count."""
    is_real = (jnp.arange(change.shape[1]) < num_tokens)[None, :, None]

    def size(values: jax.Array) -> jax.Array:
        return jnp.sum(jnp.abs(jnp.where(is_real, values, 0)).astype(jnp.float32), axis=(1, 2))

    return jnp.max(size(change - before) / jnp.maximum(size(before), 1e-30))
