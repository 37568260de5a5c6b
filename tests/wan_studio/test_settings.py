"""Tests of the names and files that the client sends, and of the client's imports."""

import base64
import json
import subprocess
import sys

import numpy
import pytest
from PIL import Image

from backend.settings import PROJECT_FOLDER
from tests.test_layers import HEAVY
from wan_studio import StudioError, Video
from wan_studio.settings import to_fields, to_json


def test_diffusers_names_become_the_servers_names():
    given = {"preset": "wan-tiny", "num_inference_steps": 8, "frame_rate": 16, "width": 96, "seed": 0, "height": None}
    more = {"guidance_scale": 5.0, "guidance_scale_2": 3.0, "settings": {"solver": "euler"}}
    expected = {"prompt": "a circle", "model": "wan-tiny", "steps": 8, "fps": 16, "width": 96, "seed": 0, "solver": "euler"}
    assert to_fields("a circle", given | more) == expected | {"guidance": [5.0, 3.0]}


@pytest.mark.parametrize("kind", ["path", "text", "bytes", "image", "video"])
def test_a_file_is_sent_whatever_it_is_given_as(tmp_path, kind):
    path, image = tmp_path / "first.png", Image.new("RGB", (4, 4), (220, 40, 40))
    image.save(path)
    facts = dict.fromkeys(("job_id", "width", "height", "num_frames", "fps", "seed", "seconds", "has_sound", "notes", "request"))
    earlier = Video.from_json(facts, path)
    given = {"path": path, "text": str(path), "bytes": path.read_bytes(), "image": image, "video": earlier}[kind]
    url = to_fields("", {"image": given})["input_reference"]
    sent = tmp_path / "sent.png"
    sent.write_bytes(base64.b64decode(url.removeprefix("data:application/octet-stream;base64,"), validate=True))
    assert Image.open(sent).getpixel((0, 0)) == (220, 40, 40)


def test_lists_of_images_have_the_servers_form(tmp_path):
    given = {"reference_images": [b"one"], "keyframes": {24: b"two"}, "figures": {"Anna": b"three"}, "last_image": b"four"}
    sent = to_fields("", given)
    assert sent.pop("last_image") == f"data:application/octet-stream;base64,{base64.b64encode(b'four').decode()}"
    assert [url.rpartition(",")[2] for url in sent.pop("references")] == [base64.b64encode(b"one").decode()]
    (frame,), (figure,) = sent.pop("keyframes"), sent.pop("figures")
    assert (frame["frame"], figure["name"], sent) == (24, "Anna", {"prompt": ""})
    assert [one["image_url"].rpartition(",")[2] for one in (frame, figure)] == ["dHdv", "dGhyZWU="]


def test_numbers_of_numpy_are_numbers():
    given = {"seed": numpy.int64(3), "settings": {"guidance": [numpy.float32(2.5)]}, "keyframes": {numpy.int32(8): b"image"}}
    sent = json.loads(to_json(to_fields("", given)))
    assert (sent["seed"], sent["guidance"], sent["keyframes"][0]["frame"]) == (3, [2.5], 8)
    with pytest.raises(StudioError, match="type ndarray"):
        to_json({"guidance": numpy.zeros(2)})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"image": numpy.zeros((4, 4, 3), numpy.uint8)}, "image is a ndarray.*Image.fromarray"),
        ({"reference_images": numpy.zeros((2, 4, 4, 3), numpy.uint8)}, "reference_images is a ndarray.*Image.fromarray"),
        ({"keyframes": [b"image"]}, "keyframes is a list, but must be a dictionary of images by frame"),
        ({"video": [b"frame", b"frame"]}, "video is a list, .*must be a file's path"),
        ({"keyframes": {8: 1.0}}, "keyframes is a float"),
        ({"reference_images": [None]}, "reference_images is a NoneType"),
        ({"generator": object()}, "generator .*use seed"),
        ({"output_type": "np"}, "output_type .*use video.frames"),
    ],
)
def test_values_that_cannot_be_sent_are_named(given, words):
    with pytest.raises(StudioError, match=words):
        to_fields("", given)


def test_the_client_needs_no_package_besides_httpx(tmp_path):
    """docs/python.md describes an environment that has httpx and the client only."""
    script = "import httpx, sys; before = {*sys.modules}; import wan_studio; print(*{*sys.modules} - before)"
    environment = {"PYTHONPATH": str(PROJECT_FOLDER)}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    assert {name.partition(".")[0] for name in done.stdout.split()} - sys.stdlib_module_names == {"wan_studio"}


def test_the_client_imports_nothing_of_the_server_and_no_large_library(tmp_path):
    script = "import wan_studio, sys; print(*{name.partition('.')[0] for name in sys.modules})"
    environment = {"PYTHONPATH": str(PROJECT_FOLDER)}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    imported = {*done.stdout.split()}
    assert "httpx" in imported
    assert not imported & {*HEAVY, "gradio", "numpy", "PIL", "imageio_ffmpeg", "IPython", "backend", "wan_ui", "presets", "app"}


def test_type_checkers_read_the_clients_types():
    """PEP 561. The wheel has every file of the package."""
    assert (PROJECT_FOLDER / "wan_studio" / "py.typed").is_file()
