"""Serves the page's JavaScript: ES modules, unchanged, at addresses that contain a hash of all of them, so browsers keep them.

The page's head lists all modules, so that a browser fetches them at once and not one import after another. The entry is
`assets/studio.js`. `assets/before_gradio.js` is no module: it runs before Gradio's own scripts.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

PATH = "/studio/scripts/{version}/{name:path}"
ENTRY, FIRST = "assets/studio.js", "assets/before_gradio.js"
_FOLDER = Path(__file__).parent
_FOR_EVER = {"cache-control": "public, max-age=31536000, immutable"}


@dataclass(frozen=True, kw_only=True)
class Scripts:
    """The modules, by their path below `wan_ui`, what runs before all others, and a hash of the modules."""

    modules: Mapping[str, bytes]
    first: str
    version: str

    @classmethod
    def read(cls, folder: Path = _FOLDER) -> Self:
        """All JavaScript files in this folder and below it."""
        files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*.js"))}
        first = files.pop(FIRST).decode()
        version = hashlib.blake2b(repr(files).encode(), digest_size=8).hexdigest()
        return cls(modules=files, first=first, version=version)

    def head(self) -> str:
        """What the page's head begins with."""
        address = f"studio/scripts/{self.version}/"
        modules = "".join(f'<link rel="modulepreload" href="{address}{name}">' for name in self.modules)
        entry = f'<script type="module" src="{address}{ENTRY}"></script>'
        return f"<script>(() => {{{self.first}}})();</script>{modules}{entry}"


def scripts_route(scripts: Scripts) -> Route:
    """The endpoint of the modules."""

    async def answer(request: Request) -> Response:
        module = scripts.modules.get(request.path_params["name"])
        if module is None or request.path_params["version"] != scripts.version:
            return Response(status_code=404)
        return Response(module, headers=_FOR_EVER, media_type="text/javascript")

    return Route(PATH, answer, methods=["GET"])
