"""Serves the page's JavaScript: all ES modules as one file, at an address that contains its hash, so that browsers cache it.

Each module becomes a function, which runs after the modules that it imports. The entry is `assets/studio.js`.
`assets/before_gradio.js` is not a module: it runs before Gradio's own scripts.
"""

import hashlib
import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

PATH = "/studio/scripts/{version}.js"
ENTRY, FIRST = "assets/studio.js", "assets/before_gradio.js"
_FOLDER = Path(__file__).parent
_CACHE_FOREVER = {"cache-control": "public, max-age=31536000, immutable"}
_IMPORT = re.compile(r"^import \{([^}]*)\} from '(\.[^']+)';\n", re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function\*?|const|class) (\w+))", re.MULTILINE)
_UNKNOWN = re.compile(r"^(?:import|export)\b.*", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Scripts:
    """`joined` holds all modules, `first` is the script that runs before all others, `version` is a hash of `joined`."""

    joined: str
    first: str
    version: str

    @classmethod
    def read(cls, folder: Path = _FOLDER) -> Self:
        """Join the entry and all modules that it imports. Raises: ValueError, see `join_modules`."""
        files = {path.relative_to(folder).as_posix(): path.read_text("utf-8") for path in folder.rglob("*.js")}
        joined = join_modules(files, ENTRY)
        version = hashlib.blake2b(joined.encode(), digest_size=8).hexdigest()
        return cls(joined=joined, first=files[FIRST], version=version)

    def head(self) -> str:
        entry = f'<script type="module" src="studio/scripts/{self.version}.js"></script>'
        return f"<script>(() => {{{self.first}}})();</script>{entry}"


def join_modules(files: Mapping[str, str], entry: str) -> str:
    """Join the ES modules `files`, texts by path, into one module. `entry` runs last.

    Raises: ValueError if a module imports or exports in another form than `import { a, b as c } from './d.js';` and `export`
    before a function, class or constant, or imports itself indirectly.
    """
    names: dict[str, str] = {}
    texts: list[str] = []

    def add(path: str, importers: tuple[str, ...]) -> str:
        if path in importers:
            raise ValueError(f"{path} imports itself through {importers[-1]}")
        if path not in names:

            def replace_import(found: re.Match[str]) -> str:
                name = add(posixpath.normpath(posixpath.join(posixpath.dirname(path), found[2])), (*importers, path))
                return f"const {{{found[1].replace(' as ', ': ')}}} = {name};\n"

            body = _IMPORT.sub(replace_import, files[path])
            exported = ", ".join(_EXPORT.findall(body))
            body = _EXPORT.sub("", body)
            if unknown := _UNKNOWN.search(body):
                raise ValueError(f"{path}: cannot join {unknown[0]!r}")
            names[path] = f"module{len(names)}"
            texts.append(f"const {names[path]} = (() => {{ // {path}\n{body}return {{ {exported} }};\n}})();\n")
        return names[path]

    add(entry, ())
    return "".join(texts)


def scripts_route(scripts: Scripts) -> Route:
    async def answer(request: Request) -> Response:
        if request.path_params["version"] != scripts.version:
            return Response(status_code=404)
        return Response(scripts.joined, headers=_CACHE_FOREVER, media_type="text/javascript")

    return Route(PATH, answer, methods=["GET"])
