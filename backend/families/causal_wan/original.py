"""The transformer of a causal Wan as its makers save it: by Wan's own names, and without a config.json. Reads no file.

Source: Wan-Video/Wan2.1 wan/modules/model.py (names, sizes); guandeh17/Self-Forcing utils/wan_wrapper.py (the prefix).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from backend.families.causal_wan.family import CAUSAL_WAN, TRANSFORMER

PREFIX = "model."  # in a file of Self-Forcing's code, which saves the wrapper around the network
HEAD_WIDTH = 128  # of every published Wan; no tensor tells
_QUERY, _TEXT, _TIME = "blocks.{}.self_attn.q.weight", "text_embedding.0.weight", "time_embedding.0.weight"


def file_names(names: Iterable[str]) -> Callable[[str], str]:
    """A function from a tensor's name in a file to diffusers' name, one of `names`: from Wan's own, with the prefix or without;
    any other name stays."""
    by_original = {makers_name(name): name for name in names}
    return lambda name: by_original.get(name.removeprefix(PREFIX), name)


def makers_name(name: str) -> str:
    """The name of diffusers' tensor `name` in Wan's own files."""
    stem, _, kind = name.rpartition(".")
    return f"{CAUSAL_WAN.original_name(stem)}.{kind}" if kind in ("weight", "bias") else CAUSAL_WAN.original_name(name)


def transformer_config(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any] | None:
    """The config.json that a transformer with tensors of these shapes, by Wan's own names, would have; None if it is no Wan."""
    shapes = {name.removeprefix(PREFIX): shape for name, shape in shapes.items()}
    needed = ("patch_embedding.weight", _QUERY.format(0), "blocks.0.ffn.0.weight", _TEXT, _TIME, "head.head.weight")
    if any(len(shapes.get(name, ())) < 2 for name in needed):
        return None
    width, channels, *patch = shapes["patch_embedding.weight"]
    volume = max(1, patch[0] * patch[1] * patch[2]) if len(patch) == 3 else 1
    return {
        "_class_name": TRANSFORMER,
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
