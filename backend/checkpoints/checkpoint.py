"""What a checkpoint folder holds: its model_index.json and its networks' configurations. Reads no weights, knows no model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backend.errors import ModelError

AGAIN = "copy the checkpoint again, or `python app.py models download ID`, which fetches what is missing"
WITHOUT_WEIGHTS = ("tokenizer", "scheduler", "feature_extractor", "image_processor", "guider")
"""Parts of diffusers' pipelines that are no networks; a number may follow the name, as in tokenizer_2."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A folder in diffusers' layout. `index` is its model_index.json, `configs` the config.json of each network by part."""

    folder: Path
    index: dict[str, Any]
    configs: dict[str, dict[str, Any]]

    @property
    def parts(self) -> tuple[str, ...]:
        """The folders that hold weights, transformers first."""
        return tuple(sorted(self.configs, key=lambda part: (not part.startswith("transformer"), part)))


def open_checkpoint(folder: Path) -> Checkpoint:
    """The folder's configurations. Raises: ModelError if one is missing or broken."""
    index = read_json(folder / "model_index.json")
    parts = [part for part in named_parts(index) if not part.startswith(WITHOUT_WEIGHTS)]
    return Checkpoint(folder=folder, index=index, configs={part: read_json(folder / part / "config.json") for part in parts})


def named_parts(index: Mapping[str, Any]) -> list[str]:
    """The parts that model_index.json names, as [library, class]; [null, null] is a part that it does not have."""
    return [part for part, value in index.items() if isinstance(value, list) and len(value) == 2 and all(value)]


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file of the checkpoint. Raises: ModelError if it is missing or broken."""
    try:
        value = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise ModelError(f"{short_path(path)} is missing:", "a checkpoint needs it", AGAIN) from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ModelError(short_path(path), f"must be JSON ({error})", AGAIN) from None
    if not isinstance(value, dict):
        raise ModelError(short_path(path), f"must be a JSON object, and is a {type(value).__name__}", AGAIN)
    return value


def short_path(path: Path) -> str:
    """The file's name and its folder's: visitors read these messages, and must not see the server's own folders."""
    return "/".join(path.parts[-2:])
