"""The attention function. It chooses an implementation by platform and shape, unless the caller names one.

The platform is the platform of the mesh in context (`jax.set_mesh`, or inside `jax.shard_map`), because a host without a TPU can
compile for TPUs. Without a mesh, the platform for which jax lowers the program decides.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import logging
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, cast

import jax
import jax.numpy as jnp

from kernels.attention import pallas_tpu
from kernels.attention.block_sizes import CHIP_OF_DEVICE_KIND, VMEM_LIMIT_BYTES, BlockSizes, Chip, block_sizes, default_sizes
from kernels.attention.blocked import blocked_attention
from kernels.attention.kv_lengths import KvLengths
from kernels.attention.reference import reference_attention
from kernels.qkv import HeadBounds

ImplementationName = Literal["reference", "blocked", "cudnn", "pallas_tpu"]
Window = tuple[int, int]
Attended = jax.Array | tuple[jax.Array, jax.Array]
"""The attention, with its log-sum-exp if requested."""

SMALL_SCORES = 2**22  # scores per head, 16 MiB in float32; for fewer scores, a CPU is faster without blocks
SMALL_SCORES_TPU = 2**16  # scores per head; starting a kernel takes longer than storing fewer scores in memory (not measured)
BLOCK_Q = 1024
BLOCK_KV = 512

logger = logging.getLogger(__name__)
disabled: set[str] = set()  # implementations that the automatic choice excludes in this process


def disable_implementation(implementation: ImplementationName) -> None:
    """Exclude an implementation from the automatic choice in this process. Callers can still request it by name."""
    disabled.add(implementation)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TpuOptions:
    """Options that only the TPU kernel uses.

    The kernel computes the softmax of a head in one of two forms. The online form is the online softmax, which is always safe.
    The constant form subtracts no maximum from the scores. It is faster, but overflows if scores are too large. The kernel
    chooses the form of each head by bounds of the head's scores: the largest norms of its queries and keys.

    Attributes:
        chip: the TPU generation. By default, it is taken from the mesh in context, or from this process's devices.
        layout: the order in memory of query, key, value and result. "heads" is [B, H, S, D], as XLA stores them on a TPU by
            default. "columns" is [B, S, H * D]. The wrong value costs copies, but the result is the same.
        bounds: each head's `HeadBounds`, set only if `kernels.qkv` prepared the arrays. Implementations other than the TPU kernel
            refuse prepared arrays. If None, the TPU kernel computes the bounds.
        tests_bounds: if False, all heads use the online form, and bounds are neither computed nor tested.
        smooth_keys: subtract the mean key from all keys, so that more heads can use the constant form. The result is the same.
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
        implementation: by default, it is chosen by platform and shape.
        window_size: (before, after). Query i sees keys i - before to i + after. An int sets both numbers.
        num_keys: keys from this index on are padding that no query sees. The padding must be finite.
        kv_lengths: the number of leading keys that each sample's queries see, known only when the program runs.
        layer: index of a layer, a scalar. `key` and `value` are then [layers, B, S_kv, H, D], and the queries attend to this
            layer. The TPU kernel reads the layer without a copy if `pallas_tpu.reads_layers` returns True.
    """

    scale: float | None = None
    implementation: str | None = None
    window_size: int | Window | None = None
    num_keys: int | None = None
    kv_lengths: KvLengths | None = None
    layer: jax.Array | None = None
    tpu: TpuOptions = TpuOptions()


@dataclasses.dataclass(frozen=True)
class Call:
    """The arguments of one call of `attention`. With `options.layer`, `key` and `value` have a leading axis for layers."""

    query: jax.Array
    key: jax.Array
    value: jax.Array
    bias: jax.Array | None
    options: AttentionOptions
    return_lse: bool = False

    @property
    def scale(self) -> float:
        return self.query.shape[-1] ** -0.5 if self.options.scale is None else self.options.scale

    @property
    def window(self) -> Window | None:
        size = self.options.window_size
        return (size, size) if isinstance(size, int) else size

    @property
    def num_keys(self) -> int:
        return self.options.num_keys or self.key.shape[-3]

    def plain_arrays(self) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Return query, key and value, [B, S, H, D], without padding of the keys and without other layers."""
        key, value = (select_layer(array, self.options.layer)[:, : self.num_keys] for array in (self.key, self.value))
        return self.query, key, value

    def plain_options(self) -> dict[str, Any]:
        lengths = None if self.options.kv_lengths is None else self.options.kv_lengths.values
        return {"scale": self.scale, "window": self.window, "kv_lengths": lengths, "return_lse": self.return_lse}


class Implementation(abc.ABC):
    """One implementation of attention.

    The automatic choice takes the first implementation of a list that suits the platform and the number of scores, and whose
    `refuse` returns no reason.

    Attributes:
        name: the name by which callers can request the implementation, for any platform and number of scores.
        platform: the only platform for which the automatic choice takes the implementation. None for all platforms.
        small_scores: up to this number of scores per head, the automatic choice skips the implementation, because a later
            implementation in the list is faster.
    """

    name: ClassVar[str]
    platform: ClassVar[str | None] = None
    small_scores: ClassVar[int] = 0

    def refuse(self, call: Call) -> str | None:
        """Return an error message if the implementation does not support the arguments, otherwise None.

        By default, refuse only arrays that `kernels.qkv` prepared for the TPU kernel.
        """
        if call.options.tpu.bounds is None:
            return None
        return f"{self.name} attention supports no `bounds`; prepare arrays with use_pallas=False"

    @abc.abstractmethod
    def attend(self, call: Call) -> Attended:
        """Compute the attention of a call that `refuse` does not refuse."""


class _PallasTpu(Implementation):
    """The TPU kernel. If `pallas_tpu.reads_layers` returns True, it reads one layer of stacked keys and values without a copy."""

    name, platform, small_scores = "pallas_tpu", "tpu", SMALL_SCORES_TPU

    def refuse(self, call: Call) -> str | None:
        if call.options.kv_lengths is not None and (call.bias is not None or call.window is not None):
            return "the TPU kernel supports kv_lengths only without bias and window; use 'reference'"
        return pallas_tpu.find_unsupported(call.query, call.key, call.value, call.bias)

    def attend(self, call: Call) -> Attended:
        """Run the TPU kernel. For an unknown chip, use default block sizes."""
        tpu, chip = call.options.tpu, call.options.tpu.chip or target_chip()
        key, value, layer = call.key, call.value, call.options.layer
        if not pallas_tpu.reads_layers(tpu.layout, tpu.bounds, tpu.tests_bounds):
            key, value, layer = select_layer(key, layer), select_layer(value, layer), None
        lengths = call.query.shape[1], call.num_keys
        find = default_sizes if chip is None else functools.partial(block_sizes, chip)
        options = pallas_tpu.KernelOptions(
            scale=call.scale,
            window=call.window,
            layout=tpu.layout,
            smooth_keys=tpu.smooth_keys and not call.return_lse,
            return_lse=call.return_lse,
            num_keys=call.num_keys,
            bounds=tpu.bounds,
            tests_bounds=tpu.tests_bounds,
            sizes=tpu.sizes or find(*lengths),
            online_sizes=tpu.online_sizes or find(*lengths, form="online"),
            vmem_limit_bytes=vmem_limit(chip),
        )
        lengths_kv = call.options.kv_lengths
        return pallas_tpu.tpu_attention(call.query, key, value, options, call.bias, kv_lengths=lengths_kv, layer=layer)


class _Cudnn(Implementation):
    name, platform, small_scores = "cudnn", "gpu", SMALL_SCORES

    def refuse(self, call: Call) -> str | None:
        if call.return_lse:
            return "cudnn attention returns no log-sum-exp; use implementation='blocked'"
        if call.bias is not None:
            return "cudnn attention takes no bias; use implementation='reference'"
        try:
            jax.eval_shape(lambda: self.attend(call))
        except (RuntimeError, ValueError, TypeError) as error:
            return f"{error}; use implementation='blocked'"
        return super().refuse(call)

    def attend(self, call: Call) -> jax.Array:
        (batch, length), lengths = call.query.shape[:2], call.options.kv_lengths
        return jax.nn.dot_product_attention(
            *call.plain_arrays(),
            scale=call.scale,
            local_window_size=call.window,
            query_seq_lengths=None if lengths is None else jnp.full(batch, length, jnp.int32),
            key_value_seq_lengths=None if lengths is None else lengths.values,
            implementation="cudnn",
        )


class _Blocked(Implementation):
    name, small_scores = "blocked", SMALL_SCORES

    def refuse(self, call: Call) -> str | None:
        if call.bias is not None:
            return "blocked attention takes no bias; use implementation='reference'"
        return super().refuse(call)

    def attend(self, call: Call) -> Attended:
        return blocked_attention(*call.plain_arrays(), **call.plain_options(), block_q=BLOCK_Q, block_kv=BLOCK_KV)


class _Reference(Implementation):
    name = "reference"

    def attend(self, call: Call) -> Attended:
        return reference_attention(*call.plain_arrays(), call.bias, **call.plain_options())


IMPLEMENTATIONS: tuple[Implementation, ...] = (_PallasTpu(), _Cudnn(), _Blocked(), _Reference())
"""The implementations, in the order in which the automatic choice tests them."""


def attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    bias: jax.Array | None = None,
    options: AttentionOptions | None = None,
    *,
    implementations: Sequence[Implementation] = IMPLEMENTATIONS,
) -> jax.Array:
    """Compute softmax(scale * Q K^T + bias) V, [B, S_q, H, D] in the query's dtype. A query that sees no key yields 0.

    `key` and `value` are [B, S_kv, H, D]. `bias` broadcasts to [B, H, S_q, S_kv].
    Raises: NotImplementedError if the implementation that the options name does not support the arguments.
    """
    return cast(jax.Array, _dispatch(Call(query, key, value, bias, options or AttentionOptions()), implementations))


def attention_with_lse(
    query: jax.Array, key: jax.Array, value: jax.Array, options: AttentionOptions | None = None
) -> tuple[jax.Array, jax.Array]:
    """Compute the attention [B, S_q, H, D] and its log-sum-exp [B, S_q, H] float32: log(sum(exp(scale * Q K^T))) over the keys.

    Raises: NotImplementedError for options with `window_size` or `kv_lengths`, and as `attention` does.
    """
    options = options or AttentionOptions()
    if options.window_size is not None or options.kv_lengths is not None:
        raise NotImplementedError("the log-sum-exp excludes window_size and kv_lengths; leave them out")
    call = Call(query, key, value, None, options, return_lse=True)
    return cast(tuple[jax.Array, jax.Array], _dispatch(call, IMPLEMENTATIONS))


def _dispatch(call: Call, implementations: Sequence[Implementation]) -> Attended:
    if call.options.implementation is not None:
        named = next(one for one in implementations if one.name == call.options.implementation)
        if (reason := named.refuse(call)) is not None:
            raise NotImplementedError(reason)
        return named.attend(call)
    platform = target_platform()
    if platform is not None:
        return choose_implementation(call, platform, implementations).attend(call)
    # Without a mesh, jax may lower the program for any platform. All platforms without their own branch use the branch "default".
    tpu, cpu, other = (choose_implementation(call, name, implementations) for name in ("tpu", "cpu", "default"))
    branches = {name: one for name, one in (("tpu", tpu), ("cpu", cpu)) if one is not other}
    if not branches:
        return other.attend(call)
    run = {name: functools.partial(one.attend, call) for name, one in branches.items()}
    return jax.lax.platform_dependent(**run, default=functools.partial(other.attend, call))


def choose_implementation(
    call: Call, platform: str, implementations: Sequence[Implementation] = IMPLEMENTATIONS
) -> Implementation:
    """Return the first implementation that suits the platform and does not refuse the call.

    Raises: NotImplementedError, with all reasons, if every implementation refuses.
    """
    reasons = []
    for implementation in implementations:
        is_large = call.query.shape[1] * call.key.shape[-3] > implementation.small_scores
        if implementation.platform not in (None, platform) or not is_large or implementation.name in disabled:
            continue
        reason = implementation.refuse(call)
        if reason is None:
            return implementation
        reasons.append(reason)
        # Warn only about the platform that runs the program. Without a mesh, this function is called for other platforms too.
        # Do not warn about CPUs, because the next implementation in the list is about as fast there.
        if implementation.platform not in (None, "cpu") and platform == (target_platform() or jax.default_backend()):
            _log_once(f"attention on {platform} falls back from {implementation.name}: {reason}")
    raise NotImplementedError("; ".join(reasons))


@functools.cache
def _log_once(message: str) -> None:
    logger.warning(message)


def select_layer(array: jax.Array, layer: jax.Array | None) -> jax.Array:
    """Return the part of `array` [layers, ...] for this layer. Without a layer, return `array`."""
    return array if layer is None else jax.lax.dynamic_index_in_dim(array, layer, keepdims=False)


def target_platform() -> str | None:
    """Return the platform of the mesh in context: "tpu", "gpu" or "cpu". Without a mesh, "gpu" if this process uses GPUs, else
    None."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    if device is None:
        return "gpu" if jax.default_backend() == "gpu" else None
    return {"cuda": "gpu"}.get(device.platform, device.platform)


def target_chip() -> Chip | None:
    """Return the TPU generation of the mesh in context, or else of this process's devices. None for devices that are not known
    TPUs."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    if device is None and jax.default_backend() == "tpu":
        device = jax.devices()[0]
    return None if device is None else CHIP_OF_DEVICE_KIND.get(device.device_kind)


def vmem_limit(chip: Chip | None) -> int:
    """Return the bytes of vector memory that a kernel may use, for an unknown chip the smallest limit."""
    return min(VMEM_LIMIT_BYTES.values()) if chip is None else VMEM_LIMIT_BYTES[chip]
