"""Tests of Edit's routes: an error is one sentence and leaves no files, and a video belongs to its visitor."""

import asyncio
import base64
import io
import json
from pathlib import Path

import pytest
from PIL import Image
from starlette.testclient import TestClient

from backend.engine.engine import Engine
from backend.schemas.settings import find_preset
from tests.clip_files import counting_clip, marked_clip, turned
from tests.wan_ui.builders import CHINESE
from wan_ui.edit.handlers import page_settings
from wan_ui.edit.html import clip_presets, edit_html
from wan_ui.i18n.english import ENGLISH
from wan_ui.services.media import BEFORE, make_before_video

VACE = ("wan2.1-vace-1.3b-480p", "wan2.1-vace-14b-720p")  # accept clips too, but do not restyle
SETTINGS = {"resolution": "96x96", "steps": 4}
WANTED = {"preset": "wan-tiny", "prompt": "a red square", "start": 0.5, "num_frames": 17, "settings": SETTINGS}


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    engine = Engine(tmp_path_factory.mktemp("edit"), pipeline="tests.fake_pipeline")
    yield engine
    engine.close()


@pytest.fixture
def clip(tmp_path, upload) -> str:
    return upload(counting_clip(tmp_path / "clip.mp4", 32, 16, (128, 96), sound=True))


def refused(client: TestClient, path: str, body: object) -> str:
    """Return the error, one sentence, that answers a request."""
    answer = client.post(path, content=json.dumps(body))
    assert set(answer.json()) == {"error"}
    told = answer.json()["error"]
    assert told.endswith((".", "?")) and "\n" not in told and len(told) < 2500
    return told


def jobs(engine) -> int:
    return sum(engine.library.counts().values())


def test_an_uploaded_clip_is_described_upright_with_its_thumbnails(visitor, upload, tmp_path):
    path = upload(turned(tmp_path / "phone.mov", marked_clip(tmp_path / "flat.mp4", (320, 192)), 90))
    told = visitor().post("/studio/edit/clip", json={"clip": path}).json()
    assert (told["width"], told["height"], told["fps"], told["has_sound"], told["name"]) == (192, 320, 15, False, "phone.mov")
    assert told["seconds"] == pytest.approx(2.0, abs=0.05)
    head, _, data = told["thumbnails"].partition(",")
    picture = Image.open(io.BytesIO(base64.b64decode(data)))
    assert head == "data:image/jpeg;base64" and picture.size == (12 * round(72 * 192 / 320), 72)


def test_what_is_no_clip_is_refused_and_does_not_stay(visitor, upload, tmp_path):
    (tmp_path / "notes.mp4").write_text("words " * 100)
    notes = upload(tmp_path / "notes.mp4")
    assert "Clip 'notes.mp4' must be a video" in refused(visitor(), "/studio/edit/clip", {"clip": notes})
    assert not Path(notes).exists()
    Image.new("RGB", (64, 64)).save(tmp_path / "a.png")
    picture = upload(tmp_path / "a.png")
    assert "must be a video" in refused(visitor(), "/studio/edit/clip", {"clip": picture})
    assert Path(picture).exists(), "the form may be using it"


@pytest.mark.parametrize("given", ["/etc/passwd", "../../etc/passwd", 5, None, ["a"], {"path": "/etc/passwd"}])
def test_only_uploads_are_opened(visitor, given):
    for path, body in (("/studio/edit/clip", {}), ("/studio/edit", WANTED)):
        assert "Clip must be an uploaded file" in refused(visitor(), path, body | {"clip": given})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"prompt": " "}, "Prompt is empty"),
        ({"prompt": 5}, "Prompt is empty"),
        ({"preset": "../../etc/passwd"}, "must be one of"),
        ({"preset": "wan2.1-i2v-14b-480p"}, "is not supported by"),
        ({"start": None}, "start (seconds) and num_frames"),
        ({"start": 10**400}, "start (seconds) and num_frames"),
        ({"num_frames": 16}, "must be 13 or 17"),
        ({"num_frames": "17"}, "start (seconds) and num_frames"),
        ({"start": -1}, "must be two times of the clip"),
        ({"start": 1.5}, "after 1.5 s it has 8 frames at 16 fps"),
        ({"strength": 7}, "Strength=7 must be above 0"),
        ({"settings": {"steps": "many"}}, "Steps='many' is refused"),
        ({"settings": {"guidance": [1, 2, 3]}}, "Guidance"),
        ({"settings": {"guidance": 4, "guidance_low": 4}}, "Guidance has 2 values"),
        ({"settings": {"resolution": "97x96"}}, "must be a multiple of 32"),
        ({"settings": {"resolution": "many"}}, "must be WIDTHxHEIGHT"),
        ({"settings": {"loras": 5}}, "must be lines of text"),
        ({"settings": {"prompt": "x"}}, "which no view has"),
        ({"settings": {"progressive": 2}}, "cannot be combined with video"),
        ({"settings": {"solver": "lcm"}}, "must be one of unipc"),
        ({"settings": [1]}, "must be values by name"),
    ],
)
def test_what_cannot_begin_is_refused_with_one_sentence_and_leaves_nothing(engine, visitor, clip, changes, words):
    before_it = jobs(engine)
    assert words in refused(visitor(), "/studio/edit", WANTED | {"clip": clip} | changes)
    assert jobs(engine) == before_it


@pytest.mark.parametrize("body", [b"{", b"[1]", b"\xff", b"[" * 100_000])
def test_what_is_no_json_is_refused(visitor, body):
    for path in ("/studio/edit", "/studio/edit/clip"):
        answer = visitor().post(path, content=body)
        assert answer.status_code == 200 and set(answer.json()) == {"error"}


def test_a_video_is_made_from_the_part_and_its_clip_is_its_visitors_alone(engine, visitor, clip):
    anna, ben = visitor("A"), visitor("B")
    job_id = anna.post("/studio/edit", json=WANTED | {"clip": clip, "strength": 0.5, "settings": SETTINGS | {"seed": 3}}).json()[
        "job"
    ]
    *_, (_, final) = engine.event_log.follow(job_id)
    request = final.result.request
    assert (request.trim, request.strength, request.num_steps, request.seed) == ((0.5, 1.5625), 0.5, 2, 3)
    assert Path(request.video).parent == engine.jobs.find(job_id).folder
    for name in ("input-video.mp4", BEFORE):
        assert anna.get(f"/studio/media/{job_id}/{name}").status_code == 200
        assert ben.get(f"/studio/media/{job_id}/{name}").status_code == 404
    page = page_settings(request)
    settings = page.pop("settings")
    assert {name: settings[name] for name in ("resolution", "steps", "seed", "guidance")} == SETTINGS | {
        "seed": 3,
        "guidance": 4.0,
    }
    assert page == {
        **{"preset": "wan-tiny", "prompt": "a red square", "num_frames": 17, "strength": 0.5},
        **{"way": "anew", "start": 0.5, "end": 1.5625},
    }


def test_a_clip_is_made_larger_as_it_is_and_is_its_visitors_alone(engine, visitor, clip):
    anna, ben = visitor("A"), visitor("B")
    job_id = anna.post("/studio/edit", json={"way": "upscale", "clip": clip, "upscale": "2:animevideov3"}).json()["job"]
    *_, (_, final) = engine.event_log.follow(job_id)
    job, result = engine.jobs.find(job_id), final.result
    assert (result.width, result.height, result.num_frames, result.has_sound) == (256, 192, 32, True)
    assert Path(job.request.finished_video).parent == job.folder and job.request.prompt == "clip.mp4"
    assert anna.get(f"/studio/media/{job_id}/video.mp4").status_code == 200
    assert ben.get(f"/studio/media/{job_id}/video.mp4").status_code == 404
    facts = {"width": 128, "height": 96, "seconds": 2.0, "fps": 16, "clip": clip, "way": "upscale"}
    said = anna.post("/studio/edit/estimate", json=facts | {"upscale": "2:animevideov3"}).json()["html"]
    assert "About 0.20 s" in said


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"clip": "/etc/passwd"}, "Clip must be an uploaded file"),
        ({"upscale": "3:animevideov3"}, "Upscale='3' must be 2 or 4"),
        ({"upscale": None}, "must be 2 or 4"),
        ({"upscale": ["2"]}, "must be 2 or 4"),
        ({"upscale": "2:../../etc/passwd"}, "must be the name of a file"),
        ({"upscale": "2:missing.pth"}, "must be an installed upscaler"),
        ({"upscale": "2:nobody/nothing:a.safetensors"}, "only the operator may download it"),
        ({"upscale": "2:" + "x" * 5000}, "must be the name of a file"),
    ],
)
def test_what_cannot_be_made_larger_is_refused_with_one_sentence(engine, visitor, clip, changes, words):
    before_it = jobs(engine)
    assert words in refused(visitor(), "/studio/edit", {"way": "upscale", "clip": clip, "upscale": "2:"} | changes)
    assert jobs(engine) == before_it


@pytest.mark.parametrize("facts", [{"width": 10**9}, {"fps": 0}, {"seconds": "2"}, {"height": True}, {"width": float("nan")}, {}])
def test_no_estimate_is_made_from_facts_that_are_none(visitor, facts):
    given = (
        {"way": "upscale", "upscale": "2:", "width": 64, "height": 64, "seconds": 1, "fps": 16} if facts else {"way": "upscale"}
    )
    answer = visitor().post("/studio/edit/estimate", content=json.dumps(given | facts))
    assert answer.json() == {"html": ""}


def test_what_is_no_clip_is_not_made_larger(engine, visitor, upload, tmp_path):
    (tmp_path / "notes.mp4").write_text("words " * 100)
    given = {"way": "upscale", "clip": upload(tmp_path / "notes.mp4"), "upscale": "4:"}
    assert "Clip 'notes.mp4' must be a video" in refused(visitor(), "/studio/edit", given)


def test_what_there_was_before_is_made_once_and_only_for_a_clip(engine, visitor, clip):
    job_id = visitor().post("/studio/edit", json=WANTED | {"clip": clip}).json()["job"]
    list(engine.event_log.follow(job_id))
    job = engine.jobs.find(job_id)
    made = asyncio.run(make_before_video(job, engine.sandbox))
    assert made == job.folder / BEFORE and asyncio.run(make_before_video(job, engine.sandbox)) == made
    plain = engine.submit(job.request.with_changes(video=None, strength=None, trim=None))
    assert asyncio.run(make_before_video(plain, engine.sandbox)) is None


def test_the_view_knows_each_models_own_limits():
    presets = clip_presets(lambda preset: preset.name in ("wan-tiny", "wan2.1-i2v-14b-480p", "wan2.1-t2v-14b-720p", *VACE))
    assert {preset.name for preset in presets} == {"wan-tiny", "wan2.1-t2v-14b-720p", *VACE}
    tiny = find_preset("wan-tiny")
    for texts in (ENGLISH, CHINESE):
        html = edit_html(presets, texts)
        assert tiny.words(texts.language).title in html and '"min_frames": 5' in html and texts.edit_drop in html
    assert ENGLISH.edit_none in edit_html([], ENGLISH)


def test_nothing_from_people_becomes_markup():
    html = edit_html(clip_presets(lambda preset: True), ENGLISH, {"prompt": "<script>'\"&"})
    assert "<script>" not in html


def test_how_long_it_takes_is_learned_from_what_was_made(engine, visitor, clip):
    def estimated(**changes) -> str:
        return visitor().post("/studio/edit/estimate", json=WANTED | {"clip": clip, "strength": 0.5} | changes).json()["html"]

    job_id = visitor().post("/studio/edit", json=WANTED | {"clip": clip, "strength": 0.5}).json()["job"]
    list(engine.event_log.follow(job_id))
    assert "About" in estimated() and "About" in estimated(prompt="")
    assert estimated(clip="/etc/passwd") == estimated(num_frames=16) == estimated(start=None) == ""
