"""A request with its pictures in a folder: how the engine keeps jobs, and the stage commands runs. Brings no JAX."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from PIL.Image import Image

from backend.contract.request import GenerationRequest
from backend.errors import RequestError
from backend.files import replacing
from backend.media.pictures import load_checked_image

REQUEST = "request.json"


def open_pictures(request: GenerationRequest) -> dict[str, Image]:
    """The request's pictures by field, opened and checked. Raises: ImageError."""
    return {name: load_checked_image(path) for name in ("image", "last_image") if (path := getattr(request, name)) is not None}


def write_request(request: GenerationRequest, pictures: Mapping[str, Image], folder: Path) -> GenerationRequest:
    """Fills the folder with the pictures and `request.json`; the request then names those pictures."""
    for name, picture in pictures.items():
        picture.save(folder / f"{name}.png", compress_level=1)
    request = request.changed(**{name: str(folder / f"{name}.png") for name in pictures})
    with replacing(folder / REQUEST) as part:
        part.write_text(json.dumps(request.to_json(), indent=2, ensure_ascii=False), "utf-8")
    return request


def read_request(folder: Path) -> GenerationRequest:
    """The folder's request, its pictures where the folder lies now. Raises: RequestError where it holds none."""
    try:
        data = json.loads((folder / REQUEST).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise RequestError(
            f"run={str(folder)!r}",
            "must be a folder that `app.py encode` or the studio has written",
            "check the path, or begin with `app.py encode`",
        ) from error
    moved = {name: str(folder / Path(data[name]).name) for name in ("image", "last_image") if data.get(name)}
    return GenerationRequest.from_stored(data | moved)
