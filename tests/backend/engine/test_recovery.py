"""Check the recovery of interrupted jobs: by the rules alone, and with an engine."""

import os
import signal
import sqlite3

import pytest

from backend.engine import dispatcher, event_log, recovery
from backend.engine.disk import Shortage, needed_bytes
from backend.engine.jobs import JobEvents
from backend.engine.recovery import Requeue, decide_recovery, describe_progress
from backend.schemas.events import Cancelled, Decoding, Failed, Finished, Interrupted, Loading, Queued, Step, Upscaling
from backend.schemas.request import GenerationRequest
from presets import load_preset
from tests.backend.conftest import all_events, request, wait_for, wait_for_calls
from tests.fake_pipeline import REFUSED


def stop(by="worker", place="step 3 of 5", cause="it fell") -> Interrupted:
    return Interrupted(cause=cause, fix="Stand up", by=by, place=place)


def test_a_place_is_the_step_that_was_being_made():
    assert describe_progress(Step(2, 5, 1.0, 3.0)) == "step 3 of 5"
    assert describe_progress(Upscaling(7, 17)) == "upscaling frame 7"
    assert describe_progress(Step(5, 5, 1.0, 0.0)) == describe_progress(Decoding(9, 17)) == "decoding"
    assert describe_progress(None) == describe_progress(Queued(0)) == describe_progress(Loading(1, 2, "the model")) == "the start"


def test_a_job_continues_twice_at_the_same_step_and_then_fails_with_its_history():
    assert decide_recovery([stop()]) == decide_recovery([stop(), stop()]) == Requeue()
    verdict = decide_recovery([stop(cause="it fell"), stop(cause="it ran out of memory"), stop(cause="it fell")])
    assert verdict == Failed("It stopped three times at step 3 of 5: it fell; it ran out of memory", "Stand up")


def test_steps_that_were_made_between_two_stops_begin_the_count_again():
    stops = [stop(place=f"step {number} of 50") for number in range(1, 40)]
    assert decide_recovery(stops) == Requeue()


def test_kills_from_outside_before_the_work_has_begun_say_little_about_the_job():
    kills = [stop(by="signal", place="the start")] * 9
    assert decide_recovery(kills) == Requeue() and decide_recovery([*kills, kills[0]]) == decide_recovery(kills * 3) == Requeue(
        waits=True
    )
    hangs = [stop(by="worker", place="the start")] * 3
    assert isinstance(decide_recovery(hangs), Failed) and decide_recovery([*kills[:4], *hangs[:2]]) == Requeue()
    assert (
        decide_recovery([*kills, stop(by="shutdown", place="step 4 of 5"), *kills]) == Requeue()
    )  # between them the job reached a step


def test_a_shutdown_and_a_full_disk_are_no_fault_of_the_job():
    assert decide_recovery([stop(by="shutdown")] * 20) == decide_recovery([stop(by="disk")] * 20) == Requeue()


def test_a_job_whose_machine_was_lost_continues_elsewhere_twice():
    lost = [stop(by="loss", place=place) for place in ("step 3 of 5", "the start", "step 4 of 5")]
    assert decide_recovery(lost[:1]) == decide_recovery(lost[:2]) == decide_recovery([*lost[:2], stop(by="worker")]) == Requeue()
    assert decide_recovery(lost) == Failed("The machine of its worker was lost three times", "Generate it again")


def test_the_second_death_of_the_server_makes_the_job_wait():
    assert decide_recovery([stop(by="server", place="step 1 of 5")]) == Requeue()
    assert decide_recovery([stop(by="server", place="step 1 of 5"), stop(by="server")]) == Requeue(waits=True)
    assert decide_recovery([stop(by="server")] * 2 + [stop(by="worker", place="decoding")]) == Requeue()


@pytest.fixture
def held(make_engine, close_gate, tmp_path):
    """An engine that found a job which ran when two servers died, and the job's id."""
    first, gate = make_engine(start_worker=False), close_gate("a red square", "step 1")
    job = first.submit(request())
    wait_for(lambda: first.jobs.find(job.id).state == "running")
    first._store.events.append(job.id, stop(by="server", place="step 1 of 3"))
    first.event_log.close()  # a dying server requeues nothing
    first.queue.pool.close()
    first._lock.release()
    gate.open()
    return make_engine(), job.id


def test_a_held_job_waits_and_others_go_before_it(held, monkeypatch):
    monkeypatch.setattr(dispatcher, "_LOOK_SECONDS", 0.1)
    engine, job_id = held
    other = engine.submit(request())
    assert isinstance(all_events(engine, other.id)[-1], Finished)
    wait_for_calls(engine.queue, "_prepare_ahead")
    job = engine.jobs.find(job_id)
    assert (job.state, job.is_held) == ("queued", True)
    engine.queue.resume(job_id)
    assert isinstance(all_events(engine, job_id)[-1], Finished) and not engine.jobs.find(job_id).is_held


def test_a_held_job_continues_after_quiet_minutes(held, monkeypatch):
    engine, job_id = held
    assert engine.jobs.find(job_id).is_held
    monkeypatch.setattr(dispatcher, "QUIET_SECONDS", 0.5)
    assert isinstance(all_events(engine, job_id)[-1], Finished)
    assert recovery.QUIET_SECONDS == 600


def test_a_held_job_can_be_cancelled(held):
    engine, job_id = held
    engine.queue.cancel(job_id)
    assert all_events(engine, job_id)[-1] == Cancelled(None)


def test_a_stop_holds_though_the_worker_dies_before_it_has_seen_it(engine, close_gate):
    close_gate("a held square")
    job = engine.submit(request("a held square"))
    next(event for _, event in engine.event_log.follow(job.id) if isinstance(event, Step))
    os.kill(engine.pool.workers()[0].pid, signal.SIGSTOP)
    engine.queue.cancel(job.id)
    os.kill(engine.pool.workers()[0].pid, signal.SIGKILL)
    assert all_events(engine, job.id)[-1] == Cancelled(None)


def limit_free_space(monkeypatch, free):
    def find_shortage(folder, needed, *, of_whole_disk=False):
        return Shortage(free=free[0], needed=needed) if free[0] < needed and not of_whole_disk else None

    monkeypatch.setattr(dispatcher, "find_shortage", find_shortage)


def test_a_shortage_ends_with_the_queue(make_engine, monkeypatch):
    limit_free_space(monkeypatch, [0])
    engine = make_engine()
    job = engine.submit(request())
    assert engine.queue.find_shortage() is not None
    engine.queue.cancel(job.id)
    wait_for(lambda: engine.queue.find_shortage() is None)


def test_the_queue_waits_for_room_on_the_disk_and_continues_by_itself(make_engine, monkeypatch):
    free = [10**6]
    limit_free_space(monkeypatch, free)
    monkeypatch.setattr(dispatcher, "_LOOK_SECONDS", 0.1)
    engine = make_engine()
    job = engine.submit(request())
    wait_for_calls(engine.queue, "_prepare_ahead")
    assert engine.jobs.find(job.id).state == "queued" and engine.queue.find_shortage() == Shortage(
        free=10**6, needed=needed_bytes(job.request)
    )
    free[0] = 10**12
    assert isinstance(all_events(engine, job.id)[-1], Finished) and engine.queue.find_shortage() is None


def test_a_disk_that_fills_in_the_middle_keeps_what_was_done(make_engine, monkeypatch):
    monkeypatch.setattr(event_log, "_TRY_SECONDS", 0.5)
    engine = make_engine()
    job = engine.submit(request("full", steps=4))
    events = all_events(engine, job.id)
    assert [event.by for event in events if isinstance(event, Interrupted)] == ["disk"]
    assert [event.index for event in events if isinstance(event, Step)] == [1, 1, 2, 3, 4]
    assert isinstance(events[-1], Finished)


def test_a_store_that_cannot_be_written_loses_no_end(make_engine, close_gate, monkeypatch):
    monkeypatch.setattr(event_log, "_TRY_SECONDS", 0.3)
    engine, gate = make_engine(), close_gate("a held square")
    job, following = engine.submit(request("a held square")), engine.submit(request())
    wait_for(lambda: isinstance(engine.events.last(job.id), Step))
    append, is_full, refused = JobEvents.append, [True], []

    def full(store, job_id, event):
        if is_full[0]:
            refused.append(event)
            raise sqlite3.OperationalError("database or disk is full")
        return append(store, job_id, event)

    monkeypatch.setattr(JobEvents, "append", full)
    gate.open()
    wait_for(lambda: sum(isinstance(event, Finished) for event in refused) == 2)  # and it was tried again
    assert engine.jobs.find(job.id).state == "running" and engine.queue.find_shortage() is not None
    is_full[0] = False
    assert isinstance(all_events(engine, job.id)[-1], Finished)
    assert isinstance(all_events(engine, following.id)[-1], Finished)


def test_what_a_job_needs_grows_with_its_size():
    small = needed_bytes(request())
    large = needed_bytes(GenerationRequest.from_preset(load_preset("wan2.1-t2v-14b-720p"), prompt="a red square"))
    assert small < 25e6 and 0.5e9 < large < 1.5e9


def test_a_video_whose_kernel_is_refused_is_made_on_the_model_laid_out_again(engine):
    job = engine.submit(request("please refuse"))
    events = all_events(engine, job.id)
    assert isinstance(events[-1], Finished)
    assert any(isinstance(event, Loading) for event in events)
    assert engine.pool.workers()[0].facts.refused == (REFUSED,)
    assert isinstance(all_events(engine, engine.submit(request("refuse again")).id)[-1], Finished)
