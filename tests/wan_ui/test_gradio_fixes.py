"""Tests of each Gradio fault that the studio works around, without and with the fix. If Gradio has no fault, delete the fix."""

import asyncio
import inspect
import re
import subprocess
import sys
from pathlib import Path

import gradio as gr
import httpx
import pytest
from gradio.route_utils import CustomCORSMiddleware
from gradio.routes import BUILD_PATH_LIB, App
from gradio.state_holder import SessionState
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.testclient import TestClient

from backend.settings import PROJECT_FOLDER
from wan_ui.gateway.logins import LoginForm, LoginLimit, Logins
from wan_ui.gradio_fixes import install_gateway, keep_component_ids, shorten_errors, slow_queue_polling, styles_route

GONE = "this Gradio no longer has the fault: see wan_ui/gradio_fixes.py"
OURS = "from wan_ui.gradio_fixes import import_gradio; import_gradio(); import gradio"
COUNT_STUBS = """
import sys
opened = []
sys.addaudithook(lambda event, given: event == "open" and str(given[0]).endswith(".pyi") and opened.append(given[0]))
{importing}
print(len(opened))
"""


def stubs(importing: str) -> int:
    """Return the number of stubs that are read or written while Gradio is imported."""
    command = [sys.executable, "-c", COUNT_STUBS.format(importing=importing)]
    return int(subprocess.run(command, cwd=PROJECT_FOLDER, check=True, capture_output=True, timeout=120).stdout)


def test_gradio_is_imported_without_its_stubs():
    assert stubs("import gradio") > 10, GONE
    assert stubs(OURS) == 0


def test_gradio_is_imported_without_the_server_that_is_not_started():
    def imports_mcp(importing: str) -> bool:
        command = [sys.executable, "-c", f"{importing}; import sys; print('mcp' in sys.modules, gradio.__version__)"]
        return subprocess.run(command, cwd=PROJECT_FOLDER, check=True, capture_output=True, text=True).stdout.startswith("True")

    assert imports_mcp("import gradio"), GONE
    assert not imports_mcp(OURS)
    assert imports_mcp(f"{OURS}; import mcp")


def test_gradios_style_sheets_are_served_in_a_layer_and_contain_nothing_that_a_layer_must_not():
    visitor, sheets = TestClient(Starlette(routes=[styles_route()])), list(Path(BUILD_PATH_LIB).glob("*.css"))
    assert any("{" in sheet.read_text() and "@layer" not in sheet.read_text() for sheet in sheets), GONE
    for sheet in sheets:
        assert not re.search("@(import|charset|namespace)", sheet.read_text()), sheet.name
        assert visitor.get(f"/assets/{sheet.name}").text == f"@layer gradio{{{sheet.read_text()}}}"
    assert visitor.get("/assets/other.css").status_code == 404


def test_a_component_that_is_updated_again_and_again_is_kept_once(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(SessionState, "__setitem__", inspect.unwrap(SessionState.__setitem__))
        blocks, state, _ = asyncio.run(_updated_again_and_again())
        assert len(state.blocks_config.blocks) > len(blocks.blocks), GONE
    keep_component_ids()
    blocks, state, choice = asyncio.run(_updated_again_and_again())
    assert state.blocks_config.blocks.keys() == blocks.blocks.keys()
    assert state.config_values.keys() <= blocks.blocks.keys()
    assert state[choice._id].choices == [("one", "one"), ("5", "5")]


def test_a_refused_choice_is_not_sent_back_whole(monkeypatch):
    def refusal(value: str) -> str:
        with pytest.raises(gr.Error) as caught:
            gr.Dropdown(["one"]).preprocess(value)
        return str(caught.value)

    with monkeypatch.context() as patch:
        patch.setattr(gr.Error, "__init__", inspect.unwrap(gr.Error.__init__))
        assert len(refusal("x" * 100_000)) > 100_000, GONE
    shorten_errors()
    assert len(refusal("x" * 100_000)) < 400 and "is not in the list of choices: ['one']" in refusal("two")


async def _updated_again_and_again() -> tuple[gr.Blocks, SessionState, gr.Dropdown]:
    with gr.Blocks() as blocks:
        choice, shown = gr.Dropdown(["one"]), gr.HTML()
        gr.Button().click(lambda chosen: None, choice, [choice, shown])
    (function,) = blocks.fns.values()
    state = SessionState(blocks)
    for number in range(6):
        await blocks.preprocess_data(function, ["one"], state)
        html = gr.skip() if number % 2 else f"<p>{number}</p>"
        await blocks.postprocess_data(function, [gr.update(choices=["one", str(number)]), html], state)
    return blocks, state, choice


@pytest.mark.skipif(sys.platform == "win32", reason="there Gradio's queue looks less often by itself")
def test_the_queue_looks_less_often():
    async def look() -> None:
        blocks = gr.Blocks()
        assert blocks._queue.sleep_when_free < 0.01 and blocks._queue.progress_update_sleep_when_free < 0.1, GONE
        slow_queue_polling(blocks)
        assert (blocks._queue.sleep_when_free, blocks._queue.progress_update_sleep_when_free) == (0.05, 0.1)

    asyncio.run(look())  # without a running event loop Gradio creates a loop and never closes it


class Given:
    """Middleware that forwards every request unchanged."""

    def __init__(self, app):
        self.app = app

    async def __call__(self, scope, receive, send):
        await self.app(scope, receive, send)


def test_the_door_is_outermost_there_is_no_cors_and_logins_end():
    async def look() -> None:
        app = App.create_app(gr.Blocks(), app_kwargs={"middleware": [Middleware(Given)]})
        kinds = [one.cls for one in app.user_middleware]
        assert kinds.index(CustomCORSMiddleware) < kinds.index(Given) and type(app.tokens) is dict, GONE
        app = App.create_app(gr.Blocks(), app_kwargs={"lifespan": install_gateway(Middleware(Given), Logins)})
        async with app.router.lifespan_context(app):
            kinds = [one.cls for one in app.user_middleware]
            assert kinds[0] is Given and CustomCORSMiddleware not in kinds and isinstance(app.tokens, Logins)

    asyncio.run(look())


def answer(*middleware, **request) -> httpx.Response:
    """Send a request to a Gradio app with a password, an endpoint and this middleware, and return the response."""

    async def ask() -> httpx.Response:
        with gr.Blocks() as blocks:
            gr.Button().click(lambda: None, api_name="secret")
        blocks.auth, blocks.auth_message = [("user", "password")], None
        app = App.create_app(blocks, app_kwargs={"middleware": [Middleware(one) for one in middleware]})
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="https://studio.example") as client:
            return await client.request(**request)

    return asyncio.run(ask())


def test_before_the_login_nothing_describes_the_endpoints():
    page = {"method": "GET", "url": "/"}
    assert '"/secret"' in answer(**page).text, GONE
    assert '"/secret"' not in answer(LoginForm, **page).text


def test_a_logins_cookie_comes_with_no_request_of_another_site():
    login = {"method": "POST", "url": "/login", "data": {"username": "user", "password": "password"}}
    assert "samesite=none" in answer(**login).headers["set-cookie"].lower(), GONE
    cookies = answer(LoginLimit, **login).headers["set-cookie"].lower()
    assert "samesite=none" not in cookies and "samesite=lax" in cookies


COUNT_FRAMES = """
window.asked = 0;
const ask = window.requestAnimationFrame.bind(window);
const count = callback => { asked += 1; return ask(callback); };
"""
AS_USUAL = "window.requestAnimationFrame = count"
NOT_TO_BE_CHANGED = "Object.defineProperty(window, 'requestAnimationFrame', {value: count, writable: false})"
FEWEST = """async () => {
    const found = [];
    for (let second = 0; second < 5; second += 1) {
        const before = asked;
        await new Promise(done => setTimeout(done, 1000));
        found.push(asked - before);
    }
    return Math.min(...found);
}"""


def fewest_frames(chromium, url: str, way: str) -> int:
    """Measure for five seconds how many frames an idle page requests each second, and return the smallest number."""
    page = chromium.new_context().new_page()
    page.add_init_script(COUNT_FRAMES + way)
    page.goto(url)
    page.wait_for_function("window.studio?.isOpen && document.querySelector('.status')?.dataset.state === 'ready'")
    fewest = page.evaluate(FEWEST)
    page.context.close()
    return fewest


@pytest.mark.browser  # must be the last test: while a browser is open, no other event loop can run in this thread
def test_a_page_on_which_nothing_happens_asks_for_no_frames(chromium, studio):
    assert fewest_frames(chromium, studio.url, NOT_TO_BE_CHANGED) > 10, GONE
    assert fewest_frames(chromium, studio.url, AS_USUAL) < 5
