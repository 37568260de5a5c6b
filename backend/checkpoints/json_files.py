"""Read the JSON files of a checkpoint. Contains texts for errors about any file of a checkpoint."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from backend.errors import ModelError

Config = Mapping[str, Any]
"""The object in the config.json of a part of a checkpoint. Each family checks the values that it reads."""

AGAIN = "copy the checkpoint again, or run `python app.py models download ID`, which downloads missing files"


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON file of the checkpoint. Raises: ModelError if it is missing or broken, or if its class name is not a text."""
    try:
        value = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise ModelError(f"{short_path(path)} is missing:", "a checkpoint needs it", AGAIN) from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ModelError(short_path(path), f"must be JSON ({error})", AGAIN) from None
    if not isinstance(value, dict):
        raise ModelError(short_path(path), f"must be a JSON object, and is a {type(value).__name__}", AGAIN)
    if not isinstance(value.get("_class_name"), str | None):
        raise ModelError(short_path(path), "must have one class name as text in `_class_name`", AGAIN)
    return value


def short_path(path: Path) -> str:
    """Return the names of the file and its folder. Visitors read error messages, and must not see the server's other folders."""
    return "/".join(path.parts[-2:])
