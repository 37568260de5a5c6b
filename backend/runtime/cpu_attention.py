"""Attention with PyTorch's fused kernel on a CPU, and with `kernels.attention` elsewhere. PyTorch's kernel is used because it
vectorises exponentials; XLA does not."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import torch
from torch.nn.functional import scaled_dot_product_attention

from backend.runtime.torch_call import TorchCall
from kernels.attention import AttentionOptions, KvLengths, select_layer, target_platform
from kernels.attention import attention as kernels_attention


@jax.named_scope("attention")
def attention(
    query: jax.Array, key: jax.Array, value: jax.Array, bias: jax.Array | None = None, *, options: AttentionOptions
) -> jax.Array:
    """Compute softmax(Q K^T / sqrt(D) + bias) V, [B, S_q, H, D] in the query's dtype. The arguments are as in
    `kernels.attention`."""
    arrays, platform = (query, key, value) if bias is None else (query, key, value, bias), target_platform()
    if platform not in (None, "cpu") or not _is_supported(query, key, value, options):
        return kernels_attention(query, key, value, bias, options)
    here = functools.partial(torch_attention, num_keys=options.num_keys, kv_lengths=options.kv_lengths)
    arrays = (query, *(select_layer(array, options.layer) for array in (key, value)), *arrays[3:])
    if platform == "cpu":
        return here(*arrays)
    elsewhere = functools.partial(kernels_attention, options=dataclasses.replace(options, layer=None))
    return jax.lax.platform_dependent(*arrays, cpu=here, default=elsewhere)


def torch_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    bias: jax.Array | None = None,
    *,
    num_keys: int | None = None,
    kv_lengths: KvLengths | None = None,
) -> jax.Array:
    """Compute the result of `attention` with PyTorch alone, in float32 or bfloat16. Works only in programs for a CPU."""
    if kv_lengths is not None:
        hidden = jnp.where(jnp.arange(key.shape[1]) < kv_lengths.values[:, None], 0.0, -jnp.inf)[:, None, None, :num_keys]
        bias = hidden if bias is None else bias + hidden
    operands = (query, key[:, :num_keys], value[:, :num_keys], *([] if bias is None else [bias.astype(query.dtype)]))
    return _ATTEND(jax.ShapeDtypeStruct(query.shape, query.dtype), *operands)


def _is_supported(query: jax.Array, key: jax.Array, value: jax.Array, options: AttentionOptions) -> bool:
    """Return whether PyTorch is used for this attention.

    PyTorch is used only if the options have the default scale, no window and no named implementation. It is not used for arrays
    that Pallas passes have prepared for a TPU, or with several CPU devices, because the devices would share the cores.
    """
    dtypes = {array.dtype.name for array in (query, key, value)}
    if options.scale is not None or options.window_size is not None or options.implementation is not None:
        return False
    return options.tpu.bounds is None and dtypes in ({"float32"}, {"bfloat16"}) and jax.sharding.get_abstract_mesh().size <= 1


def _attend(
    attended: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: torch.Tensor | None = None
) -> None:
    heads_first = (array.transpose(1, 2) for array in (query, key, value))
    attended.copy_(scaled_dot_product_attention(*heads_first, attn_mask=bias).transpose(1, 2))


_ATTEND = TorchCall("torch_cpu_attention", _attend)
