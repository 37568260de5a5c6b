"""The step cache: a step reuses the output of the later layers if the first layer's output hardly changed.

Source: first-block caching as in chengzeyi/ParaAttention and diffusers' `FirstBlockCacheConfig`.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from backend.runtime.mesh import TOKENS, Layout, as_leaf


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class StepCache:
    """The changes that layers made to the tokens in the last full step, which is the last step that ran all layers.

    `first` [B, S, D] is the change by the first layer, `rest` by all later layers. `is_filled` is true after the first full step.
    `reused` is the number of steps that reused `rest`.
    """

    first: jax.Array
    rest: jax.Array
    is_filled: jax.Array
    reused: jax.Array


def describe_cache(layout: Layout, shape: tuple[int, int, int], dtype: jnp.dtype) -> StepCache:
    tokens = as_leaf(jax.ShapeDtypeStruct(shape, dtype, sharding=layout.sharding(TOKENS)))
    flag, count = (as_leaf(jax.ShapeDtypeStruct((), one, sharding=layout.replicated)) for one in (bool, jnp.int32))
    return StepCache(first=tokens, rest=tokens, is_filled=flag, reused=count)


def reuse_or_run(
    layout: Layout,
    cache: StepCache,
    threshold: jax.Array,
    num_tokens: int,
    hidden: jax.Array,
    first: jax.Array,
    run_rest: Callable[[], jax.Array],
) -> tuple[jax.Array, StepCache]:
    """Return the change that the layers after the first make to the tokens, and the new cache.

    If the first layer's change is nearly the same as in the last full step, the later layers do not run. Their change is taken
    from the cache. "Nearly" means: in every guidance branch, the mean of the absolute difference is at most `threshold` times the
    mean of the absolute change in that step. Only the first `num_tokens` tokens count. `hidden` are the tokens before the first
    layer, `first` the tokens after it. `run_rest` returns the tokens after all layers.
    """
    change = first - hidden
    is_real = (jnp.arange(change.shape[1]) < num_tokens)[None, :, None]

    def size(values: jax.Array) -> jax.Array:
        return jnp.sum(jnp.abs(jnp.where(is_real, values, 0)).astype(jnp.float32), axis=(1, 2))

    difference = jnp.max(size(change - cache.first) / jnp.maximum(size(cache.first), 1e-30))
    reuses = cache.is_filled & (difference <= threshold)
    rest = jax.lax.cond(reuses, lambda: cache.rest, lambda: run_rest() - first)
    first_change = jnp.where(reuses, cache.first, change)
    return rest, StepCache(
        first=layout.constrain(first_change, TOKENS),
        rest=layout.constrain(rest, TOKENS),
        is_filled=jnp.ones_like(cache.is_filled),
        reused=cache.reused + reuses,
    )
