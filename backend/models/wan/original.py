"""Names and sizes of Wan transformers as their authors save them: with their own tensor names, and without a config.json.

Source: Wan-Video/Wan2.1 wan/modules/model.py (names, sizes); guandeh17/Self-Forcing utils/wan_wrapper.py (the prefix).
"""

from collections.abc import Callable, Iterable, Mapping

from backend.checkpoints.checkpoint import TRANSFORMER, Checkpoint
from backend.checkpoints.json_files import Config
from backend.checkpoints.single_file import file_path
from backend.errors import ModelError
from backend.models.common.parts import apply_patterns, transformer_width
from backend.models.spec import SparseAttention

PREFIX = "model."  # prefix of tensor names in Self-Forcing's files, whose code saves the network inside a wrapper module
HEAD_WIDTH = 128  # channels of a head in every published Wan model; the shapes of tensors do not show this number
LAYER_NAMES = (  # diffusers' name -> Wan's original name; source: diffusers, scripts/convert_wan_to_diffusers.py
    # The next two names are SLA's projection in thu-ml/TurboDiffusion and VSA's gate in hao-ai-lab/FastVideo.
    (r"\.attn1\.proj_l$", ".self_attn.attn_op.local_attn.proj_l"), (r"\.attn1\.to_gate_compress$", ".to_gate_compress"),
    (r"\.attn1\.", ".self_attn."), (r"\.attn2\.", ".cross_attn."), (r"\.to_out\.0$", ".o"), (r"\.to_(q|k|v)$", r".\1"),
    (r"\.add_(k|v)_proj$", r".\1_img"), (r"\.norm_added_k$", ".norm_k_img"), (r"\.ffn\.net\.0\.proj$", ".ffn.0"),
    (r"\.ffn\.net\.2$", ".ffn.2"), (r"^((?:vace_)?blocks\.\d+)\.norm2$", r"\1.norm3"),
    (r"^((?:vace_)?blocks\.\d+)\.scale_shift_table$", r"\1.modulation"),
    (r"^(vace_blocks\.\d+)\.proj_in$", r"\1.before_proj"), (r"^(vace_blocks\.\d+)\.proj_out$", r"\1.after_proj"),
)  # fmt: skip
OUTER_NAMES = (  # diffusers' name -> Wan's original name, for modules outside the layers
    (r"^scale_shift_table$", "head.modulation"), (r"^proj_out$", "head.head"),
    (r"^condition_embedder\.text_embedder\.linear_1$", "text_embedding.0"),
    (r"^condition_embedder\.text_embedder\.linear_2$", "text_embedding.2"),
    (r"^condition_embedder\.time_embedder\.linear_1$", "time_embedding.0"),
    (r"^condition_embedder\.time_embedder\.linear_2$", "time_embedding.2"),
    (r"^condition_embedder\.time_proj$", "time_projection.1"),
    (r"^condition_embedder\.image_embedder\.norm1$", "img_emb.proj.0"),
    (r"^condition_embedder\.image_embedder\.ff\.net\.0\.proj$", "img_emb.proj.1"),
    (r"^condition_embedder\.image_embedder\.ff\.net\.2$", "img_emb.proj.3"),
    (r"^condition_embedder\.image_embedder\.norm2$", "img_emb.proj.4"),
    (r"^condition_embedder\.image_embedder\.pos_embed$", "img_emb.emb_pos"),
)  # fmt: skip
_QUERY, _TEXT, _TIME = "blocks.{}.self_attn.q.weight", "text_embedding.0.weight", "time_embedding.0.weight"
_NEEDED = ("patch_embedding.weight", _QUERY.format(0), "blocks.0.ffn.0.weight", _TEXT, _TIME, "head.head.weight")
_PICTURE, _TWO_PICTURES, _CONTROL = "img_emb.proj.1.weight", "img_emb.emb_pos", "vace_patch_embedding.weight"
FLAT_PATCH = 4  # positions in a patch of 1 x 2 x 2, for files that store the first convolution's kernel as a matrix
KNOWN = {  # (width, layers, input channels, reads tokens of an image, reads tokens of two images) -> name of the model
    (1536, 30, 16, False, False): "Wan 2.1 T2V 1.3B",
    (5120, 40, 16, False, False): "Wan 2.1 T2V 14B or an expert of Wan 2.2 T2V A14B",
    (5120, 40, 36, True, False): "Wan 2.1 I2V 14B",
    (5120, 40, 36, True, True): "Wan 2.1 FLF2V 14B",
    (5120, 40, 36, False, False): "an expert of Wan 2.2 I2V A14B",
    (3072, 30, 48, False, False): "Wan 2.2 TI2V 5B",
}


def find_sparse_attention(names: Iterable[str]) -> SparseAttention | None:
    """Find the method of sparse attention by its weights in a transformer, from Wan's original or diffusers' names of tensors."""
    modules = {part for name in names for part in name.split(".")}
    return "sla" if "proj_l" in modules else "vsa" if "to_gate_compress" in modules else None


def original_name(stem: str) -> str:
    return apply_patterns(stem, (*LAYER_NAMES, *OUTER_NAMES))


def map_file_names(names: Iterable[str]) -> Callable[[str], str]:
    """Return a function that converts Wan's original names, with or without `PREFIX`, to diffusers' `names` of these tensors.

    It returns other names unchanged.
    """
    by_original = {original_tensor_name(name): name for name in names}
    return lambda name: by_original.get(name.removeprefix(PREFIX), name)


def original_tensor_name(name: str) -> str:
    stem, _, kind = name.rpartition(".")
    return f"{original_name(stem)}.{kind}" if kind in ("weight", "bias") else original_name(name)


def transformer_config(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, object] | None:
    """Derive the sizes in a transformer's config.json from its tensors' shapes, by original name. None for other tensors."""
    shapes = {name.removeprefix(PREFIX): shape for name, shape in shapes.items()}
    if any(len(shapes.get(name, ())) < 2 for name in _NEEDED):
        return None
    width, channels, *patch = shapes["patch_embedding.weight"]
    volume = max(1, patch[0] * patch[1] * patch[2]) if len(patch) == 3 else 1
    return {
        "patch_size": patch,
        "num_attention_heads": width // HEAD_WIDTH,
        "attention_head_dim": HEAD_WIDTH,
        "in_channels": channels,
        "out_channels": shapes["head.head.weight"][0] // volume,
        "text_dim": shapes[_TEXT][1],
        "freq_dim": shapes[_TIME][1],
        "ffn_dim": shapes["blocks.0.ffn.0.weight"][0],
        "num_layers": sum(_QUERY.format(layer) in shapes for layer in range(len(shapes))),
    }


def check_single_files(checkpoint: Checkpoint) -> None:
    """Check that each expert has a single-file transformer that fits the expert's configuration, the high-noise expert's first.

    Raises: ModelError if not, or if the files' names ("low", then "high") show the wrong order.
    """
    experts = [part for part in checkpoint.configs if part.startswith(TRANSFORMER)]
    names = [file_path(file).name for file in checkpoint.transformer_files.values()]
    if len(experts) != len(names):
        raise ModelError(
            f"--transformer names {' and '.join(names)},",
            f"and the model has {len(experts)} transformer{'s' if len(experts) > 1 else ''}",
            "give it twice, the high-noise expert's file first" if len(experts) > 1 else "give it once",
        )
    if len(names) == 2 and "low" in names[0].lower() and "high" in names[1].lower():
        raise ModelError(
            f"{names[0]} was given first,", "but the high-noise expert's file must be first", "swap the two --transformer options"
        )
    for part, file in checkpoint.transformer_files.items():
        shapes = {name: place.shape for name, place in checkpoint.tensors(part).items()}
        check_transformer(file_path(file).name, shapes, checkpoint.configs[part])


def check_transformer(file: str, shapes: Mapping[str, tuple[int, ...]], config: Config) -> None:
    """Check that tensors of these shapes, with Wan's original or diffusers' names, are the transformer that `config` describes.

    Raises: ModelError if the transformer is a different one.
    """
    original = {original_tensor_name(name.removeprefix(PREFIX)): shape for name, shape in shapes.items()}
    if any(len(original.get(name, ())) < 2 for name in _NEEDED):
        raise ModelError(
            f"{file} has no Wan transformer:",
            f"a file for --transformer has tensors such as {_QUERY.format(0)}",
            "give one file with the whole diffusion model, with Wan's original tensor names",
        )
    width, channels, *kernel = original["patch_embedding.weight"]
    layers = sum(_QUERY.format(layer) in original for layer in range(len(original)))
    channels = channels if kernel else channels // FLAT_PATCH
    found = (width, layers, channels, _PICTURE in original, _TWO_PICTURES in original)
    sees, sees_two = config.get("image_dim") is not None, config.get("pos_embed_seq_len") is not None
    expected = (transformer_width(config), config["num_layers"], config["in_channels"], sees, sees_two)
    if found != expected:
        raise ModelError(
            f"{file} is {_describe_features(found)},",
            f"and the model needs {_describe_features(expected)}",
            "use a preset of that model, or give another file for --transformer",
        )
    is_vace = "vace_layers" in config
    if (_CONTROL in original) != is_vace:
        what, needed = ("not a VACE transformer", "a VACE model") if is_vace else ("a VACE transformer", "not a VACE model")
        preset = "without VACE" if is_vace else "of VACE"
        raise ModelError(
            f"{file} is {what},", f"and the model is {needed}", f"use a preset {preset}, or give another file for --transformer"
        )


def _describe_features(features: tuple[int, int, int, bool, bool]) -> str:
    width, layers, channels, sees, _ = features
    sizes = f"{width} wide, {layers} layers, {channels} channels" + (", with image tokens" if sees else "")
    name = KNOWN.get(features)
    return f"{name} ({sizes})" if name else f"an unknown transformer ({sizes})"
