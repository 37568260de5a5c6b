"""Work on arrays, written once and used twice: to be run, and to be compiled ahead from shapes alone.

A piece of work is a generator. It yields effects and is sent their results: arrays if the work is run, their shapes and places
(`jax.ShapeDtypeStruct`) if it is only described. So the programs that are compiled ahead are the programs that run.
"""

import dataclasses
from collections.abc import Callable, Generator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from backend.errors import Stopped
from backend.runtime.hosts import put
from backend.runtime.mesh import placed
from backend.runtime.program import Program


@dataclasses.dataclass(frozen=True)
class Call:
    """Run a program. The result is the program's."""

    program: Program
    arguments: tuple


@dataclasses.dataclass(frozen=True)
class OnHost:
    """Compute `function(numpy, *arguments)` on the host from the arguments' values; `jax.numpy` takes its place if only shapes
    are known, so the function must take every array operation from its first argument."""

    function: Callable
    arguments: tuple


@dataclasses.dataclass(frozen=True)
class Put:
    """Put a tree of arrays where `sharding` says: one sharding for all of them."""

    tree: Any
    sharding: jax.sharding.Sharding


@dataclasses.dataclass(frozen=True)
class Zeros:
    """Make arrays of zeros in the shapes, dtypes and places of a tree of `jax.ShapeDtypeStruct`s."""

    described: Any


@dataclasses.dataclass(frozen=True)
class Make:
    """Take arrays that `function()` makes on the host, such as noise; `described` are their shapes and dtypes."""

    function: Callable[[], Any]
    described: Any


@dataclasses.dataclass(frozen=True)
class Wait:
    """Wait until the devices have made a tree of arrays. The result is None."""

    tree: Any


Effect = Call | OnHost | Put | Zeros | Make | Wait
Work = Generator[Effect, Any, Any]


def run(work: Work, is_stopped: Callable[[], bool] = lambda: False) -> Any:
    """Does the work and returns its result. Raises: Stopped before the next effect once `is_stopped()` is true."""

    def answer(effect: Effect) -> Any:
        if is_stopped():
            work.close()
            raise Stopped
        return _run_effect(effect)

    return _drive(work, answer)


def describe(work: Work) -> Any:
    """The shapes and places of the work's result; nothing is compiled or run."""
    return _drive(work, describe_effect)


def calls_of(work: Work) -> list[Call]:
    """The calls of programs in this work, in order, from shapes alone."""
    calls: list[Call] = []

    def answer(effect: Effect) -> Any:
        if isinstance(effect, Call):
            calls.append(effect)
        return describe_effect(effect)

    _drive(work, answer)
    return calls


def describe_effect(effect: Effect) -> Any:
    """The shapes and places of one effect's result, which the work is sent if nothing runs."""
    match effect:
        case Call(program, arguments):
            return program.describe(*arguments)
        case OnHost(function, arguments):
            return jax.eval_shape(lambda *arrays: function(jnp, *arrays), *arguments)
        case Put(tree, sharding):
            return placed(tree, sharding)
        case Zeros(tree) | Make(_, tree):
            return tree
        case Wait():
            return None


def _run_effect(effect: Effect) -> Any:
    match effect:
        case Call(program, arguments):
            return program(*arguments)
        case OnHost(function, arguments):
            return function(np, *jax.tree.map(np.asarray, arguments))
        case Put(tree, sharding):
            return put(tree, sharding)
        case Zeros(tree):
            return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype, device=leaf.sharding), tree)
        case Make(function, _):
            return function()
        case Wait(tree):
            jax.block_until_ready(tree)
            return None


def _drive(work: Work, answer: Callable[[Effect], Any]) -> Any:
    result = None
    while True:
        try:
            effect = work.send(result)
        except StopIteration as end:
            return end.value
        result = answer(effect)
