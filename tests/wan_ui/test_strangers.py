"""Tests of calls to the page's handlers over plain HTTP, without the page."""

import base64
import json
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import imageio_ffmpeg
import numpy
import pytest
from gradio.utils import get_upload_folder
from PIL import Image

from backend.engine.engine import Engine
from backend.media.pictures import MAX_PIXELS
from backend.media.tiles import Tile, write_side_by_side
from backend.media.video import FORMAT, write_video
from backend.settings import PROJECT_FOLDER
from tests.wan_ui.builders import a_request
from tests.wan_ui.conftest import _serving
from tests.wan_ui.visitor import Visitor
from wan_ui.gateway.uploads import create_upload_folder
from wan_ui.i18n.english import ENGLISH
from wan_ui.serve import serve

FILE_REFUSED = ENGLISH.file_refused
META = {"meta": {"_type": "gradio.FileData"}}
CALLS = [  # the handler, the picture's field, and the event
    ("show_new_image", "input-image", None),
    ("show_crop", "input-image", None),
    ("move_crop", "input-image", {"index": [390, 50], "value": None}),
    ("pad_image", "input-image", None),
    ("submit", "input-image", None),
    ("submit", "last-image", None),
    ("start", "input-image", None),
    ("start", "last-image", None),
]


@pytest.fixture(scope="module")
def studio(own_studio):
    return own_studio


def said(answer: Any) -> str:
    """Return an answer as text, without the nonces of its messages."""
    return re.sub(r'data-nonce=\\"\w+\\"', "", json.dumps(answer))


@pytest.fixture
def visitor(url) -> Visitor:
    """Return a visitor whose page shows the tab for image to video."""
    visitor = Visitor(url)
    visitor.call("choose_1", {})
    return visitor


@pytest.mark.parametrize(("handler", "field", "event"), CALLS)
def test_a_path_that_is_no_upload_is_never_opened_and_tells_nothing(visitor, picture, handler, field, event):
    uploaded = {"path": visitor.upload(picture)}
    folder = str(Path(uploaded["path"]).parent)
    paths = [str(picture), "/nothing.png", "/etc", "/etc/passwd", folder, f"{folder}/nothing.png", f"{folder}/../.."]
    given = {"prompt": "a red circle", "resolution": "96x96", "input-image": uploaded}
    answers = [said(visitor.call(handler, given | {field: {"path": path}}, event)) for path in paths]
    assert set(answers) == {answers[0]}
    assert not any(word in answers[0] for word in ("data:image/jpeg", "data-job", "cache"))


@pytest.mark.parametrize("path", ["queue/join", "run/predict", "cancel", "call/generate", "run/upload"])
def test_a_large_request_is_refused(visitor, path):
    status, answer = visitor.post(f"/gradio_api/{path}", b'{"data": ["' + b"a" * 1_100_000 + b'"]}')
    assert status == 413 and "at most 1000 KB" in json.loads(answer)["error"]


def test_a_long_thin_picture_gets_its_bars_within_the_limit(visitor, tmp_path):
    Image.new("RGB", (12000, 16), "red").save(tmp_path / "thin.png")
    [made] = visitor.call("pad_image", {"input-image": {"path": visitor.upload(tmp_path / "thin.png")}, "resolution": "96x96"})
    with Image.open(made["path"]) as framed:
        assert framed.width * framed.height <= MAX_PIXELS


def test_a_picture_is_not_cropped_to_a_size_that_no_preset_makes(visitor, picture):
    uploaded = {"path": visitor.upload(picture)}
    shown, note = visitor.call("show_crop", {"input-image": uploaded, "resolution": "1x99999"})
    assert "data:image" not in json.dumps(shown) and "must have sides of" in note
    [made] = visitor.call("pad_image", {"input-image": uploaded, "resolution": "1x99999"})
    assert "path" not in made


def test_a_dropped_video_with_frames_that_are_too_large_is_refused_in_words(visitor, tmp_path):
    comment = json.dumps({"format": FORMAT, "request": a_request(task="i2v", image="/a.png").for_sharing()})
    source = ["-f", "lavfi", "-i", "color=red:s=7200x7200:r=1:d=1"]
    made = ["-frames:v", "1", "-c:v", "png", "-metadata", f"comment={comment}", str(tmp_path / "large.mp4")]
    subprocess.run([imageio_ffmpeg.get_ffmpeg_exe(), "-loglevel", "error", *source, *made], check=True)
    answer = visitor.call("drop", {}, {"what": "drop", "value": visitor.upload(tmp_path / "large.mp4")})
    assert "has frames of 7200x7200 and must have at most 35,389,440 pixels" in said(answer)


def test_a_large_request_is_refused_before_the_login(tmp_path):
    with _serving("fake", tmp_path, more=["--auth", "user:password"]) as server:
        for size, status in ((1_100_000, 413), (100, 401)):
            body = b'{"data": ["' + b"a" * size + b'"]}'
            assert httpx.post(f"{server.url}gradio_api/queue/join", content=body).status_code == status


def test_the_state_of_few_sessions_is_kept(tmp_path):
    engine, options = Engine(tmp_path, pipeline="tests.fake_pipeline", start_worker=False), {}
    parts = {"server": SimpleNamespace(config=SimpleNamespace()), "_queue": SimpleNamespace(), "share_url": None}
    blocks = SimpleNamespace(launch=lambda **given: options.update(given) or (None, "", None), **parts)
    serve(blocks, engine, host="127.0.0.1", port=1, share=False, auth=None)
    engine.close()
    assert options["state_session_capacity"] <= 500


def test_an_upload_serves_with_and_without_gradios_mark(visitor, picture):
    path = visitor.upload(picture)
    for file in ({"path": path}, {"path": path, **META}):
        shown, note = visitor.call("show_crop", {"input-image": file, "resolution": "96x96"})
        assert "data:image/jpeg" in shown and "hidden" in note


def test_an_example_picture_is_copied_to_the_uploads_and_makes_a_job(visitor):
    file, prompt = visitor.call("choose_example_image", {}, {"index": 1})
    assert "examples" not in file["path"] and prompt
    given = {"input-image": file, "prompt": prompt}
    assert "data:image/jpeg" in visitor.call("show_new_image", given)[0]
    assert "data-job" in said(visitor.call("submit", given))


def link(**changes) -> str:
    """Return the settings of a link, changed by `changes`."""
    data = a_request().to_json() | changes
    return base64.urlsafe_b64encode(json.dumps(data).encode()).decode().rstrip("=")


@pytest.mark.parametrize(
    "changes",
    [
        {"guidance": []},
        {"steps": 10**30},
        {"seed": 2**70},
        {"prompt": "a\ud800"},
        {"preset": "a\ud800"},
        {"width": 0},
        {"height": 10**9},
        {"flow_shift": float("nan")},
        {"loras": [{"source": "a.safetensors"}] * 50},
    ],
)
def test_a_link_with_anything_in_it_opens_the_page_with_a_sentence(visitor, changes):
    answer = visitor.call("open", {}, query=f"?settings={link(**changes)}")
    assert isinstance(answer, list) and 'data-bad=\\"true\\"' in json.dumps(answer)


def test_a_folder_is_no_file(visitor, picture):
    folder = str(Path(visitor.upload(picture)).parent)
    for path in (folder, str(Path(folder).parent), "/etc/passwd", f"{folder}/nothing", 5, ["x"]):
        answer = visitor.call("show_new_image", {"input-image": {"path": path, **META}})
        assert answer == {"error": FILE_REFUSED, "detail": FILE_REFUSED}
    body = json.dumps({"data": ["a red circle", "", {"path": folder, **META}, None]}).encode()
    assert visitor.post("/gradio_api/call/generate", body)[0] == 400


def test_what_is_uploaded_under_another_name_or_broken_off_leaves_nothing(visitor, url, data_dir):
    def left() -> set[Path]:
        found = [Path(folder, name) for folder, _, names in os.walk(data_dir / "tmp") for name in names]
        return {path for path in found if path.exists() and os.path.getsize(path) > 50_000}

    before, part = left(), b"x" * 100_000
    httpx.post(f"{url}gradio_api/upload", files={"other": ("other.bin", part)})
    head = b'--edge\r\ncontent-disposition: form-data; name="files"; filename="a.png"\r\n\r\n'
    with socket.create_connection(("127.0.0.1", httpx.URL(url).port)) as caller:
        caller.sendall(b"POST /gradio_api/upload HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 900000\r\n")
        caller.sendall(b"content-type: multipart/form-data; boundary=edge\r\n\r\n" + head + part)
    deadline = time.monotonic() + 30
    while left() - before and time.monotonic() < deadline:  # files of earlier tests can be deleted in the meantime
        time.sleep(0.1)
    assert not left() - before


def test_uploads_of_servers_that_ended_are_removed_and_others_stay(tmp_path, monkeypatch):
    monkeypatch.setenv("GRADIO_TEMP_DIR", "")
    (tmp_path / "tmp" / "1-dead.uploads" / "sha").mkdir(parents=True)
    first = create_upload_folder(tmp_path)
    assert not Path(get_upload_folder()).is_relative_to(tmp_path), "visitors are told this path"
    folder = Path(get_upload_folder()).resolve()
    assert [path.name for path in (tmp_path / "tmp").glob("*.uploads")] == [folder.name] == [f"{first.name}.uploads"]
    second = create_upload_folder(tmp_path)
    assert folder.is_dir() and Path(get_upload_folder()).resolve() != folder
    first.release(), second.release()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (["x", "", None, [1]], "settings=[1] must be an object"),
        (["x", 5, None, None], "preset=5 must be a preset"),
        ([5, "", None, None], "prompt=5 must be a text"),
        (["x", "", "a.png", None], "image='a.png' must be a file"),
        (["x", "", None, {"steps": float("nan")}], "steps=nan"),
    ],
)
def test_wrong_kinds_are_refused_in_words(visitor, data, words):
    body = json.dumps({"data": data}).encode()
    event = json.loads(visitor.post("/gradio_api/call/generate", body)[1])["event_id"]
    assert words in visitor.get(f"/gradio_api/call/generate/{event}").decode()


def test_nested_json_is_refused(visitor):
    for path in ("run/predict", "queue/join", "call/generate"):
        assert visitor.post(f"/gradio_api/{path}", b"[" * 100_000)[0] in (400, 422)


def test_own_presets_come_all_or_none_and_keep_nothing_personal(visitor):
    good = {"preset": "wan-tiny", "task": "t2v"} | a_request().to_json()
    file = {"format": "wan-studio-presets", "presets": {"one": good, "x" * 100: good}}
    refused = said(visitor.call("act_1", {}, {"what": "import", "value": json.dumps(file)}))
    assert "must have 1 to 60 visible characters" in refused and "own:load" not in refused
    file["presets"] = {"one": good | {"prompt": "x" * 40_000}}
    kept = said(visitor.call("act_1", {}, {"what": "import", "value": json.dumps(file)}))
    assert "own:load" in kept and "x" * 100 not in kept


def test_a_gradio_port_in_the_environment_has_no_effect():
    code = "from backend.settings import drop_gradio_ports; drop_gradio_ports(); import gradio.http_server"
    environment = {**os.environ, "GRADIO_SERVER_PORT": "abc", "GRADIO_NUM_PORTS": "x"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, cwd=PROJECT_FOLDER)


def test_a_comparison_of_long_prompts_can_be_saved(tmp_path):
    request = a_request(prompt="\U0001f600" * 4000)
    frames = [numpy.zeros((96, 96, 3), numpy.uint8)] * 2
    write_video(frames, tmp_path / "one.mp4", fps=16, request=request)
    tiles = [Tile(path=tmp_path / "one.mp4", label="one")] * 4
    assert write_side_by_side(tiles, [request] * 4, tmp_path / "four.mp4") == 2


ACTS = [
    ("act", "edit"), ("act", "use"), ("act", "full"), ("act", "continue"), ("again", "same"), ("again", "seed"), ("again", "upscale"), ("show", "show"),
    ("act_2", "cancel"), ("act_2", "star"), ("act_2", "delete"), ("act_2", "restore"), ("act_2", "up"), ("act_2", "move"),
    ("act_4", "add"), ("act_5", "choose"), ("act_6", "move"), ("act_6", "tag"),
]  # fmt: skip


def test_another_visitor_neither_sees_nor_changes_a_job(url):
    visitor, stranger = Visitor(url), Visitor(url)
    queued = said(visitor.call("submit", {"prompt": "a secret square"}))
    job = re.search(r'data-job=\\"([^"\\]+)\\"', queued)[1]
    for handler, what in ACTS:
        answer = said(stranger.call(handler, {}, {"what": what, "job": job, "value": job}))
        assert "secret" not in answer and job not in answer, (handler, what)
    assert job in said(visitor.call("act_2", {}, {"what": "none", "job": job}))
    for path in ("video.mp4", "request.json", "..%2F..%2Foperator.key", "previews/step-001.png", "%00.png"):
        assert httpx.get(f"{url}studio/media/{job}/{path}").status_code == 404
    assert httpx.get(f"{url}studio/sound/{job}.wav").status_code == 404
    assert httpx.get(f"{url}studio/video/{job}/{'0' * 64}/video.mp4").status_code == 404


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "operator.key", "../operator.key", "http://127.0.0.1:1/", "jobs.sqlite3", "tmp", "runs"]
)
def test_gradios_own_file_address_gives_uploads_only(url, data_dir, path):
    for name in (path, str(data_dir / path)):
        assert httpx.get(f"{url}gradio_api/file={name}").status_code in (403, 404, 400, 405)
    assert httpx.get(f"{url}gradio_api/proxy=http://127.0.0.1:1/").status_code == 404


def test_a_prompt_is_shown_as_text(url):
    answer = Visitor(url).call("submit", {"prompt": "<img src=x onerror=alert(1)> ${alert(1)}"})
    drawn = "".join(each for each in answer if isinstance(each, str) and each.startswith("<"))
    assert "<img src=x" not in drawn and "&lt;img src=x" in drawn
