"""Recognise the models of Wan 2.1 and 2.2 by their configurations, and refuse all other checkpoints.

The models differ in how an image reaches the transformer, see `WanSpec`. Wan 2.1 I2V also takes the output of a CLIP image
encoder. A model has one transformer, or two experts with a boundary.
"""

import dataclasses
from collections.abc import Mapping
from typing import Literal

from backend.checkpoints.checkpoint import TRANSFORMER as PART
from backend.checkpoints.checkpoint import Checkpoint, named_parts, part_folder
from backend.checkpoints.json_files import Config
from backend.checkpoints.loras import LoraName
from backend.checkpoints.single_file import file_path
from backend.checkpoints.tensors import FP4, tensor_names
from backend.chips import StepFlops
from backend.errors import ModelError
from backend.models.common.parts import (
    channel_mismatch,
    check_classes,
    check_parts,
    is_named_sparse,
    transformer_width,
    with_sparse_attention,
)
from backend.models.spec import SPARSE, Configs, Family, ModelSpec, Need, unsupported_checkpoint
from backend.models.wan.original import check_single_files, find_sparse_attention, original_name
from backend.schemas.settings import VideoSettings
from backend.schemas.windows import step_geometry
from presets import Preset
from presets.loader import Quantize

TEXT_TOKENS = 512  # text positions that the transformer attends to, for prompts of any length
VAE_SCALES = (8, 4)  # the result of `vae_scales` for Wan 2.1, whose published vae/config.json has no scale factors

VAE_SCALES_22 = (16, 4)  # the result of `vae_scales` for Wan 2.2 TI2V
METHODS = ("sla", "sla-map", "vsa")  # the methods of sparse attention of Wan models
# For each method of sparse attention: the expected time of a step, divided by its time at the chip's peak performance (see
# `ModelSpec.over_floor`). Predictions of check-tpu on v6e:2x4: 1.67 and 1.80 for TurboWan 14B (SLA), 2.63 for FastWan 14B (VSA).
OVER_FLOOR_SPARSE = {"sla": 1.75, "sla-map": 1.75, "vsa": 2.63}

Conditioning = Literal["none", "first_frame", "channels"]
PIPELINES = ("WanPipeline", "WanImageToVideoPipeline", "WanDMDPipeline")  # the last is of FastWan (hao-ai-lab/FastVideo)
TRANSFORMER, AUTOENCODER = "WanTransformer3DModel", "AutoencoderKLWan"
NEEDED_ENTRIES = {
    "transformer": ("in_channels", "num_layers", "num_attention_heads", "attention_head_dim", "ffn_dim"), "vae": ("z_dim",),
    "text_encoder": ("d_model", "d_ff", "num_layers", "vocab_size"),
}  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class WanSpec(ModelSpec):
    """The spec of a Wan model.

    `conditioning` is how an image reaches the transformer. "channels" means additional input channels: a mask and the latents of
    a clip that is grey except for the images. "first_frame" means a clean first latent frame at timestep 0.
    """

    scales: tuple[int, int] = VAE_SCALES
    takes_quantize: bool = True
    conditioning: Conditioning
    has_image_encoder: bool = False


CLIP: Mapping[str, Need] = {"video": "may"}  # any text-to-video model can restyle a clip: denoising starts from the noised clip
SPECS = (
    WanSpec(name="wan2.1-t2v", tasks=("t2v",), conditioning="none", inputs=CLIP),
    WanSpec(name="wan2.1-i2v", tasks=("i2v",), conditioning="channels", has_image_encoder=True, inputs={"image": "must"}),
    WanSpec(
        name="wan2.1-flf2v",
        tasks=("i2v",),
        conditioning="channels",
        has_image_encoder=True,
        inputs={"image": "must", "last_image": "must"},
    ),
    WanSpec(name="wan2.2-t2v", tasks=("t2v",), conditioning="none", num_experts=2, inputs=CLIP),
    WanSpec(
        name="wan2.2-i2v", tasks=("i2v",), conditioning="channels", num_experts=2, inputs={"image": "must", "last_image": "may"}
    ),
    WanSpec(
        name="wan2.2-ti2v", tasks=("t2v", "i2v"), conditioning="first_frame", inputs={"image": "may", **CLIP}, continues=True
    ),
)
SUPPORTED = "Wan 2.1 T2V, I2V and FLF2V, Wan 2.2 T2V-A14B, I2V-A14B and TI2V-5B, in diffusers' layout"


class WanFamily(Family):
    """The methods of `Family` that all families with Wan's transformer and autoencoder share."""

    def distinctive_shapes(self, configs: Configs, part: str) -> dict[str, tuple[int, ...]]:
        """See `Family`. For the transformer, the tensors are the input projection and a weight of the last layer."""
        if part == "text_encoder":
            text = configs[part]
            last = f"encoder.block.{text['num_layers'] - 1}.layer.1.DenseReluDense.wo.weight"
            return {last: (text["d_model"], text["d_ff"])}
        if part == "vae":
            channels = configs[part]["z_dim"]
            return {"post_quant_conv.weight": (channels, channels, 1, 1, 1)}
        if part == "image_encoder":
            return {}
        config = configs["transformer"]
        width, patch = transformer_width(config), config.get("patch_size", (1, 2, 2))
        last = f"blocks.{config['num_layers'] - 1}.ffn.net.0.proj.weight"
        return {"patch_embedding.weight": (width, config["in_channels"], *patch), last: (config["ffn_dim"], width)}

    def step_flops(self, configs: Configs, request: VideoSettings, branches: int) -> StepFlops:
        """See `Family`. With sparse attention, a token attends to a share of the tokens, the preset's `sparse_keep`."""
        tokens, config = step_geometry(request).num_tokens, configs["transformer"]
        keys = round(tokens * request.resolved_preset.sparse_keep) if config.get(SPARSE) else tokens
        return transformer_flops(config, tokens, keys, branches, request.quantize)

    def original_name(self, stem: str) -> str:
        return original_name(stem)

    def lora_names(self, stem: str) -> tuple[LoraName, ...]:
        return (LoraName(self.original_name(stem)),)


class PlainWanFamily(WanFamily):
    """The family of Wan 2.1 and 2.2. See `backend.models.spec.Family`."""

    name = "wan"
    supports = SUPPORTED
    pipelines = PIPELINES
    body = "backend.models.wan.model:WanModel"

    def read_spec(self, index: Config, configs: Configs) -> WanSpec:
        """See `Family`.

        The conditioning "first_frame" needs the entry `expand_timesteps` in model_index.json. If the entry is missing, a
        checkpoint with Wan 2.2's autoencoder counts as TI2V, because only TI2V has this autoencoder.
        """
        check_networks(index, configs, TRANSFORMER)
        transformer, scales, latents = configs["transformer"], vae_scales(configs), configs["vae"]["z_dim"]
        expands_timesteps = bool(index.get("expand_timesteps", scales == VAE_SCALES_22))
        if transformer["in_channels"] == 2 * latents + scales[1] and not expands_timesteps:
            conditioning = "channels"
        elif transformer["in_channels"] == latents:
            conditioning = "first_frame" if expands_timesteps else "none"
        else:
            raise channel_mismatch(configs, latents, SUPPORTED)
        features = {
            "conditioning": conditioning,
            "num_experts": 2 if "transformer_2" in named_parts(index) else 1,
            "has_image_encoder": transformer.get("image_dim") is not None,
        }
        needs_last_image = transformer.get("pos_embed_seq_len") is not None
        for spec in SPECS:
            fits = all(getattr(spec, name) == value for name, value in features.items())
            if fits and (spec.inputs.get("last_image") == "must") == needs_last_image:
                boundary, method = index.get("boundary_ratio"), transformer.get(SPARSE)
                if method is not None and method not in METHODS:
                    raise unsupported_checkpoint(f"its transformer has the sparse attention {str(method)[:40]}", [SUPPORTED])
                over_floor = OVER_FLOOR_SPARSE.get(method, spec.over_floor)
                return dataclasses.replace(spec, scales=scales, boundary=boundary, sparse_attention=method, over_floor=over_floor)
        facts = features | {"needs_last_image": needs_last_image}
        raise unsupported_checkpoint(", ".join(f"{name.replace('_', ' ')}={value}" for name, value in facts.items()), [SUPPORTED])

    def complete_checkpoint(self, checkpoint: Checkpoint, preset: Preset | None) -> Checkpoint:
        """See `Family`. The tensors in single-file transformers have Wan's original names or diffusers' names.

        The sparse attention "sla-map" has no weights of its own. It is recognised by weights in fp4, and by the word "sparse" in
        the name of the file, its folder or its repository, as in lightx2v/Wan2.2-NVFP4-Sparse.
        """
        check_single_files(checkpoint)
        tensors, path = checkpoint.tensors(PART), file_path(checkpoint.transformer_files[PART])
        is_map = is_named_sparse(path) and any(place.dtype == FP4 for place in tensors.values())
        return with_sparse_attention(checkpoint, find_sparse_attention(tensors) or ("sla-map" if is_map else None))

    def complete_folder(self, checkpoint: Checkpoint) -> Checkpoint:
        """See `Family`. Adds the method of sparse attention to the transformer's configuration, unless it is there."""
        if SPARSE in checkpoint.configs.get(PART, {}):
            return checkpoint
        names = tensor_names(checkpoint.folder, part_folder(PART, checkpoint.transformer_folder))
        return with_sparse_attention(checkpoint, find_sparse_attention(names))


WAN = PlainWanFamily()


def transformer_flops(config: Config, queries: int, keys: int, branches: int, quantize: Quantize) -> StepFlops:
    """Count the operations of a Wan transformer in one step, for all guidance branches.

    In self-attention, `queries` tokens attend to `keys` tokens. `quantize` is the number format of the projections and the
    feed-forward network.
    """
    width, layers = transformer_width(config), config["num_layers"] * branches
    attention = 4 * queries * keys * width * layers
    cross = 4 * queries * TEXT_TOKENS * width * layers
    projections = 2 * queries * width * width * 6 * layers
    feed_forward = 2 * queries * width * config["ffn_dim"] * 2 * layers
    return StepFlops(
        attention=attention,
        matmul=cross + projections + feed_forward,
        head_width=config["attention_head_dim"],
        quantized=projections + feed_forward,
        format=quantize,
    )


def vae_scales(configs: Configs) -> tuple[int, int]:
    """Return two numbers of the VAE: pixels per latent position along each side, and pixel frames per latent frame."""
    space, time = VAE_SCALES
    return configs["vae"].get("scale_factor_spatial", space), configs["vae"].get("scale_factor_temporal", time)


def check_networks(index: Config, configs: Configs, transformer: str) -> None:
    """Check a checkpoint's networks. `transformer` is the expected class of its transformers.

    Raises: ModelError if a network or entry is missing, if a class is not supported, or if two experts have different
    configurations.
    """
    check_parts(index, configs, NEEDED_ENTRIES, "a whole Wan checkpoint")
    check_classes(configs, {"transformer": (transformer,), "vae": (AUTOENCODER,)}, SUPPORTED)
    if "transformer_2" in configs:
        first, second = configs["transformer"], configs["transformer_2"]
        names = [name for name in first if not name.startswith("_") and first[name] != second.get(name)]
        if names:
            raise ModelError(
                f"transformer_2/config.json says {names[0]}={second.get(names[0])},",
                f"and transformer/config.json says {first[names[0]]}: both experts must have the same sizes",
                "give a checkpoint with two matching experts",
            )
