"""Changes to Gradio. Each function states the version and the fault that it fixes.

`tests/wan_ui/test_gradio_fixes.py` shows each fault without its fix, and fails when a newer Gradio no longer has the fault. The
gateway changes responses of Gradio's own addresses (`wan_ui.gateway`: `LoginForm`, `LoginLimit`, `FileCheck`, `upload_route`).
This module does not import Gradio at the top, because `import_gradio` must run first.

Gradio's issues about each fault ("none" if a search found no issue):

- slow import: gradio-app/gradio#7791, and #10121 about the stubs
- updated components that are stored again at every use: none; #4774 and pull request #8030 describe the design
- the queue that polls a thousand times per second: none
- CORS for every origin: #10276, fixed for mounted apps by pull request #13741; this studio is launched, not mounted
- endpoints in the login page, and the login cookie with SameSite=None (`wan_ui/gateway/logins.py`): none
- the clock that requests animation frames (`wan_ui/assets/before_gradio.js`): none
- an upload of a recording that fails without an event (`wan_ui/form/recording.js`): none; #7490 is about recordings sent twice
- progress that is computed although it is hidden (`SILENT` in `wan_ui/components/events.py`): none

Other private parts of Gradio that the studio uses. Check them first after an update of Gradio:

- `Block._id`: `wan_ui/studio.py`, `wan_ui/form/load_settings.py`. `EventData._data`: `wan_ui/components/buttons.py`
- `processing_utils.save_file_to_cache`, `route_utils.upload_fn`, `routes.file_upload_statuses`, `utils.get_upload_folder`:
  `wan_ui/gateway/uploads.py`. `route_utils.get_root_url`: `wan_ui/services/media.py`
- `Blocks.server.config` and the order of `launch`: `wan_ui/serve.py`. All addresses of `wan_ui/gateway/rules.py`
- names of events in quotes in `js_on_load`, and its arguments (`GradioComponent` in `wan_ui/assets/types.d.ts`): `start_script`
- `js` of `launch` runs when the page is rendered, after the modules of its head: `wan_ui/assets/studio.js`
- the class `block` and the ids of fields, `.stop-button` of the microphone, `/upload`: `wan_ui/form/typed.js`, `recording.js`
- `navigator.language` as the language of labels: `wan_ui/assets/before_gradio.js`
- the classes `gradio-container`, `form`, `wrap`, `prose`, `options` in the style sheet
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import AsyncGenerator, Callable, Mapping, MutableMapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    import gradio as gr
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.requests import Request
    from starlette.routing import Route

_KEPT = {"cache-control": "public, max-age=3600"}
ERROR_CHARACTERS = 300
QUEUE_SECONDS, PROGRESS_SECONDS = 0.05, 0.1  # polling intervals of Gradio's queue, for work and for progress


def import_gradio() -> None:
    """Import Gradio in half the time (6.31, `component_meta.py`).

    At every import Gradio parses its own sources to write a type stub (`.pyi`) for each component: one second on one core. It
    writes no stub if Python does not find a class's file. Therefore `inspect.getfile` fails for Gradio's classes meanwhile.

    Gradio also imports the package `mcp` if it is installed, for a server that the studio does not start: 0.8 seconds. An entry
    of None in `sys.modules` makes the import fail.
    """
    getfile = inspect.getfile

    def without_components(of: Any) -> str:
        if isinstance(of, type) and of.__module__.startswith("gradio."):
            raise OSError(f"no stub is needed for {of.__name__}")
        return getfile(of)

    inspect.getfile = without_components  # ty: ignore[invalid-assignment]  # the original's parameter has another name
    hides_mcp = sys.modules.setdefault("mcp", cast(Any, None)) is None
    try:
        import gradio  # noqa: F401
    finally:
        inspect.getfile = getfile
        if hides_mcp:
            del sys.modules["mcp"]


@functools.cache
def shorten_errors() -> None:
    """Shorten the texts of errors for all apps of this process (6.31, `Dropdown.preprocess`, `Radio.preprocess`).

    The error for a value that is not among a component's choices contains the whole value, which can be as large as a request.
    The error is sent to the page and written to the log.
    """
    from gradio.exceptions import Error

    begin = Error.__init__

    @functools.wraps(begin)
    def begin_short(self: Error, message: str = "Error raised.", *arguments: Any, **options: Any) -> None:
        text = str(message)
        begin(self, text if len(text) <= ERROR_CHARACTERS else f"{text[:ERROR_CHARACTERS]}...", *arguments, **options)

    Error.__init__ = begin_short  # ty: ignore[invalid-assignment]


@functools.cache
def keep_component_ids() -> None:
    """Keep the ids of replaced components, for all apps of this process (6.31, `Blocks.preprocess_data`, `postprocess_data`).

    Gradio stores a component that was updated for one page under the old id, but gives it a new id. The next use looks for the
    new id, and stores the component again. Each update therefore leaves another copy in memory until the page closes.
    """
    from gradio.blocks import Block
    from gradio.state_holder import SessionState

    store = SessionState.__setitem__

    @functools.wraps(store)
    def store_with_id(state: SessionState, key: int, value: object) -> None:
        if isinstance(value, Block):
            value._id = key
        store(state, key, value)

    SessionState.__setitem__ = store_with_id  # ty: ignore[invalid-assignment]  # `wraps` returns an object, not a function


@functools.cache
def insert_page_head(head: str, language: Callable[[Mapping[str, str]], str]) -> None:
    """Insert `head` at the start of the head of Gradio's pages, for all apps of this process (6.31, `routes.templates`).

    Gradio's own `head` option is placed after its scripts, too late for `wan_ui/scripts.py`. Gradio's `css` option drops cascade
    layers and writes each style rule twice. The body's `lang` becomes the language that `language` reads from the request's
    headers. Gradio sets "en", then the browser's language, even if the page has another language.
    """
    from gradio.routes import templates

    loader = templates.env.loader
    assert loader is not None, "Gradio's templates have a loader"
    original = loader.get_source

    def with_head(environment: Any, template: str) -> tuple[str, str | None, Callable[[], bool] | None]:
        text, file, is_current = original(environment, template)
        text = text.replace("<body", '<body lang="{{ language_of(request.headers) }}"', 1)
        return text.replace("<head>", f"<head>{head}", 1), file, is_current

    variables: dict[str, Any] = templates.env.globals
    variables["language_of"] = language
    loader.get_source = with_head


def styles_route() -> Route:
    """Serve Gradio's style sheets in a cascade layer named `gradio` (6.31, `templates/frontend/assets`).

    Rules outside of layers override all rules in layers. Without this change the studio could override Gradio's rules only with
    `!important` or longer selectors.
    """
    from gradio.routes import BUILD_PATH_LIB
    from starlette.exceptions import HTTPException
    from starlette.responses import Response
    from starlette.routing import Route

    paths = {path.stem: path for path in Path(BUILD_PATH_LIB).glob("*.css")}

    def answer(request: Request) -> Response:
        path = paths.get(request.path_params["name"])
        if path is None:
            raise HTTPException(404)
        return Response(f"@layer gradio{{{path.read_text(encoding='utf-8')}}}", media_type="text/css", headers=_KEPT)

    return Route("/assets/{name}.css", answer)


def slow_queue_polling(blocks: gr.Blocks) -> None:
    """Poll Gradio's queue as rarely as Gradio does on Windows (6.31, `queueing.Queue`).

    On other systems the queue polls a thousand times per second, which uses 7 % of a core (measured).
    """
    blocks._queue.sleep_when_free, blocks._queue.progress_update_sleep_when_free = QUEUE_SECONDS, PROGRESS_SECONDS


def install_gateway(
    gateway: Middleware, logins: Callable[[], MutableMapping[str, str]]
) -> Callable[[Starlette], AbstractAsyncContextManager[None]]:
    """Return the app's `lifespan`, which makes the gateway the outermost middleware (6.31, `routes.App`).

    Gradio places its own middleware outside the given middleware. Its CORS middleware is removed, because it lets pages of other
    origins read responses with the visitor's cookies. Its dictionary of logins is replaced, because logins in it never expire.
    """
    from gradio.route_utils import CustomCORSMiddleware

    @asynccontextmanager
    async def begin(app: Starlette) -> AsyncGenerator[None]:
        app.user_middleware = [gateway, *(one for one in app.user_middleware if one.cls is not CustomCORSMiddleware)]
        app.middleware_stack = app.build_middleware_stack()
        cast(Any, app).tokens = logins()  # Gradio's app declares a `dict`, but any mapping works
        yield

    return begin
