"""Tests of the MCP tools for assistants: the protocol's messages, the official client, a real video, and access."""

import asyncio
import base64
import io
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from huggingface_hub import constants
from PIL import Image
from starlette.applications import Starlette
from starlette.testclient import TestClient

from backend.engine.engine import Engine
from backend.errors import QueueFull
from backend.startup import project_version
from tests.fake_pipeline import MISSING_PRESET
from tests.wan_ui.builders import a_request
from wan_ui.gateway.access import Access
from wan_ui.routes.mcp import mcp_route
from wan_ui.services.media import video_route
from wan_ui.services.studio_context import StudioContext


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    engine = Engine(tmp_path_factory.mktemp("mcp"), pipeline="tests.fake_pipeline")
    yield engine
    engine.close()


def context_of(engine, **limits) -> StudioContext:
    return StudioContext(engine=engine, access=Access("key"), can_run=engine.has_weights, **limits)


def client(engine, is_open: bool = True) -> TestClient:
    return TestClient(Starlette(routes=[mcp_route(context_of(engine), is_open=is_open)]))


def ask(engine, method: str, **params):
    return client(engine).post("/mcp", json={"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).json()


def test_an_assistant_is_greeted_and_told_of_the_tool(engine):
    greeted = ask(engine, "initialize", protocolVersion="2025-03-26", capabilities={})["result"]
    assert greeted["protocolVersion"] == "2025-03-26" and "tools" in greeted["capabilities"]
    assert greeted["serverInfo"] == {"name": "wan-tpu-studio", "version": project_version()}
    assert ask(engine, "initialize", protocolVersion="1999")["result"]["protocolVersion"] == "2025-11-25"
    tool, *others = ask(engine, "tools/list")["result"]["tools"]
    assert [one["name"] for one in others] == ["video_status", "video_result", "cancel_video"]
    assert tool["name"] == "generate_video" and "wan-tiny" in tool["inputSchema"]["properties"]["preset"]["enum"]
    note = client(engine).post("/mcp", json={"jsonrpc": "2.0", "method": "notifications/initialized"})
    assert (note.status_code, note.content) == (202, b"")


def test_the_tool_makes_a_video(engine):
    told = ask(
        engine, "tools/call", name="generate_video", arguments={"prompt": "a red square", "settings": {"steps": 2, "seed": 5}}
    )["result"]
    assert told["structuredContent"]["seed"] == 5 and told["structuredContent"]["url"].endswith("video.mp4")
    assert "isError" not in told


def test_the_tool_makes_a_scripted_live_video(engine):
    cues = [{"block": 2, "action": "left"}, {"block": 4, "prompt": "a blue square"}]
    arguments = {"prompt": "a red square", "preset": "wan-live-tiny", "settings": {"num_frames": 41, "cues": cues}}
    told = ask(engine, "tools/call", name="generate_video", arguments=arguments)["result"]["structuredContent"]
    request = engine.jobs.find(told["job_id"]).request
    assert told["num_frames"] == 41 and [cue.model_dump(exclude_none=True) for cue in request.cues] == cues
    arguments["settings"]["cues"][0]["action"] = "jump"
    told = ask(engine, "tools/call", name="generate_video", arguments=arguments)["result"]
    assert told["isError"] and "left, right, up" in told["content"][0]["text"]


def test_an_assistant_that_asks_for_it_sees_the_steps_as_they_come(engine):
    params = {
        "name": "generate_video",
        "arguments": {"prompt": "a red square", "settings": {"steps": 3}},
        "_meta": {"progressToken": "mine"},
    }
    message = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params}
    accepts = {"accept": "application/json, text/event-stream"}
    answer = client(engine).post("/mcp", json=message, headers=accepts)
    assert answer.headers["content-type"].startswith("text/event-stream")
    *progress, last = [json.loads(line.removeprefix("data: ")) for line in answer.text.splitlines() if line.startswith("data: ")]
    assert last["id"] == 7 and last["result"]["structuredContent"]["url"].endswith("video.mp4")
    assert {(told["method"], told["params"]["progressToken"]) for told in progress} == {("notifications/progress", "mine")}
    reached = [told["params"]["progress"] for told in progress]
    assert reached == sorted(set(reached)) and reached[-1] == progress[-1]["params"]["total"] == 1
    assert "Done" in progress[-1]["params"]["message"]


def test_progress_is_for_those_who_read_streams(engine):
    params = {"name": "generate_video", "arguments": {"prompt": "a red square"}, "_meta": {"progressToken": 1}}
    message = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params}
    assert client(engine).post("/mcp", json=message).json()["id"] == 7
    refused = message | {"params": params | {"arguments": {}}}
    told = client(engine).post("/mcp", json=refused, headers={"accept": "text/event-stream"})
    assert "prompt is empty" in told.text and told.text.count("data: ") == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "prompt is empty"),
        ({"prompt": "x", "preset": "none"}, "must be one of"),
        ({"prompt": "explode"}, "exploded"),
        ({"prompt": "x", "settings": {"image": "/etc/passwd"}}, "settings has 'image'"),
        ("nonsense", "prompt is empty"),
        ({"prompt": 5}, "prompt=5 must be a text"),
        ({"prompt": "x", "preset": 5}, "preset=5 must be a preset's name"),
        ({"prompt": "x", "settings": [1]}, "settings=[1] must be an object"),
        ({"prompt": "x", "wait_seconds": "long"}, "wait_seconds='long' must be between 0 and 600"),
        ({"prompt": "x", "wait_seconds": 601}, "wait_seconds=601 must be between 0 and 600"),
    ],
)
def test_what_is_wrong_is_told_to_the_assistant(engine, arguments, words):
    told = ask(engine, "tools/call", name="generate_video", arguments=arguments)["result"]
    assert told["isError"] and words in told["content"][0]["text"]


def test_only_the_operators_key_may_begin_a_download(engine, tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    call = {"name": "generate_video", "arguments": {"prompt": "x", "preset": MISSING_PRESET}}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
    refused = "only the operator may download it"
    for key, words in {"": refused, "Bearer no": refused, "Bearer key": "must be a checkpoint folder"}.items():
        told = client(engine).post("/mcp", json=message, headers={"authorization": key}).json()["result"]
        assert told["isError"] and words in told["content"][0]["text"]


def test_unknown_messages_are_errors(engine):
    assert ask(engine, "resources/list")["error"]["code"] == -32601
    assert ask(engine, "tools/call", name="delete_everything")["error"]["code"] == -32602
    assert client(engine).post("/mcp", content=b"{").status_code == 400
    assert client(engine).post("/mcp", json=[1]).status_code == 400


def test_foreign_pages_and_strangers_stay_out(engine):
    ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    assert client(engine).post("/mcp", json=ping, headers={"origin": "http://evil.example"}).status_code == 403
    assert client(engine).post("/mcp", json=ping, headers={"origin": "http://testserver"}).status_code == 200
    assert client(engine, is_open=False).post("/mcp", json=ping).status_code == 401
    allowed = client(engine, is_open=False).post("/mcp", json=ping, headers={"authorization": "Bearer key"})
    assert allowed.json()["result"] == {}


def test_where_visitors_need_a_password_the_video_is_fetched_by_its_address_and_goes_with_its_job(engine):
    routes = [mcp_route(context_of(engine), is_open=False), video_route(engine, Access("key"))]
    site = TestClient(Starlette(routes=routes))
    call = {"name": "generate_video", "arguments": {"prompt": "a red square", "settings": {"steps": 2}}}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
    answer = site.post("/mcp", json=message, headers={"authorization": "Bearer key"}).json()
    video = answer["result"]["structuredContent"]
    assert site.get(video["url"]).content[4:8] == b"ftyp"
    engine.library.delete(video["job_id"])
    assert site.get(video["url"]).status_code == 404


@pytest.mark.parametrize("body", ["[" * 100_000, '{"jsonrpc":"2.0","id":NaN,"method":"ping"}', '{"id":1e999,"jsonrpc":"2.0"}'])
def test_what_is_no_message_is_refused(engine, body):
    assert client(engine).post("/mcp", content=body).status_code == 400


@pytest.mark.parametrize("key", ['"a\\ud800"', "true", "[1]", "{}", "1.5"])
def test_an_id_must_be_one_that_can_be_sent_back(engine, key):
    body = f'{{"jsonrpc":"2.0","method":"ping","id":{key}}}'
    assert client(engine).post("/mcp", content=body).status_code == 400


def test_callers_have_places_of_their_own(engine, close_gate):
    close_gate("a held square")
    held = engine.submit(a_request(prompt="a held square"))
    narrow = context_of(engine, most_waiting=1)
    for address in ("203.0.113.1", "203.0.113.2"):
        request = SimpleNamespace(headers={}, client=(address, 1))
        caller = narrow.identify_program(request, "mcp")
        asyncio.run(narrow.submit(a_request(), caller))
        with pytest.raises(QueueFull):
            asyncio.run(narrow.submit(a_request(), caller))
    for job_id in (*engine.queue.waiting_job_ids(), held.id):
        engine.queue.cancel(job_id)


@pytest.mark.parametrize("token", [None, 1])
def test_an_assistant_that_hangs_up_takes_its_video_out_of_the_queue(engine, close_gate, token):
    close_gate("a held square")
    held = engine.submit(a_request(prompt="a held square"))
    call = {"name": "generate_video", "arguments": {"prompt": "a red square"}, "_meta": {"progressToken": token}}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}).encode()
    app = Starlette(routes=[mcp_route(context_of(engine), is_open=True)])
    headers = [(b"accept", b"text/event-stream"), (b"host", b"testserver")]
    scope = {"type": "http", "method": "POST", "path": "/mcp", "headers": headers, "query_string": b"", "client": ("::1", 1)}

    async def hang_up() -> list[str]:
        left, gone = [{"type": "http.request", "body": body, "more_body": False}], asyncio.Event()

        async def receive() -> dict:
            if left:
                return left.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict) -> None:
            """Discard the message."""

        while engine.queue.waiting_job_ids():  # the held job has not started
            await asyncio.sleep(0.02)
        answering = asyncio.create_task(app(dict(scope, scheme="http", server=("testserver", 80)), receive, send))
        while not engine.queue.waiting_job_ids():
            await asyncio.sleep(0.02)
        waiting = engine.queue.waiting_job_ids()
        gone.set()
        await asyncio.wait_for(answering, 60)
        while engine.queue.waiting_job_ids():  # a thread that is about to end can still queue the job
            await asyncio.sleep(0.02)
        return waiting

    [waiting] = asyncio.run(asyncio.wait_for(hang_up(), 120))
    assert engine.jobs.find(waiting).state == "cancelled"
    engine.queue.cancel(held.id)


def test_an_assistant_is_offered_the_presets_that_visitors_may_use(engine):
    context = context_of(engine, models=frozenset({MISSING_PRESET}))
    site = TestClient(Starlette(routes=[mcp_route(context, is_open=True)]))
    ask = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    for headers, is_operator in (({}, False), ({"authorization": "bearer key"}, True)):
        tool, *_ = site.post("/mcp", json=ask, headers=headers).json()["result"]["tools"]
        preset = tool["inputSchema"]["properties"]["preset"]
        names = preset.get("enum", [])  # a schema may not have an empty list
        assert ("wan-tiny" in names) == is_operator and MISSING_PRESET not in names  # its weights are not installed
        assert ("wan-tiny" if is_operator else MISSING_PRESET) in preset["description"]
    call = {"name": "generate_video", "arguments": {"prompt": "x", "preset": "wan-tiny"}}
    refused = site.post("/mcp", json=ask | {"method": "tools/call", "params": call}).json()["result"]
    assert refused["isError"] and "is not offered to visitors" in refused["content"][0]["text"]


def png(width: int = 200, height: int = 120) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (width, height), (220, 40, 40)).save(file, "PNG")
    return file.getvalue()


def call_with_image(engine, image: object) -> dict:
    arguments = {"prompt": "a red square", "image": image, "settings": {"steps": 2}}
    return ask(engine, "tools/call", name="generate_video", arguments=arguments)["result"]


def test_a_video_starts_with_the_image_of_the_call(engine):
    told = call_with_image(engine, "data:image/png;base64," + base64.b64encode(png()).decode())["structuredContent"]
    request = engine.jobs.find(told["job_id"]).request
    assert request.task == "i2v" and Path(request.image).is_relative_to(engine.jobs.find(told["job_id"]).folder)
    assert told["preset"] == request.preset == "wan-tiny"


@pytest.mark.parametrize(
    ("image", "words"),
    [
        ("/etc/hostname", "must hold the picture itself, not a URL or a file id"),
        ("http://127.0.0.1/first.png", "must hold the picture itself, not a URL or a file id"),
        ({"path": "/etc/hostname", "meta": {"_type": "gradio.FileData"}}, "must hold the picture itself"),
        ("data:image/png;base64,???", "must be base64"),
        ("data:image/png;base64," + base64.b64encode(b"no image").decode(), "image"),
        ("data:image/png;base64," + base64.b64encode(png(1, 20_000)).decode(), "image"),
    ],
)
def test_an_image_must_be_a_data_url_of_an_image(engine, image, words):
    told = call_with_image(engine, image)
    assert told["isError"] and words in told["content"][0]["text"]


@asynccontextmanager
async def official_client(context: StudioContext, key: str = "", is_open: bool = True, mode: str = "auto") -> AsyncIterator:
    """Connect the official client to the route, without a socket."""
    import httpx2
    from mcp import Client
    from mcp.client.streamable_http import streamable_http_client

    app = Starlette(routes=[mcp_route(context, is_open=is_open)])
    headers = {"authorization": f"Bearer {key}"} if key else {}
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), headers=headers) as http:
        async with Client(streamable_http_client("http://testserver/mcp", http_client=http), mode=mode) as client:
            yield client


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_the_official_client_lists_the_tools_and_gets_a_video_with_its_progress(engine, mode):
    async def use() -> None:
        async with official_client(context_of(engine), mode=mode) as client:
            assert client.server_info.name == "wan-tpu-studio"
            tools = (await client.list_tools()).tools
            assert [tool.name for tool in tools] == ["generate_video", "video_status", "video_result", "cancel_video"]
            reached = []

            async def on_progress(progress: float, total: float | None, message: str | None) -> None:
                reached.append(progress)

            arguments = {"prompt": "a red square", "settings": {"steps": 2, "seed": 5}}
            made = await client.call_tool("generate_video", arguments, progress_callback=on_progress)
            assert not made.is_error and made.structured_content["seed"] == 5 and made.structured_content["status"] == "completed"
            assert reached == sorted(set(reached)) and reached[-1] == 1
            refused = await client.call_tool("generate_video", {"prompt": " "})
            assert refused.is_error and "prompt is empty" in refused.content[0].text

    asyncio.run(asyncio.wait_for(use(), 120))


def test_the_official_client_gets_a_job_id_early_and_asks_for_the_video_later(engine, close_gate):
    gate = close_gate("a held square")

    async def use() -> None:
        async with official_client(context_of(engine)) as client:

            async def call(tool: str, **arguments: object) -> dict:
                answer = await client.call_tool(tool, arguments)
                assert not answer.is_error, answer
                return answer.structured_content

            early = await call("generate_video", prompt="a held square", wait_seconds=0)
            job_id = early["job_id"]
            assert early["status"] in ("queued", "in_progress") and early["fraction"] < 1 and "url" not in early
            await asyncio.to_thread(gate.wait)
            status = await call("video_status", job_id=job_id)
            assert (status["status"], status["phase"]) == ("in_progress", "denoising") and status["text"]
            assert (await call("video_result", job_id=job_id, wait_seconds=0.5))["status"] == "in_progress"
            waiting = (await call("generate_video", prompt="a blue square", wait_seconds=0))["job_id"]
            assert (await call("cancel_video", job_id=waiting))["status"] == "cancelled"
            stopped = await client.call_tool("video_result", {"job_id": waiting})
            assert stopped.is_error and "was stopped" in stopped.content[0].text
            gate.open()
            done = await call("video_result", job_id=job_id, wait_seconds=60)
            assert done["status"] == "completed" and done["job_id"] == job_id and done["url"].endswith("video.mp4")
            assert (await call("video_status", job_id=job_id))["url"].endswith("video.mp4")
            assert (await call("cancel_video", job_id=job_id))["status"] == "completed"

    asyncio.run(asyncio.wait_for(use(), 240))


def test_a_failed_video_has_a_status_with_its_reason(engine):
    failed = ask(engine, "tools/call", name="generate_video", arguments={"prompt": "explode"})["result"]
    job = engine.jobs.list_jobs(most=1)[0]
    told = ask(engine, "tools/call", name="video_status", arguments={"job_id": job.id})["result"]["structuredContent"]
    assert failed["isError"] and told["status"] == "failed" and "exploded" in told["error"]


@pytest.mark.parametrize("tool", ["video_status", "video_result", "cancel_video"])
def test_somebody_elses_video_does_not_exist(engine, tool, close_gate):
    close_gate("a held square")
    own, other = (engine.submit(a_request(prompt="a held square"), owner=owner) for owner in ("operator", "visitor-1"))

    async def use() -> None:
        async with official_client(context_of(engine)) as client:
            for job_id in (own.id, other.id, "../../etc/passwd", "", None, 5, ["x"]):
                answer = await client.call_tool(tool, {"job_id": job_id})
                assert answer.is_error and "must be one of your videos" in answer.content[0].text
            assert (await client.call_tool(tool, {})).is_error
        async with official_client(context_of(engine), key="key", is_open=False) as operator:
            assert not (await operator.call_tool("video_status", {"job_id": other.id})).is_error

    asyncio.run(asyncio.wait_for(use(), 120))
    assert not engine.jobs.find(other.id).has_ended
    for job in (other, own):
        engine.queue.cancel(job.id)
    until = time.monotonic() + 60
    while not engine.jobs.find(own.id).has_ended:
        assert time.monotonic() < until
        time.sleep(0.01)
    engine.library.delete(own.id)
    told = ask(engine, "tools/call", name=tool, arguments={"job_id": own.id})["result"]
    assert told["isError"]


def test_the_official_client_needs_a_key_where_there_is_a_password(engine):
    async def use(key: str) -> bool:
        async with official_client(context_of(engine), key=key, is_open=False) as client:
            return bool((await client.list_tools()).tools)

    assert asyncio.run(use("key"))
    with pytest.raises(Exception):  # noqa: B017 - the client raises groups of its own errors
        asyncio.run(use("wrong"))
