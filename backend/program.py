"""A function compiled ahead of time, once for every set of shapes that it meets, and run from those executables."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding

from backend.sharding import Layout


class Program:
    """`function` on pytrees of arrays that lie on the layout's mesh; what lies elsewhere is put on all of its devices.

    Calling it compiles what is missing; `prepare` does so beforehand. `donated` are the positions of arguments that a call
    uses up.
    """

    def __init__(self, name: str, function: Callable, layout: Layout, donated: Sequence[int] = ()) -> None:
        self.name = name
        self._layout = layout
        self._jitted = jax.jit(function, donate_argnums=tuple(donated))
        self._executables: dict[Any, jax.stages.Compiled] = {}
        self.compile_seconds = 0.0

    def __call__(self, *arguments: Any) -> Any:
        return self._executable(arguments)(*jax.tree.map(self._place, arguments))

    def is_ready(self, *arguments: Any) -> bool:
        """Whether arguments of these shapes run without compiling; arrays or `jax.ShapeDtypeStruct`s."""
        return _signature(arguments) in self._executables

    def prepare(self, *arguments: Any) -> Any:
        """Compile for arguments of these shapes if need be; the result's shapes and shardings, as `jax.ShapeDtypeStruct`s."""
        executable = self._executable(arguments)
        shapes = jax.eval_shape(self._jitted, *arguments)
        return jax.tree.map(_shape_on, shapes, executable.output_shardings)

    def compile(self, *arguments: Any, options: Mapping[str, Any] | None = None) -> jax.stages.Compiled:
        """The program for arguments of these shapes, compiled anew, with the layout's compiler options and these."""
        lowered = self._jitted.lower(*jax.tree.map(self._describe, arguments))
        return lowered.compile(compiler_options={**self._layout.compiler_options, **(options or {})})

    def _executable(self, arguments: tuple) -> jax.stages.Compiled:
        signature = _signature(arguments)
        if signature not in self._executables:
            started = time.monotonic()
            self._executables[signature] = self.compile(*arguments)
            self.compile_seconds += time.monotonic() - started
        return self._executables[signature]

    def _place(self, leaf: Any) -> jax.Array:
        return leaf if self._lies_on_mesh(leaf) else jax.device_put(leaf, self._layout.replicated)

    def _describe(self, leaf: Any) -> jax.ShapeDtypeStruct:
        return _shape_on(leaf, leaf.sharding if self._lies_on_mesh(leaf) else self._layout.replicated)

    def _lies_on_mesh(self, leaf: Any) -> bool:
        sharding = getattr(leaf, "sharding", None)
        return isinstance(sharding, NamedSharding) and sharding.mesh.devices.size == self._layout.mesh.size


def _shape_on(leaf: Any, sharding: jax.sharding.Sharding) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


def _signature(arguments: tuple) -> Any:
    leaves, structure = jax.tree.flatten(arguments)
    return structure, tuple((leaf.shape, leaf.dtype) for leaf in leaves)
