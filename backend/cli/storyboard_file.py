"""Read the file of the command `storyboard`: settings of all shots, then the shots."""

import json
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from backend.errors import RequestError
from backend.media.clips import read_clip_facts
from backend.schemas.clip import clip_frames, max_frames_within
from backend.schemas.request import GenerationRequest
from backend.schemas.settings import SETTINGS, find_preset
from backend.schemas.shots import FILES

_RENAMED = {"frames": "num_frames"}
_SHARED = {name for name, one in SETTINGS.items() if one.stage and one.subject == "core"} - {"preset", *_RENAMED.values()}
TRACK = ("track", "track_start", "track_fade", "track_volume")
_SETTINGS = _SHARED | {"image", "figures", *_RENAMED, *TRACK}


def read_storyboard(path: Path, figures: Sequence[tuple[str, str]] = ()) -> GenerationRequest:
    """Read a storyboard from a TOML file, or from JSON if its name ends in .json. Raises: RequestError.

    Paths in the file are relative to the file's folder. `figures` are additional characters as (name, image path). They replace
    characters of the same name in the file.
    """
    data = read_table(path)
    preset = find_preset(str(data.pop("preset", "")))
    rows = data.pop("shots", None)
    if not isinstance(rows, list) or not rows:
        raise RequestError(f"{path.name} has no shots and", "must have [[shots]], each with a prompt", "add at least one")
    unknown = next((name for name in data if name not in _SETTINGS), None)
    if unknown is not None:
        rule = f"may have preset, shots, {', '.join(sorted(_SETTINGS))}"
        raise RequestError(f"{path.name} has {unknown[:40]!r} and", rule, "correct its name")
    data |= {name: path_beside(path, data[name]) for name in ("image", "track") if isinstance(data.get(name), str)}
    characters = data.get("figures", [])
    if isinstance(characters, list) and (figures or characters):
        new = {name.lower() for name, _ in figures}
        own = [row for row in characters if not (isinstance(row, dict) and str(row.get("name")).lower() in new)]
        for index, row in enumerate(own):
            if isinstance(row, dict) and isinstance(row.get("image"), str):
                own[index] = row | {"image": path_beside(path, row["image"])}
        data["figures"] = [*own, *({"name": name, "image": image} for name, image in figures)]
    fps = data.get("fps", preset.fps)
    shots = []
    for row in rows:
        values = row
        if isinstance(row, dict):
            values = {_RENAMED.get(name, name): value for name, value in row.items()}
            values |= {kind: path_beside(path, values[kind]) for kind in FILES if isinstance(values.get(kind), str)}
            for kind, count_frames in (("video", max_frames_within), ("drive", clip_frames)):  # take a missing length from a clip
                if isinstance(values.get(kind), str) and not {"num_frames", "seconds"} & values.keys() and isinstance(fps, int):
                    values["num_frames"] = count_frames(read_clip_facts(values[kind]).seconds, fps)
        shots.append(values)
    renamed: dict[str, Any] = {_RENAMED.get(name, name): value for name, value in data.items()}
    return GenerationRequest.from_preset(preset, **renamed, shots=shots)


def path_beside(path: Path, name: str) -> str:
    """Return the path of `name`, relative to the folder of the file at `path`."""
    return str(path.parent / name)


def read_table(path: Path) -> dict[str, Any]:
    is_json = path.suffix.lower() == ".json"
    try:
        found = json.loads(path.read_text("utf-8")) if is_json else tomllib.loads(path.read_text("utf-8"))
        if not isinstance(found, dict):
            raise ValueError("it must be an object")
        return found
    except OSError as error:
        raise RequestError(f"{path.name!r}", f"must be a readable file ({error.strerror})", "check the path") from None
    except (ValueError, RecursionError) as error:  # invalid syntax, or text that is not UTF-8
        rule = f"must be {'JSON' if is_json else 'TOML'}: {str(error)[:100]}"
        raise RequestError(f"{path.name}", rule, "correct it") from None
