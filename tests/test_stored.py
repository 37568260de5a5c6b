"""What the studio stored before it was divided into rooms (November 2026) opens unchanged: `tests/stored` was written by that version."""

import base64
import json
import shutil
from contextlib import closing
from pathlib import Path

import pytest

from backend.contract.events import Failed, Finished, Step
from backend.engine import folder as request_folder
from backend.engine.engine import Engine
from backend.media.video import read_request
from wan_ui.desk.media import media_url
from wan_ui.form.fill import read_settings

STORED = Path(__file__).parent / "stored"
FIELDS_OF_THEN = {
    "preset", "task", "prompt", "negative_prompt", "width", "height", "num_frames", "fps", "steps", "guidance", "flow_shift",
    "solver", "seed", "image", "last_image", "image_focus", "loras", "guidance_interval", "step_cache",
}  # fmt: skip


@pytest.fixture
def engine(tmp_path):
    shutil.copytree(STORED, tmp_path / "data")
    engine = Engine(tmp_path / "data", start_worker=False, resume=False)  # else cleaning removes what old jobs' steps reported
    yield engine
    engine.close()


def test_jobs_and_their_events_are_those_of_then(engine):
    jobs = {job.request.seed: job for job in engine.jobs()}
    assert {seed: (job.state, job.owner) for seed, job in jobs.items()} == {
        1: ("finished", "visitor-a"),
        2: ("finished", "visitor-a"),
        3: ("finished", "visitor-b"),
        4: ("failed", "visitor-a"),  # it ran when the server was stopped
    }
    assert jobs[1].is_starred and not jobs[2].is_starred
    assert jobs[2].request.task == "i2v" and jobs[2].request.image_focus == (0.25, 0.5)
    assert jobs[3].request.loras[0].source == "style.safetensors" and jobs[3].request.step_cache == 0.1
    events = [event for _, event in engine.events(jobs[1].id)]
    assert [event.index for event in events if isinstance(event, Step)] == [1, 2, 3] and isinstance(events[-1], Finished)
    assert isinstance(engine.last_event(jobs[4].id), Failed)


def test_a_request_is_written_with_the_fields_of_then(engine):
    for job in engine.jobs():
        assert job.request.to_json().keys() == FIELDS_OF_THEN


def test_presets_and_comparisons_of_visitors_are_there(engine):
    assert engine.shelf.presets("visitor-a") == {"mine": {"preset": "wan-tiny", "steps": 7}}
    (comparison,) = (one for one in engine.shelf.comparisons() if one.owner == "visitor-a")
    assert [engine.job(job_id).request.seed for job_id in comparison.jobs] == [1, 2]


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
        plain = next(job.request for job in first.jobs() if job.request.task == "t2v" and not job.request.loras)
        request = plain.changed(prompt=f"{runs}/ on a wall")
        job = first.submit(request, "visitor-a")
        (tmp_path / "second").symlink_to(tmp_path / "first")
        with closing(Engine(tmp_path / "second", start_worker=False, resume=False)) as second:
            assert second.job(job.id).folder == first.job(job.id).folder == runs / job.id
    with closing(Engine(tmp_path / "second", start_worker=False, resume=False)) as second:
        assert second.job(job.id).folder == tmp_path / "second" / "runs" / job.id
        assert second.job(job.id).request.prompt == request.prompt


def test_the_files_of_a_data_folder_that_was_moved_are_found_where_it_is_now(engine, tmp_path):
    for job in engine.jobs():
        assert job.folder == tmp_path / "data" / "runs" / job.id and job.folder.is_dir()
        assert all(Path(path).parent == job.folder for paths in job.request.inputs().values() for path in paths)
        ended = engine.last_event(job.id)
        if isinstance(ended, Finished):
            assert Path(ended.result.path).is_file() and media_url(job, ended.result.path).endswith(f"{job.id}/video.mp4")


def test_a_link_of_then_loads_its_settings(engine):
    (job,) = (job for job in engine.jobs() if job.request.seed == 1)
    settings = {name: value for name, value in job.request.to_json().items() if name in FIELDS_OF_THEN}
    code = base64.urlsafe_b64encode(json.dumps(settings).encode()).decode()
    assert read_settings(code) == job.request
