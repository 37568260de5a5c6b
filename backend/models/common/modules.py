"""Helpers for PyTorch modules: describe parameters, select the parameters of a submodule, read configurations."""

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax.sharding import PartitionSpec as P

from backend.checkpoints.json_files import Config
from backend.runtime.mesh import Layout

NOT_SETTINGS = ("architectures", "transformers_version", "dtype", "torch_dtype")  # entries that do not describe the network
OLD_PREFIX = "vision_model."  # transformers 4 writes it before each tensor name of a vision encoder; transformers 5 does not


def parameter_shapes(module: torch.nn.Module, dtype: jnp.dtype) -> dict[str, jax.ShapeDtypeStruct]:
    return {name: jax.ShapeDtypeStruct(value.shape, dtype) for name, value in module.state_dict().items()}


def select_prefix(state: Mapping[str, jax.Array], prefix: str) -> dict[str, jax.Array]:
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}


def module_parameters(state: Mapping[str, jax.Array], name: str) -> dict[str, jax.Array]:
    return select_prefix(state, f"{name}.")


def call(module: torch.nn.Module, *arguments: object) -> Any:
    """Return `module(*arguments)`. Pass this function where a function of a module and its arguments is required."""
    return module(*arguments)


def network_settings(config: Config) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name not in NOT_SETTINGS}


def to_transformers_5_name(name: str) -> str:
    """Remove the prefix that version 4 of the transformers library writes before the tensor names of a vision encoder."""
    return name.removeprefix(OLD_PREFIX)


class Encoder:
    """The modules of a text or image encoder. Methods take the weights as an argument."""

    _model: torch.nn.Module

    def describe_weights(self, dtype: jnp.dtype, layout: Layout) -> dict[str, jax.Array]:
        return layout.describe_weights(parameter_shapes(self._model, dtype), functools.partial(self.weight_spec, layout))

    @staticmethod
    def weight_spec(layout: Layout, name: str, shape: tuple[int, ...]) -> P:
        return layout.outer_weight(name, shape)
