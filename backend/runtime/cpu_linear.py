"""Large matrix products on CPUs with AMX units. Libraries inside PyTorch compute them: oneDNN for bfloat16, MKL for float32.

The AMX units multiply only bfloat16. Therefore each factor of a float32 product is split into two bfloat16 parts, and
a b = a_high b_high + a_low b_high + a_high b_low. The error is at most 3 * 2 ** -16 * |a b|, as with `jax.lax.Precision.HIGH` on
TPUs. Source: Henry, Tang and Heinecke, "Leveraging the bfloat16 Artificial Intelligence Datatype For Higher-Precision
Computations" (2019), section II.
"""

import ctypes
import functools
import math
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import torch

from backend.runtime.torch_call import TorchCall

FEWEST_ROWS = 1024  # with fewer rows in `value`, XLA's own product is as fast: measured on two cores, 2026-11-21
FEWEST_COLUMNS = 1024  # minimum of both N and C of `weight` [N, C]; with a smaller weight, XLA's own product is as fast

_ROW_MAJOR, _NOT_TRANSPOSED = 101, 111  # CBLAS's constants for matrices in row-major order that are not transposed


def is_supported(value: jax.Array, weight: jax.Array) -> bool:
    """Return whether `linear` can multiply these arrays faster than XLA: large float32 or bfloat16 arrays on a single CPU
    device."""
    is_large = math.prod(value.shape[:-1]) >= FEWEST_ROWS and min(weight.shape) >= FEWEST_COLUMNS
    is_alone = jax.default_backend() == "cpu" and jax.device_count() == 1  # several devices would share the processor's cores
    if not is_large or not is_alone or value.dtype != weight.dtype or not torch.cpu.get_capabilities().get("amx_bf16"):
        return False
    return value.dtype == jnp.bfloat16 or (value.dtype == jnp.float32 and _multiply_bfloat16() is not None)


def linear(value: jax.Array, weight: jax.Array, bias: jax.Array | None = None) -> jax.Array:
    """Multiply `value` [..., C] by `weight` [N, C] transposed, and add `bias` [N], in the dtype of `value`. Only for CPUs.

    A weight whose memory order is not [C, N] is copied first. In bfloat16 the result is rounded once, after the bias is added. In
    float32, inputs above 3.39e38 (the last 0.4 % of the range) give NaN, because such a value rounds to infinity in bfloat16.
    """
    rows, columns = value.reshape(-1, value.shape[-1]), weight.T
    result = jax.ShapeDtypeStruct((rows.shape[0], columns.shape[1]), value.dtype)
    if value.dtype == jnp.bfloat16:
        product = _PRODUCT(result, rows, columns, *([] if bias is None else [bias]))
    else:
        (high, low), (weight_high, weight_low) = _split(rows), _split(columns)
        product = _SUM_OF_PRODUCTS(result, high, weight_high, low, weight_high, high, weight_low)
        product = product if bias is None else product + bias
    return product.reshape(*value.shape[:-1], -1)


def _split(value: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Split float32 values into two bfloat16 arrays, whose sum differs by at most 2 ** -16 of the value."""
    # `reduce_precision` is used because XLA can remove a conversion to bfloat16 and back.
    high = jax.lax.reduce_precision(value, exponent_bits=8, mantissa_bits=7)
    return high.astype(jnp.bfloat16), (value - high).astype(jnp.bfloat16)


def _multiply(product: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor, bias: torch.Tensor | None = None) -> None:
    if bias is None:
        torch.mm(rows, columns, out=product)
    else:
        torch.addmm(bias, rows, columns, out=product)


def _add_products(total: torch.Tensor, *factors: torch.Tensor) -> None:
    """Fill `total` [M, N] float32 with a sum of products of bfloat16 `factors`: left [M, K], right [K, N], left, right ..."""
    for index in range(0, len(factors), 2):
        (rows, depth), columns = factors[index].shape, factors[index + 1].shape[1]
        multiply = _multiply_bfloat16()
        assert multiply is not None, "`is_supported` has checked it"
        multiply(
            _ROW_MAJOR,
            _NOT_TRANSPOSED,
            _NOT_TRANSPOSED,
            rows,
            columns,
            depth,
            1.0,
            factors[index].data_ptr(),
            depth,
            factors[index + 1].data_ptr(),
            columns,
            0.0 if index == 0 else 1.0,
            total.data_ptr(),
            columns,
        )


@functools.cache
def _multiply_bfloat16() -> Callable[..., None] | None:
    """Return MKL's function cblas_gemm_bf16bf16f32, which PyTorch does not wrap, None if PyTorch's library lacks it."""
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        function = library.cblas_gemm_bf16bf16f32
    except (OSError, AttributeError):
        return None
    matrix = (ctypes.c_void_p, ctypes.c_int)
    function.argtypes = (*(ctypes.c_int,) * 6, ctypes.c_float, *matrix, *matrix, ctypes.c_float, *matrix)
    function.restype = None
    return function


_PRODUCT = TorchCall("torch_cpu_product", _multiply)
_SUM_OF_PRODUCTS = TorchCall("mkl_sum_of_bfloat16_products", _add_products)
