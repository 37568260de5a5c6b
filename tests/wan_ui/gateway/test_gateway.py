"""Tests of a running server's gateway: names, origins, rules for every address and handler, behind a proxy, and slow callers."""

import asyncio
import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest
import uvicorn
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient

from backend.settings import PROJECT_FOLDER
from tests.clock import is_within
from tests.fifth_view.panel import FIFTH
from tests.wan_ui.conftest import _free_port, _serving
from tests.wan_ui.visitor import Visitor
from wan_ui.gateway import body_limit, connections
from wan_ui.gateway.access import Access
from wan_ui.gateway.gateway import Gateway, Hosts
from wan_ui.gateway.rules import ROUTES, RuleTable
from wan_ui.view import collect_rules
from wan_ui.views import VIEWS

OUTER = "studio.example"
EVIL = {"host": "evil.example:7960", "origin": "http://evil.example:7960"}

# The page's reviewed handlers. All are called through an address with the rule `login`. A `visitor` handler receives jobs, images
# or names from the page. It checks with `StudioContext.identify_caller` or `gateway/uploads.py` what its caller may do with them.
# An `operator` handler checks with `StudioContext.identify_caller` and does nothing for other callers.
HANDLERS = {
    "BatchHandlers.preview": "visitor",
    "BatchHandlers.act": "visitor",
    "RewriteHandlers.suggest": "visitor",
    "RewriteHandlers.act": "login",
    "RewriteHandlers.clear_if_changed": "login",
    "InstantHandlers.act": "visitor",
    "FormHandlers.wire.<locals>.<lambda>": "login",
    "build_prompt_panel.<locals>.<lambda>": "login",
    "FormHandlers.task_chooser.<locals>.choose": "login",
    "FormHandlers.choose_preset": "login",
    "ImageHandlers.choose_example_image": "login",
    "FormHandlers.apply_guided_steps": "login",
    "FormHandlers.keep_guided_steps": "login",
    "FormHandlers.show_edit_mode": "login",
    "FormHandlers.estimate": "visitor",
    "ImageHandlers.show_new_image": "visitor",
    "ImageHandlers.show_crop": "visitor",
    "ImageHandlers.move_crop": "visitor",
    "ImageHandlers.pad_image": "visitor",
    "LoadHandlers.act": "visitor",
    "LoadHandlers.drop": "visitor",
    "OwnPresetHandlers.act": "visitor",
    "StageHandlers.submit": "visitor",
    "StageHandlers.follow": "visitor",
    "StageHandlers.update_after_job": "visitor",
    "StageHandlers.stop": "visitor",
    "StageHandlers.keep_seed": "visitor",
    "QueueHandlers.act": "visitor",
    "QueueHandlers.again": "visitor",
    "QueueHandlers.show": "visitor",
    "CompareHandlers.start": "visitor",
    "CompareHandlers.act": "visitor",
    "CompareHandlers.render_again": "visitor",
    "_values_or_presets": "login",
    "_also_values": "login",
    "EditHandlers.act": "visitor",
    "EditHandlers.show_queued_job": "visitor",
    "LibraryHandlers.search": "visitor",
    "ProjectHandlers.act": "visitor",
    "LibraryHandlers.act": "visitor",
    "ModelsHandlers.render_panel": "visitor",
    "ModelsHandlers.act": "operator",
    "SystemHandlers.render_panel": "visitor",
    "SystemHandlers.clean": "operator",
    "SystemHandlers.keep": "operator",
    "PageHandlers.open": "visitor",
    "PageHandlers.tick": "visitor",
    "add_api.<locals>.generate": "visitor",
    "FifthHandlers.act": "login",
    "FifthHandlers.look": "login",
}


@pytest.fixture(scope="module")
def url(tmp_path_factory) -> Iterator[str]:
    with _serving("fake", tmp_path_factory.mktemp("door"), more=["--allowed-host", OUTER]) as server:
        yield server.url


@pytest.fixture(scope="module")
def locked(tmp_path_factory) -> Iterator[str]:
    """Start a server with a password."""
    with _serving("fake", tmp_path_factory.mktemp("locked"), more=["--auth", "user:password"]) as server:
        yield server.url


@pytest.fixture(scope="module")
def launched(tmp_path_factory) -> dict[str, list[str]]:
    """List the addresses and handlers of a launched page that has one more view."""
    command = [sys.executable, "-m", "tests.wan_ui.list_routes", str(tmp_path_factory.mktemp("launched"))]
    return json.loads(subprocess.run(command, cwd=PROJECT_FOLDER, check=True, capture_output=True, timeout=120).stdout)


def test_every_address_has_a_rule_and_every_rule_an_address(launched):
    found = set(launched["addresses"])
    assert found == collect_rules([*VIEWS, FIFTH]).keys()


def test_every_handler_has_a_rule_and_every_rule_a_handler(launched):
    assert launched["handlers"].keys() == HANDLERS.keys()


def test_a_handler_that_must_ask_who_calls_it_is_given_the_request(launched):
    asked = {name for name, rule in HANDLERS.items() if rule != "login"}
    assert asked <= {name for name, takes_request in launched["handlers"].items() if takes_request}


def test_no_view_changes_the_rule_of_an_address_that_is_not_its_own():
    paths = [path for rules in (ROUTES, *(view.rules for view in VIEWS)) for path in rules]
    assert len(paths) == len(set(paths)) == len(collect_rules(VIEWS))
    assert all(path.startswith("/studio/") for view in VIEWS for path in view.rules)


def test_only_the_endpoint_for_programs_is_named_to_them(launched):
    assert launched["public"] == ["generate"]


def test_none_of_the_pages_handlers_has_gradio_show_its_progress(launched):
    """Gradio's page visits all components that may show progress for each part of an answer."""
    assert launched["progress"] == ["generate"]


def test_the_door_is_outermost_and_there_is_no_cors(launched):
    first, *others = launched["middleware"]
    assert first == "Gateway" and "CustomCORSMiddleware" not in others and launched["connection"] == "LimitedConnection"


def test_an_address_without_a_rule_is_refused():
    book = RuleTable()
    for path in ("/new", "/gradio_api/new", "/studio/media", "/docs", "/gradio_api/call/v2/generate", "/gradio_api//upload"):
        assert book.find_rule(path) == "refused", path
    assert (
        book.find_rule("/gradio_api/call/generate/") == "login"
        and book.find_rule("/studio/media/job/previews/1.png") == "visitor"
    )


def test_what_gradio_brings_and_nobody_needs_is_refused(url):
    answers = list(answers_of(url, {"refused"}))
    assert len(answers) > 20 and {status for _, _, status in answers} == {404}, answers


def answers_of(url: str, rules: set[str]) -> Iterator[tuple[str, str, int]]:
    """Yield method, path and status of a GET and a POST to each address whose rule is in `rules`."""
    with httpx.Client(base_url=url.rstrip("/")) as client:
        for path in (path for path, rule in collect_rules(VIEWS).items() if rule in rules):
            names = [part.partition("}")[0] for part in path.replace(":path", "").split("{")[1:]]
            place = path.replace(":path", "").format_map(dict.fromkeys(names, "a"))
            for method in ("GET", "POST"):
                client.cookies.clear()
                yield method, place, client.request(method, place).status_code


def test_a_recording_or_a_deep_link_leaves_nothing(url):
    assert httpx.post(f"{url}gradio_api/process_recording", files={"file": b"x" * 1000}).status_code == 404
    assert httpx.get(f"{url}?deep_link=abc").status_code == 404 and httpx.get(f"{url}config?deep%5flink=abc").status_code == 404


@pytest.mark.parametrize("path", ["", "config", "mcp", "gradio_api/queue/data?session_hash=x", "studio/media/x/video.mp4"])
def test_a_name_that_is_not_served_gets_one_sentence(url, path):
    answer = httpx.get(url + path, headers=EVIL)
    assert answer.status_code == 421
    assert answer.json()["error"] == (
        "This server does not accept the host name evil.example:7960. To allow it, start the server with --allowed-host evil.example:7960."
    )


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:1", "10.0.0.5:80", "[::1]", OUTER, f"{OUTER}:443"])
def test_numbers_localhost_and_allowed_names_are_served(url, host):
    assert httpx.get(url, headers={"host": host}).status_code == 200


def test_a_proxys_outer_name_must_be_served_too(url):
    assert httpx.get(url, headers={"x-forwarded-host": OUTER}).status_code == 200
    assert httpx.get(url, headers={"x-forwarded-host": "evil.example"}).status_code == 421
    assert httpx.get(url, headers={"x-forwarded-host": f"{OUTER}, evil.example"}).status_code == 421


@pytest.mark.parametrize("origin", ["http://127.0.0.1:1", "https://evil.example", "null", "http://localhost:7860"])
@pytest.mark.parametrize(
    "path", ["config", "gradio_api/queue/data?session_hash=x", "gradio_api/run/predict", "gradio_api/upload"]
)
def test_pages_of_other_origins_neither_read_nor_write(url, origin, path):
    for method in ("GET", "POST", "OPTIONS"):
        headers = {"origin": origin, "access-control-request-method": "POST"}
        answer = httpx.request(method, url + path, headers=headers)
        assert answer.status_code == 403 and not [name for name in answer.headers if name.startswith("access-control")]


def test_the_servers_own_page_reads_and_writes_and_no_other_may_frame_it(url):
    answer = httpx.get(f"{url}config", headers={"origin": url.rstrip("/")})
    assert answer.status_code == 200 and "access-control-allow-origin" not in answer.headers
    assert answer.headers["x-frame-options"] == "SAMEORIGIN"
    assert answer.headers["content-security-policy"] == "frame-ancestors 'self'"


def test_without_the_login_nothing_but_the_form_is_there(locked):
    answers = list(answers_of(locked, {"login", "owner", "program", "operator"}))
    assert len(answers) > 20 and {status for _, _, status in answers} == {401}, answers


def test_before_the_login_the_server_tells_nothing_about_itself(locked):
    assert httpx.get(f"{locked}healthz").json().keys() == {"worker"}
    assert httpx.get(f"{locked}openapi.json").status_code == 404
    page = httpx.get(locked).text
    assert "Generate a video from a prompt." not in page and '"auth_required":true' in page


def test_with_the_login_the_page_is_there(locked):
    with httpx.Client(base_url=locked) as client:
        assert client.post("login", data={"username": "user", "password": "password"}).status_code == 200
        assert client.get("config").status_code == 200 and "Generate a video from a prompt." in client.get("").text


def test_the_operators_key_counts_in_any_case_of_its_scheme():
    for header, has in (("Bearer key", True), ("bearer key", True), ("BEARER  key", True), ("Basic key", False), ("key", False)):
        assert Access("key").has_operator_key(httpx.Headers({"authorization": header})) == has


@pytest.mark.parametrize("path", ["v1/videos", "v1/models", "v1/videos/x", "v1/videos/x/content", "v1/videos/x/events"])
def test_what_belongs_to_somebody_needs_a_key_or_a_visitors_cookie_everywhere(url, locked, path):
    for server in (url, locked):
        assert httpx.get(server + path).status_code == 401
    with httpx.Client(base_url=url) as browser:
        browser.get("")
        assert browser.get(path).status_code in (200, 404)
        refused = browser.get(path, headers={"authorization": "Bearer studio-unknown"})
        assert refused.status_code == 401 and refused.json()["error"]["code"] == "invalid_api_key"
    with httpx.Client(base_url=locked) as stranger:
        stranger.get("")
        assert stranger.get(path).status_code == 401  # the cookie without the password


def test_a_visitor_sees_with_the_cookie_what_was_made_on_the_page(url):
    with httpx.Client(base_url=url) as browser, httpx.Client(base_url=url) as other:
        browser.get(""), other.get("")
        made = browser.post("v1/videos", json={"prompt": "a red square", "steps": 1}).json()
        assert [one["id"] for one in browser.get("v1/videos").json()["data"]] == [made["id"]]
        assert other.get("v1/videos").json()["data"] == [] and other.get(f"v1/videos/{made['id']}").status_code == 404


@pytest.mark.parametrize("path", ["v1", "v1/chat/completions", "v1/videos/x/remix", "v1/videos/characters/x/y", "v1x/y"])
def test_refusals_have_the_shape_that_their_sender_reads(url, path):
    answer = httpx.get(url + path)
    told = answer.json()["error"]
    assert answer.status_code == 404 and isinstance(told, str if path.startswith("v1x") else dict)
    if isinstance(told, dict):
        assert told == {"message": "Page not found.", "type": "invalid_request_error", "param": None, "code": "not_found"}
    assert httpx.get(f"{url}v1/videos", headers=EVIL).json()["error"].keys() == {"message", "type", "param", "code"}


def test_keys_that_cannot_be_read_lock_nobody_out_for_good(tmp_path):
    (tmp_path / "keys.sqlite3").write_bytes(b"no database" * 1000)
    site = TestClient(Gateway(PlainTextResponse(""), access=Access.load_or_create(tmp_path), hosts=Hosts(["testserver"])))
    answer = site.get("/v1/videos", headers={"authorization": "Bearer studio-x"})
    assert answer.status_code == 503 and str(tmp_path) not in answer.text
    assert site.get("/v1/videos", headers={"authorization": f"Bearer {Access.load_or_create(tmp_path).key}"}).status_code == 200


def test_wrong_passwords_slow_an_address_down(tmp_path):
    with _serving("fake", tmp_path, more=["--auth", "user:password"]) as server:
        headers = {"x-forwarded-for": "203.0.113.9"}
        wrong = {"username": "user", "password": "wrong"}
        answers = [httpx.post(f"{server.url}login", data=wrong, headers=headers).status_code for _ in range(10)]
        assert answers == [400] * 5 + [429] * 5
        right = {"username": "user", "password": "password"}
        assert httpx.post(f"{server.url}login", data=right, headers={"x-forwarded-for": "203.0.113.8"}).status_code == 200
    assert (tmp_path / "server.log").read_text().count("Wrong password from 203.0.113.9") == 5


class _Proxy(BaseHTTPRequestHandler):
    """A small reverse proxy. `outer` returns the headers that replace a request's headers."""

    protocol_version = "HTTP/1.0"
    target: str
    outer: Callable[[str], dict[str, str]]

    def _pass(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        own = {name: value for name, value in self.headers.items() if name.lower() not in ("host", "connection")}
        answer = httpx.request(
            self.command, self.target + self.path, content=body, headers=own | type(self).outer(self.headers["host"])
        )
        self.send_response(answer.status_code)
        for name, value in answer.headers.items():
            if name not in ("content-encoding", "content-length", "transfer-encoding", "connection"):
                self.send_header(name, value)
        self.end_headers()
        self.wfile.write(answer.content)

    do_GET = do_POST = _pass

    def log_message(self, *_) -> None:
        """Says nothing."""


def _forwarded(host: str) -> dict[str, str]:
    return {"x-forwarded-host": host, "x-forwarded-proto": "https", "x-forwarded-for": "203.0.113.5"}


PROXIES = {
    "its own Host": lambda host: {},
    "the outer Host": lambda host: {"host": host},
    "its own Host and X-Forwarded": _forwarded,
    "the outer Host and X-Forwarded": lambda host: {"host": host} | _forwarded(host),
}


@pytest.mark.parametrize("kind", PROXIES)
def test_it_works_behind_a_proxy(url, kind):
    handler = type("Handler", (_Proxy,), {"target": url.rstrip("/"), "outer": staticmethod(PROXIES[kind])})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{proxy.server_port}"
        person = {"host": OUTER, "origin": f"https://{OUTER}"}
        with httpx.Client(base_url=address, headers=person) as client:
            assert client.get("/").status_code == 200
            config = client.get("/config").json()
            tick = next(one for one in config["dependencies"] if one["api_name"] == "show_edit_mode")
            call = {"data": [None], "fn_index": tick["id"], "session_hash": "x"}
            assert client.post("/gradio_api/run/predict", json=call).json()["data"]
            evil = {"origin": "https://evil.example"}
            assert client.post("/gradio_api/run/predict", json=call, headers=evil).status_code == 403
        proxy.shutdown()


def test_one_address_may_not_have_too_many_requests_open():
    answers = []

    async def inner(scope, receive, send) -> None:
        if scope["path"] == "/login":  # a second request while this request is open
            again = dict(scope, path="/healthz")
            answers.append([])
            await gateway(again, receive, lambda message: _keep(message, answers[-1]))
        await PlainTextResponse("")(scope, receive, send)

    gateway = Gateway(inner, access=Access("key"), hosts=Hosts(["testserver"]), most_open=1)
    for address, status in (("203.0.113.1", 503), ("127.0.0.1", 200)):
        assert TestClient(gateway, client=(address, 1)).get("/login").status_code == 200
        assert answers[-1][0]["status"] == status
    assert not gateway._open


async def _keep(message: dict, kept: list[dict]) -> None:
    kept.append(message)


def test_a_body_that_comes_too_slowly_is_ended(monkeypatch):
    async def crawl(scope, receive, send) -> None:
        raise AssertionError("the application was called")

    sent = []

    async def never() -> dict:
        await asyncio.sleep(5)
        return {"type": "http.request", "body": b"x", "more_body": True}

    async def send(message: dict) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/mcp", "headers": []}
    asyncio.run(body_limit.BodyLimit(crawl, seconds=0.1)(scope, never, send))
    assert sent[0]["status"] == 408 and (b"connection", b"close") in sent[0]["headers"]


@pytest.mark.bench
def test_silent_and_half_sent_connections_end_and_too_many_make_room(monkeypatch):
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.5)
    monkeypatch.setattr(connections, "most_connections", lambda: 20)

    async def crowd() -> tuple[bytes, float]:
        config = uvicorn.Config(PlainTextResponse("here"), port=_free_port(), http=connections.LimitedConnection, lifespan="off")
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        opened = [await asyncio.open_connection("127.0.0.1", config.port) for _ in range(30)]
        for _, writer in opened:
            writer.write(b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\n")
        reader, writer = await asyncio.open_connection("127.0.0.1", config.port)
        writer.write(b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n")
        answer, began = await reader.read(), time.monotonic()
        for silent, pen in opened:
            with contextlib.suppress(ConnectionError):
                assert await asyncio.wait_for(silent.read(), 10) == b""
            pen.close()
        writer.close()
        server.should_exit = True
        await serving
        return answer, time.monotonic() - began

    answer, seconds = asyncio.run(crowd())
    assert answer.startswith(b"HTTP/1.1 200") and answer.endswith(b"here") and is_within(seconds, 8)


def test_a_connection_is_kept_for_longer_than_clients_keep_theirs():
    async def made() -> connections.LimitedConnection:
        config = uvicorn.Config(PlainTextResponse("here"), lifespan="off")
        return connections.LimitedConnection(config=config, server_state=uvicorn.server.ServerState(), app_state={})

    assert asyncio.run(made()).timeout_keep_alive > 2 * httpx.Limits().keepalive_expiry


def test_a_visitors_calls_go_through(url):
    assert Visitor(url).call("show_edit_mode", {})
