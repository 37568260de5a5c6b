"""A model without its weights: real programs for devices that may be elsewhere, to be compiled and looked at, not run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
from transformers import PreTrainedTokenizerBase

from backend.families.wan.family import Architecture, family_of_preset
from backend.families.wan.image_encoder import ImageEncoder
from backend.families.wan.text_encoder import LENGTHS, MAX_SEQUENCE_LENGTH, TextEncoder
from backend.pipeline.load import Components, describe_text_weights, make_programs, plan_layouts
from backend.runtime.program import Compiler
from backend.weights.stacked import DenoiserWeights
from presets import Preset


@dataclasses.dataclass(frozen=True, kw_only=True)
class DescribedExpert:
    """Stands for a loaded `Expert` where programs are only compiled."""

    weights: DenoiserWeights
    loras: tuple = ()


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
    image_encoder = None if architecture.image_encoder is None else ImageEncoder(architecture.image_encoder, None)
    dtype, family = jnp.dtype(preset.dtype), family_of_preset(preset, architecture)
    guided, unguided = (
        make_programs(architecture, text_encoder, layout, image_encoder, compiler=compiler)
        for layout in plan_layouts(architecture, devices, mesh, num_experts=family.num_experts, dtype=dtype)
    )
    layout = guided.layout
    expert = DescribedExpert(weights=guided.denoiser.describe_weights(dtype))
    return Components(
        family=family,
        text_encoder=text_encoder,
        text_weights=describe_text_weights(text_encoder, guided, dtype, family.num_experts),
        image_encoder=image_encoder,
        image_weights=image_encoder.describe_weights(dtype, layout) if image_encoder else {},
        experts=(expert,) * family.num_experts,
        boundary=preset.boundary,
        vae_weights=guided.vae.describe_arranged(dtype),
        guided=guided,
        unguided=unguided,
        dtype=dtype,
        versions={},
    )
