"""Jobs and events are durable and in order, with one final event per job, for any writer."""

import json
import sqlite3
import threading
import time
from dataclasses import asdict, replace

import pytest

from backend.engine.estimate import Run
from backend.engine.job import Job, RequestSummary, new_job_id
from backend.engine.store import Store
from backend.errors import DataFolderError, JobNotFound, RequestError
from backend.schemas.events import Cancelled, Encoding, Failed, Queued
from backend.schemas.request import GenerationRequest
from backend.schemas.shape import Shape
from presets import load_preset

REQUEST = GenerationRequest.from_preset(load_preset("wan-tiny"), prompt="圆", seed=1)


@pytest.fixture
def store(tmp_path):
    store = Store(tmp_path / "jobs.sqlite3")
    yield store
    store.close()


def add(store: Store, owner: str = "ann", engine: str = "e") -> str:
    job_id = new_job_id()
    store.jobs.add(
        Job(
            id=job_id,
            owner=owner,
            summary=RequestSummary.from_request(REQUEST),
            request=REQUEST,
            state="queued",
            created=time.time(),
            started=None,
            ended=None,
            folder=store_folder(),
        ),
        engine,
    )
    return job_id


def store_folder():
    from pathlib import Path

    return Path("/runs/x")


def test_a_job_comes_back_as_it_was(store):
    job = store.jobs.find(add(store))
    assert (job.owner, job.request, job.state, job.started, job.ended) == ("ann", REQUEST, "queued", None, None)


def test_ids_sort_by_time_and_cannot_be_guessed():
    first = new_job_id()
    time.sleep(0.001)
    second = new_job_id()
    assert first < second and len(first.split("-")[1]) == 24


def test_a_page_of_jobs_follows_another_also_after_one_that_was_deleted(store):
    jobs = [add(store, owner) for owner in ("ann", "ben", "ann", "ann")]
    mine = [jobs[0], jobs[2], jobs[3]]

    def page(owner: str | None = "ann", after: str | None = None, most: int = 10, oldest_first: bool = False) -> list[str]:
        return [job.id for job in store.library.page(owner, after=after, most=most, oldest_first=oldest_first)]

    assert page() == mine[::-1] and page(oldest_first=True) == mine and page(None) == jobs[::-1]
    assert page(most=2) == [mine[2], mine[1]] and page(after=mine[1]) == [mine[0]]
    assert page(after=mine[1], oldest_first=True) == [mine[2]] and page(after="none") == []
    store.events.append(mine[1], Cancelled())
    store.library.delete(mine[1])
    assert page() == [mine[2], mine[0]] and page(after=mine[1]) == [mine[0]]


def test_an_unknown_job_is_an_error(store):
    with pytest.raises(JobNotFound, match="job 'nobody'"):
        store.jobs.find("nobody")


def test_owners_see_their_own_newest_first(store):
    ids = [add(store, owner) for owner in ("ann", "bob", "ann")]
    assert [job.id for job in store.jobs.list_jobs("ann")] == [ids[2], ids[0]]
    assert len(store.jobs.list_jobs()) == 3 and store.jobs.list_jobs("eve") == []


def test_a_job_whose_request_is_refused_hides_no_other(store, tmp_path, caplog):
    readable, refused = add(store), add(store)
    for job_id in (readable, refused):
        store.jobs.mark_running(job_id)
        store.events.append(job_id, Cancelled())
    with sqlite3.connect(tmp_path / "jobs.sqlite3") as database:
        change = "UPDATE jobs SET summary = NULL, request = json_set(request, '$.solver', 'of another version') WHERE id = ?"
        database.execute(change, (refused,))
    for _ in range(2):
        assert [job.id for job in store.jobs.list_jobs()] == [job.id for job in store.library.ended()] == [readable]
    assert [record.getMessage() for record in caplog.records if refused in record.getMessage()] == [
        f"job {refused} is not listed: {error}" for error in [pytest.raises(RequestError, store.jobs.find, refused).value]
    ]


def test_a_job_that_an_older_server_added_without_a_summary_is_listed_and_opened(store, tmp_path):
    with_summary, without = add(store), add(store)
    with sqlite3.connect(tmp_path / "jobs.sqlite3") as database:
        database.execute("UPDATE jobs SET summary = NULL WHERE id = ?", (without,))
    assert [job.id for job in store.library.unended()] == [with_summary, without]
    assert [job.id for job in store.jobs.list_jobs()] == [without, with_summary]
    assert store.jobs.find(without).summary == store.library.unended()[1].summary == RequestSummary.from_request(REQUEST)


def test_events_are_numbered_from_one(store):
    job = add(store)
    assert [store.events.append(job, event) for event in (Queued(0), Encoding())] == [1, 2]
    assert store.events.list_events(job) == [(1, Queued(0)), (2, Encoding())]
    assert store.events.list_events(job, after=1) == [(2, Encoding())] and store.events.list_events(job, after=2) == []


def test_nothing_follows_a_final_event(store):
    job = add(store)
    assert store.events.append(job, Failed("a", "b")) == 1
    assert store.events.append(job, Cancelled(None)) is None and store.events.append(job, Encoding()) is None
    assert store.jobs.find(job).state == "failed" and store.jobs.find(job).has_ended and store.jobs.find(job).ended
    assert store.jobs.mark_running(job) is False


def test_starting_happens_once(store):
    job = add(store)
    assert store.jobs.mark_running(job) and not store.jobs.mark_running(job)
    assert store.jobs.find(job).state == "running" and store.jobs.find(job).started


def test_many_threads_lose_nothing(store):
    job = add(store)
    threads = [threading.Thread(target=lambda: [store.events.append(job, Encoding()) for _ in range(25)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [number for number, _ in store.events.list_events(job)] == list(range(1, 201))


def test_it_outlives_the_process_that_wrote_it(store, tmp_path):
    job = add(store)
    store.events.append(job, Queued(3))
    other = Store(tmp_path / "jobs.sqlite3")
    assert other.events.list_events(job) == [(1, Queued(3))]
    other.close()


def test_work_can_be_handed_over(store):
    first, second = add(store, engine="old"), add(store, engine="old")
    store.events.append(second, Failed("a", "b"))
    assert store.jobs.engines_with_open_jobs() == ["old"] and store.jobs.unfinished_jobs("old") == [first]
    store.jobs.set_column(first, "engine", "new")
    assert store.jobs.engines_with_open_jobs() == ["new"]


def test_a_spoilt_file_is_explained(tmp_path):
    (tmp_path / "jobs.sqlite3").write_text("this is no database, by any means" * 100)
    with pytest.raises(DataFolderError, match="cannot be used as job store"):
        Store(tmp_path / "jobs.sqlite3")


def test_a_store_that_kept_no_devices_is_taken_over(tmp_path):
    run = Run(shape=Shape.from_request(REQUEST), steps=3, num_tokens=9, seconds={"denoise": 1.0}, device="cpu")
    old = sqlite3.connect(tmp_path / "jobs.sqlite3")
    old.execute(
        "CREATE TABLE timings (number INTEGER PRIMARY KEY, shape TEXT NOT NULL, steps INTEGER NOT NULL,"
        " tokens INTEGER NOT NULL, seconds TEXT NOT NULL)"
    )
    values = (json.dumps(asdict(run.shape)), 3, 9, '{"denoise": 1.0}')
    old.execute("INSERT INTO timings VALUES (NULL, ?, ?, ?, ?)", values)
    old.commit()
    old.close()
    store = Store(tmp_path / "jobs.sqlite3")
    store.runs.add(run)
    assert store.runs.load() == [run, replace(run, device="")]
    store.close()


def test_jobs_are_listed_by_owner_and_seed_newest_first(store):
    ann, bob, last = add(store), add(store, owner="bob"), add(store)
    assert [job.id for job in store.jobs.list_jobs()] == [last, bob, ann] and [
        job.id for job in store.jobs.list_jobs(most=1)
    ] == [last]
    assert (
        [job.id for job in store.jobs.list_jobs("ann")] == [last, ann] == [job.id for job in store.jobs.list_jobs("ann", seed=1)]
    )
    assert store.jobs.list_jobs(seed=2) == store.jobs.list_jobs("nobody", most=5) == []
