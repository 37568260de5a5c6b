"""Check how the engine's worker gets its models: start, load, change, and models that are not available."""

import time

import pytest
from huggingface_hub import constants

from backend.errors import RequestError
from backend.schemas.events import (
    Cancelled,
    Failed,
    Finished,
    Loading,
)
from backend.schemas.request import GenerationRequest
from presets import load_preset
from tests.backend.conftest import all_events, request, wait_for
from tests.clock import is_within
from tests.fake_pipeline import LARGE_PRESET, MISSING_PRESET


def test_a_missing_model_says_so_in_the_status_and_in_the_job(make_engine):
    engine = make_engine(model="missing")
    wait_for(lambda: engine.pool.status().state == "failed")
    assert "must be a checkpoint folder; download it first" in engine.pool.status().detail
    final = all_events(engine, engine.submit(request()).id)[-1]
    assert final == Failed("model 'missing' must be a checkpoint folder", "download it first")


def test_the_status_tells_the_way_to_ready(make_engine):
    engine, seen = make_engine(), []

    def is_ready() -> bool:
        seen.append(engine.pool.status().state)
        return seen[-1] == "ready"

    wait_for(is_ready)
    assert list(dict.fromkeys(seen)) == ["starting", "loading", "warming", "ready"]


def test_no_worker_starts_before_it_is_needed(make_engine):
    engine = make_engine(start_worker=False)
    assert engine.pool.workers()[0].pid is None
    assert isinstance(all_events(engine, engine.submit(request()).id)[-1], Finished)


def test_the_model_is_loaded_once(engine):
    wait_for(lambda: engine.pool.status().state == "ready")
    events = all_events(engine, engine.submit(request()).id)
    assert not any(isinstance(event, Loading) for event in events)


def of_preset(name: str) -> GenerationRequest:
    """Return a short request for another preset than the demo preset."""
    return GenerationRequest.from_preset(load_preset(name), prompt="x", steps=1, num_frames=5, width=256, height=256)


def test_another_presets_model_takes_the_place(engine):
    wait_for(lambda: engine.pool.status().state == "ready")
    events = all_events(engine, engine.submit(of_preset("wan2.1-t2v-1.3b-480p"), may_download=True).id)
    assert any(isinstance(event, Loading) for event in events) and isinstance(events[-1], Finished)


def test_only_who_may_download_gets_a_model_that_is_not_here(make_engine, close_gate, tmp_path, monkeypatch):
    close_gate("a held square")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    engine, wanted = make_engine(start_worker=False, warm_up=False), of_preset("wan2.1-t2v-1.3b-480p")
    with pytest.raises(RequestError, match="only the operator may download it; choose another preset"):
        engine.submit(wanted)
    assert (
        engine.jobs.list_jobs() == []
        and list((tmp_path / "data" / "runs").iterdir()) == []
        and engine.pool.workers()[0].pid is None
    )
    engine.submit(request("a held square"))
    waiting = engine.submit(request())
    with pytest.raises(RequestError, match="only the operator may download it; choose another preset"):
        engine.sandbox.run_steps(engine.revise_steps(waiting.id, wanted))
    assert engine.jobs.find(waiting.id).request == waiting.request
    assert engine.sandbox.run_steps(engine.revise_steps(waiting.id, wanted, may_download=True)).request == wanted


def test_a_model_that_is_named_for_all_presets_counts_as_here(make_engine):
    job = make_engine(model="square").submit(of_preset("wan2.1-t2v-1.3b-480p"))
    assert job.request.preset == "wan2.1-t2v-1.3b-480p"


def test_a_model_that_cannot_be_had_costs_nobody_the_one_that_is_loaded(engine):
    assert isinstance(all_events(engine, engine.submit(request()).id)[-1], Finished)
    final = all_events(engine, engine.submit(of_preset(MISSING_PRESET), may_download=True).id)[-1]
    assert final == Failed("model 'missing' must be a checkpoint folder", "download it first")
    wait_for(lambda: engine.pool.status().state != "loading")
    assert (engine.pool.status().state, engine.pool.workers()[0].facts.model) == ("ready", load_preset("wan-tiny").model_source)
    events = all_events(engine, engine.submit(request()).id)
    assert isinstance(events[-1], Finished) and not any(isinstance(event, Loading) for event in events)


def test_after_a_model_that_does_not_fit_into_memory_others_can_be_loaded(engine):
    assert isinstance(all_events(engine, engine.submit(request()).id)[-1], Finished)
    failed = all_events(engine, engine.submit(of_preset(LARGE_PRESET), may_download=True).id)[-1]
    assert failed == Failed(
        "There is not enough memory for this model", "Take a model that needs less, or more chips: see Models"
    )
    wait_for(lambda: engine.pool.status().state != "loading")
    assert (engine.pool.status().state, engine.pool.workers()[0].facts.model) == ("ready", None)
    assert engine.pool.status().detail == "Ready, with no model loaded"
    assert isinstance(all_events(engine, engine.submit(request()).id)[-1], Finished)


LOADED = "wan2.2-ti2v-5b-720p"
"""A preset whose model waits at gates while its weights are read."""


@pytest.mark.bench
def test_stop_ends_a_load_and_the_next_job_starts(engine, close_gate):
    source = load_preset(LOADED).model_source
    early, late = (close_gate(source, f"load {part}") for part in (2, 4))
    job, following = engine.submit(of_preset(LOADED), may_download=True), engine.submit(request())
    early.wait()
    began = time.monotonic()
    engine.queue.cancel(job.id)
    assert all_events(engine, job.id)[-1] == Cancelled(None)
    early.open()
    assert isinstance(all_events(engine, following.id)[-1], Finished)
    assert is_within(time.monotonic() - began, 5)
    with pytest.raises(StopIteration):
        next(late.folder.glob("arrival-*"))


def test_stop_leaves_a_load_to_the_next_job_that_needs_it(engine, close_gate):
    gate = close_gate(load_preset(LOADED).model_source, "load 2")
    job, following = (engine.submit(of_preset(LOADED), may_download=True) for _ in range(2))
    gate.wait()
    engine.queue.cancel(job.id)
    assert all_events(engine, job.id)[-1] == Cancelled(None)
    wait_for(lambda: engine.jobs.find(following.id).state == "running")
    [worker] = engine.pool.workers()
    engine.pool.manage_model(worker.name, "no model", "unpin")  # the answer shows that the worker has the following job
    wait_for(lambda: engine.pool.workers()[0].facts is not worker.facts)
    gate.open()
    loading = [event.bytes_done for event in all_events(engine, following.id) if isinstance(event, Loading)]
    assert loading == [2_000_000, 3_000_000, 4_000_000]


def test_a_runtime_that_does_not_start_is_a_failed_worker(make_engine):
    engine = make_engine(pipeline="tests.no_such_pipeline")
    wait_for(lambda: engine.pool.status().state == "failed")
    assert "no_such_pipeline" in engine.pool.status().detail
    assert isinstance(all_events(engine, engine.submit(request()).id)[-1], Failed)
    wait_for(lambda: engine.pool.status().state == "failed")
