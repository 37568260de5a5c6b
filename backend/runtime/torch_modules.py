"""Make torchax 0.0.13 work with torch 2.13. Import torchax only through this module, and only in the worker process.

Four faults are repaired once for the whole process, because torch's registry is global. torchax refers to operator overloads that
torch has removed. Its `Tensor.type_as` changes the tensor itself. Its conv2d reaches a C++ check that refuses bfloat16. Its
`linear` is slow on CPUs.
"""

import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import torch

from backend.runtime import cpu_linear

_REMOVED_OVERLOADS = """
    all.dimname all.dimname_out index_add.dimname index_copy.dimname index_copy_.dimname index_fill.Dimname_Scalar
    index_fill.Dimname_Tensor index_fill_.Dimname_Scalar index_fill_.Dimname_Tensor norm.names_ScalarOpt_dim
    norm.names_ScalarOpt_dim_dtype norm.names_dtype_out norm.names_out prod.dim_Dimname std.correction_names
    std.correction_names_out std.names_dim std.names_out std_mean.correction_names std_mean.names_dim unbind.Dimname
""".split()


@functools.cache
def torchax() -> ModuleType:
    """Import the torchax module and repair it. The first call takes some seconds."""
    library = torch.library.Library("aten", "FRAGMENT")
    for removed in _REMOVED_OVERLOADS:  # these placeholders are never called
        name, overload = removed.split(".")
        if overload not in getattr(torch.ops.aten, name).overloads():
            library.define(f"{removed}(Tensor self) -> Tensor")
    # Modules request 64-bit integers for positions. jax warns that it uses 32 bits, which are enough.
    warnings.filterwarnings("ignore", message="Explicitly requested dtype (int|float)64")
    import torchax as module
    from torchax.ops import jaten

    module.library_of_removed_overloads = library  # the placeholders last as long as this object
    module.tensor.Tensor.type_as = lambda self, other: self.to(other.dtype)
    environment = module.default_env()
    convolve = functools.partial(module.interop.call_jax, functools.partial(_convolve, jaten._aten_conv2d))
    environment.override_op_definition(torch.nn.functional.conv2d, convolve)
    environment.override_op_definition(torch.nn.functional.linear, functools.partial(module.interop.call_jax, _linear))
    return module


def _convolve(
    lowered: Callable,
    input: jax.Array,
    weight: jax.Array,
    bias: jax.Array | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> jax.Array:
    """Call torchax's convolution `lowered` with PyTorch's argument names and defaults. `stride`, `padding` and `dilation` can be
    one number for both axes.
    """
    pairs = [[one, one] if isinstance(one, int) else one for one in (stride, padding, dilation)]
    return lowered(input, weight, bias, *pairs, groups)


def _linear(input: jax.Array, weight: jax.Array, bias: jax.Array | None = None) -> jax.Array:
    """Multiply `input` [..., C] by `weight` [N, C] transposed, and add `bias` [N]. PyTorch passes the arguments by name."""
    with jax.named_scope("products"):
        return jax.lax.platform_dependent(input, weight, bias, cpu=_linear_on_cpu, default=_plain_linear)


def _plain_linear(value: jax.Array, weight: jax.Array, bias: jax.Array | None) -> jax.Array:
    product = jnp.einsum("...c,nc->...n", value, weight)
    return product if bias is None else product + bias


def _linear_on_cpu(value: jax.Array, weight: jax.Array, bias: jax.Array | None) -> jax.Array:
    """Compute `_linear` with a float32 product, and round the result once, as PyTorch does. On a CPU, XLA multiplies bfloat16
    arrays to float32 seven times as fast as to bfloat16.
    """
    if cpu_linear.is_supported(value, weight):
        return cpu_linear.linear(value, weight, bias)
    product = jnp.einsum("...c,nc->...n", value, weight, preferred_element_type=jnp.float32)
    return (product if bias is None else product + bias).astype(value.dtype)


def call_module(module: torch.nn.Module, parameters: Mapping[str, jax.Array], function: Callable, *arguments: object) -> Any:
    """Call `function(module, *arguments)` on jax arrays, with these parameters in place of the module's own.

    The function gets tensors for arrays, and its tensors are returned as arrays. The module may be on the meta device.
    """
    interop = torchax().interop
    values = interop.torch_view(dict(parameters))
    with torchax().default_env(), torch.nn.utils.stateless._reparametrize_module(module, values):
        return interop.jax_view(function(module, *interop.torch_view(arguments)))
