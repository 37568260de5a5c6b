"""Reads the file of the command `storyboard`: settings that all shots share, then the shots."""

import tomllib
from pathlib import Path
from typing import Any

from backend.contract.request import GenerationRequest, find_preset
from backend.contract.settings import SETTINGS
from backend.errors import RequestError

_RENAMED = {"frames": "num_frames"}
_SHARED = {name for name, one in SETTINGS.items() if one.help and one.part == "core"} - {"preset", *_RENAMED.values()}
_SETTINGS = _SHARED | {"image", *_RENAMED}


def read_storyboard(path: Path) -> GenerationRequest:
    """The storyboard in this file; a relative `image` lies beside it. Raises: RequestError."""
    data = _read(path)
    preset = find_preset(str(data.pop("preset", "")))
    rows = data.pop("shots", None)
    if not isinstance(rows, list) or not rows:
        raise RequestError(f"{path.name} has no shots and", "must have [[shots]], each with a prompt", "add one at least")
    unknown = next((name for name in data if name not in _SETTINGS), None)
    if unknown is not None:
        rule = f"may have preset, shots, {', '.join(sorted(_SETTINGS))}"
        raise RequestError(f"{path.name} has {unknown[:40]!r} and", rule, "correct its name")
    if isinstance(data.get("image"), str):
        data["image"] = str(path.parent / data["image"])
    shots = [_renamed(row) if isinstance(row, dict) else row for row in rows]
    return GenerationRequest.from_preset(preset, **_renamed(data), shots=shots)


def _renamed(values: dict[str, Any]) -> dict[str, Any]:
    return {_RENAMED.get(name, name): value for name, value in values.items()}


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise RequestError(f"{path.name!r}", f"must be a file that can be read ({error.strerror})", "check the path") from None
    except ValueError as error:  # TOML's own, or text that is no UTF-8
        raise RequestError(f"{path.name}", f"must be TOML: {str(error)[:100]}", "correct it") from None
