"""What the studio changes in Gradio: each function says for which version, and what it fixes.

`tests/wan_ui/test_gradio_fixes.py` shows each fault without its fix, and fails when a newer Gradio no longer has it. Answers of
Gradio's own addresses are changed by the door (`wan_ui.gateway`: `LoginForm`, `LoginLimit`, `FileCheck`, `upload_route`).
This module imports no Gradio by itself, because `import_gradio` must come first.

Upstream, as far as a search of Gradio's issues finds each fault:

- slow import: gradio-app/gradio#7791, and #10121 about the stubs
- components that are kept again and again: none; #4774 and pull request #8030 describe the design
- the queue that looks for work a thousand times a second: none
- CORS for every origin: #10276, fixed for mounted apps by pull request #13741; this studio is launched, not mounted
- endpoints in the login page, and the login cookie with SameSite=None (`wan_ui/gateway/logins.py`): none
- the clock that asks for animation frames (`wan_ui/assets/before_gradio.js`): none
- an upload of a recording that fails without an event (`wan_ui/form/recording.js`): none; #7490 is about recordings sent twice
- progress that is computed although it is hidden (`SILENT` in `wan_ui/components/events.py`): none

Private parts of Gradio that the studio uses, besides those changed here. After an update of Gradio, read them first:

- `Block._id`: `wan_ui/page.py`, `wan_ui/form/form.py`. `EventData._data`: `wan_ui/components/buttons.py`
- `processing_utils.save_file_to_cache`, `route_utils.upload_fn`, `routes.file_upload_statuses`, `utils.get_upload_folder`:
  `wan_ui/gateway/uploads.py`. `route_utils.get_root_url`: `wan_ui/services/media.py`
- `Blocks.server.config` and the order of `launch`: `wan_ui/serve.py`. All addresses of `wan_ui/gateway/rules.py`
- names of events in quotes in `js_on_load`, and what it gets (`GradioComponent` in `wan_ui/assets/types.d.ts`): `starts`
- that `js` of `launch` runs when the page is drawn, after the modules of its head: `wan_ui/assets/studio.js`
- the class `block` and the ids of fields, `.stop-button` of the microphone, `/upload`: `wan_ui/form/typed.js`, `recording.js`
- `navigator.language` as the language of labels: `wan_ui/assets/before_gradio.js`
- the classes `gradio-container`, `form`, `wrap`, `prose`, `options` in the style sheet
"""

from __future__ import annotations

import functools
import inspect
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
QUEUE_SECONDS, PROGRESS_SECONDS = 0.05, 0.1  # between two looks of Gradio's own queue for work and for progress


def import_gradio() -> None:
    """Imports Gradio in half its time (6.31, `component_meta.py`).

    At every import Gradio writes a type stub (`.pyi`) beside each of its components, for editors: it parses its own sources to do
    so, about one second on one core. Where Python cannot name a class's file it writes none, so that is what it is told of its
    own classes. A version that ignores the answer is imported as slowly as ever, with the same result.
    """
    getfile = inspect.getfile

    def without_components(of: Any) -> str:
        if isinstance(of, type) and of.__module__.startswith("gradio."):
            raise OSError(f"no stub is wanted for {of.__name__}")
        return getfile(of)

    inspect.getfile = without_components  # ty: ignore[invalid-assignment]  # the original's parameter has another name
    try:
        import gradio  # noqa: F401
    finally:
        inspect.getfile = getfile


@functools.cache
def shorten_errors() -> None:
    """Cut the texts of errors, from now on, for all apps of this process (6.31, `Dropdown.preprocess`, `Radio.preprocess`).

    A value that is not among a component's choices is refused with a sentence that holds the whole value, which may have the
    size of the largest request. It is sent back, and written to the log.
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
    """Lets components keep their ids when they are replaced, from now on, for all apps of this process (6.31,
    `Blocks.preprocess_data` and `postprocess_data`).

    Gradio replaces a component that was updated for one page, stores the new one under the old one's id, and gives it an id of
    its own. The next use of the component asks for that id, does not find it, and stores the component again: once for every
    update, with all that it shows, for as long as the page is open.
    """
    from gradio.blocks import Block
    from gradio.state_holder import SessionState

    store = SessionState.__setitem__

    @functools.wraps(store)
    def store_with_id(state: SessionState, key: int, value: object) -> None:
        if isinstance(value, Block):
            value._id = key
        store(state, key, value)

    SessionState.__setitem__ = store_with_id  # ty: ignore[invalid-assignment]  # `wraps` makes an object of the function


@functools.cache
def insert_page_head(head: str, language: Callable[[Mapping[str, str]], str]) -> None:
    """Put this at the start of the head of Gradio's pages, from now on, for all apps of this process (6.31, `routes.templates`).

    What Gradio takes for the page's head comes after its own scripts, too late for `wan_ui/scripts.py`. Of the style sheets
    that Gradio takes (`css`), its script drops cascade layers and writes every other rule twice. The body names the language that
    `language` finds in a request's headers: Gradio says "en" and then the browser's own, whatever language the words are in.
    """
    from gradio.routes import templates

    loader = templates.env.loader
    assert loader is not None, "Gradio's templates have one"
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

    Rules outside of layers win over all rules in layers. Gradio's are outside and have long selectors, so that the studio could
    replace them only with `!important` or with longer selectors. None of Gradio's style sheets contains what a layer must not.
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
    """Lets the queue look for work as often as it does on Windows (6.31, `queueing.Queue`). Elsewhere it looks a thousand times
    a second, which takes 7 % of a core for nothing (measured)."""
    blocks._queue.sleep_when_free, blocks._queue.progress_update_sleep_when_free = QUEUE_SECONDS, PROGRESS_SECONDS


def install_gateway(
    gateway: Middleware, logins: Callable[[], MutableMapping[str, str]]
) -> Callable[[Starlette], AbstractAsyncContextManager[None]]:
    """For the app's `lifespan`: puts the door before everything else, before the first request (6.31, `routes.App`).

    Gradio puts its own middleware outside what it is given. Its CORS goes, because it lets pages of other origins read with the
    visitor's cookies; and so does its dictionary of logins, which never end.
    """
    from gradio.route_utils import CustomCORSMiddleware

    @asynccontextmanager
    async def begin(app: Starlette) -> AsyncGenerator[None]:
        app.user_middleware = [gateway, *(one for one in app.user_middleware if one.cls is not CustomCORSMiddleware)]
        app.middleware_stack = app.build_middleware_stack()
        cast(Any, app).tokens = logins()  # Gradio's app has this attribute, and wants a `dict` where any mapping does
        yield

    return begin
