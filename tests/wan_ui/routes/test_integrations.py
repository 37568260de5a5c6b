"""Tests of docs/integrations.md: its examples run against a server, as they are on the page."""

import base64
import io
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from PIL import Image

from backend.engine.keys import Keys
from backend.settings import PROJECT_FOLDER
from tests.wan_ui.conftest import START_SECONDS, _serving

PAGE = (PROJECT_FOLDER / "docs/integrations.md").read_text("utf-8")
SECTIONS = {part.partition("\n")[0]: part for part in re.split(r"^##+ ", PAGE, flags=re.MULTILINE)}


@dataclass(frozen=True)
class Server:
    url: str
    key: str
    data_dir: Path


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Server]:
    data_dir = tmp_path_factory.mktemp("data")
    with _serving("fake", data_dir, more=["--auth", "user:password"]) as served:
        yield Server(served.url, Keys(data_dir).create("examples")[1], data_dir)


@pytest.fixture(scope="module")
def run(server, tmp_path_factory) -> Callable[[str, str], tuple[str, Path]]:
    """Return a function that runs the page's examples of a section and language with the address and the key of a server.

    It returns what they print, and the folder in which they ran.
    """
    folder, environment = tmp_path_factory.mktemp("examples"), os.environ | {"KEY": server.key}

    def run(section: str, language: str) -> tuple[str, Path]:
        examples = re.findall(rf"^```{language}\n(.*?)^```", SECTIONS[section], re.MULTILINE | re.DOTALL)
        program = "".join(examples).replace("http://127.0.0.1:7860/", server.url)
        assert examples and server.url in program
        command = ["bash", "-ec", program]
        if language == "python":
            command = [sys.executable, "-W", "ignore", "-c", f"import os\nKEY = os.environ['KEY']\n{program}"]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=START_SECONDS)
        assert done.returncode == 0, done.stderr
        return done.stdout, folder

    return run


def test_curl(run):
    _, folder = run("curl", "bash")
    assert (folder / "curl.mp4").read_bytes()[4:8] == b"ftyp"
    assert '"phase": "finished"' in (folder / "events.txt").read_text()
    assert re.search(r"event: complete\ndata: .*video\.mp4", (folder / "generate.txt").read_text())


def test_openai(run):
    shown, folder = run("openai", "python")
    assert shown.startswith("completed 128x96") and "'requested': '1280x720', 'used': '128x96'" in shown
    assert (folder / "openai.mp4").read_bytes()[4:8] == b"ftyp"


def test_the_form_of_n8ns_node_and_json_get_a_video_that_says_what_was_changed(server):
    fields = {"model": "sora-2", "prompt": "a red circle", "seconds": "4", "size": "1280x720"}
    file = io.BytesIO()
    Image.new("RGB", (200, 120), (220, 40, 40)).save(file, "PNG")
    picture = {"image_url": "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()}
    with httpx.Client(base_url=f"{server.url}v1/", headers={"authorization": f"Bearer {server.key}"}, timeout=60) as client:
        form = client.post("videos", data=fields, files={"input_reference": ("a.png", file.getvalue(), "image/png")}).json()
        as_json = client.post("videos", json=fields | {"seconds": 4, "input_reference": picture}).json()
        for video in (form, as_json):
            assert (video["model"], video["size"], video["seconds"]) == ("wan-tiny", "128x96", "4")
            assert video["adjusted"] == [
                {"field": "model", "requested": "sora-2", "used": "wan-tiny"},
                {"field": "size", "requested": "1280x720", "used": "128x96"},
            ]
            assert json.loads((server.data_dir / "runs" / video["id"] / "request.json").read_text())["task"] == "i2v"
            until = time.monotonic() + START_SECONDS
            while (now := client.get(f"videos/{video['id']}").json())["status"] != "completed":  # as n8n's node does
                assert now["error"] is None and time.monotonic() < until
                time.sleep(0.1)
            assert now["adjusted"] == video["adjusted"]
            assert client.get(f"videos/{video['id']}/content").headers["content-type"] == "video/mp4"
        assert "wan-tiny" in (listed := [model["id"] for model in client.get("models").json()["data"]]) and "sora-2" not in listed
        assert client.get("models/sora-2").json()["id"] == "sora-2"


def test_gradio_client(run):
    *progress, last = run("gradio_client", "python")[0].splitlines()
    assert len(progress) > 1 and ".mp4" in last


def test_assistants(run):
    shown, folder = run("Assistants (MCP)", "python")
    assert re.fullmatch(r"completed http://\S+video\.mp4\n", shown)
    run("Assistants (MCP)", "bash")
    assert '"status":"completed"' in (folder / "mcp.json").read_text()


def test_the_page_gives_the_tested_versions():
    locked = (PROJECT_FOLDER / "requirements.lock").read_text("utf-8")
    for name, version in re.findall(r"`([a-z_]+)` (\d[\d.]*\d)", PAGE):
        assert f"\n{name.replace('_', '-')}=={version}\n" in locked
