"""PyTorch modules as the families use them: the shapes of their parameters, a part of a network's parameters, a call."""

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax.sharding import PartitionSpec as P

from backend.runtime.mesh import Layout

NOT_SETTINGS = ("architectures", "transformers_version", "dtype", "torch_dtype")  # entries that say how a network was saved
OLD_PREFIX = "vision_model."  # before each name of a vision encoder in files of transformers 4; transformers 5 writes none


def shapes_of(module: torch.nn.Module, dtype: jnp.dtype) -> dict[str, jax.ShapeDtypeStruct]:
    """Of its parameters, by name."""
    return {name: jax.ShapeDtypeStruct(value.shape, dtype) for name, value in module.state_dict().items()}


def with_prefix(state: Mapping[str, jax.Array], prefix: str) -> dict[str, jax.Array]:
    """The parameters whose names begin with it, without it."""
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}


def named(state: Mapping[str, jax.Array], name: str) -> dict[str, jax.Array]:
    """The parameters of one module, by their names in it."""
    return with_prefix(state, f"{name}.")


def call(module: torch.nn.Module, *arguments: Any) -> Any:
    """For `call_module`: the module's own `forward`."""
    return module(*arguments)


def settings_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of a config.json that describe the network."""
    return {name: value for name, value in config.items() if name not in NOT_SETTINGS}


def name_since_5(name: str) -> str:
    """A vision encoder's tensor as transformers 5 names it, from the name in a file of any age."""
    return name.removeprefix(OLD_PREFIX)


class Encoder:
    """The modules of a network that makes embeddings of text or pictures; weights are passed to every call."""

    _model: torch.nn.Module

    def describe_weights(self, dtype: jnp.dtype, layout: Layout) -> dict[str, jax.Array]:
        """The weights' shapes and where they rest, without the weights."""
        return layout.describe_weights(shapes_of(self._model, dtype), functools.partial(self.place, layout))

    @staticmethod
    def place(layout: Layout, name: str, shape: tuple[int, ...]) -> P:
        """Where one weight rests."""
        return layout.outer_weight(name, shape)
