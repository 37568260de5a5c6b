"""Tests of the ComfyUI nodes with a stand-in for ComfyUI, at servers with the pretend pipeline."""

import io
import json
import sys
import threading
import tomllib
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy
import pytest
from PIL import Image

from backend.engine.keys import Keys
from backend.media.video import read_request
from tests.clip_files import counting_clip
from tests.integrations.fake_comfy import (
    PACK,
    ComfyNode,
    ComfyUI,
    ExecutionBlocker,
    InterruptProcessingException,
    VideoFromFile,
    load_nodes,
    tensor,
)
from tests.wan_ui.conftest import _serving

SMALL = {"prompt": "a red square", "model": "wan-tiny", "frames": 17, "steps": 4, "seed": 7}
WORKFLOWS = sorted((PACK / "example_workflows").glob("*.json"))


@pytest.fixture(scope="module")
def comfyui(tmp_path_factory) -> ComfyUI:
    return ComfyUI(tmp_path_factory.mktemp("user"))


@pytest.fixture(scope="module")
def nodes(comfyui) -> Iterator[dict[str, type[ComfyNode]]]:
    before = {*sys.modules}
    with pytest.MonkeyPatch.context() as patch:
        for name, module in comfyui.modules().items():
            patch.setitem(sys.modules, name, module)
        yield load_nodes()
    for name in sys.modules.keys() - before:
        if name.startswith(str(PACK)):
            del sys.modules[name]


@pytest.fixture(scope="module")
def studio(tmp_path_factory, comfyui) -> Iterator[tuple[str, Path]]:
    """Start a server whose key is in ComfyUI's file of keys. Return its address and its data folder."""
    data_dir = tmp_path_factory.mktemp("studio")
    with _serving("fake", data_dir, more=["--auth", "user:password"]) as server:
        keys = {server.url: Keys(data_dir).create("comfyui")[1]}
        (comfyui.user_directory / "wan_studio_servers.json").write_text(json.dumps(keys))
        yield server.url, data_dir


@pytest.fixture
def run(nodes, studio) -> Callable[..., tuple]:
    """Return a function that runs a node by the end of its id."""
    return lambda name, **values: nodes[f"WanStudio{name}"].run(**values)


@pytest.fixture(scope="module")
def clip(tmp_path_factory) -> VideoFromFile:
    path = counting_clip(tmp_path_factory.mktemp("clip") / "clip.mp4", 40, 16, (96, 96))
    return VideoFromFile(io.BytesIO(path.read_bytes()))


def find_request(video: VideoFromFile, folder: Path) -> dict:
    (folder / "video.mp4").write_bytes(video.file.getvalue())
    return read_request(folder / "video.mp4").to_json()


def test_a_prompt_becomes_a_video_with_its_request_and_shows_previews(run, comfyui, tmp_path):
    video, images, audio = run("TextToVideo", settings='{"solver": "euler", "guidance": [3]}', **SMALL)
    assert (images, audio) == ("images", "audio")
    request = find_request(video, tmp_path)
    assert (request["prompt"], request["steps"], request["num_frames"], request["seed"]) == ("a red square", 4, 17, 7)
    assert (request["solver"], request["guidance"]) == ("euler", [3])
    values = [value for value, _, _ in comfyui.progress]
    assert values == sorted(values) and comfyui.progress[-1][:2] == (1000, 1000) and len(comfyui.texts) == len(values)
    kind, image, limit = next(preview for _, _, preview in comfyui.progress if preview)
    assert (kind, image.mode, limit) == ("JPEG", "RGB", None) and image.width == image.height


def test_images_and_audio_can_be_left_out(run):
    _, images, audio = run("TextToVideo", decode=False, **SMALL)
    assert isinstance(images, ExecutionBlocker) and "decode" in images.message and audio == images


def test_an_image_is_the_first_frame(run, studio, tmp_path):
    pixels = numpy.zeros((2, 48, 96, 3))
    pixels[0, :, :, 0] = 1.0
    request = find_request(run("ImageToVideo", image=tensor(pixels), **SMALL)[0], tmp_path)
    assert request["task"] == "i2v"
    (stored,) = (studio[1] / "runs").glob("*/image.png")
    with Image.open(stored) as image:
        assert image.size == (96, 48) and image.getpixel((0, 0)) == (255, 0, 0)


def test_audio_is_sent_as_a_wav_file(run, tmp_path):
    wave = 0.5 * numpy.sin(numpy.arange(48_000) / 20)
    audio = {"waveform": tensor([[wave, wave]]), "sample_rate": 24_000}
    request = find_request(run("TextToVideo", audio=audio, **SMALL | {"model": "ltx-tiny"})[0], tmp_path)
    assert request["sound"].endswith(".wav")


def test_a_clip_is_restyled_extended_and_upscaled(run, clip, tmp_path):
    restyled = find_request(run("VideoToVideo", video=clip, strength=0.5, **SMALL)[0], tmp_path)
    assert restyled["strength"] == 0.5 and restyled["video"]
    longer = run("ExtendVideo", video=clip, overlap=5, **SMALL)[0]
    request = find_request(longer, tmp_path)
    assert (request["extend"], request["overlap"]) == ("after", 5)
    upscaled = find_request(run("UpscaleVideo", video=longer, scale="2")[0], tmp_path)
    assert (upscaled["upscale"], upscaled["prompt"], upscaled["num_frames"]) == (2, "a red square", 17)


def test_a_mask_selects_the_area_and_references_show_what_appears(run, clip, studio, tmp_path):
    mask = numpy.zeros((1, 96, 96))
    mask[0, :, 48:] = 1.0
    references = tensor(numpy.full((1, 32, 48, 3), 0.5))
    small = SMALL | {"model": "wan-tiny-vace"}
    video, _, _ = run("VideoToVideo", video=clip, mask=tensor(mask), strength=0.5, reference_images=references, **small)
    request = find_request(video, tmp_path)
    assert request["mask"] and len(request["references"]) == 1 and "strength" not in request
    (stored,) = (path for path in (studio[1] / "runs").glob("*/mask*") if path.is_file())
    with Image.open(stored) as image:
        assert image.size == (96, 96) and [image.convert("L").getpixel(place) for place in ((0, 0), (95, 0))] == [0, 255]
    request = find_request(run("TextToVideo", reference_images=references, **small)[0], tmp_path)
    assert len(request["references"]) == 1


def test_a_last_image_is_sent(nodes, comfyui, run, monkeypatch):
    sent = []
    client = sys.modules[f"{nodes['WanStudioServer'].__module__.rpartition('.')[0]}.client"]
    monkeypatch.setattr(client.Server, "generate", lambda server, fields, on_event: sent.append(fields) or b"")
    images = [tensor(numpy.full((1, 32, 48, 3), value)) for value in (0.0, 1.0)]
    run("ImageToVideo", image=images[0], last_image=images[1], **SMALL)
    run("ImageToVideo", image=images[0], **SMALL)
    assert sent[0]["last_image"] != sent[0]["input_reference"] == sent[1]["input_reference"] and "last_image" not in sent[1]


class Restarting(BaseHTTPRequestHandler):
    """A server behind a proxy. Its class attributes are the answers to each address, and the requests that arrived."""

    answers: dict[str, list[tuple[int, bytes, int]]]  # status, body, and bytes of the body that are missing
    requests: list[str]

    def do_GET(self) -> None:
        self.requests.append(f"{self.command} {self.path}")
        answers = self.answers[self.requests[-1]]
        status, body, missing = answers.pop(0) if len(answers) > 1 else answers[0]
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.send_response(status)
        self.send_header("content-length", str(len(body) + missing))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def restarting(nodes, run, monkeypatch) -> Iterator[tuple[ThreadingHTTPServer, type[Restarting], object]]:
    """Start a server that answers from a list. Return its client and its handler."""
    handler = type("Handler", (Restarting,), {"answers": {}, "requests": []})
    client = sys.modules[f"{nodes['WanStudioServer'].__module__.rpartition('.')[0]}.client"]
    monkeypatch.setattr(client, "_AGAIN_SECONDS", 0.0)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield client, client.Server(f"http://127.0.0.1:{server.server_port}", "key"), handler
        server.shutdown()
        thread.join()


EVENTS, CONTENT, CREATE, CANCEL = (
    "GET /v1/videos/x/events",
    "GET /v1/videos/x/content",
    "POST /v1/videos",
    "POST /v1/videos/x/cancel",
)
END = b'data: {"phase": "finished", "video": {"error": null}}\n\n'


def test_a_restart_neither_stops_the_video_nor_loses_the_download(restarting, monkeypatch):
    client, server, handler = restarting
    handler.answers = {
        CREATE: [(200, b'{"id": "x"}', 0)],
        EVENTS: [(502, b"<html>", 0), (200, b": still here\n\n", 9), (429, b'{"error": {"message": "many"}}', 0), (200, END, 0)],
        CONTENT: [(503, b"", 0), (200, b"half", 4), (200, b"the video", 0)],
    }
    assert server.generate({}, lambda event: None) == b"the video"
    assert handler.requests == [CREATE, *[EVENTS] * 4, *[CONTENT] * 3]
    monkeypatch.setattr(client, "_LOST_SECONDS", -1.0)
    handler.answers |= {CONTENT: [(200, b"half", 4)]}
    with pytest.raises(client.StudioError, match="is finished, but .* download it from the studio's library"):
        server.generate({}, lambda event: None)
    assert CANCEL not in handler.requests


def test_a_video_is_requested_once(restarting):
    client, server, handler = restarting
    handler.answers = {CREATE: [(502, b"<html>", 0), (200, b'{"id": "x"}', 0)]}
    with pytest.raises(client.StudioError, match="502 Bad Gateway"):
        server.generate({}, lambda event: None)
    assert handler.requests == [CREATE]


def test_an_interruption_stops_the_video_on_the_server(run, comfyui, studio, close_gate, monkeypatch):
    closed = close_gate("a square that is interrupted")

    def interrupt() -> None:
        closed.wait()
        monkeypatch.setattr(comfyui, "is_interrupted", True)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(InterruptProcessingException):
        run("TextToVideo", **SMALL | {"prompt": "a square that is interrupted"})
    thread.join()
    server, _ = run("Server", url=studio[0], key="")
    newest = server._exchange("GET", "/v1/videos")["data"][0]
    assert newest["prompt"] == "a square that is interrupted"
    assert [*server._follow(newest["id"])][-1]["phase"] == "cancelled"


def test_several_servers_have_their_own_keys(nodes, run, studio, tmp_path_factory):
    server, models = run("Server", url=studio[0], key="")
    assert "wan-tiny" in models.splitlines() and server.key.startswith("studio-")
    other_dir = tmp_path_factory.mktemp("other")
    with _serving("fake", other_dir, more=["--auth", "user:password"]) as other:
        second, _ = run("Server", url=other.url, key=Keys(other_dir).create("comfyui")[1])
        video = run("TextToVideo", server=second, **SMALL)[0]
        assert video.file.getvalue()[4:8] == b"ftyp" and len(list((other_dir / "runs").glob("*/video.mp4"))) == 1


@pytest.mark.parametrize(
    ("node", "values", "words"),
    [
        ("Server", {"key": "studio-wrong"}, "unknown or was revoked"),
        ("Server", {"url": "http://127.0.0.1:9"}, "No studio answers at http://127.0.0.1:9 .*start it, or correct the address"),
        ("Server", {"url": "file:///etc"}, "must start with http"),
        ("TextToVideo", SMALL | {"model": "none"}, "must be one of"),
        ("TextToVideo", SMALL | {"settings": "[1]"}, "must be a JSON object"),
        ("TextToVideo", SMALL | {"settings": '{"colour": 1}'}, "Colour is not known"),
        ("TextToVideo", SMALL | {"prompt": "explode"}, "exploded"),
        ("UpscaleVideo", {"scale": "4", "upscaler": "none"}, "none"),
    ],
)
def test_errors_are_one_sentence(run, studio, clip, node, values, words):
    values = {"url": studio[0]} | values if node == "Server" else values
    with pytest.raises(Exception, match=words) as error:
        run(node, **values | ({"video": clip} if node == "UpscaleVideo" else {}))
    assert "StudioError" in [one.__name__ for one in type(error.value).__mro__] and "\n" not in str(error.value)


def test_a_full_queue_is_one_sentence_too(run, studio, close_gate):
    closed = close_gate("a square before others")
    server, _ = run("Server", url=studio[0], key=Keys(studio[1]).create("narrow", 1)[1])
    for prompt in ("a square before others", "a square that waits"):
        server._exchange("POST", "/v1/videos", {"model": "wan-tiny", "prompt": prompt, "steps": 4, "num_frames": 17})
        closed.wait()
    with pytest.raises(Exception, match="^You have 1 queued video and may have 1"):
        run("TextToVideo", server=server, **SMALL)


def test_the_pack_is_described_for_the_registry():
    described = tomllib.loads((PACK / "pyproject.toml").read_text("utf-8"))
    assert described["project"]["dependencies"] == [] and described["tool"]["comfy"]["DisplayName"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_fit_the_nodes(nodes, path):
    workflow = json.loads(path.read_text("utf-8"))
    links = {link[0]: link for link in workflow["links"]}
    by_id = {node["id"]: node for node in workflow["nodes"]}
    for node in workflow["nodes"]:
        for place, one in enumerate(node.get("inputs", [])):
            _, source, output, target, slot, kind = links[one["link"]]
            assert (target, slot) == (node["id"], place) and by_id[source]["outputs"][output]["type"] == kind == one["type"]
        if node["type"] not in nodes:
            continue
        schema = nodes[node["type"]].define_schema()
        kinds = {one.id: one.kind for one in schema.inputs}
        assert {one["name"]: one["type"] for one in node.get("inputs", [])}.items() <= kinds.items()
        assert [one["type"] for one in node["outputs"]] == [one.kind for one in schema.outputs]
        assert len(node["widgets_values"]) == len(schema.widgets) + sum(one.control_after_generate for one in schema.widgets)
