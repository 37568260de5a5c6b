"""Functions that are compiled ahead of time, once for each set of argument shapes. Calls run the compiled executables."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding

from backend.errors import KernelRefused
from backend.runtime.hosts import put
from backend.runtime.kernel_fallbacks import PLATFORMS, KernelFallbacks, find_kernel_uses
from backend.runtime.mesh import Layout, with_sharding


@dataclasses.dataclass(frozen=True)
class Compilation:
    """The result of a `Compiler`: an executable, None if the compiler only writes files and has nothing to write. `is_loaded`
    means that the executable was loaded from a file.
    """

    executable: jax.stages.Compiled | None
    is_loaded: bool = False


Compiler = Callable[["Program", jax.stages.Lowered], Compilation]


def compile_now(program: Program, lowered: jax.stages.Lowered) -> Compilation:
    """Compile a program: the default `Compiler`. Others store executables on disk, or inspect them.

    Raises: KernelRefused if the compiler refuses one of our kernels.
    """
    fallbacks = program.layout.runtime.fallbacks
    try:
        return Compilation(compile_with(lowered, program.layout.compiler_options, fallbacks))
    except jax.errors.JaxRuntimeError as error:
        kernel = fallbacks.refuse_kernel(error)
        if kernel is None:
            raise
        raise KernelRefused(f"{program.name} needs {kernel}", "which cannot be compiled here") from error


def compile_with(lowered: jax.stages.Lowered, options: Mapping[str, Any], fallbacks: KernelFallbacks) -> jax.stages.Compiled:
    """Compile with these options, except options that this version of the compiler refuses. Options only affect speed."""
    left = {name: value for name, value in options.items() if name not in fallbacks}
    while True:
        try:
            return lowered.compile(compiler_options=left)
        except jax.errors.JaxRuntimeError as error:
            refused = fallbacks.refuse_option(error, left)
            if refused is None:
                raise
            del left[refused]


class Program:
    """A `function` on pytrees of arrays on the layout's mesh. Arguments that are not on this mesh are copied to all its devices.

    `name` is for messages to people, `key` for reports and stored compile times. `donated` are the positions of arguments whose
    memory a call reuses, so that the caller must not use them again. `places` receives the shapes of the results and returns them
    with shardings. By default, results are replicated.
    """

    def __init__(
        self,
        name: str,
        function: Callable,
        layout: Layout,
        *,
        key: str = "",
        donated: Sequence[int] = (),
        places: Callable[[object], object] | None = None,
        compiler: Compiler = compile_now,
    ) -> None:
        self.name, self.key = name, key or name
        self.layout = layout
        self._function, self._donated = function, tuple(donated)
        self._places = places or functools.partial(with_sharding, sharding=layout.replicated)
        self._compiler = compiler
        self._compiled: dict[Any, Compilation] = {}
        self._untried: dict[Any, frozenset[str]] = {}  # kernel uses of executables that have not run yet
        self._described: dict[Any, Any] = {}
        self._has_run: set[Any] = set()

    def __call__(self, *arguments: object) -> Any:
        signature = _signature(arguments)
        executable = self._compile_if_needed(arguments).executable
        assert executable is not None, "this compiler creates no executable"
        replicated = self.layout.replicated
        placed = jax.tree.map(lambda leaf: leaf if self._is_on_mesh(leaf) else put(leaf, replicated), arguments)
        if signature in self._untried:
            with self.layout.runtime.crash_guard.guard_first_run(self.name, self._untried[signature]):
                result = jax.block_until_ready(executable(*placed))
            self._untried.pop(signature, None)
        else:
            result = executable(*placed)
        self._has_run.add(signature)
        return result

    def is_ready(self, *arguments: object) -> bool:
        """Return whether the program can run without compiling for `arguments`, which are arrays or `jax.ShapeDtypeStruct`s."""
        return _signature(arguments) in self._compiled

    def variant_key(self, *arguments: object) -> Hashable:
        return id(self), _signature(arguments)

    def has_run(self, *arguments: object) -> bool:
        return _signature(arguments) in self._has_run

    def is_loaded(self, *arguments: object) -> bool:
        return self.is_ready(*arguments) and self._compile_if_needed(arguments).is_loaded

    def executable(self, *arguments: object) -> jax.stages.Compiled | None:
        """Return the executable for these shapes, None if the program is not compiled for them."""
        return self._compile_if_needed(arguments).executable if self.is_ready(*arguments) else None

    def trace(self, *arguments: object) -> Callable[[], Compilation]:
        """Trace the function for arguments of these shapes, and return a function that compiles the trace.

        Only one thread at a time may trace. Any thread may compile.
        """
        signature = _signature(arguments)
        places = jax.tree.map(lambda leaf: leaf.sharding, self.describe(*arguments))
        jitted = jax.jit(self._function, donate_argnums=self._donated, out_shardings=places)
        lowered = jitted.lower(*jax.tree.map(self._describe_leaf, arguments))
        uses = find_kernel_uses(lowered.as_text()) if self.layout.platform in PLATFORMS else frozenset()

        def compile_it() -> Compilation:
            compilation = self._compiler(self, lowered)
            if uses:
                self._untried[signature] = uses
            self._compiled[signature] = compilation
            return compilation

        return compile_it

    def prepare(self, *arguments: object) -> Any:
        """Compile for arguments of these shapes if needed. Return the shapes and shardings of the result."""
        self._compile_if_needed(arguments)
        return self.describe(*arguments)

    def describe(self, *arguments: object) -> Any:
        """Return the result's shapes and shardings, without compiling.

        Traces with the same shapes and shardings as a compilation, so that JAX does not trace twice. Tracing takes longer than
        loading an executable from the compiler's cache.
        """
        signature = _signature(arguments)
        if signature not in self._described:
            self._described[signature] = self._places(
                jax.eval_shape(self._function, *jax.tree.map(self._describe_leaf, arguments))
            )
        return self._described[signature]

    def _compile_if_needed(self, arguments: tuple) -> Compilation:
        signature = _signature(arguments)
        if signature not in self._compiled:
            self.trace(*arguments)()
        return self._compiled[signature]

    def _describe_leaf(self, leaf: Any) -> jax.ShapeDtypeStruct:
        return with_sharding(leaf, leaf.sharding if self._is_on_mesh(leaf) else self.layout.replicated)

    def _is_on_mesh(self, leaf: object) -> bool:
        sharding = getattr(leaf, "sharding", None)
        return isinstance(sharding, NamedSharding) and sharding.mesh.devices.size == self.layout.mesh.size


def _signature(arguments: tuple) -> object:
    leaves, structure = jax.tree.flatten(arguments)
    return structure, tuple((leaf.shape, leaf.dtype) for leaf in leaves)
