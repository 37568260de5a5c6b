"""Convert paths in the stored JSON of requests and events. Paths in a job's folder are stored relative to the folder."""

from collections.abc import Callable
from typing import Any

from backend.schemas.settings import INPUTS


def make_relative(data: dict[str, Any], folder: str) -> dict[str, Any]:
    """Return the stored form of the JSON of a request or an event: paths are relative to the job's folder."""
    return _change_paths(data, lambda path: path.removeprefix(f"{folder}/"))


def make_absolute(data: dict[str, Any], folder: str, job_id: str) -> dict[str, Any]:
    """Convert stored paths to absolute paths in the job's current folder.

    Absolute paths, which older versions stored, are converted too.
    """

    def resolve(path: str) -> str:
        if not path.startswith("/"):
            return f"{folder}/{path}"
        _, own_folder, name = path.partition(f"/{job_id}/")
        return f"{folder}/{name}" if own_folder else path

    return _change_paths(data, resolve)


def _change_paths(data: dict[str, Any], change: Callable[[str], str]) -> dict[str, Any]:
    if isinstance(result := data.get("result"), dict):
        changes = {"path": change(result["path"])}
        if "request" in result:
            changes["request"] = _change_paths(result["request"], change)
        return data | {"result": result | changes}
    paths = {one.name: data[one.name] for one in INPUTS if data.get(one.name)}
    return data | {role: change(given) if isinstance(given, str) else [*map(change, given)] for role, given in paths.items()}
