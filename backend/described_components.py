"""A model without its weights: real programs for devices that may be elsewhere, to be compiled and looked at, not run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
from jax.experimental import topologies
from transformers import PreTrainedTokenizerBase

from backend.architecture import Architecture
from backend.components import Components, make_programs, plan_layout
from backend.program import Compiler
from backend.text_encoder import LENGTHS, MAX_SEQUENCE_LENGTH, TextEncoder
from presets import Preset

CHIPS_OF_A_HOST = {"v6e:1x1": (1, 1, 1), "v5e:1x1": (1, 1, 1)}  # slices smaller than a host


def described_devices(topology: str) -> list[jax.Device]:
    """The chips of a slice such as "v6e:2x4", for libtpu to compile for; none need be here."""
    bounds = CHIPS_OF_A_HOST.get(topology)
    options = {"chips_per_host_bounds": bounds} if bounds else {}
    return topologies.get_topology_desc(platform="tpu", topology_name=topology, **options).devices


def describe_components(
    preset: Preset,
    devices: Sequence[jax.Device],
    compiler: Compiler,
    mesh: Mapping[str, int | None] | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> Components:
    """The preset's model on these devices, its weights as shapes with places. `pipeline.warm_up` compiles it as it would the
    loaded one. Raises: RequestError for a mesh that the devices or the model do not allow."""
    architecture = Architecture(**preset.network_configs())
    lengths = (MAX_SEQUENCE_LENGTH,) if devices[0].platform == "tpu" else LENGTHS
    text_encoder = TextEncoder(architecture.text_encoder, tokenizer, lengths)
    guided, unguided = (
        make_programs(architecture, text_encoder, plan_layout(architecture, devices, is_guided, mesh), compiler)
        for is_guided in (True, False)
    )
    dtype = jnp.dtype(preset.dtype)
    return Components(
        text_encoder=text_encoder,
        text_weights=text_encoder.describe_weights(dtype, guided.layout),
        denoiser_weights=guided.denoiser.describe_weights(dtype),
        vae_weights=guided.vae.describe_weights(dtype),
        guided=guided,
        unguided=unguided,
        dtype=dtype,
        expands_timesteps=False,
        versions={},
    )
