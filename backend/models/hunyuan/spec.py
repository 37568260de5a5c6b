"""Recognise which HunyuanVideo 1.5 a checkpoint is, from its configurations only, and refuse others. Reads no file. The models
differ in two respects: the use of an input image, and whether the transformer reads the timestep at which a step ends
(`use_meanflow`)."""

import dataclasses
import re

from backend.checkpoints.checkpoint import TRANSFORMER as PART
from backend.checkpoints.checkpoint import Checkpoint
from backend.checkpoints.json_files import Config
from backend.checkpoints.loras import LoraName
from backend.checkpoints.single_file import file_path
from backend.chips import StepFlops
from backend.models.common.parts import (
    apply_patterns,
    channel_mismatch,
    check_classes,
    check_parts,
    is_named_sparse,
    transformer_width,
    with_sparse_attention,
)
from backend.models.hunyuan.original import convert_tensors
from backend.models.hunyuan.sparse_tiles import plan_tiles
from backend.models.spec import SPARSE, Configs, Family, ModelSpec, unsupported_checkpoint
from backend.schemas.settings import VideoSettings
from backend.schemas.windows import step_geometry
from presets import Preset

# Source of `TEXT_TOKENS` and `QUOTED_TOKENS`: diffusers, HunyuanVideo15Pipeline, tokenizer_max_length and tokenizer_2_max_length
TEXT_TOKENS = 1000  # largest number of tokens of a prompt
QUOTED_TOKENS = 256  # largest number of tokens of the quoted text
# `ModelSpec.over_floor` with sparse attention: the step's time that check-tpu predicts for v6e:2x4, divided by its time at the
# chip's peak speed. The step is slow because each list of visible tiles has the largest possible length, and tiles at the
# border are padded.
OVER_FLOOR_SPARSE = 2.4
SHORT_TOKENS = 512  # padded length of prompt and quoted text for short prompts; most rewritten prompts fit too

TRANSFORMER, AUTOENCODER = "HunyuanVideo15Transformer3DModel", "AutoencoderKLHunyuanVideo15"
TASKS = {"HunyuanVideo15Pipeline": ("t2v",), "HunyuanVideo15ImageToVideoPipeline": ("i2v",)}
BOTH_TASKS = "ti2v"  # `task_type` of a transformer trained with and without images; published transformers have one task
NEEDED_ENTRIES = {
    "transformer": ("in_channels", "out_channels", "num_layers", "num_attention_heads", "attention_head_dim", "text_embed_dim",
                    "text_embed_2_dim", "image_embed_dim"),
    "vae": ("latent_channels", "spatial_compression_ratio", "temporal_compression_ratio"),
    "text_encoder": ("hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size"),
    "text_encoder_2": ("d_model", "d_ff", "num_layers", "vocab_size"),
    "image_encoder": ("hidden_size", "image_size", "patch_size"),
}  # fmt: skip
# The width of an encoder's output, and the entry of the transformer that must be equal.
WIDTHS = (
    ("text_encoder", "hidden_size", "text_embed_dim"), ("text_encoder_2", "d_model", "text_embed_2_dim"),
    ("image_encoder", "hidden_size", "image_embed_dim"),
)  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class HunyuanSpec(ModelSpec):
    """The spec of a HunyuanVideo 1.5 checkpoint, see `SPECS`. `is_meanflow` is true if the transformer also reads the timestep at
    which a step ends."""

    scales: tuple[int, int] = (16, 4)
    patch: int = 1
    is_meanflow: bool = False

    @property
    def has_image_encoder(self) -> bool:
        return "image" in self.inputs


SPECS = (
    HunyuanSpec(name="hunyuanvideo-1.5-t2v", tasks=("t2v",)),
    HunyuanSpec(name="hunyuanvideo-1.5-i2v", tasks=("i2v",), inputs={"image": "must"}),
    HunyuanSpec(name="hunyuanvideo-1.5-ti2v", tasks=("t2v", "i2v"), inputs={"image": "may"}),
    HunyuanSpec(name="hunyuanvideo-1.5-i2v-meanflow", tasks=("i2v",), inputs={"image": "must"}, is_meanflow=True),
)
SUPPORTED = "HunyuanVideo 1.5 T2V and I2V, also guidance-distilled and step-distilled, in diffusers' format"

# Patterns from diffusers' names to the original authors' names; source: diffusers,
# scripts/convert_hunyuan_video1_5_to_diffusers.py. The last modulation has no pattern, because the authors' checkpoints
# store its two halves in the opposite order.
ORIGINAL_NAMES = (
    (r"^context_embedder\.token_refiner\.refiner_blocks\.", "txt_in.individual_token_refiner.blocks."),
    (r"^(txt_in\..*)\.attn\.to_(q|k|v)$", r"\1.self_attn_\2"), (r"^(txt_in\..*)\.attn\.to_out\.0$", r"\1.self_attn_proj"),
    (r"^(txt_in\..*)\.ff\.net\.0\.proj$", r"\1.mlp.fc1"), (r"^(txt_in\..*)\.ff\.net\.2$", r"\1.mlp.fc2"),
    (r"^(txt_in\..*)\.norm_out\.linear$", r"\1.adaLN_modulation.1"),
    (r"^transformer_blocks\.", "double_blocks."), (r"\.norm1\.linear$", ".img_mod.linear"),
    (r"\.norm1_context\.linear$", ".txt_mod.linear"), (r"\.attn\.to_out\.0$", ".img_attn_proj"),
    (r"\.attn\.to_add_out$", ".txt_attn_proj"), (r"\.attn\.to_(q|k|v)$", r".img_attn_\1"),
    (r"\.attn\.add_(q|k|v)_proj$", r".txt_attn_\1"), (r"\.attn\.norm_(q|k)$", r".img_attn_\1_norm"),
    (r"\.attn\.norm_added_(q|k)$", r".txt_attn_\1_norm"), (r"\.ff\.net\.0\.proj$", ".img_mlp.fc1"),
    (r"\.ff\.net\.2$", ".img_mlp.fc2"), (r"\.ff_context\.net\.0\.proj$", ".txt_mlp.fc1"),
    (r"\.ff_context\.net\.2$", ".txt_mlp.fc2"),
    (r"^x_embedder\.proj$", "img_in.proj"), (r"^proj_out$", "final_layer.linear"),
    (r"^time_embed\.timestep_embedder\.linear_1$", "time_in.mlp.0"),
    (r"^time_embed\.timestep_embedder\.linear_2$", "time_in.mlp.2"),
    (r"^context_embedder\.proj_in$", "txt_in.input_embedder"),
    (r"^context_embedder_2\.linear_(\d)$", r"byt5_in.fc\1"), (r"^context_embedder_2\.norm$", "byt5_in.layernorm"),
    (r"^image_embedder\.norm_in$", "vision_in.proj.0"), (r"^image_embedder\.linear_1$", "vision_in.proj.1"),
    (r"^image_embedder\.linear_2$", "vision_in.proj.3"), (r"^image_embedder\.norm_out$", "vision_in.proj.4"),
    (r"^cond_type_embed$", "cond_type_embedding"),
)  # fmt: skip
# Patterns from the authors' names to ComfyUI's names; source: Comfy-Org/ComfyUI, comfy/supported_models.py,
# HunyuanVideo.process_unet_state_dict
COMFY_NAMES = ((r"_mod\.linear$", "_mod.lin"), (r"_attn_proj$", "_attn.proj"), (r"mlp\.fc1$", "mlp.0"), (r"mlp\.fc2$", "mlp.2"))
# The authors' names of query, key and value. ComfyUI and the authors' token refiner join them in one matrix.
QUERY_KEY_VALUE = re.compile(r"(.*_attn)_([qkv])")


class HunyuanFamily(Family):
    """The family of HunyuanVideo 1.5. See `backend.models.spec.Family`."""

    name = "hunyuan"
    supports = SUPPORTED
    pipelines = tuple(TASKS)
    body = "backend.models.hunyuan.model:HunyuanModel"

    def read_spec(self, index: Config, configs: Configs) -> HunyuanSpec:
        tasks = TASKS[index["_class_name"]]
        needed = {part: entries for part, entries in NEEDED_ENTRIES.items() if part != "image_encoder" or tasks == ("i2v",)}
        check_parts(index, configs, needed, "a whole HunyuanVideo 1.5 checkpoint")
        check_classes(configs, {"transformer": (TRANSFORMER,), "vae": (AUTOENCODER,)}, SUPPORTED)
        transformer, vae = configs["transformer"], configs["vae"]
        latents = vae["latent_channels"]
        if transformer["in_channels"] != 2 * latents + 1 or transformer["out_channels"] != latents:
            raise channel_mismatch(configs, latents, SUPPORTED)
        side, length = transformer.get("patch_size", 1), transformer.get("patch_size_t", 1)
        if (side, length) != (1, 1):
            raise unsupported_checkpoint(f"its transformer has patches of {side} x {side} x {length} latents", [SUPPORTED])
        for part, width, taken in WIDTHS:
            if part in configs and configs[part][width] != transformer[taken]:
                made = configs[part][width]
                raise unsupported_checkpoint(
                    f"its {part} makes {made} channels and its transformer takes {transformer[taken]}", [SUPPORTED]
                )
        method = transformer.get(SPARSE)
        if method not in (None, "ssta"):
            raise unsupported_checkpoint(f"its transformer has the sparse attention {str(method)[:40]}", [SUPPORTED])
        is_meanflow = bool(transformer.get("use_meanflow"))
        if tasks == ("i2v",) and transformer.get("task_type") == BOTH_TASKS:
            tasks = ("t2v", "i2v")
        for spec in SPECS:
            if (spec.tasks, spec.is_meanflow) == (tasks, is_meanflow):
                over_floor = OVER_FLOOR_SPARSE if method else spec.over_floor
                scales = vae["spatial_compression_ratio"], vae["temporal_compression_ratio"]
                return dataclasses.replace(spec, scales=scales, sparse_attention=method, over_floor=over_floor)
        raise unsupported_checkpoint(f"it is a step-distilled model for {' and '.join(tasks)}", [SUPPORTED])

    def complete_checkpoint(self, checkpoint: Checkpoint, preset: Preset | None) -> Checkpoint:
        """See `Family`. The transformer's file can have the authors' or diffusers' tensor names. SSTA, a sparse attention, adds
        no weights. A file is for SSTA if its name or its folder contains "sparse", as in tencent/HunyuanVideo-1.5."""
        converted = dataclasses.replace(checkpoint, convert_tensors=convert_tensors)
        path = file_path(checkpoint.transformer_files[PART])
        if "transformer_blocks.0.attn.to_q.weight" not in converted.tensors(PART):
            raise unsupported_checkpoint(f"{path.name} has no transformer of HunyuanVideo 1.5", [SUPPORTED])
        return with_sparse_attention(converted, "ssta" if is_named_sparse(path) else None)

    def distinctive_shapes(self, configs: Configs, part: str) -> dict[str, tuple[int, ...]]:
        config = configs[part]
        if part == "transformer":
            width = transformer_width(config)
            last = f"transformer_blocks.{config['num_layers'] - 1}.attn.to_q.weight"
            time = {"time_embed.timestep_embedder_r.linear_2.weight": (width, width)} if config.get("use_meanflow") else {}
            return {"x_embedder.proj.weight": (width, config["in_channels"], 1, 1, 1), last: (width, width)} | time
        if part == "text_encoder":
            last = f"layers.{config['num_hidden_layers'] - 1}.mlp.down_proj.weight"
            return {last: (config["hidden_size"], config["intermediate_size"])}
        if part == "text_encoder_2":
            last = f"encoder.block.{config['num_layers'] - 1}.layer.1.DenseReluDense.wo.weight"
            return {last: (config["d_model"], config["d_ff"])}
        if part == "vae":
            return {"decoder.norm_out.gamma": (config.get("block_out_channels", (128,))[0], 1, 1, 1)}
        return {}

    def step_flops(self, configs: Configs, request: VideoSettings, branches: int) -> StepFlops:
        """See `Family`. Counts joint attention, projections and feed-forward of the video tokens and context tokens. With sparse
        attention, this is an upper limit: each video token counts with the largest number of tiles that it can see."""
        config = configs["transformer"]
        width, layers = transformer_width(config), config["num_layers"] * branches
        geometry, context = step_geometry(request), context_tokens(configs)
        tokens = geometry.num_tokens + context
        tiles = plan_tiles(config, geometry.latent_shape(1)[2:])
        keys = tokens if tiles is None else tiles.most_seen * tiles.size + context
        wide = config.get("mlp_ratio", 4.0) * width
        matmul = 2 * tokens * width * (4 * width + 2 * wide) * layers
        attention = 4 * (geometry.num_tokens * keys + context * tokens) * width * layers
        return StepFlops(attention=attention, matmul=matmul, head_width=config["attention_head_dim"])

    def original_name(self, stem: str) -> str:
        """Return the name that a module of diffusers has in the authors' checkpoints."""
        return apply_patterns(stem, ORIGINAL_NAMES)

    def lora_names(self, stem: str) -> tuple[LoraName, ...]:
        original = self.original_name(stem)
        if found := QUERY_KEY_VALUE.fullmatch(original):
            place = "qkv".index(found[2])
            return LoraName(original), *(LoraName(f"{found[1]}{sign}qkv", place, 3) for sign in "._")
        return LoraName(original), LoraName(apply_patterns(original, COMFY_NAMES))


HUNYUAN = HunyuanFamily()


def context_tokens(configs: Configs) -> int:
    """Return the number of context tokens in the program for short prompts: `SHORT_TOKENS`, plus the tokens of an image."""
    image = configs.get("image_encoder")
    return SHORT_TOKENS + (0 if image is None else (image["image_size"] // image["patch_size"]) ** 2)
