"""Check the engine from outside: queue, events, cancelling, owners, restarts. The worker is real, with a stand-in pipeline."""

import subprocess
import sys
import threading
import time

import pytest

from backend.engine.engine import Engine
from backend.errors import DataFolderError, JobNotFound, StudioError
from backend.media.video import read_frames, read_request
from backend.schemas.events import (
    Cancelled,
    Compiling,
    Decoding,
    Encoding,
    Failed,
    Finished,
    Interrupted,
    Loading,
    Proposal,
    Queued,
    Step,
)
from backend.settings import PROJECT_FOLDER
from tests.backend.conftest import FAKE, all_events, request, wait_for
from tests.clock import is_within


def test_a_request_becomes_a_video(engine):
    job = engine.submit(request())
    events = all_events(engine, job.id)
    assert isinstance(events[0], Queued) and isinstance(events[-1], Finished)
    assert [event.index for event in events if isinstance(event, Step)] == [1, 2, 3]
    assert {type(event) for event in events} == {Queued, Loading, Encoding, Step, Decoding, Finished}
    result, ended = events[-1].result, engine.jobs.find(job.id)
    assert (ended.state, ended.request) == ("finished", job.request) and ended.created <= ended.started <= ended.ended
    assert len(list(read_frames(result.path))) == 17 and read_request(result.path) == job.request
    assert {"load", "encode", "denoise", "decode", "total"} <= result.seconds.keys()


def test_its_folder_holds_what_the_events_name(engine):
    job = engine.submit(request())
    previews = [event.preview for event in all_events(engine, job.id) if isinstance(event, Step)]
    assert all((job.folder / preview).is_file() for preview in previews)
    assert (job.folder / "request.json").is_file() and (job.folder / "video.mp4").is_file()


def test_late_readers_see_the_same(engine):
    job = engine.submit(request())
    followed = list(engine.event_log.follow(job.id))
    assert [number for number, _ in followed] == list(range(1, len(followed) + 1))
    assert list(engine.event_log.follow(job.id)) == followed
    assert list(engine.event_log.follow(job.id, after=4)) == followed[4:]
    assert list(engine.event_log.follow(job.id, after=len(followed))) == []


def test_readers_at_the_same_time_see_the_same(engine):
    job, seen = engine.submit(request()), [None] * 4

    def follow(place: int) -> None:
        seen[place] = list(engine.event_log.follow(job.id))

    threads = [threading.Thread(target=follow, args=(place,)) for place in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert seen[0] and all(events == seen[0] for events in seen)


@pytest.mark.bench
def test_a_reader_stops_after_the_last_event_that_it_has_seen(engine):
    job = engine.submit(request())
    last = len(all_events(engine, job.id))
    began = time.monotonic()
    assert all_events(engine, job.id, after=last + 5) == []
    assert is_within(time.monotonic() - began, 0.5)


def test_jobs_run_in_order_and_the_waiting_hear_of_it(engine):
    jobs = [engine.submit(request(f"square {number}")) for number in range(4)]
    assert [engine.queue.position(job.id) for job in jobs] == [None, 0, 1, 2]
    histories = [all_events(engine, job.id) for job in jobs]
    positions = [[event.position for event in events if isinstance(event, Queued)] for events in histories]
    assert positions == [[0], [0], [1, 0], [2, 1, 0]]
    ended = [engine.jobs.find(job.id).ended for job in jobs]
    assert ended == sorted(ended) and engine.queue.position(jobs[3].id) is None


def test_many_threads_may_submit(engine):
    jobs, lock = [], threading.Lock()

    def submit(number: int) -> None:
        job = engine.submit(request(f"square {number}", steps=1), owner=f"visitor {number}")
        with lock:
            jobs.append(job)

    threads = [threading.Thread(target=submit, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for job in jobs:
        events = all_events(engine, job.id)
        assert isinstance(events[-1], Finished) and events[-1].result.request == job.request


def test_owners_do_not_see_each_other(engine):
    mine, theirs = engine.submit(request(), owner="ann"), engine.submit(request(), owner="bob")
    assert [job.id for job in engine.jobs.list_jobs("ann")] == [mine.id]
    assert [job.id for job in engine.jobs.list_jobs()] == [theirs.id, mine.id]


def test_an_unknown_job_is_an_error_at_once(engine):
    for ask in (engine.jobs.find, engine.event_log.follow, engine.queue.cancel):
        with pytest.raises(JobNotFound):
            ask("nobody")


@pytest.mark.bench
def test_a_running_job_stops_between_two_steps_and_keeps_what_there_is(engine, close_gate):
    close_gate("a held square")
    job = engine.submit(request("a held square"))
    for _, event in engine.event_log.follow(job.id):
        if isinstance(event, Step):
            break
    began = time.monotonic()
    engine.queue.cancel(job.id)
    final = all_events(engine, job.id)[-1]
    assert isinstance(final, Cancelled) and len(list(read_frames(final.result.path))) == 17
    assert is_within(time.monotonic() - began, 2) and engine.jobs.find(job.id).state == "cancelled"


def test_a_waiting_job_stops_at_once_and_the_others_move_up(engine, close_gate):
    gate = close_gate("a held square")
    _, waiting, last = (engine.submit(request("a held square")) for _ in range(3))
    engine.queue.cancel(waiting.id)
    assert all_events(engine, waiting.id)[-1] == Cancelled(None)
    assert engine.queue.position(last.id) == 0
    gate.open()
    assert isinstance(all_events(engine, last.id)[-1], Finished)


def test_a_waiting_job_that_is_stopped_leaves_nothing_half_written(engine, close_gate):
    close_gate("a held square")
    _, waiting = (engine.submit(request("a held square")) for _ in range(2))
    half = waiting.folder / "previews" / ".step-003.png.1.part"  # as if a worker was killed while it writes
    half.parent.mkdir(parents=True, exist_ok=True)
    half.write_bytes(b"half")
    engine.queue.cancel(waiting.id)
    assert isinstance(all_events(engine, waiting.id)[-1], Cancelled) and not half.exists()


@pytest.mark.bench
def test_a_job_that_waits_for_the_model_stops_at_once(make_engine, close_gate):
    gate = close_gate("a held model", "load 2")
    engine = make_engine(model="a held model")
    gate.wait()
    job = engine.submit(request())
    wait_for(lambda: engine.jobs.find(job.id).state == "running")
    began = time.monotonic()
    engine.queue.cancel(job.id)
    assert all_events(engine, job.id)[-1] == Cancelled(None)
    assert is_within(time.monotonic() - began, 0.5)
    gate.open()
    assert isinstance(all_events(engine, engine.submit(request()).id)[-1], Finished)


def test_a_job_that_compiles_stops_before_the_next_program(engine, close_gate):
    close_gate("a held square", "compile")
    job = engine.submit(request("a held square"))
    next(event for _, event in engine.event_log.follow(job.id) if isinstance(event, Compiling))
    engine.queue.cancel(job.id)
    events = all_events(engine, job.id)
    assert events[-1] == Cancelled(None)
    assert not any(isinstance(event, Encoding) for event in events)


def test_cancelling_what_has_ended_changes_nothing(engine):
    job = engine.submit(request())
    before = all_events(engine, job.id)
    engine.queue.cancel(job.id)
    assert all_events(engine, job.id) == before


@pytest.mark.parametrize(
    ("prompt", "cause", "fix"),
    [
        ("explode", "ValueError: the square exploded", "See the newest file in the data folder's logs for details"),
        ("memory, no remedy", "There is not enough memory for this video", "Choose a smaller size or fewer frames"),
        ("memory, broken remedy", "There is not enough memory for this video", "Choose a smaller size or fewer frames"),
        ("vanish", "The pipeline ended without a result", "This is a bug: please report it"),
    ],
)
def test_a_failing_pipeline_fails_its_job_only(engine, prompt, cause, fix):
    job, pid = engine.submit(request(prompt)), engine.pool.workers()[0].pid
    assert all_events(engine, job.id)[-1] == Failed(cause, fix)
    assert isinstance(all_events(engine, engine.submit(request()).id)[-1], Finished)
    assert engine.pool.workers()[0].pid == pid


def test_a_video_that_runs_out_of_memory_says_what_would_fit(engine):
    job = engine.submit(request("memory"))
    *before, final = all_events(engine, job.id)
    fix = "It would fit at 96x96 with 5 frames, or at 96x96 with 17 frames"
    proposals = (
        Proposal(width=96, height=96, num_frames=5, bytes_per_device=800),
        Proposal(width=96, height=96, num_frames=17, bytes_per_device=900),
    )
    assert final == Failed("There is not enough memory for this video", fix, proposals)
    assert Compiling("settings that fit") in before  # the worker reports its search for settings
    assert engine.library.failures(1)[0][1] == final  # as the system view shows it
    assert isinstance(all_events(engine, engine.submit(request()).id)[-1], Finished)


def test_stop_frees_a_worker_that_compiles_what_would_fit(engine):
    job, following = engine.submit(request("stuck memory")), engine.submit(request())
    wait_for(lambda: engine.events.last(job.id) == Compiling("settings that fit"))
    engine.queue.cancel(job.id)
    assert isinstance(all_events(engine, job.id)[-1], Failed | Cancelled)
    assert isinstance(all_events(engine, following.id)[-1], Finished)
    assert engine.jobs.find(following.id).ended - engine.jobs.find(job.id).started < 60, (
        "not the minute that the compilation takes"
    )


@pytest.mark.bench
def test_stop_ends_the_search_for_what_would_fit(engine, close_gate):
    close_gate("memory", "would fit")
    job = engine.submit(request("memory"))
    wait_for(lambda: engine.events.last(job.id) == Compiling("settings that fit"))
    began = time.monotonic()
    engine.queue.cancel(job.id)
    assert isinstance(all_events(engine, job.id)[-1], Failed | Cancelled) and is_within(time.monotonic() - began, 2)


def test_a_traceback_is_in_the_log(engine, tmp_path):
    all_events(engine, engine.submit(request("explode")).id)
    (log,) = (tmp_path / "data" / "logs").iterdir()
    assert "ValueError: the square\nexploded" in log.read_text()


def test_what_libraries_print_does_no_harm(engine, tmp_path):
    assert isinstance(all_events(engine, engine.submit(request("noise")).id)[-1], Finished)
    (log,) = (tmp_path / "data" / "logs").iterdir()
    assert log.read_text().count("noise") == 1000


def test_a_data_folder_that_cannot_be_made_is_explained(tmp_path):

    (tmp_path / "file").touch()
    with pytest.raises(DataFolderError, match="choose another with --data-dir"):
        Engine(tmp_path / "file" / "data", pipeline=FAKE)


def test_closing_ends_readers_and_refuses_more(make_engine, close_gate, tmp_path):
    engine, gate = make_engine(), close_gate("a held square")
    running, waiting = engine.submit(request("a held square")), engine.submit(request())
    reader = threading.Thread(target=lambda: all_events(engine, running.id))
    reader.start()
    gate.wait()
    engine.close()
    engine.close()
    reader.join(60)
    assert not reader.is_alive()
    with pytest.raises(StudioError, match="accepts no more requests"):
        engine.submit(request())
    assert len(list((tmp_path / "data" / "runs").iterdir())) == 2
    gate.open()
    later = make_engine()
    events = all_events(later, running.id)
    stopped = next(event for event in events if isinstance(event, Interrupted))
    assert (stopped.cause, stopped.by) == ("The studio was stopped", "shutdown") and isinstance(events[-1], Finished)
    assert isinstance(all_events(later, waiting.id)[-1], Finished)


def test_engines_side_by_side_keep_to_their_own_jobs(make_engine, close_gate):
    first, gate = make_engine(), close_gate("a held square")
    running, waiting = first.submit(request("a held square")), first.submit(request())
    second = make_engine()
    assert second.jobs.find(running.id).state == "running" and second.queue.position(waiting.id) is None
    assert isinstance(all_events(second, second.submit(request()).id)[-1], Finished)
    gate.open()
    assert isinstance(all_events(first, waiting.id)[-1], Finished)
    assert isinstance(all_events(second, running.id)[-1], Finished)


def test_an_engine_for_one_job_leaves_the_rest_alone(make_engine, close_gate):
    first, gate = make_engine(), close_gate("a held square")
    first.submit(request("a held square"))
    waiting = first.submit(request())
    first.close()
    gate.open()
    second = make_engine(resume=False)
    assert isinstance(all_events(second, second.submit(request()).id)[-1], Finished)
    assert second.jobs.find(waiting.id).state == "queued"


@pytest.mark.bench
def test_importing_the_engine_brings_no_jax_and_takes_no_second():
    code = (
        "import sys, time; began = time.monotonic(); import backend.engine.engine; seconds = time.monotonic() - began;"
        "heavy = {'jax', 'torch', 'diffusers', 'transformers', 'gradio', 'torchax'} & set(sys.modules);"
        "print(sorted(heavy), seconds)"
    )
    told = subprocess.run([sys.executable, "-c", code], cwd=PROJECT_FOLDER, capture_output=True, text=True, check=True)
    heavy, _, seconds = told.stdout.strip().rpartition(" ")
    assert heavy == "[]" and is_within(float(seconds), 1.0), told.stdout + told.stderr
