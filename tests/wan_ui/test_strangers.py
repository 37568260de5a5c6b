"""What the server answers to those who call the page's handlers themselves, over plain HTTP."""

import json
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import imageio_ffmpeg
import pytest
from PIL import Image

from backend.engine.engine import Engine
from backend.media.pictures import MAX_PIXELS
from backend.media.video import FORMAT
from tests.wan_ui.builders import a_request
from tests.wan_ui.conftest import _serving
from tests.wan_ui.visitor import Visitor
from wan_ui.serve import serve

META = {"meta": {"_type": "gradio.FileData"}}
CALLS = [  # the handler, the picture's field, and the event
    ("show_picture", "input-image", None),
    ("show_crop", "input-image", None),
    ("move_crop", "input-image", {"index": [390, 50], "value": None}),
    ("pad", "input-image", None),
    ("submit", "input-image", None),
    ("submit", "last-image", None),
    ("start", "input-image", None),
    ("start", "last-image", None),
]


def said(answer: Any) -> str:
    """An answer as text, without the number that each message carries."""
    return re.sub(r'data-nonce=\\"\w+\\"', "", json.dumps(answer))


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    with _serving("fake", tmp_path_factory.mktemp("strangers")) as server:
        yield server.url


@pytest.fixture
def visitor(url) -> Visitor:
    """A visitor in the tab for image to video."""
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
    [made] = visitor.call("pad", {"input-image": {"path": visitor.upload(tmp_path / "thin.png")}, "resolution": "96x96"})
    with Image.open(made["path"]) as framed:
        assert framed.width * framed.height <= MAX_PIXELS


def test_a_picture_is_not_cropped_to_a_size_that_no_preset_makes(visitor, picture):
    uploaded = {"path": visitor.upload(picture)}
    shown, note = visitor.call("show_crop", {"input-image": uploaded, "resolution": "1x99999"})
    assert "data:image" not in json.dumps(shown) and "must have sides of" in note
    [made] = visitor.call("pad", {"input-image": uploaded, "resolution": "1x99999"})
    assert "path" not in made


def test_a_dropped_video_with_frames_that_are_too_large_is_refused_in_words(visitor, tmp_path):
    comment = json.dumps({"format": FORMAT, "request": a_request(task="i2v", image="/a.png").for_sharing()})
    source = ["-f", "lavfi", "-i", "color=red:s=7200x7200:r=1:d=1"]
    made = ["-frames:v", "1", "-c:v", "png", "-metadata", f"comment={comment}", str(tmp_path / "large.mp4")]
    subprocess.run([imageio_ffmpeg.get_ffmpeg_exe(), "-loglevel", "error", *source, *made], check=True)
    answer = visitor.call("drop", {}, {"what": "drop", "value": visitor.upload(tmp_path / "large.mp4")})
    assert "has frames of 7200x7200 and must have at most 50,000,000 pixels" in said(answer)


def test_a_large_request_is_refused_before_the_login(tmp_path):
    with _serving("fake", tmp_path, more=["--auth", "user:password"]) as server:
        for size, status in ((1_100_000, 413), (100, 401)):
            body = b'{"data": ["' + b"a" * size + b'"]}'
            assert httpx.post(f"{server.url}gradio_api/queue/join", content=body).status_code == status


def test_the_state_of_few_sessions_is_kept(tmp_path):
    engine, options = Engine(tmp_path, pipeline="tests.fake_pipeline", start_worker=False), {}
    blocks = SimpleNamespace(launch=lambda **given: options.update(given) or (None, "", None))
    serve(blocks, engine, host="127.0.0.1", port=1, share=False, auth=None)
    engine.close()
    assert options["state_session_capacity"] <= 500


def test_an_upload_serves_with_and_without_gradios_mark(visitor, picture):
    path = visitor.upload(picture)
    for file in ({"path": path}, {"path": path, **META}):
        shown, note = visitor.call("show_crop", {"input-image": file, "resolution": "96x96"})
        assert "data:image/jpeg" in shown and "hidden" in note


def test_an_example_picture_is_copied_to_the_uploads_and_makes_a_job(visitor):
    file, prompt = visitor.call("choose_picture", {}, {"index": 1})
    assert "examples" not in file["path"] and prompt
    given = {"input-image": file, "prompt": prompt}
    assert "data:image/jpeg" in visitor.call("show_picture", given)[0]
    assert "data-job" in said(visitor.call("submit", given))
