"""Work on arrays, written as generators that can either run or only describe the shapes of their results.

A generator yields effects (operations of the host or the devices) and receives their results: arrays if the work runs, otherwise
their shapes and shardings. So the programs that run and the programs that are compiled ahead are the same.
"""

import dataclasses
from collections.abc import Callable, Generator, Iterator
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from backend.errors import Stopped
from backend.runtime.hosts import put
from backend.runtime.mesh import with_sharding
from backend.runtime.program import Program


@dataclasses.dataclass(frozen=True)
class Call:
    program: Program
    arguments: tuple


@dataclasses.dataclass(frozen=True)
class OnHost:
    """Compute `function(numpy, *arguments)` on the host from the arguments' values. If only shapes are known, `jax.numpy` is
    passed, so the function must use its first argument for all array operations.
    """

    function: Callable
    arguments: tuple


@dataclasses.dataclass(frozen=True)
class Put:
    tree: Any
    sharding: jax.sharding.Sharding


@dataclasses.dataclass(frozen=True)
class Zeros:
    """Create arrays of zeros with the shapes, dtypes and shardings of a tree of `jax.ShapeDtypeStruct`s."""

    described: Any


@dataclasses.dataclass(frozen=True)
class Make:
    """Return the arrays that `function()` creates on the host, such as noise. `described` are the arrays' shapes and dtypes."""

    function: Callable[[], Any]
    described: Any


@dataclasses.dataclass(frozen=True)
class Wait:
    """Wait until the devices have computed a tree of arrays. Returns None."""

    tree: Any


Effect = Call | OnHost | Put | Zeros | Make | Wait
Result = TypeVar("Result")
Effects = Generator[Effect, Any, Result]
"""Work whose result has the given type, such as `Effects[jax.Array]`. The result of each effect has another type, hence `Any`."""
Work = Effects[Any]


def run(work: Effects[Result], is_stopped: Callable[[], bool] = lambda: False) -> Result:
    """Run the work and return its result. Raises: Stopped if `is_stopped()` is true before an effect."""

    def answer(effect: Effect) -> object:
        if is_stopped():
            work.close()
            raise Stopped
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

    return _drive(work, answer)


def describe(work: Effects[Result]) -> Result:
    return _drive(work, describe_effect)


def list_calls(work: Work) -> Iterator[Call]:
    """Yield the program calls of this work in order. Runs nothing: the generator `work` receives only shapes."""
    result = None
    while True:
        try:
            effect = work.send(result)
        except StopIteration:
            return
        if isinstance(effect, Call):
            yield effect
        result = describe_effect(effect)


def describe_effect(effect: Effect) -> object:
    match effect:
        case Call(program, arguments):
            return program.describe(*arguments)
        case OnHost(function, arguments):
            return jax.eval_shape(lambda *arrays: function(jnp, *arrays), *arguments)
        case Put(tree, sharding):
            return with_sharding(tree, sharding)
        case Zeros(tree) | Make(_, tree):
            return tree
        case Wait():
            return None


def _drive(work: Effects[Result], answer: Callable[[Effect], object]) -> Result:
    result = None
    while True:
        try:
            effect = work.send(result)
        except StopIteration as end:
            return end.value
        result = answer(effect)
