"""Tests that files of earlier versions open unchanged: `tests/stored` and `tests/fixtures/written_by_4bce9ae7`."""

import base64
import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from backend.engine import folder as request_folder
from backend.engine.engine import Engine
from backend.engine.job import Selection
from backend.media.video import read_request
from backend.schemas.events import Failed, Finished, Step
from tests.backend.conftest import all_events
from wan_ui.form.load_settings import decode_settings, encode_settings
from wan_ui.form.own_presets import check_settings, own_presets_html
from wan_ui.i18n.english import Texts
from wan_ui.services.media import media_url

STORED = Path(__file__).parent / "stored"
FIELDS_OF_THEN = {
    "preset", "task", "prompt", "negative_prompt", "width", "height", "num_frames", "fps", "steps", "guidance", "flow_shift",
    "solver", "seed", "image", "last_image", "image_focus", "loras", "guidance_interval", "step_cache",
}  # fmt: skip


@pytest.fixture
def engine(tmp_path):
    shutil.copytree(STORED, tmp_path / "data")
    engine = Engine(tmp_path / "data", start_worker=False, resume=False)  # resuming would remove the old jobs' step reports
    yield engine
    engine.close()


def test_jobs_and_their_events_are_those_of_then(engine):
    jobs = {job.request.seed: job for job in engine.jobs.list_jobs()}
    assert {seed: (job.state, job.owner) for seed, job in jobs.items()} == {
        1: ("finished", "visitor-a"),
        2: ("finished", "visitor-a"),
        3: ("finished", "visitor-b"),
        4: ("failed", "visitor-a"),  # the job ran when the server was stopped
    }
    assert jobs[1].is_starred and not jobs[2].is_starred
    assert jobs[2].request.task == "i2v" and jobs[2].request.image_focus == (0.25, 0.5)
    assert jobs[3].request.loras[0].source == "style.safetensors" and jobs[3].request.step_cache == 0.1
    events = [event for _, event in engine.event_log.follow(jobs[1].id)]
    assert [event.index for event in events if isinstance(event, Step)] == [1, 2, 3] and isinstance(events[-1], Finished)
    assert isinstance(engine.events.last(jobs[4].id), Failed)


def test_a_request_is_written_with_the_fields_of_then(engine):
    for job in engine.jobs.list_jobs():
        assert job.request.to_json().keys() == FIELDS_OF_THEN


def test_presets_and_comparisons_of_visitors_are_there(engine):
    assert engine.user_presets.presets("visitor-a") == {"mine": {"preset": "wan-tiny", "steps": 7}}
    (comparison,) = (one for one in engine.user_presets.comparisons() if one.owner == "visitor-a")
    assert [engine.jobs.find(job_id).request.seed for job_id in comparison.jobs] == [1, 2]


def test_videos_and_run_folders_carry_their_requests(engine, tmp_path):
    for run in (tmp_path / "data" / "runs").iterdir():
        request = request_folder.read_request(run)
        assert all(Path(path).is_file() for paths in request.inputs().values() for path in paths)
        if (run / "video.mp4").is_file():
            assert read_request(run / "video.mp4").for_sharing() == request.for_sharing()


def test_a_prompt_with_such_a_path_and_a_folder_with_another_server_stay_as_they_are(tmp_path):
    shutil.copytree(STORED, tmp_path / "first")
    with closing(Engine(tmp_path / "first", start_worker=False, resume=False)) as first:
        runs = tmp_path / "first" / "runs"
        plain = next(job.request for job in first.jobs.list_jobs() if job.request.task == "t2v" and not job.request.loras)
        request = plain.with_changes(prompt=f"{runs}/ on a wall")
        job = first.submit(request, "visitor-a")
        (tmp_path / "second").symlink_to(tmp_path / "first")
        with closing(Engine(tmp_path / "second", start_worker=False, resume=False)) as second:
            assert second.jobs.find(job.id).folder == first.jobs.find(job.id).folder == runs / job.id
    with closing(Engine(tmp_path / "second", start_worker=False, resume=False)) as second:
        assert second.jobs.find(job.id).folder == tmp_path / "second" / "runs" / job.id
        assert second.jobs.find(job.id).request.prompt == request.prompt


def test_the_files_of_a_data_folder_that_was_moved_are_found_where_it_is_now(engine, tmp_path):
    for job in engine.jobs.list_jobs():
        assert job.folder == tmp_path / "data" / "runs" / job.id and job.folder.is_dir()
        assert all(Path(path).parent == job.folder for paths in job.request.inputs().values() for path in paths)
        ended = engine.events.last(job.id)
        if isinstance(ended, Finished):
            assert Path(ended.result.path).is_file() and media_url(job, ended.result.path).endswith(f"{job.id}/video.mp4")


def test_a_link_of_then_loads_its_settings(engine):
    (job,) = (job for job in engine.jobs.list_jobs() if job.request.seed == 1)
    settings = {name: value for name, value in job.request.to_json().items() if name in FIELDS_OF_THEN}
    code = base64.urlsafe_b64encode(json.dumps(settings).encode()).decode()
    assert decode_settings(code) == job.request


WRITTEN = Path(__file__).parent / "fixtures" / "written_by_4bce9ae7"
"""A data folder, a video, a link, presets and a project that commit 4bce9ae7 wrote; its README says how."""

STATES = {  # seed of each job: state; each shot of the storyboard is a job too
    11: "finished",
    12: "finished",
    13: "finished",
    14: "finished",
    9: "finished",
    15: "cancelled",
    16: "cancelled",
    17: "queued",
    18: "queued",
}


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Return a copy of the stored data folder. The fake pipeline does not wait in its steps."""
    monkeypatch.setenv("STUDIO_TEST_STEP_SECONDS", "0")
    shutil.copytree(WRITTEN / "data", tmp_path / "data")
    return tmp_path / "data"


@pytest.fixture
def opened(written):
    """Return an engine on the copy that runs no jobs."""
    with closing(Engine(written, start_worker=False, resume=False)) as engine:
        yield engine


def stored_rows(data_dir: Path, query: str) -> list[tuple]:
    """Read the database of that commit without the studio's code."""
    with closing(sqlite3.connect(data_dir / "jobs.sqlite3")) as database:
        return database.execute(query).fetchall()


def test_every_job_of_4bce9ae7_has_its_state_and_its_settings(opened, written):
    jobs = {job.id: job for job in opened.jobs.list_jobs()}
    live = next(job for job in jobs.values() if job.request.preset == "wan-live-tiny")
    assert {job.request.seed: job.state for job in jobs.values() if job is not live} == STATES and live.state == "finished"
    for job_id, text in stored_rows(written, "SELECT id, request FROM jobs"):
        assert named_only(jobs[job_id].request.to_json()) == json.loads(text)
        in_folder = json.loads((written / "runs" / job_id / "request.json").read_text("utf-8"))
        assert named_only(request_folder.read_request(written / "runs" / job_id).to_json()) == named_only(in_folder)
    story = next(job.request for job in jobs.values() if job.request.shots)
    assert [(shot.seed, shot.cut, shot.fade) for shot in story.shots] == [(None, False, 0), (9, True, 0.125)]
    assert [(cue.action, cue.prompt) for cue in live.request.cues] != [] and live.request.cues[-1].prompt.startswith(
        "a blue star"
    )


def named_only(values: dict) -> dict:
    """Return the settings with file names in place of input paths, as the database stores them."""
    return {name: Path(value).name if name in ("image", "video") and value else value for name, value in values.items()}


def test_the_library_of_4bce9ae7_lists_its_videos_with_star_tags_and_project(opened):
    (owner,) = {job.owner for job in opened.jobs.list_jobs()}
    (project,) = opened.projects.list_for_owner(owner)
    assert (project.name, project.videos) == ("Night film", 3)
    videos = opened.library.videos(Selection(owner=owner))
    assert len(videos) == 8 and all((job.folder / "video.mp4").is_file() for job in videos)
    for job in videos:
        assert read_request(job.folder / "video.mp4").for_sharing() == opened.jobs.find(job.id).request.for_sharing()
    (best,) = opened.library.videos(Selection(owner=owner, words=("#best", "#night")))
    assert best.summary.seed == 11 and best.is_starred and best.project == project.id


def test_own_presets_of_4bce9ae7_show_and_load(opened, written):
    ((owner, *_), *_) = stored = stored_rows(written, "SELECT owner, name, settings FROM own_presets")
    presets = opened.user_presets.presets(owner)
    assert presets == {name: json.loads(settings) for _, name, settings in stored}
    assert presets == json.loads((WRITTEN / "presets.json").read_text("utf-8"))["presets"]
    page = own_presets_html(presets, Texts())
    assert {name: check_settings(presets[name]).steps for name in presets if name in page} == {
        "Slow and careful": 7,
        "Quick 草稿": 4,
    }


def test_a_video_of_4bce9ae7_carries_its_settings():
    request = read_request(WRITTEN / "video.mp4")
    assert (request.prompt, request.negative_prompt) == ("a red circle moving right on a black background", "blur")
    assert (request.num_frames, request.steps, request.flow_shift, request.seed) == (5, 3, 2.5, 11)
    assert request.to_json().keys() == FIELDS_OF_THEN


def test_a_link_of_4bce9ae7_opens_with_equal_values_and_is_copied_the_same_today():
    code = (WRITTEN / "link.txt").read_text("utf-8").strip().partition("?settings=")[2]
    values = json.loads(base64.urlsafe_b64decode(code + "=" * (-len(code) % 4)))
    request = decode_settings(code)
    assert {name: request.to_json()[name] for name in values} == values and (request.steps, request.prompt) == (
        4,
        values["prompt"],
    )
    assert encode_settings(request) == code


def test_a_project_file_of_4bce9ae7_is_imported(opened, tmp_path):
    (tmp_path / "unpacked").mkdir()
    project, count = opened.sandbox.run_steps(opened.import_project_steps(WRITTEN / "project.zip", tmp_path / "unpacked", "bob"))
    listed = opened.library.videos(Selection(owner="bob", project=project.id, order="oldest"))
    jobs = [opened.jobs.find(job.id) for job in listed]
    assert (project.name, count) == ("Night film", 3)
    assert [(job.request.seed, job.request.task, job.request.strength) for job in jobs] == [
        (11, "t2v", None),
        (12, "i2v", None),
        (13, "t2v", 0.6),
    ]
    assert all(Path(path).is_file() for job in jobs for paths in job.request.inputs().values() for path in paths)


def test_the_queue_of_4bce9ae7_runs_to_its_end(written):
    with closing(Engine(written, pipeline="tests.fake_pipeline")) as engine:
        jobs = {job.request.seed: job.id for job in engine.jobs.list_jobs() if not job.has_ended}
        assert jobs.keys() == {17, 18}
        for job_id in jobs.values():
            assert isinstance(all_events(engine, job_id)[-1], Finished)
        assert read_request(engine.jobs.find(jobs[18]).folder / "video.mp4").negative_prompt == "text"
