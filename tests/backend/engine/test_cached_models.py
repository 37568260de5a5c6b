"""The cached models of a worker as the engine sees them. The tests switch between models, pin and unload them, and use up the
memory. Jobs wait for the worker that has their model.
"""

import pytest

from backend.engine.engine import Engine
from backend.schemas.events import Event, Finished, Loading, Queued, Step
from backend.schemas.request import GenerationRequest
from backend.shares import Share
from presets import load_preset
from tests.backend.conftest import all_events, request, wait_for, wait_for_calls

NAMES = ("wan-tiny", "wan2.1-t2v-1.3b-480p", "hunyuanvideo-1.5-t2v-480p")
HOME, SECOND, THIRD, FOURTH = (load_preset(name).model_source for name in (*NAMES, "wan2.2-t2v-a14b-480p"))


def request_for(name: str, prompt: str = "a square") -> GenerationRequest:
    """A short request for this preset."""
    return GenerationRequest.from_preset(load_preset(name), prompt=prompt, steps=2, num_frames=5, width=256, height=256)


def made(engine: Engine, wanted: GenerationRequest) -> list[Event]:
    events = all_events(engine, engine.submit(wanted, may_download=True).id)
    assert isinstance(events[-1], Finished), events[-1]
    return events


def kept(engine: Engine) -> list[str]:
    return [model.model for model in engine.pool.workers()[0].facts.cached_models]


@pytest.fixture
def engine(make_engine):
    engine = make_engine(pipeline="tests.keeping_pipeline")
    wait_for(lambda: engine.pool.status().state == "ready")
    return engine


def test_a_model_that_is_kept_comes_back_without_a_load(engine):
    assert any(isinstance(event, Loading) for event in made(engine, request_for(NAMES[1])))
    assert kept(engine) == [SECOND, HOME]
    assert not any(isinstance(event, Loading) for event in made(engine, request()))
    assert kept(engine) == [HOME, SECOND] and engine.pool.workers()[0].facts.model == HOME
    assert engine.estimates.is_warm(engine.estimates.shape(request_for(NAMES[1]))) and engine.estimates.is_warm(
        engine.estimates.shape(request())
    )


def test_what_was_compiled_goes_with_the_model(engine):
    made(engine, request_for(NAMES[1]))
    for name in (NAMES[2], "wan2.2-t2v-a14b-480p"):
        made(engine, request_for(name))
    assert kept(engine) == [FOURTH, THIRD, SECOND]
    assert not engine.estimates.is_warm(engine.estimates.shape(request())) and engine.estimates.is_warm(
        engine.estimates.shape(request_for(NAMES[1]))
    )


def test_the_operator_pins_and_drops(engine):
    worker = engine.pool.workers()[0].name
    engine.pool.manage_model(worker, HOME, "pin")
    wait_for(lambda: engine.pool.workers()[0].facts.cached_models[0].is_pinned)
    for name in (NAMES[1], NAMES[2], "wan2.2-t2v-a14b-480p"):
        made(engine, request_for(name))
    assert kept(engine) == [FOURTH, THIRD, HOME]
    engine.pool.manage_model(worker, THIRD, "drop")
    wait_for(lambda: kept(engine) == [FOURTH, HOME])
    engine.pool.manage_model(worker, FOURTH, "drop")  # it is in use
    engine.pool.manage_model(worker, HOME, "unpin")
    wait_for(lambda: not any(model.is_pinned for model in engine.pool.workers()[0].facts.cached_models))
    assert kept(engine) == [FOURTH, HOME]


def test_memory_that_is_short_beside_kept_models_costs_them_and_not_the_video(engine):
    made(engine, request_for(NAMES[1]))
    made(engine, request("a crowded square"))
    assert kept(engine) == [HOME]


def test_a_job_waits_for_the_worker_that_has_its_model_and_others_pass_it(make_engine, close_gate, monkeypatch):
    """Loading elsewhere would take a minute, the busy worker ten seconds."""
    engine = make_engine(pipeline="tests.keeping_pipeline", shares=(Share(), Share()))
    wait_for(lambda: all(worker.status.state == "ready" for worker in engine.pool.workers()))
    monkeypatch.setattr(engine.queue, "_load_seconds", lambda model: 60.0)
    made(engine, request_for(NAMES[1]))
    gate = close_gate("a held square")
    running = engine.submit(request_for(NAMES[1], "a held square"), may_download=True)
    next(event for _, event in engine.event_log.follow(running.id) if isinstance(event, Step))
    waiting, other = engine.submit(request_for(NAMES[1], "a patient square"), may_download=True), engine.submit(request())
    assert isinstance(all_events(engine, other.id)[-1], Finished)
    assert engine.jobs.find(running.id).state == "running" and engine.jobs.find(waiting.id).state == "queued"
    gate.open()
    events = all_events(engine, waiting.id)
    assert isinstance(events[-1], Finished) and not any(isinstance(event, Loading) for event in events)
    assert isinstance(events[0], Queued) and engine.jobs.find(waiting.id).started >= engine.jobs.find(running.id).ended


def test_the_next_jobs_model_comes_while_another_video_is_made(engine, close_gate):
    close_gate("a held square")
    hunyuan = load_preset("hunyuan-tiny")
    running = engine.submit(request("a held square"))
    following = engine.submit(GenerationRequest.from_preset(hunyuan, prompt="a square", steps=2, num_frames=17))
    wait_for(lambda: kept(engine) == [HOME, hunyuan.model_source])
    assert engine.jobs.find(running.id).state == "running" and engine.pool.workers()[0].facts.model == HOME
    engine.queue.cancel(running.id)
    events = all_events(engine, following.id)
    assert isinstance(events[-1], Finished) and not any(isinstance(event, Loading) for event in events)


def test_a_model_that_is_coming_is_waited_for_and_told(engine, close_gate):
    """The running video is cancelled before the load of the next model has progressed."""
    ltx = load_preset("ltx-tiny")
    coming = close_gate(ltx.model_source, "load 1")
    close_gate("a held square")
    running = engine.submit(request("a held square"))
    following = engine.submit(GenerationRequest.from_preset(ltx, prompt="a square", steps=2))
    coming.wait()
    engine.queue.cancel(running.id)
    wait_for(lambda: engine.jobs.find(following.id).state == "running")
    coming.open()
    assert isinstance(all_events(engine, following.id)[-1], Finished)
    assert engine.pool.workers()[0].facts.model == ltx.model_source


def of_hunyuan(**changes) -> GenerationRequest:
    values = {"steps": 2, "num_frames": 17, **changes}
    return GenerationRequest.from_preset(load_preset("hunyuan-tiny"), prompt="a square", **values)


def test_what_somebody_may_want_is_made_ready_while_nobody_wants_anything(engine):
    for width in (96, 112, 128):  # as if a visitor types a number
        engine.prepare_for(of_hunyuan(width=width))
    wait_for(lambda: engine.estimates.is_warm(engine.estimates.shape(of_hunyuan(width=128))))
    assert kept(engine) == [HOME, load_preset("hunyuan-tiny").model_source] and engine.pool.workers()[0].facts.model == HOME
    assert not engine.estimates.is_warm(engine.estimates.shape(of_hunyuan(width=112)))
    events = made(engine, of_hunyuan(width=128))
    assert not any(isinstance(event, Loading) for event in events)


def test_a_wish_that_needs_a_download_or_comes_beside_a_job_does_nothing(engine, close_gate, monkeypatch):
    told = []
    monkeypatch.setattr(engine.queue.pool, "prepare_for", lambda request, shape: told.append(request.preset))
    monkeypatch.setattr("backend.engine.dispatcher._PREPARE_DELAY_SECONDS", 0.0)
    engine.prepare_for(request_for(NAMES[1]))
    monkeypatch.setattr("backend.engine.dispatcher._LOOK_SECONDS", 0.1)
    gate = close_gate("a held square")
    running = engine.submit(request("a held square"))
    engine.prepare_for(of_hunyuan())
    wait_for_calls(engine.queue, "_prepare_ahead")
    assert told == []
    gate.open()
    all_events(engine, running.id)
    wait_for(lambda: told)
    assert told == ["hunyuan-tiny"] and engine.jobs.find(running.id).state == "finished"


def test_wishes_without_a_job_come_to_an_end(engine, monkeypatch):
    """Precompiled programs stay in the worker's memory."""
    told = []
    monkeypatch.setattr(engine.queue.pool, "prepare_for", lambda request, shape: told.append(request.width))
    monkeypatch.setattr("backend.engine.dispatcher._PREPARE_DELAY_SECONDS", 0.0)
    monkeypatch.setattr("backend.engine.dispatcher._LOOK_SECONDS", 0.01)
    for _ in range(3):
        for width in (96, 112, 128):
            engine.prepare_for(of_hunyuan(width=width, num_frames=17))
            before = len(told)
            wait_for(lambda before=before: len(told) > before or len(told) == 8)
    assert told == [96, 112, 128, 96, 112, 128, 96, 112]
    made(engine, request())
    engine.prepare_for(of_hunyuan())
    wait_for(lambda: len(told) == 9)


def test_what_was_made_before_the_start_is_made_ready(make_engine, close_gate):
    first = make_engine(pipeline="tests.keeping_pipeline")
    for width in (96, 112):
        made(first, of_hunyuan(width=width))
    first.close()
    gate = close_gate("a held model", "load 1")  # its worker takes a while to be ready
    again = make_engine(pipeline="tests.keeping_pipeline", model="a held model")
    wait_for_calls(again.queue, "_prepare_ahead")
    gate.open()
    wait_for(lambda: all(again.estimates.is_warm(again.estimates.shape(of_hunyuan(width=width))) for width in (96, 112)))
