"""The library finds every finished video, and restores deleted videos."""

import sqlite3
import time

import pytest

from backend.engine.job import Selection
from backend.engine.scheduling import QueueLimits
from backend.engine.store import Store
from backend.errors import JobHasBegun, QueueFull, StudioError
from backend.schemas.events import Finished, Queued
from tests.backend.conftest import all_events, request, wait_for


def made(engine, prompt: str, owner: str = "ann", **changes) -> str:
    job = engine.submit(request(prompt, steps=1, **changes), owner=owner)
    all_events(engine, job.id)
    return job.id


def found(engine, **selection) -> list[str]:
    return [job.id for job in engine.library.videos(Selection(**{"owner": "ann", **selection}))]


def test_videos_are_found_by_words_star_and_preset(engine):
    red, blue, theirs = made(engine, "A red Circle"), made(engine, "blue 圆 100%"), made(engine, "red", owner="bob")
    failed = made(engine, "explode")
    assert found(engine) == [blue, red] and failed not in found(engine)
    assert found(engine, owner=None) == [theirs, blue, red]
    assert found(engine, words=("circle", "RED")) == [red] and found(engine, words=("圆",)) == [blue]
    assert found(engine, words=("0%",)) == [blue] and found(engine, words=("_",)) == []
    engine.library.star(blue, True)
    assert found(engine, is_starred=True) == [blue] and engine.jobs.find(blue).is_starred
    assert found(engine, presets=("wan-tiny",)) == [blue, red] and found(engine, presets=("x",)) == []
    assert engine.library.count(Selection(owner="ann", most=1)) == 2
    assert engine.library.prompts("ann", 2) == ["explode", "blue 圆 100%"]


def test_videos_with_sound_are_told_apart(engine):
    silent, sounding, failed = made(engine, "a red square"), made(engine, "a square that hums"), made(engine, "explode")
    assert engine.library.with_sound([silent, sounding, failed, "nothing"]) == {sounding}
    assert engine.library.with_sound([silent]) == engine.library.with_sound([]) == frozenset()
    assert (
        reopened(engine, [silent, sounding], "UPDATE events SET event = json_remove(event, '$.result.has_sound')") == frozenset()
    )
    old_clip = "UPDATE jobs SET request = json_set(request, '$.video', 'input-video.mp4')"
    assert reopened(engine, [silent, failed], old_clip) == {silent}, "an old result of a clip"


def reopened(engine, jobs: list[str], change: str) -> frozenset[str]:
    """Return the jobs whose video has sound, after an older server wrote to the store. `change` makes the jobs old."""
    with sqlite3.connect(engine.settings.data_dir / "jobs.sqlite3") as database:
        database.execute(change)
        database.execute("UPDATE jobs SET has_sound = NULL")
    return engine.library.with_sound(jobs)


def test_what_is_deleted_can_be_taken_back_and_goes_only_much_later(engine, make_engine):
    job = made(engine, "a red square")
    engine.library.delete(job)
    assert found(engine) == [] and found(engine, is_deleted=True) == [job]
    engine.library.restore(job)
    assert found(engine) == [job]
    engine.library.delete(job)
    engine.cleaner.clean()
    assert engine.jobs.find(job).folder.is_dir()
    engine._store.tables.execute("UPDATE jobs SET deleted = ?", (time.time() - 8 * 24 * 3600,))
    folder = engine.jobs.find(job).folder
    engine.cleaner.clean()
    assert not folder.exists() and found(engine, is_deleted=True) == []


def test_what_is_being_made_cannot_be_deleted(engine, close_gate):
    close_gate("a held square")
    job = engine.submit(request("a held square"))
    with pytest.raises(StudioError, match="stop it first"):
        engine.library.delete(job.id)


def test_waiting_jobs_can_be_put_into_another_order(engine, close_gate):
    close_gate("a held square")
    engine.submit(request("a held square"))
    first, second, third = (engine.submit(request(f"square {number}", steps=1)).id for number in range(3))
    engine.queue.move(third, 0)
    assert engine.queue.waiting_job_ids() == [third, first, second]
    assert [event.position for event in map(engine.events.last, (first, second)) if isinstance(event, Queued)] == [1, 2]
    engine.queue.move("nobody", 0)


def test_jobs_of_one_shape_are_put_together(engine, close_gate):
    close_gate("a held square")
    engine.submit(request("a held square"))
    small, wide = engine.submit(request("small")).id, engine.submit(request("wide", width=128)).id
    again = engine.submit(request("small again")).id
    assert engine.queue.waiting_job_ids() == [small, again, wide]


def test_a_waiting_job_can_be_changed_and_a_running_one_cannot(engine, close_gate):
    gate = close_gate("a held square")
    running, waiting = engine.submit(request("a held square")), engine.submit(request("blue"))
    engine.sandbox.run_steps(engine.revise_steps(waiting.id, request("green", steps=2, width=128)))
    with pytest.raises(JobHasBegun, match="while it waits"):
        engine.sandbox.run_steps(engine.revise_steps(running.id, request("green")))
    gate.open()
    result = all_events(engine, waiting.id)[-1].result
    assert (result.request.prompt, result.width, engine.jobs.find(waiting.id).request.steps) == ("green", 128, 2)


def test_an_owner_may_have_a_limited_number_queued(engine, close_gate, tmp_path):
    close_gate("a held square")
    engine.submit(request("a held square"), owner="ann")
    for _ in range(2):
        engine.submit(request(), owner="ann", queue_limits=QueueLimits(of_owner=2, of_address=9, in_all=9))
    with pytest.raises(QueueFull, match="you have 2 queued videos and may have 2"):
        engine.submit(request(), owner="ann", queue_limits=QueueLimits(of_owner=2, of_address=9, in_all=9))
    engine.submit(request(), owner="bob", queue_limits=QueueLimits(of_owner=2, of_address=9, in_all=9))
    assert len(list((tmp_path / "data" / "runs").iterdir())) == 4


def test_the_order_and_the_queue_outlive_the_engine(make_engine, close_gate):
    engine, gate = make_engine(), close_gate("a held square")
    engine.submit(request("a held square"))
    first, second = engine.submit(request("one")).id, engine.submit(request("two")).id
    engine.queue.move(second, 0)
    engine.close()
    gate.open()
    later = make_engine()
    assert isinstance(all_events(later, first)[-1], Finished)
    assert later.jobs.find(second).started < later.jobs.find(first).started


def test_it_learns_how_long_a_video_takes_and_what_is_compiled(engine):
    wait_for(lambda: engine.pool.status().state == "ready")
    assert engine.estimates.estimate(request()) is None
    made(engine, "wide", width=128)
    wide = engine.estimates.estimate(request(width=128))
    assert wide.basis == "measured" and wide.is_warm and wide.seconds > 0
    assert engine.estimates.estimate(request(width=96, height=128)).is_warm is False
    [device] = engine.pool.workers()[0].facts.devices
    assert (device.kind, engine.pool.workers()[0].facts.model is not None) == ("square", True)


def test_a_store_of_the_first_version_is_taken_over(tmp_path):
    old = sqlite3.connect(tmp_path / "jobs.sqlite3")
    old.executescript("""
      CREATE TABLE jobs (number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, owner TEXT NOT NULL, engine TEXT NOT NULL,
        request TEXT NOT NULL, state TEXT NOT NULL, created REAL NOT NULL, started REAL, ended REAL, folder TEXT NOT NULL);
      CREATE TABLE events (job_id TEXT NOT NULL, sequence INTEGER NOT NULL, time REAL NOT NULL, event TEXT NOT NULL,
        PRIMARY KEY (job_id, sequence)) WITHOUT ROWID;""")
    import json

    data = json.dumps(request("an old one").to_json())
    for name, event in (("a", '{"kind": "finished", "result": {"path": "/x"}}'), ("b", '{"kind": "failed"}')):
        old.execute("INSERT INTO jobs VALUES (NULL, ?, 'ann', 'e', ?, 'finished', 5.0, 5.0, 6.0, '/x')", (name, data))
        old.execute("INSERT INTO events VALUES (?, 1, 5.0, ?)", (name, event))
    old.commit()
    old.close()
    store = Store(tmp_path / "jobs.sqlite3")
    [job] = store.library.videos(Selection())
    assert (job.id, job.place, job.is_starred, job.deleted) == ("a", 5.0, False, None)
    store.close()
