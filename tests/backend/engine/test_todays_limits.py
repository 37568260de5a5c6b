"""Every queued request passes its preset's present limits, from any source. No job blocks the others."""

import json
import shutil
import sqlite3
import zipfile
from collections import namedtuple
from pathlib import Path

import pytest

from backend.engine import disk
from backend.engine.disk import RESERVE_BYTES, needed_bytes
from backend.engine.engine import Engine
from backend.engine.job import Job, Selection
from backend.errors import RequestError
from backend.media.project_archive import MANIFEST
from backend.schemas.events import Failed, Finished
from tests.backend.conftest import all_events, request, wait_for

Usage = namedtuple("Usage", "total used free")
LARGE = {"width": 128, "height": 128, "num_frames": 161}
TOO_SMALL = RESERVE_BYTES + needed_bytes(request(**LARGE)) - 1
"""Bytes of a disk with space for a short request, but not for `LARGE`."""
REFUSED = {
    "steps": ({"steps": 100_000}, "steps=100000 must be between 1 and"),
    "size": ({"width": 32768, "height": 32768, "num_frames": 100_000}, "width=32768 must be"),
    "open": ({"is_open": True, "num_frames": 100_000}, "must be|a live video was requested"),
    "scale": ({"upscale": 100}, "upscale=100 must be 0, 2 or 4"),
    "guidance": ({"guidance": [1] * 2}, "guidance has 2 values and must have 1"),
    "cues": ({"cues": [{"block": 1, "prompt": "x"}]}, "a live video was requested"),
}


def forged_project(engine: Engine, folder: Path, **changes: object) -> Path:
    """Return a project of one video whose request has these values."""
    project = engine.projects.create("ann", f"film {len(engine.projects.list_for_owner('ann'))}")
    engine.projects.set_current("ann", project.id)
    all_events(engine, engine.submit(request(), "ann").id)
    engine.projects.set_current("ann", "")
    path = folder / "project.zip"
    engine.sandbox.run_steps(engine.export_project_steps(engine.projects.find(project.id, "ann"), path))
    with zipfile.ZipFile(path) as archive:
        manifest, video = json.loads(archive.read(MANIFEST)), archive.read("videos/0001.mp4")
    manifest["videos"][0]["request"] |= changes
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("videos/0001.mp4", video)
        archive.writestr(MANIFEST, json.dumps(manifest))
    return path


def imported_job(engine: Engine, folder: Path, **changes: object) -> Job:
    """Return the job that the import of such a project creates."""
    archive, unpacked = forged_project(engine, folder, **changes), folder / "unpacked"
    unpacked.mkdir()
    project, _ = engine.sandbox.run_steps(engine.import_project_steps(archive, unpacked, "ann"))
    shutil.rmtree(unpacked)
    (job,) = engine.library.videos(Selection(owner="ann", project=project.id))
    return engine.jobs.find(job.id)


@pytest.mark.parametrize("name", REFUSED)
def test_an_imported_request_that_the_preset_refuses_is_not_queued(engine, close_gate, tmp_path, name):
    close_gate("a held square")
    changes, words = REFUSED[name]
    job = imported_job(engine, tmp_path, **changes)
    with pytest.raises(RequestError, match=words):
        engine.submit(job.request, "ann")
    waiting = engine.submit(request("a held square"), "ann")
    second = engine.submit(request(), "ann")
    with pytest.raises(RequestError, match=words):
        engine.sandbox.run_steps(engine.revise_steps(second.id, job.request))
    engine.queue.cancel(waiting.id)
    assert isinstance(all_events(engine, second.id)[-1], Finished)


def stored_as(folder: Path, job_id: str, request_text: str) -> None:
    with sqlite3.connect(folder / "jobs.sqlite3") as database:
        database.execute("UPDATE jobs SET request = ? WHERE id = ?", (request_text, job_id))
    database.close()


def test_a_stored_job_that_no_longer_passes_fails_after_a_restart_and_blocks_nobody(make_engine, tmp_path):
    first = make_engine(start_worker=False)
    jobs = [first.submit(request(), owner, may_download=True) for owner in ("ann", "bob", "cleo")]
    first.close()
    forged = jobs[0].request.to_json()
    stored_as(tmp_path / "data", jobs[0].id, json.dumps(forged | {"steps": 100_000}))
    stored_as(tmp_path / "data", jobs[1].id, json.dumps(forged | {"preset": "a preset that was removed"}))
    second = make_engine()
    for job, words in ((jobs[0], "steps=100000"), (jobs[1], "a preset that was removed")):
        final = all_events(second, job.id)[-1]
        assert isinstance(final, Failed) and words in final.cause, final
    assert isinstance(all_events(second, jobs[2].id)[-1], Finished)


def test_a_job_larger_than_the_disk_is_refused_before_it_is_queued(engine, monkeypatch):
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda folder: Usage(total=TOO_SMALL, used=0, free=TOO_SMALL))
    large = request(**LARGE)
    with pytest.raises(RequestError, match="more than the whole disk"):
        engine.submit(large)
    assert isinstance(all_events(engine, engine.submit(request()).id)[-1], Finished)


def test_a_job_for_which_the_disk_has_no_room_waits_alone(engine, monkeypatch):
    usage = [Usage(total=10**12, used=0, free=TOO_SMALL)]
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda folder: usage[0])
    large = engine.submit(request(**LARGE), "ann")
    assert isinstance(all_events(engine, engine.submit(request(), "bob").id)[-1], Finished)
    assert engine.jobs.find(large.id).state == "queued" and engine.queue.find_shortage("bob") is None
    assert engine.queue.find_shortage("ann") == engine.queue.find_shortage() and engine.queue.find_shortage().needed > TOO_SMALL
    usage[0] = Usage(total=TOO_SMALL, used=0, free=TOO_SMALL)  # as when the data folder moves to a smaller disk
    final = all_events(engine, large.id)[-1]
    assert isinstance(final, Failed) and "The disk cannot hold this video" in final.cause


def test_only_what_was_generated_here_and_passes_is_prepared_after_a_restart(make_engine, tmp_path, monkeypatch):
    first = make_engine()
    imported_job(first, tmp_path, width=128, height=128, num_frames=33)
    generated = first.submit(request(width=128, height=96), "ann")
    all_events(first, generated.id)
    too_large = first.submit(request(width=96, height=128), "ann")
    all_events(first, too_large.id)
    first.close()
    stored_as(tmp_path / "data", too_large.id, json.dumps(too_large.request.to_json() | {"height": 32768, "width": 32768}))
    second = make_engine(warm_up=True)
    sizes = {(one.width, one.height) for one, _ in second._recent_requests()}
    assert sizes == {(128, 96), (96, 96)}, "the imported one and the one that is refused today are not"
    prepared = []
    monkeypatch.setattr(second.queue, "prepare_for", lambda one, shape: prepared.append(one))
    second.prepare_for(second.jobs.find(too_large.id).request)
    second.prepare_for(generated.request)
    assert prepared == [generated.request]
    wait_for(lambda: second.pool.status().state == "ready")
