"""Tests of `/v1/videos` with the official client, against a server with the demo model and a password."""

import base64
import io
import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Queue

import httpx
import openai
import pytest
from PIL import Image

from backend.engine.keys import Keys
from presets import load_preset
from tests.clip_files import counting_clip
from tests.wan_ui.conftest import READY_SECONDS, _serving
from wan_ui.gateway.access import KEY_FILE
from wan_ui.gateway.body_limit import MOST_BYTES
from wan_ui.gateway.uploads import LARGEST_BODY

# the client says so of OpenAI's own service
pytestmark = pytest.mark.filterwarnings("ignore:The Sora API is scheduled to permanently shut down:DeprecationWarning")
PROMPT = "a red circle moving right on a black background"
QUICK = {"steps": 1, "seed": 7}
DATA_OF_WORDS = "data:video/mp4;base64," + base64.b64encode(b"words " * 100).decode()


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("videos")


@pytest.fixture(scope="module")
def url(data_dir) -> Iterator[str]:
    if not (Path(load_preset("wan-tiny").model_source) / "model_index.json").is_file():
        pytest.skip("the demo model has not been trained yet")
    with _serving("demo", data_dir, more=["--auth", "user:password", "--webhooks", "127.0.0.1"]) as server:
        yield server.url


@pytest.fixture(scope="module")
def program(url, data_dir) -> Iterator[Callable[..., openai.OpenAI]]:
    """Return a function that creates a client with the given key or a new key. The server is running already."""
    clients = []

    def make(name: str = "", limit: int = 20, key: str = "") -> openai.OpenAI:
        key = key or Keys(data_dir).create(name, limit)[1]
        clients.append(openai.OpenAI(base_url=f"{url}v1", api_key=key, max_retries=0, timeout=READY_SECONDS))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


@pytest.fixture(scope="module")
def client(program) -> openai.OpenAI:
    return program("tests")


@pytest.fixture(scope="module")
def video(client):
    """Return a finished video."""
    made = client.videos.create(model="wan-tiny", prompt=PROMPT, seconds="1", size="96x96", extra_body=QUICK)
    assert (made.object, made.status in ("queued", "in_progress"), made.completed_at) == ("video", True, None)
    done = client.videos.poll(made.id, poll_interval_ms=100)
    assert (done.status, done.error) == ("completed", None), done
    return done


def a_picture() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (200, 120), (220, 40, 40)).save(file, "PNG")
    return file.getvalue()


def refer(kind: str, value: str) -> dict:
    """A picture that is named, as an object; the client sends such a one in its extra fields only."""
    return {"input_reference": {kind: value}}


def request_of(data_dir: Path, video_id: str) -> dict:
    return json.loads((data_dir / "runs" / video_id / "request.json").read_text())


def test_a_video_is_made_and_says_all_that_it_is(video, data_dir):
    assert (video.model, video.prompt, video.seconds, video.size, video.progress) == ("wan-tiny", PROMPT, "1", "96x96", 100)
    assert video.created_at <= video.completed_at <= time.time() and video.expires_at is None
    assert video.model_extra["seed"] == 7 and video.model_extra["num_frames"] == 17
    request = request_of(data_dir, video.id)
    assert (request["steps"], request["num_frames"], request["task"]) == (1, 17, "t2v")


def test_its_content_and_its_thumbnail_are_downloaded(client, video, tmp_path):
    client.videos.download_content(video.id).write_to_file(tmp_path / "out.mp4")
    assert (tmp_path / "out.mp4").read_bytes()[4:8] == b"ftyp"
    small = client.videos.download_content(video.id, variant="thumbnail")
    assert Image.open(io.BytesIO(small.read())).format == "WEBP"
    with pytest.raises(openai.BadRequestError, match="must be video or thumbnail"):
        client.videos.download_content(video.id, variant="spritesheet")


def test_a_picture_is_where_a_video_begins(client, data_dir, tmp_path):
    (tmp_path / "first.png").write_bytes(a_picture())
    data = "data:image/png;base64," + base64.b64encode(a_picture()).decode()
    files = (tmp_path / "first.png", ("x.png", a_picture(), "image/png"))
    ways = [*({"input_reference": file} for file in files), {"extra_body": {"input_reference": {"image_url": data}}}]
    for way in ways:
        way["extra_body"] = QUICK | way.get("extra_body", {})
        made = client.videos.create(model="wan-tiny", prompt=PROMPT, **way)
        assert request_of(data_dir, made.id)["task"] == "i2v"
        with Image.open(data_dir / "runs" / made.id / "image.png") as kept:
            assert kept.size == (200, 120)
    assert client.videos.poll(made.id, poll_interval_ms=100).status == "completed"
    assert list((data_dir / "tmp").rglob(".part-*")) == []


def test_a_clip_is_regenerated(client, url, data_dir, tmp_path):
    path = counting_clip(tmp_path / "clip.mov", 32, 16, options=["-c:v", "libx264", "-pix_fmt", "yuv420p"])
    headers = {"authorization": f"Bearer {client.api_key}"}
    fields = {"model": "wan-tiny", "prompt": PROMPT, "strength": "0.5", "trim": "[0.5, 1.5625]", "steps": "4"}
    sent = httpx.post(f"{url}v1/videos", data=fields, files={"video": ("clip.mov", path.read_bytes())}, headers=headers).json()
    data = "data:video/mp4;base64," + base64.b64encode(path.read_bytes()).decode()
    more = {"strength": 0.5, "trim": [0.5, 1.5625], "steps": 4, "video": {"video_url": data}}
    as_json = client.videos.create(model="wan-tiny", prompt=PROMPT, extra_body=more)
    for video in (sent["id"], as_json.id):
        request = request_of(data_dir, video)
        assert (request["strength"], request["trim"], request["num_frames"]) == (0.5, [0.5, 1.5625], 17)
        assert (data_dir / "runs" / video / "input-video.mp4").read_bytes() == path.read_bytes()
        assert client.videos.poll(video, poll_interval_ms=100).status == "completed"
    with pytest.raises(openai.BadRequestError, match="must be a video") as refused:
        client.videos.create(model="wan-tiny", prompt=PROMPT, extra_body={"video": DATA_OF_WORDS})
    assert refused.value.param == "video"
    with pytest.raises(openai.BadRequestError, match="Trim=1.5,2.5625 must be within the 2.00 s") as refused:
        client.videos.create(model="wan-tiny", prompt=PROMPT, extra_body=more | {"trim": [1.5, 2.5625]})
    assert refused.value.param == "trim"
    assert list((data_dir / "tmp").rglob(".part-*")) == []


def test_a_clip_is_only_upscaled(client, url, data_dir, tmp_path, video):
    def send(path: Path, **fields) -> httpx.Response:
        headers = {"authorization": f"Bearer {client.api_key}"}
        files = {"finished_video": ("clip.mp4", path.read_bytes())}
        return httpx.post(f"{url}v1/videos", data=fields, files=files, headers=headers)

    client.videos.download_content(video.id).write_to_file(tmp_path / "made.mp4")
    clip = counting_clip(tmp_path / "clip.mp4", 8, 16)
    for path, preset, size in ((tmp_path / "made.mp4", "wan-tiny", "192x192"), (clip, "clip", "128x96")):
        upscaled = send(path, upscale="2").json()
        assert request_of(data_dir, upscaled["id"])["finished_video"]
        done = client.videos.poll(upscaled["id"], poll_interval_ms=100)
        assert (done.status, done.model, done.size) == ("completed", preset, size), done
    for fields, param, words in (
        ({}, "upscale", "must be 2 or 4"),
        ({"upscale": "3"}, "upscale", "must be 2 or 4"),
        ({"upscale": "2", "upscaler": "none"}, None, "none"),
        ({"upscale": "2", "steps": "4"}, "steps", "cannot be used with finished_video"),
        ({"upscale": "2", "video": DATA_OF_WORDS}, "video", "cannot be used with finished_video"),
    ):
        refused = send(clip, **fields)
        assert refused.status_code == 400 and words in refused.json()["error"]["message"], refused.text
        assert param is None or refused.json()["error"]["param"] == param
    (tmp_path / "words.mp4").write_bytes(b"words " * 100)
    assert "must be a video" in send(tmp_path / "words.mp4", upscale="2").json()["error"]["message"]
    assert list((data_dir / "tmp").rglob(".part-*")) == []


def test_json_says_the_same_as_a_form(client, url, data_dir):
    data = "data:image/png;base64," + base64.b64encode(a_picture()).decode()
    fields = {"model": "wan-tiny", "prompt": PROMPT, "seconds": 1}
    more = refer("image_url", data) | {
        "steps": 2,
        "guidance": [2.5],
        "negative_prompt": "a star",
        "solver": "euler",
        "flow_shift": 2,
    }
    headers = {"authorization": f"Bearer {client.api_key}"}
    answer = httpx.post(f"{url}v1/videos", json=fields | more, headers=headers)
    assert answer.status_code == 200
    form = client.videos.create(**fields | {"seconds": "1"}, extra_body=more)
    ours = [request_of(data_dir, video_id) for video_id in (answer.json()["id"], form.id)]
    kept = [{name: value for name, value in one.items() if name not in ("seed", "image")} for one in ours]
    assert kept[0] == kept[1] and kept[0]["guidance"] == [2.5] and kept[0]["negative_prompt"] == "a star"
    for one in (answer.json()["id"], form.id):
        client.videos.delete(one)


@pytest.mark.parametrize(
    ("fields", "param", "code", "words"),
    [
        ({"model": "sora-1"}, "model", "model_not_found", "must be one of"),
        ({"size": "100x96"}, "size", "invalid_value", "which makes 96x96, 128x96, 96x128 and other multiples of 32"),
        ({"size": "large"}, "size", "invalid_value", "does not fit wan-tiny"),
        (
            {"seconds": "11"},
            "seconds",
            "invalid_value",
            "which makes 1 or 2 or 4 or 8 and others from 0.25 to 10 seconds, 4 frames",
        ),
        ({"seconds": "1.1"}, "seconds", "invalid_value", "does not fit wan-tiny"),
        ({"seconds": "nan"}, "seconds", "invalid_value", "does not fit wan-tiny"),
        ({"seconds": "1", "extra_body": {"num_frames": 17}}, "num_frames", "invalid_value", "leave one of the two out"),
        ({"prompt": " "}, "prompt", "invalid_value", "prompt is empty|Prompt is empty"),
        ({"extra_body": {"steps": "many"}}, "steps", "invalid_value", "Steps='many'"),
        ({"extra_body": {"colour": "red"}}, "colour", "unknown_parameter", "is not known"),
        ({"extra_body": {"image": "/etc/passwd"}}, "image", "unknown_parameter", "is not known"),
        ({"input_reference": b"no picture"}, "input_reference", "invalid_value", "must be a picture"),
        ({"extra_body": refer("image_url", "http://127.0.0.1/x.png")}, "input_reference", "invalid_value", "not a URL"),
        ({"extra_body": refer("image_url", "data:image/png;base64,?")}, "input_reference", "invalid_value", "must be base64"),
        ({"extra_body": refer("file_id", "file-1")}, "input_reference", "invalid_value", "not a URL or a file id"),
    ],
)
def test_what_is_wrong_is_refused_in_one_sentence(client, fields, param, code, words):
    with pytest.raises(openai.BadRequestError, match=words) as refused:
        client.videos.create(**{"model": "wan-tiny", "prompt": PROMPT} | fields)
    body = refused.value.body
    assert body.keys() == {"message", "type", "param", "code"} and body["type"] == "invalid_request_error"
    assert param is None or (body["param"], body["code"]) == (param, code)


def test_a_list_is_given_page_by_page(client, program, video):
    lister = program("lister")
    made = [lister.videos.create(model="wan-tiny", prompt=PROMPT, extra_body=QUICK).id for _ in range(3)]
    assert [one.id for one in lister.videos.list(limit=2)] == made[::-1]  # the client requests the second page itself
    first = lister.videos.list(limit=2, order="asc")
    assert ([one.id for one in first.data], first.has_more, first.last_id) == (made[:2], True, made[1])
    lister.videos.delete(made[1])
    rest = lister.videos.list(after=made[1], order="asc")
    assert ([one.id for one in rest.data], rest.has_more) == (made[2:], False)
    for options in (
        {"limit": 0},
        {"limit": 101},
        {"limit": "0000000011999"},
        {"order": "up"},
        {"after": video.id},
        {"after": "../x"},
    ):
        with pytest.raises(openai.BadRequestError):
            lister.videos.list(**options)


def test_what_is_somebody_elses_does_not_exist_but_for_the_operator(program, video, data_dir):
    other, operator = program("other"), program(key=(data_dir / KEY_FILE).read_text())
    for ask in (other.videos.retrieve, other.videos.download_content, other.videos.delete):
        with pytest.raises(openai.NotFoundError, match="There is no video"):
            ask(video.id)
    assert list(other.videos.list()) == []
    assert operator.videos.retrieve(video.id).status == "completed"
    assert video.id in [one.id for one in operator.videos.list()]


@pytest.mark.parametrize("video_id", ["../../etc/passwd", "a/../b", "%2e%2e%2f", "x\0", "圆", "a" * 5000, "edits"])
def test_an_id_is_never_a_path(client, url, video_id):
    for ask in (client.videos.retrieve, client.videos.download_content, client.videos.delete):
        with pytest.raises(openai.NotFoundError) as refused:
            ask(video_id)
        assert refused.value.body["message"]
    headers = {"authorization": f"Bearer {client.api_key}"}
    answer = httpx.get(f"{url}v1/videos/..%2f..%2f..%2fetc%2fpasswd/content", headers=headers)
    assert answer.status_code == 404 and answer.json()["error"]["code"] == "not_found"


def test_a_key_works_at_once_and_no_longer_once_it_is_revoked(program, data_dir, url):
    brief = program("brief")
    assert list(brief.videos.list()) == []
    assert next(key for key in Keys(data_dir).list_keys() if key.name == "brief").used is not None
    Keys(data_dir).revoke("brief")
    for wrong in (brief, program(key="studio-" + "x" * 43), program(key="sk-of-elsewhere")):
        for ask in (wrong.videos.list, wrong.models.list, lambda one=wrong: one.videos.create(prompt=PROMPT)):
            with pytest.raises(openai.AuthenticationError, match="unknown or was revoked") as refused:
                ask()
            assert refused.value.body["code"] == "invalid_api_key"
    nobody = httpx.get(f"{url}v1/videos")
    assert nobody.status_code == 401 and "keys create" in nobody.json()["error"]["message"]
    assert nobody.headers["www-authenticate"] == "Bearer"


def test_a_key_has_its_own_places_in_line_and_deleting_stops_a_video(program):
    narrow = program("narrow", limit=1)
    slow = narrow.videos.create(model="wan-tiny", prompt=PROMPT, extra_body={"steps": 100, "num_frames": 33})
    until = time.monotonic() + READY_SECONDS
    while (now := narrow.videos.retrieve(slow.id)).progress == 0:
        assert time.monotonic() < until
        time.sleep(0.05)
    assert now.status == "in_progress" and now.progress < 100 and now.completed_at is None
    waiting = narrow.videos.create(model="wan-tiny", prompt=PROMPT, extra_body=QUICK)
    assert (waiting.status, waiting.progress) == ("queued", 0)
    with pytest.raises(openai.RateLimitError, match="You have 1 queued video and may have 1") as refused:
        narrow.videos.create(model="wan-tiny", prompt=PROMPT, extra_body=QUICK)
    assert refused.value.body["type"] == "rate_limit_error"
    with pytest.raises(openai.NotFoundError, match="has nothing to download: it is queued"):
        narrow.videos.download_content(waiting.id)
    for one in (waiting, slow):
        deleted = narrow.videos.delete(one.id)
        assert (deleted.id, deleted.object, deleted.deleted) == (one.id, "video.deleted", True)
        with pytest.raises(openai.NotFoundError):
            narrow.videos.retrieve(one.id)
    assert list(narrow.videos.list()) == []


def test_a_picture_may_be_larger_than_other_requests_but_not_endless(client):
    noise = Image.effect_noise((1500, 1500), 100)
    file = io.BytesIO()
    noise.save(file, "PNG")
    assert len(file.getvalue()) > MOST_BYTES
    made = client.videos.create(model="wan-tiny", prompt=PROMPT, input_reference=file.getvalue(), extra_body=QUICK)
    client.videos.delete(made.id)
    with pytest.raises(openai.APIStatusError, match="must have at most 60 MB") as refused:
        client.videos.create(model="wan-tiny", prompt=PROMPT, input_reference=b"x" * (LARGEST_BODY + 1))
    assert refused.value.status_code == 413 and refused.value.body["code"] == "request_too_large"


def test_a_program_is_told_of_its_videos_end(client, program, data_dir, url):
    received: Queue[tuple[dict, bytes]] = Queue()

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.put((dict(self.headers), self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            """Log nothing."""

    secret = next(key for key in Keys(data_dir).list_keys() if key.name == "tests").webhook_secret
    with ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        hook = {"webhook_url": f"http://127.0.0.1:{server.server_port}/hook"}
        made = client.videos.create(model="wan-tiny", prompt=PROMPT, extra_body=QUICK | hook)
        headers, body = received.get(timeout=READY_SECONDS)
        client.webhooks.verify_signature(body, headers, secret=secret)
        assert json.loads(body)["data"] == {"id": made.id, "status": "completed"}
        assert client.videos.retrieve(made.id).status == "completed"
        server.shutdown()
    operator = program(key=(data_dir / KEY_FILE).read_text())
    for caller, address in ((client, "http://localhost/x"), (client, "https://93.184.215.14/x"), (operator, hook["webhook_url"])):
        with pytest.raises(openai.BadRequestError) as refused:
            caller.videos.create(model="wan-tiny", prompt=PROMPT, extra_body={"webhook_url": address})
        assert refused.value.param == "webhook_url"


def test_models_are_the_presets_that_can_run_here(client):
    assert "wan-tiny" in [model.id for model in client.models.list()]
    assert client.models.retrieve("wan-tiny").object == "model"
    with pytest.raises(openai.NotFoundError, match="There is no model"):
        client.models.retrieve("wan2.1-t2v-14b-720p")


def test_what_openai_has_and_we_have_not_is_refused_in_its_own_shape(client):
    with pytest.raises(openai.APIStatusError, match="POST is not offered here"):
        client.videos.edit(prompt=PROMPT, video=b"x")
    with pytest.raises(openai.NotFoundError) as refused:
        client.chat.completions.create(model="x", messages=[])
    assert refused.value.body["message"] == "Page not found."


def test_generate_and_mcp_know_the_same_key(program, url, data_dir):
    import gradio_client

    both = program("both")
    headers = {"authorization": f"Bearer {both.api_key}"}
    caller = gradio_client.Client(url, headers=headers, verbose=False)
    path, facts = caller.predict(PROMPT, "wan-tiny", None, QUICK, api_name="/generate")
    assert Path(path).read_bytes()[4:8] == b"ftyp"
    call = {"name": "generate_video", "arguments": {"prompt": PROMPT, "settings": QUICK}}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
    told = httpx.post(f"{url}mcp", json=message, headers=headers, timeout=READY_SECONDS).json()["result"]["structuredContent"]
    assert {one.id for one in both.videos.list()} == {facts["job_id"], told["job_id"]}
    live = httpx.post(f"{url}studio/live", json={"preset": "none"}, headers=headers)
    assert live.status_code == 200 and "must be one of" in live.json()["error"]
    assert httpx.get(f"{url}metrics", headers=headers).status_code == 401
    operator = {"authorization": f"Bearer {(data_dir / KEY_FILE).read_text()}"}
    assert httpx.get(f"{url}config", headers=operator).status_code == 200
    unknown = {"authorization": "Bearer studio-" + "x" * 43}
    for method, path in (("GET", "config"), ("POST", "mcp"), ("POST", "studio/live")):
        assert httpx.request(method, url + path, headers=unknown).status_code == 401
