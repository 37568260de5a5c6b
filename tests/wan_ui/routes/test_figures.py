"""Tests of characters through the HTTP routes: which are offered again, which a visitor may not use, and valid images."""

import base64
import json
import re
import time

import httpx
import pytest
from PIL import Image

from tests.wan_ui.conftest import _serving, _studio
from tests.wan_ui.routes.test_projects import act
from tests.wan_ui.visitor import Visitor

ANN, BOB, EVE = ("studio_visitor=" + letter * 43 for letter in "abe")
MODEL = "wan-tiny-vace"


@pytest.fixture(scope="module")
def studio(data_dir):
    with _serving("fake", data_dir, more=["--offer", MODEL]) as server:
        yield _studio("fake", server)


@pytest.fixture(scope="module")
def picture(tmp_path_factory):
    path = tmp_path_factory.mktemp("figures") / "anna.png"
    Image.new("RGB", (40, 60), "red").save(path)
    return path


def film(*prompts: str, **more) -> str:
    return json.dumps({"shots": [{"prompt": prompt} for prompt in prompts], "blocks": ["a"], **more})


def submitted(visitor: Visitor, text: str) -> str:
    return str(visitor.call("submit", {"shots": text, "preset": MODEL, "steps": 1}))


def offered(url: str, cookie: str) -> list[dict]:
    answer = httpx.get(f"{url}studio/figures", headers={"cookie": cookie})
    assert answer.status_code == 200 and "no-store" in answer.headers["cache-control"]
    return answer.json()["figures"]


def until_offered(url: str, cookie: str, names: list[str]) -> list[dict]:
    ends = time.monotonic() + 60
    while [one["name"] for one in offered(url, cookie)] != names and time.monotonic() < ends:
        time.sleep(0.2)
    found = offered(url, cookie)
    assert [one["name"] for one in found] == names
    return found


def test_a_project_offers_the_figures_of_its_storyboards_to_its_owner_alone(url, data_dir, picture):
    ann = Visitor(url, ANN)
    assert offered(url, ANN) == [] and offered(url, BOB) == []
    act(ann, "create", job="Film")
    name = "<img src=x onerror=alert(1)>Anna"
    figures = [{"name": name, "image": ann.upload(picture)}, {"name": "../../dog", "image": ann.upload(picture)}]
    submitted(ann, film("a street", f"{name} walks", figures=figures))
    found = until_offered(url, ANN, [name, "../../dog"])
    assert all(re.fullmatch(r"/studio/media/[\w-]+/figure_images-\d\.\w+", one["path"]) for one in found)
    assert offered(url, BOB) == []
    served, others = (httpx.get(f"{url}{found[0]['path'][1:]}", headers={"cookie": cookie}) for cookie in (ANN, BOB))
    assert served.status_code == 200 and served.content.startswith(b"\x89PNG") and others.status_code == 404
    stolen = film("Anna runs", figures=[{"name": "Anna", "image": found[0]["path"]}])
    assert "must be an uploaded file" in submitted(Visitor(url, BOB), stolen)
    act(ann, "leave")
    assert offered(url, ANN) == [], "what is in a project is offered there"
    shown = [json.loads(path.read_text()).get("references") for path in sorted((data_dir / "runs").glob("*-shot-*/request.json"))]
    assert [bool(references) for references in shown] == [False, True]
    again = film("../../dog runs", figures=[{"name": "../../dog", "image": found[1]["path"]}])
    submitted(ann, again)
    until_offered(url, ANN, ["../../dog"])


def test_programs_send_them_as_files_or_as_data(url, data_dir, picture):
    fields, headers = {"model": MODEL, "prompt": "x", "steps": "1"}, {"cookie": EVE}
    shots = [{"prompt": "Anna walks"}, {"prompt": "the dog sits", "cut": True}]
    data = "data:image/png;base64," + base64.b64encode(picture.read_bytes()).decode()
    long = "data:image/png;base64," + base64.b64encode(picture.read_bytes() + bytes(20_000)).decode()
    files = {"figures[Anna]": ("a.png", picture.read_bytes()), "figures[the dog]": ("d.png", picture.read_bytes())}
    form = httpx.post(f"{url}v1/videos", data=fields | {"shots": json.dumps(shots)}, files=files, headers=headers, timeout=60)
    named = [{"name": "Anna", "image_url": data}, {"name": "the dog", "image_url": long}]
    plain = httpx.post(
        f"{url}v1/videos", json=fields | {"steps": 1, "shots": shots, "figures": named}, headers=headers, timeout=60
    )
    for answer in (form, plain):
        assert answer.status_code == 200, answer.text
        kept = json.loads((data_dir / "runs" / answer.json()["id"] / "request.json").read_text())
        assert kept["figures"] == [{"name": "Anna", "image": 0}, {"name": "the dog", "image": 1}]
        assert [Image.open(path).getpixel((0, 0)) for path in kept["figure_images"]] == [(255, 0, 0)] * 2
    for figures, words in (
        ([{"name": "Anna", "image_url": "/etc/hostname"}], "must hold the picture itself"),
        ([{"name": "Anna", "image": "/etc/hostname"}], "must be a list of"),
        ([{"name": {"a": 1}, "image_url": data}], "must have a name and an image"),
        ("Anna", "must be a list of"),
        ([{"name": f"f{number}", "image_url": data} for number in range(9)], "may have at most 8"),
    ):
        answer = httpx.post(f"{url}v1/videos", json=fields | {"shots": shots, "figures": figures}, headers=headers, timeout=60)
        assert answer.status_code == 400 and words in answer.json()["error"]["message"], answer.text


def test_what_a_stranger_may_not_name_and_a_picture_that_is_none_are_answered_in_one_sentence(url, data_dir, picture, tmp_path):
    bob = Visitor(url, BOB)
    Image.new("RGB", (1, 1)).save(tmp_path / "small.png")
    (tmp_path / "text.png").write_text("no picture")
    own = next((data_dir / "runs").glob("*/figure_images-1.png"))
    for image, words in (
        (bob.upload(tmp_path / "small.png"), "1x1"),
        (bob.upload(tmp_path / "text.png"), "text.png"),
        ("/etc/hostname", "must be an uploaded file"),
        (str(own), "must be an uploaded file"),
        (str(own.parent), "must be an uploaded file"),
        (None, "has no image and must have one"),
    ):
        answer = submitted(bob, film("Anna walks", figures=[{"name": "Anna", "image": image}]))
        assert words in answer and str(data_dir) not in answer, (image, answer[:500])
    good = bob.upload(picture)
    for figures, words in (
        ([{"name": "", "image": good}], "has no name and must have a name with letters"),
        ([{"name": "Anna", "image": good}] * 2, "of an earlier character, and must have its own"),
        ([{"name": "n" * 200, "image": good}], "must have a name of at most 40"),
        ([{"name": f"f{n}", "image": good} for n in range(9)], "may have at most 8"),
    ):
        assert words in submitted(bob, film("x", figures=figures))
    assert offered(url, BOB) == []
