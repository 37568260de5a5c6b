"""What a checkpoint folder holds: its configurations, and where in its files each tensor lies. Reads headers only, no weights.

Files are checked before anything is loaded: a missing, cut or foreign file is told by its name, with what was expected.
Source of the format: huggingface/safetensors, README.md ("Format").
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backend.errors import ModelError
from backend.families.wan.family import IMAGE_ENCODER, PARTS, Architecture

NEEDED_ENTRIES = {
    "transformer": ("in_channels", "num_layers", "num_attention_heads", "attention_head_dim", "ffn_dim"), "vae": ("z_dim",),
    "text_encoder": ("d_model", "d_ff", "num_layers", "vocab_size"),
}  # fmt: skip
AGAIN = "copy the checkpoint again, or `python app.py models download ID`, which fetches what is missing"


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A folder in diffusers' layout. `index` is its model_index.json."""

    folder: Path
    index: dict[str, Any]
    architecture: Architecture

    @property
    def transformers(self) -> tuple[str, ...]:
        """The folders of the transformers, the high-noise one first."""
        return tuple(part for part in ("transformer", "transformer_2") if self.has(part))

    @property
    def parts(self) -> tuple[str, ...]:
        """All folders that hold weights."""
        rest = [part for part in ("text_encoder", IMAGE_ENCODER, "vae") if self.has(part)]
        return (*self.transformers, *rest)

    def has(self, part: str) -> bool:
        """Whether model_index.json names this part."""
        return bool((self.index.get(part) or [None])[0])


def open_checkpoint(folder: Path) -> Checkpoint:
    """The folder's configurations. Raises: ModelError where one is missing or broken, or two experts differ in shape."""
    index = read_json(folder / "model_index.json")
    parts = [*PARTS, *([IMAGE_ENCODER] if (index.get(IMAGE_ENCODER) or [None])[0] else [])]
    missing = [part for part in parts if not (index.get(part) or [None])[0]]
    if missing:
        raise ModelError(
            f"model_index.json names no {missing[0]}:", f"a checkpoint needs {', '.join(PARTS)}", "give a whole Wan checkpoint"
        )
    architecture = Architecture(**{part: _read_config(folder, part) for part in parts})
    checkpoint = Checkpoint(folder=folder, index=index, architecture=architecture)
    if checkpoint.has("transformer_2"):
        _check_experts(architecture.transformer, read_json(folder / "transformer_2" / "config.json"))
    return checkpoint


def _read_config(folder: Path, part: str) -> dict[str, Any]:
    path = folder / part / "config.json"
    config = read_json(path)
    for name in NEEDED_ENTRIES.get(part, ()):
        if name not in config:
            raise ModelError(f"{shown(path)} does not say {name}:", f"a {part} needs {', '.join(NEEDED_ENTRIES[part])}", AGAIN)
    return config


def _check_experts(first: dict[str, Any], second: dict[str, Any]) -> None:
    names = [name for name in first if not name.startswith("_") and first[name] != second.get(name)]
    if names:
        raise ModelError(
            f"transformer_2/config.json says {names[0]}={second.get(names[0])},",
            f"and transformer/config.json {first[names[0]]}: both experts must have one shape",
            "give a checkpoint whose experts belong together",
        )


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file of the checkpoint. Raises: ModelError where it is missing or broken."""
    try:
        value = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise ModelError(f"{shown(path)} is missing:", "a checkpoint needs it", AGAIN) from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ModelError(shown(path), f"must be JSON ({error})", AGAIN) from None
    if not isinstance(value, dict):
        raise ModelError(shown(path), f"must be a JSON object, and is a {type(value).__name__}", AGAIN)
    return value


def shown(path: Path) -> str:
    """A file's place within its checkpoint: visitors of a shared studio see these messages, and no folder of the server."""
    return "/".join(path.parts[-2:])
