"""Which Wan a checkpoint is, told from its own configurations alone; anything else is refused. Reads no file.

The families differ in how a picture reaches the transformer: not at all, as a clean first latent frame at timestep 0 (2.2
TI2V), or as further input channels, a mask and the latents of a clip that is black but for its pictures (I2V), to which 2.1
adds what a CLIP encoder sees. And in how many transformers share the noise: one, or two with a boundary between them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from backend.chips import StepFlops
from backend.errors import ModelError
from presets import Preset

TEXT_TOKENS = 512

PARTS = ("transformer", "vae", "text_encoder")
IMAGE_ENCODER = "image_encoder"
VAE_SCALES = (8, 4)  # Wan 2.1's; its published vae/config.json is older than the entries that name them

Conditioning = Literal["none", "first_frame", "channels"]
PIPELINES = ("WanPipeline", "WanImageToVideoPipeline")
TRANSFORMER, AUTOENCODER = "WanTransformer3DModel", "AutoencoderKLWan"
IMAGE_TASK, TEXT_TASK = ("i2v",), ("t2v",)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
    """One kind of Wan. `name` as in `SUPPORTED`."""

    name: str
    tasks: tuple[str, ...]
    conditioning: Conditioning
    num_experts: int = 1
    has_image_encoder: bool = False
    takes_last_image: bool = False
    needs_last_image: bool = False


FAMILIES = (
    Family(name="wan2.1-t2v", tasks=TEXT_TASK, conditioning="none"),
    Family(name="wan2.1-i2v", tasks=IMAGE_TASK, conditioning="channels", has_image_encoder=True),
    Family(name="wan2.1-flf2v", tasks=IMAGE_TASK, conditioning="channels", has_image_encoder=True, takes_last_image=True,
           needs_last_image=True),
    Family(name="wan2.2-t2v", tasks=TEXT_TASK, conditioning="none", num_experts=2),
    Family(name="wan2.2-i2v", tasks=IMAGE_TASK, conditioning="channels", num_experts=2, takes_last_image=True),
    Family(name="wan2.2-ti2v", tasks=("t2v", "i2v"), conditioning="first_frame"),
)  # fmt: skip
SUPPORTED = "Wan 2.1 T2V, I2V and FLF2V, Wan 2.2 T2V-A14B, I2V-A14B and TI2V-5B, as diffusers lays them out"


def recognise(index: Mapping[str, Any], architecture: Architecture) -> Family:
    """The family of a checkpoint, from its model_index.json and its networks' configurations.

    Raises: ModelError naming what does not fit, and the list of what is supported.
    """
    _check_classes(index, architecture)
    transformer = architecture.transformer
    conditioning = _conditioning(bool(index.get("expand_timesteps")), architecture)
    wanted = {
        "conditioning": conditioning,
        "num_experts": num_experts(index),
        "has_image_encoder": transformer.get("image_dim") is not None,
        "needs_last_image": transformer.get("pos_embed_seq_len") is not None,
    }
    for family in FAMILIES:
        if all(getattr(family, name) == value for name, value in wanted.items()):
            return family
    raise _refusal(", ".join(f"{name.replace('_', ' ')}={value}" for name, value in wanted.items()))


def num_experts(index: Mapping[str, Any]) -> int:
    """How many transformers share the denoising."""
    return 2 if (index.get("transformer_2") or [None])[0] else 1


def family_of_preset(preset: Preset, architecture: Architecture) -> Family:
    """The family of a preset's model, without its checkpoint."""
    index = {
        "_class_name": PIPELINES[0],
        "transformer_2": ["diffusers", TRANSFORMER] if preset.num_experts == 2 else [None, None],
        "expand_timesteps": set(preset.tasks) == {"t2v", "i2v"},
    }
    return recognise(index, architecture)


def check_preset(family: Family, scales: tuple[int, int], preset: Preset, source: str) -> None:
    """Raises: ModelError where a checkpoint that stands in for a preset's own is of a kind that the preset does not fit.

    `scales` are its VAE's, pixels a latent in space and in time.
    """
    facts = {
        "tasks": (" and ".join(family.tasks), " and ".join(preset.tasks), set(preset.tasks) <= set(family.tasks)),
        "experts": (family.num_experts, preset.num_experts, family.num_experts == preset.num_experts),
        "last image": (family.needs_last_image, preset.needs_last_image, family.needs_last_image == preset.needs_last_image),
        "pixels a latent": _pair(scales[0], preset.vae_scale_spatial),
        "frames a latent": _pair(scales[1], preset.vae_scale_temporal),
    }
    for name, (found, expected, fits) in facts.items():
        if not fits:
            raise ModelError(
                f"The model {source} is a {family.name} ({name}: {found}),",
                f"and the preset {preset.name} is for another kind ({name}: {expected})",
                f"take a preset of {family.name}, or another --model",
            )


def _pair(found: int, expected: int) -> tuple[int, int, bool]:
    return found, expected, found == expected


def _check_classes(index: Mapping[str, Any], architecture: Architecture) -> None:
    pipeline = index.get("_class_name")
    if pipeline not in PIPELINES:
        raise _refusal(f"its pipeline is {pipeline}")
    for config, expected in ((architecture.transformer, TRANSFORMER), (architecture.vae, AUTOENCODER)):
        found = config.get("_class_name", expected)
        if found != expected:
            raise _refusal(f"it has a {found}")


def _conditioning(expands_timesteps: bool, architecture: Architecture) -> Conditioning:
    latents, given = architecture.latent_channels, architecture.transformer["in_channels"]
    mask = architecture.scales[1]
    if given == 2 * latents + mask and not expands_timesteps:
        return "channels"
    if given == latents:
        return "first_frame" if expands_timesteps else "none"
    raise _refusal(f"its transformer takes {given} channels and its VAE makes {latents}")


def _refusal(what: str) -> ModelError:
    return ModelError(f"This checkpoint cannot be run ({what}):", f"supported are {SUPPORTED}", "give one of these with --model")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Architecture:
    """The `config.json` of a checkpoint's networks; two experts share one. `image_encoder` is None where there is none."""

    transformer: dict[str, Any]
    vae: dict[str, Any]
    text_encoder: dict[str, Any]
    image_encoder: dict[str, Any] | None = None

    @property
    def heads(self) -> int:
        return self.transformer["num_attention_heads"]

    @property
    def num_layers(self) -> int:
        return self.transformer["num_layers"]

    def block_matrix_bytes(self, itemsize: int) -> dict[str, int]:
        """Bytes of the matrices in one of the transformer's blocks, by name within the block."""
        width = self.heads * self.transformer["attention_head_dim"]
        square, wide = width * width * itemsize, width * self.transformer["ffn_dim"] * itemsize
        attention = {f"attn{index}.{part}.weight": square for index in (1, 2) for part in ("to_q", "to_k", "to_v", "to_out.0")}
        return attention | {"ffn.net.0.proj.weight": wide, "ffn.net.2.weight": wide}

    @property
    def latent_channels(self) -> int:
        return self.vae["z_dim"]

    @property
    def scales(self) -> tuple[int, int]:
        """Pixels a latent, in space and in time."""
        space, time = VAE_SCALES
        return self.vae.get("scale_factor_spatial", space), self.vae.get("scale_factor_temporal", time)


def step_flops(architecture: Architecture, num_tokens: int, branches: int) -> StepFlops:
    """Of one transformer call a branch: self-attention, cross-attention to 512 text positions, projections, feed-forward."""
    config = architecture.transformer
    width = config["num_attention_heads"] * config["attention_head_dim"]
    layers = config["num_layers"] * branches
    attention = 4 * num_tokens**2 * width * layers
    cross = 4 * num_tokens * TEXT_TOKENS * width * layers
    projections = 2 * num_tokens * width * width * 6 * layers
    feed_forward = 2 * num_tokens * width * config["ffn_dim"] * 2 * layers
    return StepFlops(attention=attention, matmul=cross + projections + feed_forward)


def telling_shapes(architecture: Architecture, part: str) -> dict[str, tuple[int, ...]]:
    """The shapes of a few tensors of a part that tell a network of another size, without building it: the first one, which
    knows the inputs, and one of the last layer."""
    if part == "text_encoder":
        text = architecture.text_encoder
        return {f"encoder.block.{text['num_layers'] - 1}.layer.1.DenseReluDense.wo.weight": (text["d_model"], text["d_ff"])}
    if part == "vae":
        return {"post_quant_conv.weight": (architecture.latent_channels, architecture.latent_channels, 1, 1, 1)}
    if part == IMAGE_ENCODER:
        return {}
    config = architecture.transformer
    width, patch = architecture.heads * config["attention_head_dim"], config.get("patch_size", (1, 2, 2))
    last = f"blocks.{architecture.num_layers - 1}.ffn.net.0.proj.weight"
    return {"patch_embedding.weight": (width, config["in_channels"], *patch), last: (config["ffn_dim"], width)}
