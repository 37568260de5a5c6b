"""Tests of exports: who gets a video in another format, and when the file is deleted."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from starlette.applications import Starlette
from starlette.testclient import TestClient

from backend.media.sandbox import ProcessorBudget, SandboxPool
from backend.media.video import write_video
from backend.schemas.formats import FORMATS, MEDIA_TYPES
from tests.wan_ui.builders import FakeEngine, a_job
from wan_ui.gateway import uploads
from wan_ui.gateway.access import Access
from wan_ui.gateway.visitors import COOKIE, owner_name
from wan_ui.i18n.english import ENGLISH
from wan_ui.services import exports
from wan_ui.services.exports import LONGEST_SECONDS, export_menu, export_route, export_url
from wan_ui.services.sending import Downloads

MINE, THEIRS = "A" * 43, "B" * 43
BEGINNINGS = {"webm": b"\x1aE\xdf\xa3", "gif": b"GIF89a", "webp": b"RIFF", "png": b"PK\x03\x04"}


@pytest.fixture
def job(tmp_path):
    folder = tmp_path / "runs" / "job-1"
    folder.mkdir(parents=True)
    job = a_job(folder, owner=owner_name({COOKIE: MINE}), num_frames=17)
    rng = np.random.default_rng(1)
    frames = (rng.integers(0, 255, (96, 96, 3), np.uint8) for _ in range(17))
    write_video(frames, folder / "video.mp4", fps=job.request.fps, request=job.request)
    return job


@pytest.fixture
def temporary(tmp_path, monkeypatch) -> Path:
    """Return the folder in which the studio creates files that it sends once."""
    (tmp_path / "uploads").mkdir()
    monkeypatch.setattr(uploads, "get_upload_folder", lambda: str(tmp_path / "uploads"))
    return tmp_path / "uploads"


def get(job, form, token=MINE, path=None, **budget):
    sandbox, engine = SandboxPool(budget=ProcessorBudget(**budget)), FakeEngine([job])
    engine.sandbox = sandbox
    site = Starlette(routes=[export_route(engine, Access("key"), Downloads())])
    try:
        return TestClient(site, cookies={COOKIE: token} if token else {}).get(path or "/" + export_url(job, form))
    finally:
        sandbox.close()


@pytest.mark.parametrize("form", FORMATS)
def test_the_owner_gets_the_file_by_a_name_of_its_own_and_none_stays(form, job, temporary):
    answer = get(job, form)
    assert (answer.status_code, answer.headers["content-type"]) == (200, MEDIA_TYPES[form])
    assert answer.content.startswith(BEGINNINGS[form]) and "private" in answer.headers["cache-control"]
    assert f"{job.request.preset}-{job.request.seed}" in answer.headers["content-disposition"]
    assert list(temporary.iterdir()) == [] and sorted(path.name for path in job.folder.iterdir()) == ["video.mp4"]


def test_a_smoother_video_comes_as_an_mp4(job, temporary):
    answer = get(job, "smooth")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "video/mp4")
    assert answer.content[4:8] == b"ftyp" and "-60fps.mp4" in answer.headers["content-disposition"]
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("token", [THEIRS, None, "rubbish"])
def test_nobody_else_gets_it(token, job):
    assert (answer := get(job, "gif", token)).status_code == 404 and answer.text == "Not found"


@pytest.mark.parametrize("path", ["/studio/export/job-1/mp4", "/studio/export/nothing/gif", "/studio/export/..%2Fjob-1/gif",
                                  "/studio/export/job-1/..%2Fvideo.mp4"])  # fmt: skip
def test_another_format_and_another_path_look_alike(path, job, temporary):
    assert get(job, "gif", path=path).status_code == 404 and list(temporary.iterdir()) == []


def test_one_that_cannot_be_made_leaves_nothing(job, temporary, monkeypatch):
    monkeypatch.setattr(exports, "MEGABYTES", 0.001)
    answer = get(job, "gif")
    assert answer.status_code == 422 and "does not fit in 0.001 MB" in answer.text and list(temporary.iterdir()) == []
    (job.folder / "video.mp4").write_bytes(b"nothing")
    assert get(job, "webm").status_code == 404 and list(temporary.iterdir()) == []


def test_the_menu_links_to_every_format_with_words_of_the_language(job):
    menu = export_menu(job, ENGLISH)
    assert all(f'href="{export_url(job, form)}"' in menu for form in FORMATS)
    assert "GIF: at most 20 s, 720 pixels on the longer side, 8 MB" in menu and "PNG frames (zip)" in menu


def test_an_animation_is_refused_that_would_last_too_long(job, temporary, monkeypatch):
    monkeypatch.setattr(exports, "LONGEST_SECONDS", 0.5)
    answer = get(job, "gif")
    assert answer.status_code == 422 and "a gif may last at most 0.5 s; choose webm" in answer.text and LONGEST_SECONDS == 20


@pytest.mark.parametrize("form", ["gif", "webp"])
def test_an_animation_has_few_and_small_pictures(form, job, temporary, monkeypatch):
    monkeypatch.setattr(exports, "LONGEST_SIDE", 48)
    monkeypatch.setattr(exports, "MOST_FPS", 8)
    path = temporary.parent / "made"
    path.write_bytes(get(job, form).content)
    with Image.open(path) as made:
        assert made.size == (48, 48) and made.n_frames <= 10


def test_pictures_that_take_too_much_of_the_disk_are_refused_and_leave_nothing(job, temporary, monkeypatch):
    monkeypatch.setattr(exports, "MOST_PNG_BYTES", 50_000)
    answer = get(job, "png")
    assert answer.status_code == 422 and "take more than 0 MB" in answer.text and list(temporary.iterdir()) == []


def test_without_room_on_the_disk_nothing_is_made(job, temporary, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=uploads.LEAST_FREE + 1_000_000))
    answer = get(job, "png")
    assert answer.status_code == 507 and list(temporary.iterdir()) == []


def test_load_is_answered_503_and_says_when_to_ask_again(job, temporary):
    answer = get(job, "gif", of_visitor=0)
    assert answer.status_code == 503 and "processor time" in answer.text and int(answer.headers["retry-after"]) >= 0
    assert list(temporary.iterdir()) == []
