"""Tests of projects through the HTTP routes: how much disk space a visitor can use with them."""

import json
import re
import socket
import time
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tests.wan_ui.visitor import Visitor
from wan_ui.gateway.limits import FILES_SENT

ANN = "studio_visitor=" + "a" * 43


@pytest.fixture(scope="module")
def studio(own_studio):
    return own_studio


def act(visitor: Visitor, what: str, **given: str) -> str:
    """Call the handler for projects and return its answer as JSON."""
    named = (each["api_name"] for each in visitor.config["dependencies"] if each["targets"][0][1] == "act_project")
    return json.dumps(visitor.call(next(named), {}, {"what": what, **given}))


@pytest.fixture(scope="module")
def project(url) -> str:
    """Return the id of a project that Ann owns, with one video."""
    ann = Visitor(url, ANN)
    answer = act(ann, "create", job="Film")
    body = {"model": "wan-tiny", "prompt": "x", "steps": 2}
    video = httpx.post(f"{url}v1/videos", json=body, headers={"cookie": ANN}, timeout=60).json()
    while video["status"] in ("queued", "in_progress"):
        time.sleep(0.1)
        video = httpx.get(f"{url}v1/videos/{video['id']}", headers={"cookie": ANN}).json()
    return re.search(r'project:rename\\" data-value=\\"([0-9a-f]+)', answer)[1]


def stalled(url: str, address: str, large: Path) -> socket.socket:
    """Return a connection that requests `address` and reads only the status line of the large answer."""
    waiting = socket.create_connection((urlsplit(url).hostname, urlsplit(url).port))
    waiting.sendall(f"GET /{address} HTTP/1.1\r\nHost: localhost\r\nCookie: {ANN}\r\n\r\n".encode())
    assert waiting.recv(12) == b"HTTP/1.1 200" and large.stat().st_size > 10_000_000
    return waiting


def parts(data_dir: Path) -> list[Path]:
    return list(data_dir.glob("tmp/*/.part-*"))


def until_none_is_left(data_dir: Path) -> None:
    """Wait until no partial copy is left. The server deletes a copy after its last byte, so the client can be faster."""
    ends = time.monotonic() + 60
    while parts(data_dir) and time.monotonic() < ends:
        time.sleep(0.1)
    assert parts(data_dir) == []


def test_a_caller_who_does_not_read_keeps_a_few_copies_of_a_project_and_leaves_none(url, project, data_dir):
    (video,) = data_dir.glob("runs/*/video.mp4")
    video.write_bytes(video.read_bytes() + bytes(50_000_000))  # more than the system's socket buffers hold
    address = f"studio/project/{project}.zip"
    with ExitStack() as readers:
        for _ in range(FILES_SENT.of_visitor):
            readers.enter_context(stalled(url, address, video))
        answers = [httpx.get(f"{url}{address}", headers={"cookie": ANN}).status_code for _ in range(3)]
        assert answers == [429] * 3 and len(parts(data_dir)) == FILES_SENT.of_visitor
    until_none_is_left(data_dir)
    assert httpx.get(f"{url}{address}", headers={"cookie": ANN}).status_code == 200
    until_none_is_left(data_dir)


def test_one_upload_comes_in_once(url, project, data_dir, tmp_path):
    ann = Visitor(url, ANN)
    (video,) = (path for path in data_dir.glob("runs/*/video.mp4"))
    video.write_bytes(video.read_bytes().rstrip(b"\0"))
    (tmp_path / "film.zip").write_bytes(httpx.get(f"{url}studio/project/{project}.zip", headers={"cookie": ANN}).content)
    upload = ann.upload(tmp_path / "film.zip")
    assert "Imported 1 video into Film 2." in act(ann, "import", value=upload)
    assert "must be an uploaded file" in act(ann, "import", value=upload)
    assert len(list(data_dir.glob("runs/*/video.mp4"))) == 2
