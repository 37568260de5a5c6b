"""Attention that uses PyTorch's fused kernel on a CPU, and `kernels.attention` on other platforms. PyTorch's kernel computes
exponentials with vector instructions, and XLA's code for CPUs does not."""

import jax
import jax.numpy as jnp
import torch
from torch.nn.functional import scaled_dot_product_attention

from backend.runtime.torch_call import TorchCall
from kernels.attention import IMPLEMENTATIONS, AttentionOptions, Call, Implementation
from kernels.attention import attention as kernels_attention


@jax.named_scope("attention")
def attention(
    query: jax.Array, key: jax.Array, value: jax.Array, bias: jax.Array | None = None, *, options: AttentionOptions
) -> jax.Array:
    """Compute softmax(scale * Q K^T + bias) V, [B, S_q, H, D] in the query's dtype, as `kernels.attention.attention` does."""
    return kernels_attention(query, key, value, bias, options, implementations=(TORCH_CPU, *IMPLEMENTATIONS))


class _TorchCpu(Implementation):
    name, platform = "torch_cpu", "cpu"

    def refuse(self, call: Call) -> str | None:
        if call.scale != call.query.shape[-1] ** -0.5 or call.window is not None or call.return_lse:
            return "PyTorch's attention supports only the default scale, no window and no log-sum-exp; use 'blocked'"
        types = {array.dtype.name for array in (call.query, call.key, call.value)}
        if types not in ({"float32"}, {"bfloat16"}):
            return f"PyTorch's attention takes float32 or bfloat16, not {', '.join(sorted(types))}; use 'blocked'"
        if jax.sharding.get_abstract_mesh().size > 1:
            return "PyTorch's attention supports one CPU device, because several would share the cores; use 'blocked'"
        return super().refuse(call)

    def attend(self, call: Call) -> jax.Array:
        (query, key, value), bias, lengths = call.plain_arrays(), call.bias, call.options.kv_lengths
        if lengths is not None:
            hidden = jnp.where(jnp.arange(key.shape[1]) < lengths.values[:, None], 0.0, -jnp.inf)[:, None, None]
            bias = hidden if bias is None else bias + hidden
        operands = (query, key, value, *([] if bias is None else [bias.astype(query.dtype)]))
        return _ATTEND(jax.ShapeDtypeStruct(query.shape, query.dtype), *operands)


TORCH_CPU = _TorchCpu()


def _attend(
    attended: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: torch.Tensor | None = None
) -> None:
    heads_first = (array.transpose(1, 2) for array in (query, key, value))
    attended.copy_(scaled_dot_product_attention(*heads_first, attn_mask=bias).transpose(1, 2))


_ATTEND = TorchCall("torch_cpu_attention", _attend)
