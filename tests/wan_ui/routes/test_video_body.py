"""Tests of request bodies that programs send to generate a video: valid, broken, unusual and endless."""

import asyncio
import base64
import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from backend.errors import RequestError, StudioError
from wan_ui.routes import video_body
from wan_ui.routes.video_body import BodyReader, BodyTooLarge

DATA = "data:image/png;base64," + base64.b64encode(b"pixels").decode()


def contents(stored: Any) -> Any:
    """Return the stored text, or the number of bytes of other contents. Lists and objects have paths."""
    if isinstance(stored, list):
        return [contents(one) for one in stored]
    if isinstance(stored, dict):
        return stored | {"image": contents(stored["image"])}
    data = Path(stored).read_bytes()
    return data.decode() if data.isascii() else len(data)


@pytest.fixture
def site(tmp_path) -> TestClient:
    """Return a client of an app that answers with the parsed body, or with the error's name and text."""
    reader = BodyReader()

    async def read(request: Request) -> JSONResponse:
        try:
            sent = await reader.read(request, tmp_path)
        except StudioError as error:
            return JSONResponse({"error": type(error).__name__, "words": str(error)}, 400)
        return JSONResponse({"fields": sent.fields, **{name: contents(stored) for name, stored in sent.files.items()}})

    return TestClient(Starlette(routes=[Route("/", read, methods=["POST"])]))


def test_json_comes_as_it_is_without_what_is_null(site):
    told = site.post("/", json={"prompt": "圆", "seed": 5, "size": None, "guidance": [1.5]}).json()
    assert told == {"fields": {"prompt": "圆", "seed": 5, "guidance": [1.5]}}


def test_a_form_has_texts_lists_and_one_picture(site):
    form = {"prompt": "圆", "guidance[]": ["4", "3"], "cues": '[{"block": 1, "action": "left"}]', "steps": "8"}
    told = site.post("/", data=form, files={"input_reference": ("../../x.png", b"pixels", "image/png")}).json()
    assert told["fields"] == {"prompt": "圆", "guidance": ["4", "3"], "cues": [{"block": 1, "action": "left"}], "steps": "8"}
    assert told["input_reference"] == "pixels"


@pytest.mark.parametrize(("text", "values"), [("4", [4]), ("[4, 3]", [4, 3]), ("4,3", ["4,3"]), ("[" * 100_000, ["[" * 100_000])])
def test_a_list_may_be_written_in_one_field(site, text, values):
    assert site.post("/", data={"guidance": text}, files={"input_reference": b"p"}).json()["fields"]["guidance"] == values


@pytest.mark.parametrize("given", [DATA, {"image_url": DATA}])
def test_a_picture_may_come_as_a_data_url(site, given):
    assert site.post("/", json={"input_reference": given}).json() == {"fields": {}, "input_reference": "pixels"}


CLIP = "data:video/mp4;base64," + base64.b64encode(b"frames").decode()


def test_a_sound_comes_as_a_file_or_as_a_data_url_and_a_picture_beside_it(site):
    address = "data:audio/wav;base64," + base64.b64encode(b"tones").decode()
    told = site.post("/", data={"sound_start": "1"}, files={"sound": b"tones", "input_reference": b"pixels"}).json()
    assert (told["sound"], told["input_reference"], told["fields"]) == ("tones", "pixels", {"sound_start": "1"})
    assert site.post("/", json={"sound": {"audio_url": address}}).json()["sound"] == "tones"
    wrong = site.post("/", json={"sound": "/etc/passwd"}).json()
    assert wrong["error"] == "SoundError" and "sound must hold the sound itself" in wrong["words"]


def test_a_clip_comes_as_a_file_or_as_a_data_url(site):
    form = {"strength": "0.5", "trim": "[0.5, 1.5]"}
    told = site.post("/", data=form, files={"video": ("../../x.mov", b"frames", "video/quicktime")}).json()
    assert told["video"] == "frames" and "input_reference" not in told
    assert told["fields"] == {"strength": "0.5", "trim": [0.5, 1.5]}
    for given in (CLIP, {"video_url": CLIP}):
        assert site.post("/", json={"video": given}).json()["video"] == "frames"
        assert site.post("/", json={"control": given}).json()["control"] == "frames"
    told = site.post("/", data={"control_scale": "0.8"}, files={"control": b"frames", "input_reference": b"p"}).json()
    assert (told["control"], told["input_reference"], told["fields"]) == ("frames", "p", {"control_scale": "0.8"})
    assert site.post("/", data={"video[video_url]": CLIP}, files={"input_reference": b"p"}).json()["video"] == "frames"
    for given in ("/etc/passwd", "http://127.0.0.1/a.mp4", {"image_url": CLIP}, 5, {}):
        wrong = site.post("/", json={"video": given}).json()
        assert wrong["error"] == "ClipError" and "video must hold the clip itself" in wrong["words"]


def test_lists_of_images_come_as_files_or_as_data_urls(site):
    sent = [
        ("references[]", b"one"),
        ("references[]", b"two"),
        ("keyframes[24]", b"three"),
        ("figures[Anna]", b"four"),
        ("mask", b"m"),
    ]
    told = site.post("/", data={"prompt": "x"}, files=sent).json()
    assert told == {
        "fields": {"prompt": "x"},
        "mask": "m",
        "references": ["one", "two"],
        "keyframes": [{"frame": "24", "image": "three"}],
        "figures": [{"name": "Anna", "image": "four"}],
    }
    lists = {"references": [DATA, {"image_url": DATA}], "keyframes": [{"frame": 24, "image_url": DATA}]}
    told = site.post("/", json=lists | {"mask": {"video_url": CLIP}, "last_image": DATA}).json()
    assert told == {
        "fields": {},
        "mask": "frames",
        "last_image": "pixels",
        "references": ["pixels", "pixels"],
        "keyframes": [{"frame": 24, "image": "pixels"}],
    }


def test_long_data_urls_in_lists_are_stored_too(site):
    long = "data:image/png;base64," + base64.b64encode(bytes(range(256)) * 100).decode()
    lists = {
        "references": [long, {"image_url": long}],
        "keyframes": [{"frame": 3, "image_url": long}],
        "mask": {"image_url": long},
    }
    told = site.post("/", json=lists).json()
    assert (told["references"], told["keyframes"], told["mask"]) == ([25_600, 25_600], [{"frame": 3, "image": 25_600}], 25_600)


@pytest.mark.parametrize(
    ("lists", "words"),
    [
        ({"references": DATA}, "must be a list of"),
        ({"references": [5]}, "must be a list of"),
        ({"references": ["/etc/passwd"]}, "must hold the picture itself"),
        ({"references": [{"image_url": DATA, "name": "Anna"}]}, "must be a list of"),
        ({"keyframes": [DATA]}, 'must be a list of {"frame": ..., "image_url": "data:image/png;base64,..."}'),
        ({"keyframes": [{"frame": 1, "image_url": "http://127.0.0.1/a.png"}]}, "must hold the picture itself"),
        ({"figures": [{"name": "Anna"}]}, "must be a list of"),
        ({"references": [DATA] * 25}, "references has 25 images and must have at most 24"),
        ({"mask": {"audio_url": DATA}}, "mask must hold the image or clip itself"),
    ],
)
def test_wrong_lists_of_images_are_refused_in_words(site, lists, words):
    assert words in site.post("/", json=lists).json()["words"]


@pytest.mark.parametrize(
    "given",
    [
        "/etc/passwd",
        "file:///etc/passwd",
        "http://127.0.0.1/a.png",
        "data:image/png,abc",
        "",
        5,
        [DATA],
        {},
        {"file_id": "x"},
        {"image_url": 5},
    ],
)
def test_no_address_is_fetched_and_no_path_opened(site, given):
    told = site.post("/", json={"input_reference": given}).json()
    assert told["error"] == "ImageError" and "must hold the picture itself" in told["words"]


@pytest.mark.parametrize("data", ["?", "abc", "圆", "YQ== "])
def test_what_is_no_base64_is_refused(site, data):
    assert "must be base64" in site.post("/", json={"input_reference": f"data:image/png;base64,{data}"}).json()["words"]


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"{", "application/json"),
        (b"[1]", "application/json"),
        (b"\xff", "application/json"),
        (b"[" * 100_000, "application/json"),
        (b"", "application/json"),
        (b"prompt=x", "application/x-www-form-urlencoded"),
        (b"prompt", "text/plain"),
        (b"prompt", ""),
        (b"nothing", "multipart/form-data"),
        (b"nothing", "multipart/form-data; boundary=x"),
        (b"--x\r\n\r\n", "multipart/form-data; boundary=x"),
        (b"--x\r\ncontent-disposition: form-data\r\n\r\na\r\n--x--", "multipart/form-data; boundary=x"),
    ],
)
def test_what_cannot_be_read_is_refused(site, body, kind):
    answer = site.post("/", content=body, headers={"content-type": kind})
    assert answer.status_code == 400 and answer.json()["error"] == "RequestError"


def test_a_form_has_one_file_of_each_name_and_few_fields(site):
    two = [("input_reference", b"a"), ("input_reference", b"b")]
    assert site.post("/", files=two).status_code == 400
    assert site.post("/", files=[("input_reference", b"a"), ("sound", b"b")]).status_code == 200
    assert site.post("/", files=[("input_reference", b"a"), ("sound", b"b"), ("sound", b"c")]).status_code == 400
    other = site.post("/", files={"audio": b"a"}).json()
    assert (
        "audio is a file and only input_reference, last_image, video, mask, control, sound, drive, face, track, finished_video, "
        "references, keyframes, figures may be one" in other["words"]
    )
    assert site.post("/", data={f"field{n}": "x" for n in range(200)}, files={"input_reference": b"p"}).status_code == 400


def pieces(size: int) -> Iterator[bytes]:
    """A body without a content-length."""
    for _ in range(size // 10):
        yield b"x" * 10


@pytest.mark.parametrize("size", [1010, 100_000])
def test_a_body_without_end_is_left_and_not_kept(site, tmp_path, monkeypatch, size):
    monkeypatch.setattr(video_body, "LARGEST_BODY", 1000)
    answer = site.post("/", content=pieces(size), headers={"content-type": "application/json"})
    assert answer.json()["error"] == BodyTooLarge.__name__
    assert (tmp_path / "body").stat().st_size <= 1000


def test_a_full_disk_is_said_in_a_sentence(site, tmp_path):
    (tmp_path / "body").mkdir()  # nothing can be written there
    told = site.post("/", json={"prompt": "x"}).json()
    assert told["error"] == "DataFolderError" and str(tmp_path) not in told["words"]


def test_a_caller_who_hangs_up_is_no_server_error(tmp_path):
    async def receive() -> dict:
        return {"type": "http.disconnect"}

    scope = {"type": "http", "method": "POST", "path": "/", "headers": [(b"content-type", b"application/json")]}
    with pytest.raises(StudioError, match="ended before it was whole"):
        asyncio.run(BodyReader().read(Request(scope, receive), tmp_path))


def test_a_data_url_may_have_escaped_slashes_and_be_long(site):
    pixels = bytes(range(256)) * 3000
    body = json.dumps(
        {"prompt": 'say "data:" and \\', "input_reference": "data:image/png;base64," + base64.b64encode(pixels).decode()}
    )
    told = site.post("/", content=body.replace("/", "\\/"), headers={"content-type": "application/json"}).json()
    assert told["fields"] == {"prompt": 'say "data:" and \\'}
    assert told["input_reference"] == len(pixels)


LARGE = 12_000_000
SHAPES = {
    "beginnings of data URLs": b'"data:' * (LARGE // 6),
    "quotation marks": b'"' * LARGE,
    "a data URL with escaped quotation marks": b'"data:' + b'\\"' * (LARGE // 2) + b'"',
    "one string of escapes": b'"' + b"\\a" * (LARGE // 2) + b'"',
    "a data URL without an end": b'{"input_reference":"data:image/png;base64,' + b"A" * LARGE,
    "brackets": b"[" * LARGE,
    "empty strings": b"[" + b'"",' * (LARGE // 3) + b"]",
    "objects": b"[" + b'{"":0},' * (LARGE // 7) + b"]",
    "many data URLs": b"[" + (b'"data:' + b"a" * 10_000 + b'",') * (LARGE // 10_008) + b"]",
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_large_body_of_any_shape_takes_little_memory(shape, tmp_path):
    (tmp_path / "body").write_bytes(SHAPES[shape])
    assert peak_bytes(lambda: refused(tmp_path / "body")) < 0.5 * LARGE


def test_a_large_data_url_takes_little_memory(tmp_path):
    (tmp_path / "body").write_bytes(b'{"input_reference":"data:image/png;base64,' + b"AAAA" * (LARGE // 4) + b'"}')

    def read() -> None:
        video_body._store_file(video_body._parse_json_body(tmp_path / "body"), None, "input_reference", tmp_path / "picture")

    assert peak_bytes(read) < 0.5 * LARGE
    assert (tmp_path / "picture").stat().st_size == 3 * (LARGE // 4)


def peak_bytes(act) -> int:
    """Return the peak of Python's memory during `act`, in bytes."""
    tracemalloc.start()
    try:
        act()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def refused(body: Path) -> None:
    with pytest.raises(RequestError):
        video_body._parse_json_body(body)
