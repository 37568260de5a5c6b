"""Check which worker gets a job, with transports that the test simulates."""

from collections.abc import Sequence

import pytest

from backend.schemas.events import Finished, Interrupted, Step
from backend.schemas.shape import Shape
from backend.schemas.worker import CachedModel, Device, WorkerFacts, WorkerStatus, summarize_status
from backend.settings import from_environment
from backend.worker_pool.pool import WorkerPool
from backend.worker_pool.supervisor import WorkerLost
from backend.worker_pool.transports import TRANSPORTS
from backend.workers.exit_reasons import LOST
from backend.workers.messages import Facts, JobEvent, Status
from backend.workers.process import WorkerPlan
from tests.backend.conftest import request
from tests.wan_ui.builders import a_job, a_result

SHAPE = Shape.from_request(request())
WIDE = Shape.from_request(request(width=128))


class PlayedTransport:
    """A transport of a worker that the test controls."""

    opened: dict[str, "PlayedTransport"] = {}
    refuses = False

    def __init__(self, plan, log, on_message, on_exit):
        if self.refuses:
            raise OSError("no memory")
        self.plan, self.on_message, self.on_exit, self.sent, self.pid = plan, on_message, on_exit, [], 7
        self.opened[plan.name] = self

    def send(self, message):
        self.sent.append((type(message).__name__.lower(), getattr(message, "job_id", None)))

    def stop(self):
        self.sent.append(("stop", None))

    def kill(self):
        self.sent.append(("kill", None))
        self.on_exit(-9)

    def is_in(self, state):
        self.on_message(Status(status=WorkerStatus(state=state, detail=state)))

    def report_models(self, *warm: Shape, model: str | None = SHAPE.model, chips: Sequence[str] = (), host: Sequence[str] = ()):
        kept = [CachedModel(model=name, chip_bytes=1, host_bytes=0) for name in chips]
        kept += [CachedModel(model=name, chip_bytes=0, host_bytes=1) for name in host]
        devices = (Device(name="d", kind="square"),)
        facts = WorkerFacts(devices=devices, model=model, warm=frozenset(warm), cached_models=tuple(kept))
        self.on_message(Facts(facts=facts))

    def steps(self, job_id: str, seconds_left: float):
        self.on_message(JobEvent(job_id=job_id, event=Step(1, 2, 0.5, seconds_left, "")))

    def ends(self, job_id):
        event = Finished(a_result(a_job()))
        self.on_message(JobEvent(job_id=job_id, event=event))


@pytest.fixture
def transports(monkeypatch):
    monkeypatch.setitem(TRANSPORTS, "played", PlayedTransport)
    monkeypatch.setattr(PlayedTransport, "opened", {})
    return PlayedTransport.opened


@pytest.fixture
def heard():
    return []


@pytest.fixture
def pool(transports, heard, tmp_path):
    settings = from_environment(tmp_path)
    plans = [
        WorkerPlan(preset="wan-tiny", model=None, warm_up=False, settings=settings, transport="played", name=name)
        for name in "ab"
    ]
    pool = WorkerPool(plans, lambda job_id, event: heard.append((job_id, event.kind)), lambda: heard.append("ready"))
    pool.start()
    yield pool
    pool.close()


def a_plan(tmp_path, name: str) -> WorkerPlan:
    settings = from_environment(tmp_path)
    return WorkerPlan(
        preset="wan-tiny", model=None, warm_up=False, settings=settings, transport="played", name=name, machine="far"
    )


def give(pool, job_id: str, shape: Shape = SHAPE) -> str | None:
    """Return the worker that got the job, None if no worker was idle."""
    worker = pool.assign(job_id, request(), "folder", shape)
    return worker and worker.view().name


def test_jobs_fill_the_idle_workers_and_no_more(pool):
    assert [give(pool, "1"), give(pool, "2")] == ["a", "b"]
    assert not pool.has_idle_worker() and give(pool, "3") is None


def test_the_worker_that_has_the_programs_comes_first_then_one_that_has_the_model(pool, transports):
    transports["b"].report_models(WIDE)
    assert give(pool, "1") == "b"  # it has the model
    transports["b"].ends("1")
    transports["a"].report_models(SHAPE)
    assert [give(pool, "2", WIDE), give(pool, "3")] == ["b", "a"]


def test_a_worker_cancels_its_own_job_alone(pool, transports):
    give(pool, "1")
    worker = pool.assign("2", request(), "folder", SHAPE)
    worker.cancel("2")
    worker.cancel("1")  # another worker's job
    assert transports["a"].sent == [("run", "1")] and transports["b"].sent == [("run", "2"), ("cancel", "2")]


def test_a_final_event_makes_a_worker_idle(pool, transports, heard):
    give(pool, "1")
    transports["a"].ends("1")
    assert heard == [("1", "finished")] and pool.workers()[0].job_id is None


def test_a_dead_worker_interrupts_its_own_job_alone(pool, transports, heard):
    give(pool, "1"), give(pool, "2")
    transports["a"].on_exit(-9)
    assert heard == [("1", "interrupted")]
    assert [worker.job_id for worker in pool.workers()] == [None, "2"]


def test_who_died_gets_no_job_before_it_is_ready_again(pool, transports, heard):
    give(pool, "1"), give(pool, "2")
    transports["a"].on_exit(-9)
    assert pool.workers()[0].status.state == "starting" and not pool.has_idle_worker()
    transports["a"].is_in("ready")
    assert heard[-1] == "ready" and pool.has_idle_worker() and give(pool, "3") == "a"


def test_a_failed_worker_gets_no_job_while_another_can_work(pool, transports):
    transports["a"].is_in("failed")
    assert give(pool, "1") == "b" and not pool.has_idle_worker()


def test_where_all_have_failed_a_job_is_given_to_say_why(pool, transports):
    transports["a"].is_in("failed")
    transports["b"].is_in("failed")
    assert pool.has_idle_worker() and give(pool, "1") == "a"


def test_a_worker_that_cannot_be_started_keeps_no_job(pool, transports, monkeypatch):
    for name in "ab":
        for _ in range(3):
            transports[name].on_exit(1)
    monkeypatch.setattr(PlayedTransport, "refuses", True)
    with pytest.raises(OSError, match="no memory"):
        give(pool, "1")
    assert pool.workers()[0].job_id is None


def test_closing_stops_every_worker(pool, transports):
    pool.close()
    assert all(transport.sent == [("stop", None)] for transport in transports.values())


def test_together_they_have_failed_only_if_all_have(pool, transports):
    transports["a"].is_in("failed")
    transports["b"].is_in("loading")
    assert summarize_status(pool.workers()).state == "loading"
    transports["b"].is_in("failed")
    assert summarize_status(pool.workers()).state == "failed"


def test_the_kind_of_devices_counts_them(pool, transports):
    assert pool.workers()[0].device_kind == ""
    chips = tuple(Device(name=str(number), kind="TPU v6 lite") for number in range(4))
    transports["a"].on_message(Facts(facts=WorkerFacts(devices=chips)))
    assert pool.workers()[0].device_kind == "4 TPU v6 lite"


def test_a_worker_is_taken_in_while_the_others_work(pool, transports, tmp_path):
    give(pool, "1"), give(pool, "2")
    assert not pool.has_idle_worker()
    pool.add_worker(a_plan(tmp_path, "c"))
    assert pool.has_idle_worker() and give(pool, "3") == "c" and len(pool) == 3
    assert [(worker.name, worker.machine) for worker in pool.workers()] == [("a", ""), ("b", ""), ("c", "far")]


def test_a_lost_worker_is_gone_before_its_job_is_interrupted(pool, transports, heard):
    seen = []
    pool._on_event = lambda job_id, event: seen.append((job_id, event, [worker.name for worker in pool.workers()]))
    give(pool, "1"), give(pool, "2")
    transports["a"].on_exit(LOST)
    [(job_id, event, names)] = seen
    assert (job_id, names) == ("1", ["b"]) and isinstance(event, Interrupted) and event.by == "loss"
    assert give(pool, "1") is None and len(transports) == 2  # no other worker starts in its place


def test_what_a_lost_worker_still_says_is_not_heard(pool, transports, heard):
    give(pool, "1")
    transports["a"].on_exit(LOST)
    transports["a"].ends("1")
    transports["a"].on_exit(-9)
    assert heard == [("1", "interrupted")] and len(pool) == 1


def test_who_is_let_go_is_killed_and_its_job_continues_elsewhere(pool, transports, heard):
    give(pool, "1")
    pool.remove_worker("a")
    pool.remove_worker("nobody")
    assert heard == [("1", "interrupted")] and [worker.name for worker in pool.workers()] == ["b"]
    assert give(pool, "1") == "b"


def test_a_worker_that_is_lost_in_this_moment_is_passed_over(pool, transports, monkeypatch):
    def lost(self, *job):
        raise WorkerLost

    monkeypatch.setattr(pool._workers[0], "run", lost.__get__(pool._workers[0]))
    assert give(pool, "1") == "b" and give(pool, "2") is None


def test_a_fleet_may_be_empty(transports, tmp_path):
    pool = WorkerPool([], lambda job_id, event: None)
    pool.start()
    assert not pool.has_idle_worker() and pool.workers() == () and summarize_status(pool.workers()).state == "starting"
    pool.add_worker(a_plan(tmp_path, "a"))
    assert give(pool, "1") == "a"
    pool.close()
    pool.add_worker(a_plan(tmp_path, "b"))  # too late
    assert len(pool) == 1 and "b" not in transports


def test_a_job_goes_where_its_model_lies_nearest(pool, transports, tmp_path):
    transports["a"].report_models(model="other", host=[SHAPE.model])
    transports["b"].report_models(model="other", chips=["other", SHAPE.model])
    assert pool.cached_models() == {"other", SHAPE.model}
    assert give(pool, "one") == "b"
    assert give(pool, "two") == "a"


def test_among_workers_that_must_load_it_the_one_that_keeps_least_gets_the_job(pool, transports, tmp_path):
    transports["a"].report_models(model="x", chips=["x", "y"])
    transports["b"].report_models(model=None)
    assert give(pool, "one") == "b"


def test_waiting_is_worth_it_while_loading_elsewhere_takes_longer(pool, transports, tmp_path):
    for transport in transports.values():
        transport.is_in("ready")
    transports["a"].report_models(chips=[SHAPE.model])
    transports["b"].report_models(model="other", chips=["other"])
    assert not pool.is_busy_worker_faster(SHAPE.model, 60.0)  # its worker is idle
    assert pool.assign("one", request(), tmp_path, SHAPE)
    assert not pool.is_busy_worker_faster(SHAPE.model, 60.0)  # the duration of that is unknown
    transports["a"].steps("one", seconds_left=20.0)
    assert pool.is_busy_worker_faster(SHAPE.model, 60.0) and not pool.is_busy_worker_faster(SHAPE.model, 10.0)
    assert not pool.is_busy_worker_faster("a model that nobody keeps", 60.0)
    transports["a"].ends("one")
    assert not pool.is_busy_worker_faster(SHAPE.model, 60.0)


def test_workers_hear_what_is_expected_and_one_of_them_what_is_asked_of_it(pool, transports):
    pool.expect_models(["m"])
    pool.manage_model("b", "m", "pin")
    assert transports["a"].sent == [("expectmodels", None)] and transports["b"].sent == [
        ("expectmodels", None),
        ("managemodel", None),
    ]
