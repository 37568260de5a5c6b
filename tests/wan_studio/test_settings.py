"""Tests of the names and files that the client sends, and of the client's imports."""

import base64
import subprocess
import sys

import pytest
from PIL import Image

from backend.settings import PROJECT_FOLDER
from tests.test_layers import HEAVY
from wan_studio.settings import to_fields


def test_diffusers_names_become_the_servers_names():
    given = {"preset": "wan-tiny", "num_inference_steps": 8, "frame_rate": 16, "width": 96, "seed": 0, "height": None}
    more = {"guidance_scale": 5.0, "guidance_scale_2": 3.0, "settings": {"solver": "euler"}}
    expected = {"prompt": "a circle", "model": "wan-tiny", "steps": 8, "fps": 16, "width": 96, "seed": 0, "solver": "euler"}
    assert to_fields("a circle", given | more) == expected | {"guidance": [5.0, 3.0]}


@pytest.mark.parametrize("kind", ["path", "text", "bytes", "image"])
def test_a_file_is_sent_whatever_it_is_given_as(tmp_path, kind):
    path, image = tmp_path / "first.png", Image.new("RGB", (4, 4), (220, 40, 40))
    image.save(path)
    given = {"path": path, "text": str(path), "bytes": path.read_bytes(), "image": image}[kind]
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


def test_the_client_imports_nothing_of_the_server_and_no_large_library(tmp_path):
    script = "import wan_studio, sys; print(*{name.partition('.')[0] for name in sys.modules})"
    environment = {"PYTHONPATH": str(PROJECT_FOLDER)}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    imported = {*done.stdout.split()}
    assert "httpx" in imported
    assert not imported & {*HEAVY, "gradio", "numpy", "PIL", "imageio_ffmpeg", "IPython", "backend", "wan_ui", "presets", "app"}
