"""A function compiled ahead of time, once for every set of shapes that it meets, and run from those executables."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import jax


class Program:
    """`function` on pytrees of arrays. Calling it compiles what is missing; `prepare` does so beforehand.

    `donated` are the positions of arguments that a call uses up.
    """

    def __init__(self, name: str, function: Callable, donated: Sequence[int] = ()) -> None:
        self.name = name
        self._jitted = jax.jit(function, donate_argnums=tuple(donated))
        self._executables: dict[Any, jax.stages.Compiled] = {}
        self.compile_seconds = 0.0

    def __call__(self, *arguments: Any) -> Any:
        return self._executable(arguments)(*arguments)

    def is_ready(self, *arguments: Any) -> bool:
        """Whether arguments of these shapes run without compiling; arrays or `jax.ShapeDtypeStruct`s."""
        return _signature(arguments) in self._executables

    def prepare(self, *arguments: Any) -> Any:
        """Compile for arguments of these shapes if need be; the result's shapes, as `jax.ShapeDtypeStruct`s."""
        self._executable(arguments)
        return jax.eval_shape(self._jitted, *arguments)

    def _executable(self, arguments: tuple) -> jax.stages.Compiled:
        signature = _signature(arguments)
        if signature not in self._executables:
            started = time.monotonic()
            self._executables[signature] = self._jitted.lower(*arguments).compile()
            self.compile_seconds += time.monotonic() - started
        return self._executables[signature]


def _signature(arguments: tuple) -> Any:
    leaves, structure = jax.tree.flatten(arguments)
    return structure, tuple((leaf.shape, leaf.dtype) for leaf in leaves)
