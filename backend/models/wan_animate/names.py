"""Convert the configuration and the tensor names of Animate-2's transformer to the form of plain Wan's transformer, so that the
code for Wan also runs Animate-2. Source: diffusers, transformer_wan_animate_2.py."""

from collections.abc import Callable, Iterable

from backend.checkpoints.json_files import Config
from backend.models.common.parts import apply_patterns
from backend.models.spec import Configs
from backend.models.wan.original import OUTER_NAMES

OWN_NAMES = (  # part of a name in `WanTransformer3DModel` -> the same part in Animate-2
    (r"\.attn1\.", ".self_attn."), (r"\.attn2\.", ".cross_attn."), (r"\.ffn\.net\.0\.proj\.", ".ffn.0."),
    (r"\.ffn\.net\.2\.", ".ffn.2."), (r"^(blocks\.\d+)\.norm2\.", r"\1.norm3."),
    (r"^(blocks\.\d+)\.scale_shift_table$", r"\1.modulation"),
)  # fmt: skip
PICTURE_CHANNELS = 1280  # width of the CLIP encoder's tokens


def animate_name(name: str) -> str:
    stem, dot, kind = name.rpartition(".")
    outer = apply_patterns(stem, OUTER_NAMES) + dot + kind if kind in ("weight", "bias") else apply_patterns(name, OUTER_NAMES)
    return apply_patterns(outer, OWN_NAMES)


def map_file_names(names: Iterable[str]) -> Callable[[str], str]:
    """Return a function that converts a tensor's name in Animate-2's files to its name in `WanTransformer3DModel`. `names` are
    the names in `WanTransformer3DModel`. The function returns names of other tensors unchanged."""
    by_own = {animate_name(name): name for name in names}
    return lambda name: by_own.get(name, name)


def with_wan_config(configs: Configs) -> dict[str, Config]:
    return {**configs, "transformer": to_wan_config(configs["transformer"])}


def to_wan_config(config: Config) -> dict[str, object]:
    width, sees_pictures = config["dim"], config.get("use_img_emb", True)
    return {
        "patch_size": config.get("patch_size", (1, 2, 2)),
        "num_attention_heads": config["num_heads"],
        "attention_head_dim": width // config["num_heads"],
        "in_channels": config["in_dim"],
        "out_channels": config.get("out_dim", 16),
        "text_dim": config.get("text_dim", 4096),
        "freq_dim": config.get("freq_dim", 256),
        "ffn_dim": config["ffn_dim"],
        "num_layers": config["num_layers"],
        "cross_attn_norm": config.get("cross_attn_norm", True),
        "qk_norm": "rms_norm_across_heads",
        "eps": config.get("eps", 1e-6),
        "image_dim": PICTURE_CHANNELS if sees_pictures else None,
        "added_kv_proj_dim": width if sees_pictures else None,
    }
