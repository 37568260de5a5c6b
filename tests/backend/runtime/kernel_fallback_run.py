"""Compile an attention for a described TPU whose compiler refuses an option or a kernel, and print the fallbacks.

`python -m tests.backend.runtime.kernel_fallback_run option|attention|passes|sparse|selection`, in a separate process, because
refusals last until its end. The attention of `sparse` and `selection` is SLA.
"""

import functools
import json
import sys

import jax
import jax.numpy as jnp
from jax.experimental.pallas import tpu as pltpu

import kernels.attention.api
import kernels.qkv
from backend.errors import KernelRefused
from backend.models.common.flat_attention import SparsePlan, attend_flat
from backend.models.wan.sparse_attention import attend_own_heads
from backend.runtime.context import RuntimeContext
from backend.runtime.devices import described_devices
from backend.runtime.kernel_fallbacks import KERNELS
from backend.runtime.mesh import Layout, MeshPlan
from backend.runtime.program import Program
from backend.runtime.ulysses import self_attention, sparse_self_attention
from kernels.attention import block_sparse_tpu

TOKENS, HEADS, HEAD = 1024, 2, 128
LITTLE = 64 * 1024  # bytes of vector memory, too few for each of our kernels


def refuse(what: str) -> None:
    """Make the real compiler refuse the option or kernel."""
    if what == "option":
        usual = Layout.compiler_options.fget
        Layout.compiler_options = property(lambda layout: usual(layout) | {"xla_tpu_has_no_such_option": "true"})
    elif what == "attention":
        kernels.attention.api.VMEM_LIMIT_BYTES = dict.fromkeys(kernels.attention.api.VMEM_LIMIT_BYTES, LITTLE)
    elif what == "passes":
        kernels.qkv.VMEM_LIMIT_BYTES = LITTLE
    elif what == "sparse":
        kernels.attention.api.VMEM_LIMIT_BYTES = dict.fromkeys(kernels.attention.api.VMEM_LIMIT_BYTES, LITTLE)
        block_sparse_tpu.RESERVED_BYTES = -(2**30)  # or the project itself would not use the kernel
    else:  # the passes of sparse attention are the kernels without a limit of their own
        pltpu.CompilerParams = functools.partial(pltpu.CompilerParams, vmem_limit_bytes=LITTLE)


def program(runtime: RuntimeContext, is_sparse: bool) -> tuple[Program, tuple]:
    layout = Layout.create(MeshPlan(), described_devices("v6e:1x1"), runtime=runtime)
    attend = functools.partial(attend_flat, head_width=HEAD, num_keys=TOKENS)
    plan = SparsePlan(method="sla", keep=0.3, block_q=128, block_kv=64)
    attend_sparse = functools.partial(attend_own_heads, plan=plan, num_tokens=TOKENS, head_width=HEAD)

    def run(query, key, value, weight, table):
        arguments = (query, key, value), (weight, weight), (table, table), 1e-6
        if is_sparse:
            projection = jnp.eye(HEAD), jnp.zeros(HEAD)
            return sparse_self_attention(layout, attend_sparse, *arguments, projection)[0]
        return self_attention(layout, attend, *arguments)

    flat = jax.ShapeDtypeStruct((1, TOKENS, HEADS * HEAD), jnp.bfloat16)
    weight, table = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((HEADS * HEAD,), (TOKENS, HEAD)))
    return Program("the attention", run, layout), (flat, flat, flat, weight, table)


def find_kernel_uses(text: str) -> list[str]:
    calls = [line for line in text.splitlines() if "tpu_custom_call" in line]
    return sorted({use for name, use in KERNELS.items() if any(name in call for call in calls)})


def main() -> None:
    refuse(sys.argv[1])
    runtime, refused, first = RuntimeContext(), "", None
    while first is None:
        made, arguments = program(runtime, is_sparse=sys.argv[1] in ("sparse", "selection"))
        try:
            made.prepare(*arguments)
            first = made._compiled.popitem()[1].executable.as_text()
        except KernelRefused as error:
            assert not refused, "refused twice"
            refused = str(error)
    print(json.dumps({"refused": refused, "sentences": runtime.fallbacks.sentences(), "kernels": find_kernel_uses(first)}))


if __name__ == "__main__":
    main()
