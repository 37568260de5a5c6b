"""Linear layers with 8-bit weights and activations: int8, or float8 (e4m3fn). `backend/weights/read.py` quantizes the
weights.

Each output channel of a weight and each token of the input has a scale: its largest absolute value, divided by the largest value
of the format. Products are summed in int32 or float32, and the sums are multiplied by both scales in float32.
"""

import functools
from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
import torch

from backend.runtime.mesh import TOKENS, Layout
from backend.runtime.torch_modules import torchax
from kernels.token_quantize import can_run_pass, quantize_tokens

Format = Literal["int8", "fp8"]
DTYPES = {"int8": jnp.dtype(jnp.int8), "fp8": jnp.dtype(jnp.float8_e4m3fn)}
TORCH_DTYPES = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}


class QuantizedLinear(torch.nn.Module):
    """Replaces a `torch.nn.Linear`. `weight` [out, in] has values of 8 bits, `weight_scale` [out] is float32."""

    def __init__(self, linear: torch.nn.Linear, format: Format, layout: Layout) -> None:
        super().__init__()
        shape = linear.weight.shape
        self.register_buffer("weight", torch.empty(shape, dtype=TORCH_DTYPES[format], device="meta"))
        self.register_buffer("weight_scale", torch.empty(shape[0], device="meta"))
        self.bias, self._layout = linear.bias, layout

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        multiply = functools.partial(multiply_quantized, self._layout)
        return torchax().interop.call_jax(multiply, value, self.weight, self.weight_scale, self.bias)

    def __deepcopy__(self, memo: dict) -> "QuantizedLinear":
        return self  # no copy: the module stores no values, and the layout's devices cannot be copied


def quantize_linears(
    model: torch.nn.Module, is_quantized: Callable[[str], bool], format: Format, layout: Layout
) -> dict[str, jnp.dtype]:
    """Replace the linear layers for which `is_quantized(name)` is true. Return the dtypes of their weights and scales by name."""
    dtypes: dict[str, jnp.dtype] = {}
    for name, module in list(model.named_modules()):
        if is_quantized(name):
            assert isinstance(module, torch.nn.Linear), name
            model.set_submodule(name, QuantizedLinear(module, format, layout))
            dtypes |= {f"{name}.weight": DTYPES[format], f"{name}.weight_scale": jnp.dtype(jnp.float32)}
    return dtypes


def multiply_quantized(
    layout: Layout, value: jax.Array, weight: jax.Array, scale: jax.Array, bias: jax.Array | None
) -> jax.Array:
    """Quantize `value` [B, S, C] to the weight's dtype, then multiply it by `weight` [N, C] transposed, and add `bias` [N].

    `scale` [N] are the scales of the weight's output channels. The result [B, S, N] has the dtype of `value`. It is rounded once,
    after the bias is added in float32.
    """
    batch, length, width = value.shape
    own = batch // min(batch, layout.size("dp")), length // layout.size("sp"), width
    with jax.named_scope("products"):
        if layout.uses_tpu_passes(value.dtype) and can_run_pass(own, weight.dtype):
            run = functools.partial(quantize_tokens, dtype=weight.dtype, use_pallas=True)
            quantized, row_scale = layout.on_each_chip(run, (TOKENS,), (TOKENS, TOKENS))(value)
        else:
            quantized, row_scale = quantize_tokens(value, weight.dtype)
        sums = jax.lax.platform_dependent(quantized, weight, cpu=multiply_on_cpu, default=multiply_8_bit)
        result = sums * row_scale * scale
        return (result if bias is None else result + bias.astype(jnp.float32)).astype(value.dtype)


def multiply_8_bit(value: jax.Array, weight: jax.Array) -> jax.Array:
    """Multiply `value` [..., C] by `weight` [N, C] transposed, both int8 or both float8. Returns [..., N] in float32."""
    sums = jnp.int32 if weight.dtype == jnp.int8 else jnp.float32
    return jnp.einsum("...c,nc->...n", value, weight, preferred_element_type=sums).astype(jnp.float32)


def multiply_on_cpu(value: jax.Array, weight: jax.Array) -> jax.Array:
    """Compute the result of `multiply_8_bit` with a float32 product, which is fast on a CPU.

    Sums of int8 products that exceed 2 ** 24 are rounded at each addition, not only at the end.
    """
    return jnp.einsum("...c,nc->...n", value.astype(jnp.float32), weight.astype(jnp.float32))
