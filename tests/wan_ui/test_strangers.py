"""What the server answers to those who call the page's handlers themselves, over plain HTTP."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.wan_ui.conftest import _serving
from tests.wan_ui.visitor import Visitor

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
