"""The one attention function: chooses an implementation by platform and shape, or uses the one that is named.

The platform is that of the mesh in whose context the call is traced (`jax.set_mesh`, or inside `jax.shard_map`), because a
program may be compiled for a TPU on a host that has none. Without a mesh the choice is left to the lowering.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from typing import Literal, NamedTuple, cast

import jax
import jax.numpy as jnp

from kernels.attention import pallas_tpu
from kernels.attention.block_sizes import CHIP_OF_DEVICE_KIND, VMEM_LIMIT_BYTES, BlockSizes, Chip, block_sizes, default_sizes
from kernels.attention.blocked import blocked_attention
from kernels.attention.counts import KeyCounts
from kernels.attention.reference import reference_attention
from kernels.qkv import HeadBounds

Implementation = Literal["reference", "blocked", "cudnn", "pallas_tpu"]
Window = tuple[int, int]
Attended = jax.Array | tuple[jax.Array, jax.Array]
"""The attention, and its log-sums if they are asked for."""

SMALL_SCORES = 2**22  # scores a head, 16 MiB in float32: below it one product is faster than a loop of blocks on a CPU
SMALL_SCORES_TPU = 2**16  # below it starting a kernel costs more than writing and reading the scores; not measured
BLOCK_Q = 1024
BLOCK_KV = 512

logger = logging.getLogger(__name__)
_SPECIAL: dict[str, tuple[Implementation, int]] = {
    "tpu": ("pallas_tpu", SMALL_SCORES_TPU),
    "gpu": ("cudnn", SMALL_SCORES),
}  # the platform's own implementation, and the scores above which it is used
_withdrawn: set[str] = set()


def withdraw(implementation: Implementation) -> None:
    """From now on this process no longer chooses the implementation: it has failed here. Naming it still runs it."""
    _withdrawn.add(implementation)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TpuOptions:
    """Options of the TPU kernel alone. `chip` is the mesh's or the process's own unless given.

    `layout`: "heads" if the operations around the attention hold [B, S, H, D] head by head in memory, as XLA does on a TPU by
    default; "columns" if they hold [B, S, H * D]. The other choice is also correct, but costs copies. With `bounds` the arrays
    are as `kernels.qkv` prepares them for this kernel alone. Without `tests_bounds` all heads take the online form. `sizes` and
    `online_sizes` override the table.
    """

    chip: Chip | None = None
    layout: pallas_tpu.Layout = "heads"
    bounds: HeadBounds | None = None
    tests_bounds: bool = True
    smooth_keys: bool = True
    sizes: BlockSizes | None = None
    online_sizes: BlockSizes | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttentionOptions:
    """Options of `attention`.

    `scale`: the factor of the scores, D ** -0.5 unless given.
    `implementation`: the one that runs, instead of the one that platform and shape choose.
    `window_size` (before, after): query i sees keys i - before to i + after; one number stands for both.
    `num_keys`: the keys from there on are padding that no query sees. The padding must be finite.
    `counts`: the same for each sample, with numbers that are known only when the program runs.
    `layer`: a scalar. `key` and `value` are then [layers, B, S_kv, H, D], and the queries attend to those of that layer: the
    TPU's kernel reads them where they lie.
    """

    scale: float | None = None
    implementation: Implementation | None = None
    window_size: int | Window | None = None
    num_keys: int | None = None
    counts: KeyCounts | None = None
    layer: jax.Array | None = None
    tpu: TpuOptions = TpuOptions()


class _Arrays(NamedTuple):
    """The arguments that are arrays. Keys and values are those of all layers if there is a `layer`."""

    query: jax.Array
    key: jax.Array
    value: jax.Array
    bias: jax.Array | None
    counts: KeyCounts | None
    layer: jax.Array | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Call:
    """The options that are not arrays, with their defaults filled in."""

    scale: float
    window: Window | None
    num_keys: int
    tpu: TpuOptions
    return_lse: bool = False


def attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    bias: jax.Array | None = None,
    options: AttentionOptions | None = None,
) -> jax.Array:
    """softmax(scale * Q K^T + bias) V, [B, S_q, H, D] in the query's dtype. A query that sees no key yields 0.

    `key`, `value` [B, S_kv, H, D]; `bias` broadcasts to [B, H, S_q, S_kv].
    Raises: NotImplementedError if the implementation that is named cannot take the arguments.
    """
    return cast(jax.Array, _attention(query, key, value, bias, options or AttentionOptions(), return_lse=False))


def attention_with_sums(
    query: jax.Array, key: jax.Array, value: jax.Array, options: AttentionOptions | None = None
) -> tuple[jax.Array, jax.Array]:
    """The attention and its log-sums [B, S_q, H] float32: log of the sum of exp(scale * Q K^T) over the keys.

    By the log-sums attentions to several lots of keys are joined (`joined`). They go without window and counts.
    Raises: NotImplementedError as `attention`.
    """
    return cast(tuple[jax.Array, jax.Array], _attention(query, key, value, None, options or AttentionOptions(), return_lse=True))


def _attention(
    query: jax.Array, key: jax.Array, value: jax.Array, bias: jax.Array | None, options: AttentionOptions, *, return_lse: bool
) -> Attended:
    scale = query.shape[-1] ** -0.5 if options.scale is None else options.scale
    window = (options.window_size, options.window_size) if isinstance(options.window_size, int) else options.window_size
    num_keys = options.num_keys or key.shape[-3]
    call = _Call(scale=scale, window=window, num_keys=num_keys, tpu=options.tpu, return_lse=return_lse)
    arrays = _Arrays(query, key, value, bias, options.counts, options.layer)
    if options.implementation is not None:
        return _run(options.implementation, call, arrays)
    platform = target_platform()
    if platform is not None:
        return _run(_choose(platform, call, arrays), call, arrays)
    chosen = {name: _choose(name, call, arrays) for name in ("tpu", "cpu")}
    if chosen["tpu"] == chosen["cpu"]:
        return _run(chosen["cpu"], call, arrays)
    run = {name: functools.partial(_run, implementation, call) for name, implementation in chosen.items()}
    return jax.lax.platform_dependent(arrays, tpu=run["tpu"], default=run["cpu"])


def target_platform() -> str | None:
    """The platform of the mesh in context, "tpu", "gpu" or "cpu"; without a mesh "gpu" in a process that has one, else None."""
    device = _mesh_device()
    if device is None:
        return "gpu" if jax.default_backend() == "gpu" else None
    return {"cuda": "gpu"}.get(device.platform, device.platform)


def target_chip() -> Chip | None:
    """The TPU generation of the mesh in context, or of this process's own devices; None if neither is a known TPU."""
    device = _mesh_device()
    if device is None and jax.default_backend() == "tpu":
        device = jax.devices()[0]
    return None if device is None else CHIP_OF_DEVICE_KIND.get(device.device_kind)


def _mesh_device() -> jax.sharding.AbstractDevice | None:
    return jax.sharding.get_abstract_mesh().abstract_device


def _choose(platform: str, call: _Call, arrays: _Arrays) -> Implementation:
    scores = arrays.query.shape[1] * arrays.key.shape[-3]
    special = _SPECIAL.get(platform)
    if special is not None and scores > special[1] and special[0] not in _withdrawn:
        implementation, _ = special
        try:
            _refuse(implementation, call, arrays)
            return implementation
        except NotImplementedError as reason:
            if platform == (
                target_platform() or jax.default_backend()
            ):  # not if the program is merely lowered for this platform too
                _log_once(f"attention on {platform} falls back from {implementation}: {reason}")
    return "reference" if scores <= SMALL_SCORES or arrays.bias is not None else "blocked"


@functools.cache
def _log_once(message: str) -> None:
    logger.warning(message)


def _refuse(implementation: Implementation, call: _Call, arrays: _Arrays) -> None:
    """Raises: NotImplementedError, with the reason, if the implementation cannot take the arguments."""
    described = _described(arrays)
    query, key, value, bias, counts = described
    if call.return_lse and (call.window is not None or counts is not None):
        raise NotImplementedError("log-sums are given without window and counts only")
    if call.return_lse and implementation == "cudnn":
        raise NotImplementedError("cudnn attention gives no log-sums; use implementation='blocked'")
    if implementation == "pallas_tpu":
        pallas_tpu.refuse(query, key, value, bias)
        if counts is not None and (bias is not None or call.window is not None):
            raise NotImplementedError("the TPU kernel takes counts of keys without bias and window only; use 'reference'")
    if implementation in ("cudnn", "blocked") and bias is not None:
        raise NotImplementedError(f"{implementation} attention takes no bias; use implementation='reference'")
    if implementation == "cudnn":
        try:
            jax.eval_shape(functools.partial(_run_cudnn, call), query, key, value, counts)
        except (RuntimeError, ValueError, TypeError) as error:
            raise NotImplementedError(f"{error}; use implementation='blocked'") from error


def _run(implementation: Implementation, call: _Call, arrays: _Arrays) -> Attended:
    _refuse(implementation, call, arrays)
    options = call.tpu
    if implementation == "pallas_tpu" and pallas_tpu.reads_layers(options.layout, options.bounds, options.tests_bounds):
        return _run_tpu(call, arrays)
    key, value = (of_layer(array, arrays.layer) for array in (arrays.key, arrays.value))
    if implementation == "pallas_tpu":
        return _run_tpu(call, arrays._replace(key=key, value=value, layer=None))
    if call.tpu.bounds is not None:
        raise NotImplementedError(f"{implementation} attention takes no prepared arrays; prepare them without the TPU's passes")
    key, value = key[:, : call.num_keys], value[:, : call.num_keys]
    if implementation == "cudnn":
        return _run_cudnn(call, arrays.query, key, value, arrays.counts)
    query, bias, counts = arrays.query, arrays.bias, arrays.counts
    if call.return_lse:
        attend = functools.partial(blocked_attention, block_q=BLOCK_Q, block_kv=BLOCK_KV)
        attend = attend if implementation == "blocked" else reference_attention
        return attend(query, key, value, scale=call.scale, return_lse=True)
    lengths = None if counts is None else counts.values
    if implementation == "blocked":
        attend = functools.partial(blocked_attention, block_q=BLOCK_Q, block_kv=BLOCK_KV)
        return attend(query, key, value, scale=call.scale, window=call.window, counts=lengths)
    return reference_attention(query, key, value, bias, scale=call.scale, window=call.window, counts=lengths)


def of_layer(array: jax.Array, layer: jax.Array | None) -> jax.Array:
    """The layer's part of [layers, ...], or all of an array without layers."""
    return array if layer is None else jax.lax.dynamic_index_in_dim(array, layer, keepdims=False)


class _Described(NamedTuple):
    """The arrays, with shapes and types in place of keys and values."""

    query: jax.Array
    key: jax.ShapeDtypeStruct
    value: jax.ShapeDtypeStruct
    bias: jax.Array | None
    counts: KeyCounts | None


def _described(arrays: _Arrays) -> _Described:
    """With the shapes [B, S_kv, H, D] and types of one layer's keys and values in place of them."""
    key, value = (
        jax.ShapeDtypeStruct(array.shape[arrays.layer is not None :], array.dtype) for array in (arrays.key, arrays.value)
    )
    return _Described(arrays.query, key, value, arrays.bias, arrays.counts)


def _run_cudnn(call: _Call, query: jax.Array, key: jax.Array, value: jax.Array, counts: KeyCounts | None) -> jax.Array:
    return jax.nn.dot_product_attention(
        query,
        key,
        value,
        scale=call.scale,
        local_window_size=call.window,
        query_seq_lengths=None if counts is None else jnp.full(query.shape[0], query.shape[1], jnp.int32),
        key_value_seq_lengths=None if counts is None else counts.values,
        implementation="cudnn",
    )


def _run_tpu(call: _Call, arrays: _Arrays) -> Attended:
    """The kernel with the sizes for this shape and chip; for an unknown chip, the smallest memory limit and the rule."""
    options, chip = call.tpu, call.tpu.chip or target_chip()
    lengths = arrays.query.shape[1], call.num_keys
    find = default_sizes if chip is None else functools.partial(block_sizes, chip)
    return pallas_tpu.tpu_attention(
        **arrays._asdict(),
        scale=call.scale,
        window=call.window,
        layout=options.layout,
        smooth_keys=options.smooth_keys and not call.return_lse,
        return_lse=call.return_lse,
        num_keys=call.num_keys,
        bounds=options.bounds,
        tests_bounds=options.tests_bounds,
        sizes=options.sizes or find(*lengths),
        online_sizes=options.online_sizes or find(*lengths, form="online"),
        vmem_limit_bytes=min(VMEM_LIMIT_BYTES.values()) if chip is None else VMEM_LIMIT_BYTES[chip],
    )
