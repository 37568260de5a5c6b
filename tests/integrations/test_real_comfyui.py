"""Tests of the nodes in a real ComfyUI on the CPU, at a server with the demo model.

The variable COMFYUI names a checkout of ComfyUI. Its `.venv` must have ComfyUI's requirements.
"""

import base64
import contextlib
import http.client
import json
import os
import shutil
import socket
import subprocess
import time
import urllib.request
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from backend.engine.keys import Keys
from backend.media.video import read_request
from presets import load_preset
from tests.clip_files import counting_clip
from tests.integrations.fake_comfy import PACK
from tests.many_devices import without_quick
from tests.wan_ui.conftest import READY_SECONDS, _free_port, _serving

COMFYUI = Path(os.environ.get("COMFYUI", "nowhere")).absolute()
pytestmark = [
    pytest.mark.slow,  # faster: tests/integrations/test_comfyui.py
    pytest.mark.skipif(not (COMFYUI / "main.py").is_file(), reason="the variable COMFYUI names no checkout of ComfyUI"),
]
START_SECONDS = 300.0


@dataclass
class Run:
    """The end of a run: its history, and what ComfyUI sent while it ran."""

    history: dict[str, Any]
    messages: list[dict[str, Any]] = field(default_factory=list)
    previews: list[bytes] = field(default_factory=list)

    def files(self) -> list[dict[str, str]]:
        """The files that nodes have saved."""
        outputs = [one for output in self.history["outputs"].values() for one in output.get("images", [])]
        return [one for one in outputs if one["type"] == "output"]

    @property
    def end(self) -> tuple[str, dict[str, Any]]:
        """The kind of the end and its data."""
        kinds = ("execution_success", "execution_error", "execution_interrupted")
        return next((message["type"], message["data"]) for message in self.messages if message["type"] in kinds)

    def error(self) -> str:
        assert self.end[0] == "execution_error", self.end
        return self.end[1]["exception_message"]


@dataclass(frozen=True)
class ComfyUI:
    """A running ComfyUI. `folder` has its files and `nodes` the descriptions of its nodes."""

    port: int
    folder: Path
    nodes: dict[str, Any]

    def exchange(self, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", data, 60) as answer:
            return json.loads(answer.read() or "null")

    def run(self, prompt: dict[str, Any], interrupt_at: int = 0) -> Run:
        """Run a workflow. Interrupt it at the first message with at least this progress; 0 interrupts nothing."""
        client, messages, previews = uuid.uuid4().hex, [], []
        with contextlib.closing(_read_websocket(self.port, f"/ws?clientId={client}")) as received:
            next(received)
            prompt_id = self.exchange("/prompt", {"prompt": prompt, "client_id": client})["prompt_id"]
            for message in received:
                if isinstance(message, bytes):
                    previews += [message] if message[:4] == b"\0\0\0\1" else []  # the kind of an image
                    continue
                messages.append(json.loads(message))
                if interrupt_at and messages[-1]["type"] == "progress" and messages[-1]["data"]["value"] >= interrupt_at:
                    interrupt_at = 0
                    self.interrupt()
                if messages[-1]["type"] == "executing" and messages[-1]["data"]["node"] is None:  # the history is written
                    break
        return Run(self.exchange(f"/history/{prompt_id}")[prompt_id], messages, previews)

    def interrupt(self) -> None:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port)) as connection:
            connection.request("POST", "/interrupt")
            assert connection.getresponse().status == 200

    def read_workflow(self, name: str) -> dict[str, Any]:
        """Return an example workflow in the form of `/prompt`, as the page converts it."""
        workflow = json.loads((PACK / "example_workflows" / f"{name}.json").read_text("utf-8"))
        links = {link[0]: [str(link[1]), link[2]] for link in workflow["links"]}
        prompt = {}
        for node in workflow["nodes"]:
            described = self.nodes[node["type"]]["input"]
            inputs = {one["name"]: links[one["link"]] for one in node["inputs"]}
            values = iter(node["widgets_values"])
            for kind, options in [*described["required"].items(), *described.get("optional", {}).items()]:
                if isinstance(options[0], list) or options[0] in ("STRING", "INT", "FLOAT", "BOOLEAN", "COMBO"):
                    inputs[kind] = next(values)
                    if options[1:] and options[1].get("control_after_generate"):
                        next(values)
            prompt[str(node["id"])] = {"class_type": node["type"], "inputs": inputs}
        return prompt


def _read_websocket(port: int, path: str) -> Iterator[str | bytes]:
    """Yield the messages that a server sends. Source: RFC 6455, sections 4.1 and 5.2; a server masks nothing."""
    with socket.create_connection(("127.0.0.1", port), READY_SECONDS) as connection, connection.makefile("rb") as file:
        key = base64.b64encode(os.urandom(16)).decode()
        head = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        connection.sendall(f"{head}Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n".encode())
        assert b" 101 " in file.readline()
        while file.readline().strip():
            pass
        content, kind = b"", 0
        while True:
            first, length = file.read(2)
            length = int.from_bytes(file.read({126: 2, 127: 8}[length])) if length > 125 else length
            content, kind = content + file.read(length), first & 15 or kind  # later parts of a message have the kind 0
            if first & 128:  # the last part
                yield content.decode() if kind == 1 else content
                content = b""


@pytest.fixture(scope="module")
def studio(tmp_path_factory) -> Iterator[tuple[str, Path]]:
    if not (Path(load_preset("wan-tiny").model_source) / "model_index.json").is_file():
        pytest.skip("the demo model has not been trained yet")
    data_dir = tmp_path_factory.mktemp("studio")
    with _serving("demo", data_dir, more=["--auth", "user:password"]) as server:
        yield server.url.rstrip("/"), data_dir


@pytest.fixture(scope="module")
def comfyui(tmp_path_factory, studio) -> Iterator[ComfyUI]:
    """Start ComfyUI with its own folders, which have the nodes and the studio's key."""
    folder, port = tmp_path_factory.mktemp("comfyui"), _free_port()
    for name in ("custom_nodes", "input", "user", "models", "output"):
        (folder / name).mkdir()
    shutil.copytree(PACK, folder / "custom_nodes" / "wan-studio")
    (folder / "user" / "wan_studio_servers.json").write_text(json.dumps({studio[0]: Keys(studio[1]).create("comfyui")[1]}))
    Image.new("RGB", (120, 80), (220, 40, 40)).save(folder / "input" / "example.png")
    counting_clip(folder / "input" / "clip.mp4", 40, 16, (96, 96))
    python = COMFYUI / ".venv" / "bin" / "python"
    command = [python, "main.py", "--cpu", "--port", str(port), "--base-directory", folder, "--disable-api-nodes"]
    command += ["--database-url", "sqlite:///:memory:", "--disable-auto-launch"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([*map(str, command)], cwd=COMFYUI, stdout=log, stderr=log, env=without_quick())
    try:
        yield ComfyUI(port, folder, _wait_for_nodes(process, port, folder / "log"))
    finally:
        process.terminate()
        process.wait(60)


def _wait_for_nodes(process: subprocess.Popen, port: int, log: Path) -> dict[str, Any]:
    until = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < until:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/object_info", timeout=30) as answer:
            return json.loads(answer.read())
        time.sleep(0.5)
    raise RuntimeError(f"ComfyUI did not start: {log.read_text(errors='replace')[-3000:]}")


def change(prompt: dict[str, Any], **values: Any) -> dict[str, Any]:
    """Change these inputs of all nodes that have them."""
    for node in prompt.values():
        node["inputs"] |= {name: value for name, value in values.items() if name in node["inputs"]}
    return prompt


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("text_to_video", {"task": "t2v", "num_frames": 17}),
        ("image_to_video", {"task": "i2v"}),
        ("video_to_video", {"strength": 0.6}),
        ("extend_and_upscale", {"preset": "clip", "upscale": 2}),
    ],
)
def test_example_workflows_run_and_the_request_survives(comfyui, studio, name, expected):
    run = comfyui.run(change(comfyui.read_workflow(name), url=studio[0], frames=17, steps=4))
    assert run.end[0] == "execution_success", run.end
    (saved,) = run.files()
    request = read_request(comfyui.folder / "output" / saved["subfolder"] / saved["filename"]).to_json()
    assert {name: request[name] for name in expected} == expected
    values = [message["data"]["value"] for message in run.messages if message["type"] == "progress"]
    assert values[-1] == 1000 and len(values) > 3 and len(run.previews) > 1
    assert "key" not in json.dumps(request)


def test_an_interruption_stops_the_video(comfyui, studio):
    prompt = change(comfyui.read_workflow("text_to_video"), url=studio[0], frames=33, steps=100, seed=2)
    run = comfyui.run(prompt, interrupt_at=100)
    assert run.end[0] == "execution_interrupted"
    newest = max((studio[1] / "runs").iterdir(), key=lambda path: path.stat().st_mtime)
    assert not (newest / "video.mp4").exists()


def test_errors_are_shown_in_one_sentence(comfyui, studio):
    wrong = comfyui.run(change(comfyui.read_workflow("text_to_video"), url=studio[0], key="studio-wrong"))
    assert "unknown or was revoked" in wrong.error()
    nobody = comfyui.run(change(comfyui.read_workflow("text_to_video"), url="http://127.0.0.1:9"))
    assert nobody.error().startswith("No studio answers at http://127.0.0.1:9")
    unknown = comfyui.run(change(comfyui.read_workflow("text_to_video"), url=studio[0], model="none"))
    assert "must be one of" in unknown.error()


def test_images_and_audio_reach_other_nodes(comfyui, studio):
    prompt = change(comfyui.read_workflow("text_to_video"), url=studio[0], frames=17, steps=2, decode=True, model="ltx-tiny")
    prompt["2"]["inputs"]["prompt"] = "a red circle on a black background"
    prompt |= {
        "20": {"class_type": "CreateVideo", "inputs": {"images": ["2", 1], "audio": ["2", 2], "fps": 16.0}},
        "21": {"class_type": "SaveVideo", "inputs": {"video": ["20", 0], "filename_prefix": "again", "format": "auto", "codec": "auto"}},
        "22": {"class_type": "WanStudioVideoToVideo", "inputs": {**prompt["2"]["inputs"], "model": "wan-tiny", "video": ["20", 0], "strength": 0.5}},
        "23": {"class_type": "SaveVideo", "inputs": {"video": ["22", 0], "filename_prefix": "restyled", "format": "auto", "codec": "auto"}},
    }  # fmt: skip
    run = comfyui.run(prompt)
    assert run.end[0] == "execution_success", run.end
    assert len(run.files()) == 3


def test_two_servers_work_at_the_same_time(comfyui, studio, tmp_path):
    with _serving("fake", tmp_path, more=["--auth", "user:password"]) as second:
        prompt = change(comfyui.read_workflow("two_servers"), frames=17, steps=2)
        urls = iter((studio[0], second.url))
        for node in prompt.values():
            if node["class_type"] == "WanStudioServer":
                node["inputs"]["url"] = next(urls)
        _find_node(prompt, second.url)["inputs"]["key"] = Keys(tmp_path).create("comfyui")[1]
        run = comfyui.run(prompt)
    assert run.end[0] == "execution_success", run.end
    assert {one["filename"].partition("_")[0] for one in run.files()} == {"red", "blue"}


def _find_node(prompt: dict[str, Any], url: str) -> dict[str, Any]:
    return next(node for node in prompt.values() if node["inputs"].get("url") == url)
