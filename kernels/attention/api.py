"""The attention function. It chooses an implementation by platform and shape, unless the caller names one.

The platform is taken from the mesh in context (`jax.set_mesh`, or inside `jax.shard_map`), because a host without a TPU can
compile a program for TPUs. Without a mesh, the platform for which jax lowers the program decides.
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
from kernels.attention.kv_lengths import KvLengths
from kernels.attention.reference import reference_attention
from kernels.qkv import HeadBounds

Implementation = Literal["reference", "blocked", "cudnn", "pallas_tpu"]
Window = tuple[int, int]
Attended = jax.Array | tuple[jax.Array, jax.Array]
"""The attention, with its log-sum-exp if requested."""

SMALL_SCORES = 2**22  # scores per head (16 MiB in float32): up to this number, one product is faster on a CPU than blocks
SMALL_SCORES_TPU = 2**16  # scores per head: up to this number, starting a kernel costs more than storing scores (not measured)
BLOCK_Q = 1024
BLOCK_KV = 512

logger = logging.getLogger(__name__)
_SPECIAL: dict[str, tuple[Implementation, int]] = {
    "tpu": ("pallas_tpu", SMALL_SCORES_TPU),
    "gpu": ("cudnn", SMALL_SCORES),
}  # each platform's own implementation, and the number of scores per head above which it is used
_disabled: set[str] = set()


def disable_implementation(implementation: Implementation) -> None:
    """Exclude an implementation from the automatic choice in this process, after it failed. Callers can still name it."""
    _disabled.add(implementation)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TpuOptions:
    """Options that only the TPU kernel uses.

    The kernel computes the softmax of a head in one of two forms. The constant form subtracts no maximum from the scores. It is
    faster, but overflows if scores are too large. The online form is the online softmax, which is always safe. The norms of a
    head's queries and keys bound its scores, and the kernel chooses the form of the head by these bounds.

    Attributes:
        chip: the TPU generation; by default of the mesh in context, or of this process's devices.
        layout: "heads" if the operations around the attention store [B, S, H, D] head by head, as XLA does on a TPU by default.
            "columns" if they store [B, S, H * D]. The wrong value gives the same result, but costs copies.
        bounds: each head's bounds, set only if `kernels.qkv` prepared the arrays. Other implementations cannot use such arrays.
            If None, the bounds are computed.
        tests_bounds: if False, the bounds are not tested, and all heads use the online form.
        smooth_keys: subtract the mean key, so that more heads can use the constant form.
        sizes, online_sizes: block sizes of the constant and the online form. None uses the tuned sizes.
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

    Attributes:
        scale: factor of the scores, default D ** -0.5.
        implementation: the implementation to use; by default it is chosen by platform and shape.
        window_size: (before, after). Query i sees keys i - before to i + after. One number sets both.
        num_keys: keys from this index on are padding that no query sees. The padding must be finite.
        kv_lengths: like `num_keys`, but with a number for each sample, known only when the program runs.
        layer: index of a layer, a scalar. `key` and `value` are then [layers, B, S_kv, H, D], and the queries attend to this
            layer. The TPU kernel reads the layer without copying it, if `pallas_tpu.reads_layers`.
    """

    scale: float | None = None
    implementation: Implementation | None = None
    window_size: int | Window | None = None
    num_keys: int | None = None
    kv_lengths: KvLengths | None = None
    layer: jax.Array | None = None
    tpu: TpuOptions = TpuOptions()


class _Arrays(NamedTuple):
    """The arguments that are arrays. If `layer` is set, `key` and `value` have a leading axis for layers."""

    query: jax.Array
    key: jax.Array
    value: jax.Array
    bias: jax.Array | None
    kv_lengths: KvLengths | None
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
    """Compute softmax(scale * Q K^T + bias) V, [B, S_q, H, D] in the query's dtype. A query that sees no key yields 0.

    `key`, `value` [B, S_kv, H, D]; `bias` broadcasts to [B, H, S_q, S_kv].
    Raises: NotImplementedError if the implementation in `options` does not support the arguments.
    """
    return cast(jax.Array, _dispatch(query, key, value, bias, options or AttentionOptions(), return_lse=False))


def attention_with_lse(
    query: jax.Array, key: jax.Array, value: jax.Array, options: AttentionOptions | None = None
) -> tuple[jax.Array, jax.Array]:
    """Compute the attention and its log-sum-exp [B, S_q, H] float32: log(sum(exp(scale * Q K^T))) over the keys.

    `join_attentions` needs the log-sum-exp. Options with `window_size` or `kv_lengths` are not supported.
    Raises: NotImplementedError if the implementation in `options` does not support the arguments.
    """
    return cast(tuple[jax.Array, jax.Array], _dispatch(query, key, value, None, options or AttentionOptions(), return_lse=True))


def _dispatch(
    query: jax.Array, key: jax.Array, value: jax.Array, bias: jax.Array | None, options: AttentionOptions, *, return_lse: bool
) -> Attended:
    scale = query.shape[-1] ** -0.5 if options.scale is None else options.scale
    window = (options.window_size, options.window_size) if isinstance(options.window_size, int) else options.window_size
    num_keys = options.num_keys or key.shape[-3]
    call = _Call(scale=scale, window=window, num_keys=num_keys, tpu=options.tpu, return_lse=return_lse)
    arrays = _Arrays(query, key, value, bias, options.kv_lengths, options.layer)
    if options.implementation is not None:
        return _run_implementation(options.implementation, call, arrays)
    platform = target_platform()
    if platform is not None:
        return _run_implementation(_choose_implementation(platform, call, arrays), call, arrays)
    chosen = {name: _choose_implementation(name, call, arrays) for name in ("tpu", "cpu")}
    if chosen["tpu"] == chosen["cpu"]:
        return _run_implementation(chosen["cpu"], call, arrays)
    run = {name: functools.partial(_run_implementation, implementation, call) for name, implementation in chosen.items()}
    return jax.lax.platform_dependent(arrays, tpu=run["tpu"], default=run["cpu"])


def target_platform() -> str | None:
    """Return the platform of the mesh in context: "tpu", "gpu" or "cpu". Without a mesh, "gpu" if this process uses GPUs, else
    None."""
    device = _mesh_device()
    if device is None:
        return "gpu" if jax.default_backend() == "gpu" else None
    return {"cuda": "gpu"}.get(device.platform, device.platform)


def target_chip() -> Chip | None:
    """Return the TPU generation of the mesh in context, or of this process's devices. None if neither is a known TPU."""
    device = _mesh_device()
    if device is None and jax.default_backend() == "tpu":
        device = jax.devices()[0]
    return None if device is None else CHIP_OF_DEVICE_KIND.get(device.device_kind)


def _mesh_device() -> jax.sharding.AbstractDevice | None:
    return jax.sharding.get_abstract_mesh().abstract_device


def _choose_implementation(platform: str, call: _Call, arrays: _Arrays) -> Implementation:
    scores = arrays.query.shape[1] * arrays.key.shape[-3]
    special = _SPECIAL.get(platform)
    if special is not None and scores > special[1] and special[0] not in _disabled:
        implementation, _ = special
        try:
            _check_supported(implementation, call, arrays)
            return implementation
        except NotImplementedError as reason:
            # Without a mesh, a program is lowered for several platforms: warn only for the platform that will run it
            if platform == (target_platform() or jax.default_backend()):
                _log_once(f"attention on {platform} falls back from {implementation}: {reason}")
    return "reference" if scores <= SMALL_SCORES or arrays.bias is not None else "blocked"


@functools.cache
def _log_once(message: str) -> None:
    logger.warning(message)


def _check_supported(implementation: Implementation, call: _Call, arrays: _Arrays) -> None:
    """Check the arguments. Raises: NotImplementedError, with the reason, if the implementation does not support them."""
    layer_shapes = _describe_layer(arrays)
    query, key, value, bias, kv_lengths = layer_shapes
    if call.return_lse and (call.window is not None or kv_lengths is not None):
        raise NotImplementedError("the log-sum-exp excludes window_size and kv_lengths; leave them out")
    if call.return_lse and implementation == "cudnn":
        raise NotImplementedError("cudnn attention returns no log-sum-exp; use implementation='blocked'")
    if implementation == "pallas_tpu":
        pallas_tpu.check_supported(query, key, value, bias)
        if kv_lengths is not None and (bias is not None or call.window is not None):
            raise NotImplementedError("the TPU kernel supports kv_lengths only without bias and window; use 'reference'")
    if implementation in ("cudnn", "blocked") and bias is not None:
        raise NotImplementedError(f"{implementation} attention takes no bias; use implementation='reference'")
    if implementation == "cudnn":
        try:
            jax.eval_shape(functools.partial(_run_cudnn, call), query, key, value, kv_lengths)
        except (RuntimeError, ValueError, TypeError) as error:
            raise NotImplementedError(f"{error}; use implementation='blocked'") from error


def _run_implementation(implementation: Implementation, call: _Call, arrays: _Arrays) -> Attended:
    _check_supported(implementation, call, arrays)
    options = call.tpu
    if implementation == "pallas_tpu" and pallas_tpu.reads_layers(options.layout, options.bounds, options.tests_bounds):
        return _run_tpu(call, arrays)
    key, value = (select_layer(array, arrays.layer) for array in (arrays.key, arrays.value))
    if implementation == "pallas_tpu":
        return _run_tpu(call, arrays._replace(key=key, value=value, layer=None))
    if call.tpu.bounds is not None:
        raise NotImplementedError(f"{implementation} attention supports no `bounds`; prepare arrays with use_pallas=False")
    key, value = key[:, : call.num_keys], value[:, : call.num_keys]
    if implementation == "cudnn":
        return _run_cudnn(call, arrays.query, key, value, arrays.kv_lengths)
    query, bias, kv_lengths = arrays.query, arrays.bias, arrays.kv_lengths
    if call.return_lse:
        attend = functools.partial(blocked_attention, block_q=BLOCK_Q, block_kv=BLOCK_KV)
        attend = attend if implementation == "blocked" else reference_attention
        return attend(query, key, value, scale=call.scale, return_lse=True)
    lengths = None if kv_lengths is None else kv_lengths.values
    if implementation == "blocked":
        attend = functools.partial(blocked_attention, block_q=BLOCK_Q, block_kv=BLOCK_KV)
        return attend(query, key, value, scale=call.scale, window=call.window, kv_lengths=lengths)
    return reference_attention(query, key, value, bias, scale=call.scale, window=call.window, kv_lengths=lengths)


def select_layer(array: jax.Array, layer: jax.Array | None) -> jax.Array:
    """Return one layer of `array` [layers, ...], or `array` itself without a `layer`."""
    return array if layer is None else jax.lax.dynamic_index_in_dim(array, layer, keepdims=False)


class _LayerShapes(NamedTuple):
    """The arrays of a call. `key` and `value` are only shapes and types, [B, S_kv, H, D]: of one layer if the call has layers."""

    query: jax.Array
    key: jax.ShapeDtypeStruct
    value: jax.ShapeDtypeStruct
    bias: jax.Array | None
    kv_lengths: KvLengths | None


def _describe_layer(arrays: _Arrays) -> _LayerShapes:
    key, value = (
        jax.ShapeDtypeStruct(array.shape[arrays.layer is not None :], array.dtype) for array in (arrays.key, arrays.value)
    )
    return _LayerShapes(arrays.query, key, value, arrays.bias, arrays.kv_lengths)


def _run_cudnn(call: _Call, query: jax.Array, key: jax.Array, value: jax.Array, kv_lengths: KvLengths | None) -> jax.Array:
    return jax.nn.dot_product_attention(
        query,
        key,
        value,
        scale=call.scale,
        local_window_size=call.window,
        query_seq_lengths=None if kv_lengths is None else jnp.full(query.shape[0], query.shape[1], jnp.int32),
        key_value_seq_lengths=None if kv_lengths is None else kv_lengths.values,
        implementation="cudnn",
    )


def _run_tpu(call: _Call, arrays: _Arrays) -> Attended:
    """Run the TPU kernel with the block sizes for this shape and chip.

    An unknown chip gets the default sizes and the smallest memory limit.
    """
    options, chip = call.tpu, call.tpu.chip or target_chip()
    lengths = arrays.query.shape[1], call.num_keys
    find = default_sizes if chip is None else functools.partial(block_sizes, chip)
    kernel = pallas_tpu.KernelOptions(
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
    return pallas_tpu.tpu_attention(**arrays._asdict(), options=kernel)
