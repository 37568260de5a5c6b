"""The mesh ('dp', 'sp', 'tp') of the devices, and the partition of each kind of array on it.

- dp: the two guidance branches. sp: the video's tokens (`ulysses`). tp: the columns of the wide matrices and the heads that these
  columns compute (Megatron-LM, arXiv:1909.08053).

Stored weights are also divided over `Layout.weight_axes`, and gathered before each layer runs (FSDP).
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, Self, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, Sharding
from jax.sharding import PartitionSpec as P

from backend.errors import RequestError
from backend.runtime.context import RuntimeContext
from backend.schemas.worker import AXES
from presets.loader import Quantize

LARGE_MATRIX = 2**24  # elements; a smaller matrix is copied to every chip, which costs less than gathering it in every step
TOKEN_ALIGNMENT = 128  # each device's number of tokens is padded to a multiple of this, on TPUs or if sp > 1
LogicalAxis = Literal["branches", "tokens", "heads"]
MESH_AXES: Mapping[LogicalAxis, str] = {
    "branches": "dp",  # the samples of a batch: the two guidance branches
    "tokens": "sp",
    "heads": "tp",  # attention heads, their channels, and hidden units
}
"""The mesh axis over which each logical axis of an array is split."""


def partition(*axes: LogicalAxis | None) -> P:
    """Return the partition of an array with these logical axes. None means that the axis is not split."""
    return P(*(axis and MESH_AXES[axis] for axis in axes))


TOKENS = partition("branches", "tokens", None)  # [B, S, W], with W channels
HEADS = partition("branches", "tokens", "heads", None)  # [B, S, H, D], in attention that exchanges no tokens
TEXT_HEADS = partition("branches", None, "heads", None)  # a text's heads [B, L, H, D], with L tokens of the text
STACKED_TEXT_HEADS = partition(None, "branches", None, "heads", None)  # the text's heads of all layers [layers, B, L, H, D]
POSITIONS = partition(None, "tokens", None, None)  # tables of the rotary embedding, [1, S, 1, D]

Role = Literal["columns", "rows", "whole", "replicated"]
"""How a matrix [in, out] is split over tp: by columns if it computes heads or hidden units, by rows if heads or hidden units are
its input, otherwise not. Every chip stores a copy of a replicated matrix, which is too small to be gathered in each layer."""
MATRIX_PARTITIONS: Mapping[Role, P] = {
    "columns": partition(None, "heads"),
    "rows": partition("heads", None),
    "whole": partition(None, None),
    "replicated": partition(None, None),
}
"""The partition of one layer's matrix [in, out] while it is used."""

Shaped = jax.Array | jax.ShapeDtypeStruct
"""An array, or its shape, dtype and sharding."""


def as_leaf(value: P | jax.ShapeDtypeStruct) -> jax.Array:
    """Return the value unchanged, with the static type of an array. JAX accepts partitions and shapes in place of arrays."""
    return cast(jax.Array, value)


def replicated_spec(name: str, shape: tuple[int, ...]) -> P:
    """Return the partition of small weights: a copy on every chip."""
    return P()


def with_sharding(shapes: object, sharding: Sharding) -> Any:
    """Return the shapes and dtypes of a tree of arrays as `jax.ShapeDtypeStruct`s, all with this sharding."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), shapes)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeshPlan:
    dp: int = 1
    sp: int = 1
    tp: int = 1

    @property
    def num_devices(self) -> int:
        return self.dp * self.sp * self.tp

    def __str__(self) -> str:
        return f"dp={self.dp} sp={self.sp} tp={self.tp}"


def plan_mesh(num_devices: int, *, heads: int, is_guided: bool, fixed: Mapping[str, int | None] | None = None) -> MeshPlan:
    """Plan a mesh that uses all `num_devices` devices.

    With two guidance branches and an even number of chips, each half of the chips computes one branch. `fixed` contains sizes of
    axes that the user has set. Raises: RequestError, which lists the legal meshes, if no legal mesh has these sizes. In a legal
    mesh, the number of heads is a multiple of tp, and dp is 1 without guidance.
    """
    sizes_by_axis = {axis: (fixed or {}).get(axis) for axis in AXES}
    choices = list(legal_plans(num_devices, heads=heads, is_guided=is_guided))
    fitting = [plan for plan in choices if all(size in (None, getattr(plan, axis)) for axis, size in sizes_by_axis.items())]
    if not fitting:
        options = " ".join(f"--{axis} {size}" for axis, size in sizes_by_axis.items() if size is not None)
        raise RequestError(
            f"{options} on {num_devices} chips",
            f"must be one of: {'; '.join(map(str, choices))}",
            "leave the options out to let the studio choose",
        )
    return max(fitting, key=lambda plan: (plan.dp, plan.sp))


def legal_plans(num_devices: int, *, heads: int, is_guided: bool) -> Iterator[MeshPlan]:
    for dp in (1, 2) if is_guided else (1,):
        for tp in range(1, num_devices + 1):
            if num_devices % (dp * tp) == 0 and heads % tp == 0:
                yield MeshPlan(dp=dp, sp=num_devices // (dp * tp), tp=tp)


# Largest share of a chip's memory for the copies of whole matrices. If the model has two transformers, the share includes the
# chip's part of the weights of the second transformer.
COPIES_SHARE = 3 / 8


def plan_copies(
    sizes: Mapping[str, int], num_layers: int, plan: MeshPlan, memory_bytes: int | None, num_transformers: int = 1
) -> frozenset[str]:
    """Choose the matrices of which every chip stores a whole copy, so that no denoising step gathers them. Return their names.

    The copies, together with the weights of a second transformer, take at most `COPIES_SHARE` of a chip's `memory_bytes` (None
    for unknown: no copies). `sizes` maps the names of one layer's matrices to their bytes, in the order of choice.
    """
    if memory_bytes is None or plan.dp * plan.sp == 1:
        return frozenset()
    others = (num_transformers - 1) * sum(sizes.values()) * num_layers / plan.num_devices
    spare, copied = COPIES_SHARE * memory_bytes - others, set()
    for name, size in sizes.items():
        spare -= size * num_layers / plan.tp
        if spare < 0:
            break
        copied.add(name)
    return frozenset(copied)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """A mesh, and the partition of each kind of array on it.

    `copied` are the names of a layer's matrices of which every chip has a whole copy. With `copies_on_demand`, the copies exist
    only while steps of their transformer run. `quantize` is the number format of the layers' large matrices, "off" for the
    model's dtype. `runtime` contains the refused kernels and compile options.
    """

    mesh: Mesh
    weight_axes: tuple[str, ...] = ("dp", "sp")
    copied: frozenset[str] = frozenset()
    copies_on_demand: bool = False
    quantize: Quantize = "off"
    runtime: RuntimeContext = dataclasses.field(default_factory=RuntimeContext, compare=False)

    @classmethod
    def create(
        cls,
        plan: MeshPlan,
        devices: Sequence[jax.Device],
        copied: Iterable[str] = (),
        copies_on_demand: bool = False,
        runtime: RuntimeContext | None = None,
        quantize: Quantize = "off",
    ) -> Self:
        """Create the layout of a plan on these devices. Neighbours in the list are neighbours on the axis sp."""
        grid = np.asarray(devices, dtype=object).reshape(plan.dp, plan.tp, plan.sp).transpose(0, 2, 1)
        mesh, runtime = Mesh(grid, AXES), runtime or RuntimeContext()
        options: dict[str, Any] = dict(copies_on_demand=copies_on_demand, runtime=runtime, quantize=quantize)
        return cls(mesh=mesh, copied=frozenset(copied), **options)

    def regroup(self, plan: MeshPlan) -> Self:
        """Return the layout of another plan with the same tp on the same devices. Both partition weights equally."""
        grid = self.mesh.devices.reshape(plan.dp, plan.sp, plan.tp)
        return dataclasses.replace(self, mesh=Mesh(grid, AXES))

    @property
    def platform(self) -> str:
        """ "cpu", "tpu" or "gpu". A slice that is only described for compiling has "tpu"."""
        return self.mesh.devices.flat[0].platform

    @property
    def compiler_options(self) -> dict[str, Any]:
        """The options for `Lowered.compile`. docs/lab/tpu-slices.md lists the gain of each option.

        On TPUs, XLA's own fusions may use half of the vector memory. Communication between chips overlaps with other work:
        all-gathers run on the SparseCore (ignored by chips without it), and all-to-alls are asynchronous. Sources: jax's tests of
        overlapping collectives, the recipes of MaxText and maxdiffusion.
        """
        if self.platform != "tpu":
            return {}
        has_much = any(name in self.mesh.devices.flat[0].device_kind for name in ("v6", "v5 lite", "v5e"))
        return {
            "xla_tpu_scoped_vmem_limit_kib": "65536" if has_much else "32768",
            "xla_tpu_enable_sparse_core_collective_offload_all_gather": "true",
            "xla_tpu_enable_async_all_to_all": "true",
        }

    def uses_tpu_passes(self, dtype: jnp.dtype) -> bool:
        """Return whether the Pallas kernels before and after the attention (the passes) can be used.

        The passes need a TPU, bfloat16, and all channels of a token on one chip, because the norms read them. If one pass was
        refused, no pass is used.
        """
        return (
            self.platform == "tpu" and self.size("tp") == 1 and dtype == jnp.bfloat16 and "passes" not in self.runtime.fallbacks
        )

    def on_each_chip(self, one_chip: Callable, in_specs: object, out_specs: object) -> Callable:
        """Return a function that calls `one_chip` on every chip, with the chip's part of each argument.

        A single device needs no `shard_map`, except a TPU chip: there, the attention chooses its kernel by JAX's current mesh.
        """
        if self.mesh.size == 1 and self.platform != "tpu":
            return one_chip
        return jax.shard_map(one_chip, mesh=self.mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)

    def size(self, axis: str) -> int:
        return self.mesh.shape[axis]

    def sharding(self, spec: P) -> NamedSharding:
        return NamedSharding(self.mesh, spec)

    @property
    def replicated(self) -> NamedSharding:
        return self.sharding(P())

    @property
    def plan_text(self) -> str:
        return " ".join(f"{axis}={self.size(axis)}" for axis in AXES)

    @property
    def token_multiple(self) -> int:
        is_aligned = self.platform == "tpu" or self.size("sp") > 1
        return self.size("sp") * TOKEN_ALIGNMENT if is_aligned else 1

    def spatial_partition(self, height: int, width: int) -> P:
        """Return the partition of pixels or latents [B, C, F, H, W] that divides width or else height over most chips."""
        spreads = [AXES, ("dp", "sp"), ("sp", "tp"), ("sp",), ("dp",), ("tp",), ()]
        for axes in sorted(spreads, key=lambda axes: -self.num_chips(axes)):
            for side, length in ((4, width), (3, height)):
                if length % self.num_chips(axes) == 0:
                    return P(*[axes or None if index == side else None for index in range(5)])
        raise AssertionError("one chip divides every side")

    def describe_spread(self, arrays: Mapping[Any, Any]) -> dict[Any, jax.Array]:
        """Return the shapes of `arrays`, each [B, C, F, H, W], divided as in `spatial_partition`."""
        return {
            name: with_sharding(leaf, self.sharding(self.spatial_partition(*leaf.shape[3:]))) for name, leaf in arrays.items()
        }

    def num_chips(self, axes: tuple[str, ...]) -> int:
        return math.prod(self.size(axis) for axis in axes)

    def describe_weights(self, shapes: Mapping[str, Any], spec: Callable[[str, tuple[int, ...]], P]) -> dict[str, jax.Array]:
        """Return the shapes of weights with shardings. `spec(name, shape)` returns the partition of a weight."""
        return {name: with_sharding(value, self.sharding(spec(name, value.shape))) for name, value in shapes.items()}

    def constrain(self, array: jax.Array, spec: P) -> jax.Array:
        return array if self.mesh.size == 1 else jax.lax.with_sharding_constraint(array, self.sharding(spec))

    def stacked_weight(self, name: str, shape: tuple[int, ...], role: Role) -> P:
        """Return the partition of a weight that is stacked over the layers, [layers, in, out]. Vectors are replicated.

        The axis `in` is also divided over `weight_axes`, because gathering this axis does not reorder memory, unless every chip
        always has a copy.
        """
        if len(shape) != 3 or role == "replicated":
            return P()
        split_in, split_out = MATRIX_PARTITIONS[role]
        if name in self.copied and not self.copies_on_demand:
            return P(None, split_in, split_out)
        axes = (*((split_in,) if split_in else ()), *self.weight_axes)
        return P(None, axes if shape[1] % self.num_chips(axes) == 0 else split_in, split_out)

    def gather(self, name: str, matrix: jax.Array, role: Role, cuts_copies: bool = True) -> jax.Array:
        """Return one layer's matrix [in, out] in the partition in which it is used.

        `cuts_copies` decides when XLA copies the slice out of the array of all layers, if every chip has this array: before the
        matrix product, or inside it. Copying inside the product is slower for many tokens, and faster for few tokens.
        """
        if name in self.copied:
            return jax.lax.optimization_barrier(matrix) if cuts_copies else matrix
        return self.constrain(matrix, MATRIX_PARTITIONS[role])

    def outer_weight(self, name: str, shape: tuple[int, ...]) -> P:
        """Return the partition of a weight [out, in] outside the layers: large matrices are divided over `weight_axes`."""
        is_large = len(shape) == 2 and math.prod(shape) >= LARGE_MATRIX
        return P(self.weight_axes, None) if is_large and shape[0] % self.num_chips(self.weight_axes) == 0 else P()
