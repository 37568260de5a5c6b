"""The paths in the JSON of a stored request or event: those of a job's own files are kept relative to its folder. Pure."""

from collections.abc import Callable
from typing import Any

from backend.schemas.settings import INPUTS


def relative(data: dict[str, Any], folder: str) -> dict[str, Any]:
    """The JSON of a request or an event as it is stored, for a job in this folder."""
    return _changed(data, lambda path: path.removeprefix(f"{folder}/"))


def absolute(data: dict[str, Any], folder: str, job_id: str) -> dict[str, Any]:
    """What `relative` was given, in the folder as it is now. Older versions stored whole paths, of where the folder was then."""

    def whole(path: str) -> str:
        if not path.startswith("/"):
            return f"{folder}/{path}"
        _, own_folder, name = path.partition(f"/{job_id}/")
        return f"{folder}/{name}" if own_folder else path

    return _changed(data, whole)


def _changed(data: dict[str, Any], change: Callable[[str], str]) -> dict[str, Any]:
    if isinstance(result := data.get("result"), dict):
        changes = {"path": change(result["path"])}
        if "request" in result:
            changes["request"] = _changed(result["request"], change)
        return data | {"result": result | changes}
    paths = {one.name: data[one.name] for one in INPUTS if data.get(one.name)}
    return data | {role: change(given) if isinstance(given, str) else [*map(change, given)] for role, given in paths.items()}
