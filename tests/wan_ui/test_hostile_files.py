"""Tests of malicious files and requests: each gets an error of one sentence, and other visitors do not wait."""

import contextlib
import json
import os
import signal
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from PIL import Image
from starlette.applications import Starlette
from starlette.testclient import TestClient

from backend.engine.engine import Engine
from backend.errors import shorten
from backend.media import ffmpeg
from backend.media.masks import is_single_image
from backend.media.sandbox import SandboxCall
from backend.media.video import read_facts, read_frames
from tests.backend.media import sandbox_work
from tests.clip_files import run_ffmpeg
from tests.wan_ui.conftest import _serving
from tests.wan_ui.visitor import Visitor
from wan_ui.compare.route import compare_route
from wan_ui.gateway.access import Access
from wan_ui.gateway.gateway import StreamLimit
from wan_ui.gateway.limits import JSON_BYTES, STREAMS, Limit
from wan_ui.routes.data_urls import MOST_DATA_URLS

PATIENCE = 60.0


@pytest.fixture(scope="module")
def studio(own_studio):
    return own_studio


@pytest.fixture
def visitor(url) -> Visitor:
    return Visitor(url, cookie=f"studio_visitor={os.urandom(32).hex()[:43]}")


def many_pages(count: int, *, is_second_empty: bool = False) -> bytes:
    """Return a TIFF of `count` valid pages, 42 bytes each."""
    pages = []
    for number in range(count):
        entries = [] if number == 1 and is_second_empty else [(256, 16), (257, 16), (273, 8)]
        body = b"".join(struct.pack("<HHII", tag, 3, 1, value) for tag, value in entries)
        pages.append((len(entries), body))
    data, place = bytearray(b"II*\0" + struct.pack("<I", 8)), 8
    for number, (entries, body) in enumerate(pages):
        place += 2 + len(body) + 4
        following = place if number + 1 < count else 0
        data += struct.pack("<H", entries) + body + struct.pack("<I", following)
    return bytes(data)


def test_whether_a_file_is_one_picture_is_answered_without_counting(tmp_path, monkeypatch):
    def count(self):
        raise AssertionError("counting takes time that grows with the square of the pages")

    (tmp_path / "many.tif").write_bytes(many_pages(1000))
    monkeypatch.setattr("PIL.TiffImagePlugin.TiffImageFile.n_frames", property(count))
    assert not is_single_image(tmp_path / "many.tif")
    monkeypatch.undo()
    Image.new("RGB", (16, 16)).save(tmp_path / "one.tif")
    assert is_single_image(tmp_path / "one.tif")


def test_a_page_that_is_empty_is_damage(tmp_path):
    (tmp_path / "empty.tif").write_bytes(many_pages(2, is_second_empty=True))
    assert is_single_image(tmp_path / "empty.tif") in (True, False)


def test_a_mask_of_many_pages_is_answered_and_others_are_served(visitor, url, tmp_path, picture):
    (tmp_path / "mask.tif").write_bytes(many_pages(60_000))
    run_ffmpeg("-f", "lavfi", "-i", "testsrc2=s=64x64:r=8:d=2", "-pix_fmt", "yuv420p", str(tmp_path / "clip.mp4"))
    wanted = {"mask": visitor.upload(tmp_path / "mask.tif"), "clip": visitor.upload(tmp_path / "clip.mp4")}
    other = Visitor(url, cookie=f"studio_visitor={os.urandom(32).hex()[:43]}")
    given = {"input-image": {"path": other.upload(picture)}, "resolution": "96x96"}
    with ThreadPoolExecutor(2) as strangers:
        answers = [strangers.submit(visitor.post, "/studio/edit/mask", json.dumps(wanted).encode()) for _ in range(2)]
        assert "data:image/jpeg" in other.call("show_new_image", given)[0]
        assert all(answer.result(PATIENCE)[0] == 200 and b"error" in answer.result()[1] for answer in answers)


def test_json_costs_what_it_says(visitor):
    small = b'{"prompt": [' + b",".join([b'{"":0}'] * 100_000) + b"]}"
    status, answer = visitor.post("/v1/videos", small)
    assert status == 400 and len(answer) < 1000 and b"must be a text" in answer
    status, answer = visitor.post("/v1/videos", small + b" " * JSON_BYTES.of_visitor)
    assert status == 413 and f"1 MB besides {MOST_DATA_URLS} data URLs".encode() in answer
    data = b"data:image/png;base64," + b"A" * 3_000_000
    status, answer = visitor.post("/v1/videos", b'{"prompt": "x", "negative_prompt": "' + data + b'"}')
    assert status == 400
    assert b"may be used only once, in input_reference, last_image, video, mask, control, sound" in answer
    assert visitor.post("/v1/videos", b"[" * 100_000)[0] == 400


def test_no_value_is_written_out_whole():
    class Looked(dict):
        looks = 0

        def __getitem__(self, name):
            Looked.looks += 1
            return super().__getitem__(name)

    assert len(shorten([Looked({number: number for number in range(1000)})] * 1000)) <= 60 and Looked.looks < 100
    assert shorten([{"a": "b" * 10_000_000}] * 3).startswith("[{'a': 'bbb") and len(shorten("x" * 10**7)) == 60


@pytest.mark.parametrize("path", ["/studio/live", "/studio/edit", "/studio/edit/mask", "/studio/live/x/say"])
def test_nested_json_is_a_sentence(visitor, path):
    status, answer = visitor.post(path, b"[" * 100_000)
    assert status in (200, 404) and json.loads(answer)["error"]


def test_a_preset_that_is_a_number_is_a_sentence(visitor):
    status, answer = visitor.post("/gradio_api/run/generate", json.dumps({"data": ["x", 5, None, None]}).encode())
    assert "must be a preset" in json.dumps(json.loads(answer))


def test_an_upload_is_known_by_a_path_that_tells_nothing(visitor, picture, data_dir):
    path = visitor.upload(picture)
    assert str(data_dir) not in path
    assert visitor.get(f"/gradio_api/file={path}") == picture.read_bytes()


def test_strangers_videos_are_read_within_limits(tmp_path):
    run_ffmpeg("-f", "lavfi", "-i", "testsrc2=s=64x64:r=25:d=1", "-c:v", "mpeg1video", str(tmp_path / "old.mp4"))
    with pytest.raises(Exception, match="must be a video that can be played"):
        list(read_frames(tmp_path / "old.mp4"))
    run_ffmpeg("-f", "lavfi", "-i", "testsrc2=s=64x64:r=8:d=1", "-pix_fmt", "yuv420p", str(tmp_path / "new.mp4"))
    assert read_facts(tmp_path / "new.mp4").codec == "h264"
    with ffmpeg.running_process(ffmpeg.command("-f", "lavfi", "-i", "testsrc2", "-f", "null", "-")) as process:
        limits = Path(f"/proc/{process.pid}/limits").read_text()
    assert f"Max address space         {ffmpeg.MEMORY_BYTES}" in limits


def test_a_comparison_that_is_not_there_is_answered_while_others_are_made(tmp_path):
    engine = Engine(data_dir=tmp_path, start_worker=False, resume=False)
    gate, begun = tmp_path / "gate", tmp_path / "begun"
    try:
        app = Starlette(routes=[compare_route(engine, Access.load_or_create(tmp_path))])
        with TestClient(app) as client, ThreadPoolExecutor(2) as others:
            for number in range(2):
                work = (str(gate), f"{begun}{number}")
                others.submit(engine.sandbox.run, SandboxCall(work=sandbox_work.wait_for, arguments=work))
            wait_until(lambda: all(Path(f"{begun}{number}").exists() for number in range(2)))
            assert [client.get("/studio/compare/x.mp4").status_code for _ in range(50)] == [404] * 50
            gate.touch()
    finally:
        engine.close()


def wait_until(is_so) -> None:
    end = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_streams_have_a_limit_for_a_visitor_an_address_and_all():
    import asyncio

    async def answers(scopes: list[dict]) -> list[int]:
        gate, statuses = asyncio.Event(), []

        async def endless(scope, receive, send):
            await gate.wait()
            statuses.append(200)

        async def send(message):
            if message["type"] == "http.response.start":
                statuses.append(message["status"])

        limited = StreamLimit(endless, limit=Limit(what="", of_visitor=2, of_address=3, in_all=5))
        tasks = [asyncio.ensure_future(limited(scope, None, send)) for scope in scopes]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(*tasks)
        return sorted(statuses)

    def scope(cookie: str = "", address: str = "127.0.0.1", path: str = "/studio/changes") -> dict:
        headers = [(b"cookie", f"studio_visitor={cookie * 43}".encode())] if cookie else []
        return {"type": "http", "path": path, "client": (address, 1), "headers": headers, "method": "GET"}

    run = lambda scopes: asyncio.run(answers(scopes))  # noqa: E731
    assert run([scope("a")] * 3) == [200, 200, 429], "a visitor"
    assert run([scope("a"), scope("b"), scope("c"), scope("d")]) == [200] * 4, "this machine's address stands for many"
    assert run([scope(one, "203.0.113.5") for one in "abcd"]) == [200, 200, 200, 429], "an address"
    assert run([scope()] * 4) == [200, 200, 200, 429], "whoever has no cookie"
    assert run([scope(one) for one in "abcdef"]) == [200] * 5 + [429], "all"
    assert run([scope("a", path="/healthz")] * 9) == [200] * 9, "short answers are not counted"
    assert STREAMS.in_all < 1000 - 200


def test_a_server_ends_though_files_are_being_opened(tmp_path):
    """SIGTERM ends the server even while it opens uploaded files."""
    with _serving("fake", tmp_path) as server:
        visitor = Visitor(server.url, cookie=f"studio_visitor={os.urandom(32).hex()[:43]}")
        lines = ("-f", "lavfi", "-i", "color=s=16x16:r=1000:d=200", "-c:v", "libx264", "-preset", "ultrafast")
        run_ffmpeg(*lines, "-pix_fmt", "yuv420p", str(tmp_path / "endless.mp4"))
        wanted = json.dumps({"clip": visitor.upload(tmp_path / "endless.mp4")}).encode()
        with ThreadPoolExecutor(3) as strangers:
            for _ in range(3):
                strangers.submit(visitor.post, "/studio/edit/clip", wanted)
            wait_until(lambda: ffmpegs())
            server._process.send_signal(signal.SIGTERM)
            server._process.wait(PATIENCE)
    assert server._process.returncode in (0, -signal.SIGTERM)


def ffmpegs() -> list[bytes]:
    """Return the command lines of the processes that read the test's clip."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.append(path.read_bytes())
    return [line for line in found if b"ffmpeg" in line and b"endless.mp4" in line]
