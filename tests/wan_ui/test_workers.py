"""Tests of the pages with one worker and with several workers."""

import json
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from backend.engine.cleaning import CATEGORIES, NO_LIMITS
from backend.engine.estimate import Estimate
from backend.schemas.events import Rate
from backend.schemas.shape import Shape
from backend.schemas.worker import Device, UnusedAccelerator, WorkerFacts, WorkerStatus, WorkerView, summarize_status
from backend.settings import from_environment
from tests.wan_ui.builders import a_job, a_request
from wan_ui.gateway.access import Access
from wan_ui.gateway.visitors import owner_name
from wan_ui.header import status_html
from wan_ui.i18n.english import ENGLISH
from wan_ui.queue.html import queue_html
from wan_ui.queue.queue_query import visible_queue
from wan_ui.routes.metrics import health_route, metrics_text
from wan_ui.services.caller import Caller
from wan_ui.services.studio_context import StudioContext
from wan_ui.system.html import build_report


def caller(is_operator: bool = False) -> Caller:
    owner = owner_name({}, "page")
    return Caller(owner=owner, scope=None if is_operator else owner, is_operator=is_operator, texts=ENGLISH, queue_limits=None)


VISITOR = caller()


def worker(name: str = "worker", state: str = "ready", **changes) -> WorkerView:
    facts = WorkerFacts(
        devices=(Device(name="TPU_0", kind="TPU v6 lite", bytes_in_use=1, bytes_limit=4),),
        warm=frozenset({Shape.from_request(a_request())}),
    )
    view = WorkerView(name=name, status=WorkerStatus(state=state, detail=f"{state}."), facts=facts, is_healthy=state != "failed")
    return replace(view, **changes)


PAIR = (worker("worker-1", "busy"), worker("worker-2", "failed"))


class Engine:
    """Engine with estimated jobs of ten seconds each, on the given workers."""

    def __init__(self, *workers: WorkerView, running: int = 0, waiting: int = 0, settings=None):
        self._workers, self.settings = workers, settings
        self.library = self.pool = self.queue = self.event_log = self.events = self.estimates = self
        self.cleaner = SimpleNamespace(usage=lambda: dict.fromkeys(CATEGORIES, 0), limits=NO_LIMITS)
        states = ["running"] * running + ["queued"] * waiting
        self._jobs = [
            replace(a_job(owner=owner_name({}, "page")), id=str(number), state=state) for number, state in enumerate(states)
        ]

    def workers(self):
        return self._workers

    def find_shortage(self, owner=None):
        return None

    def count_changes(self):
        return 0

    def interruptions(self, job_id):
        return []

    def status(self):
        return summarize_status(self._workers)

    def waiting_job_ids(self):
        return [job.id for job in self._jobs if job.state == "queued"]

    def unended(self, owner):
        return self._jobs

    def ended(self, owner, most):
        return []

    def counts(self):
        return {"finished": 2}

    def last_progress(self, job_id):
        return None

    def failures(self, most):
        return []

    def shape_of_job(self, job):
        return Shape.from_request(job.request)

    def is_warm(self, shape):
        return True

    def estimate_job(self, job):
        return Estimate(seconds=10.0, compile_seconds=0.0, is_warm=True, basis="measured", runs=1)


def context_of(engine) -> StudioContext:
    return StudioContext(engine=engine, access=Access("key"), can_run=lambda preset: True)


def waits(engine) -> list[float]:
    return [entry.wait for entry in visible_queue(context_of(engine), VISITOR).waiting]


def test_one_worker_makes_all_that_wait_one_after_another():
    assert waits(Engine(worker(), running=1, waiting=3)) == [20.0, 30.0, 40.0]


def test_a_waiting_job_goes_to_the_worker_that_is_free_first():
    assert waits(Engine(worker(), worker(), running=2, waiting=3)) == [20.0, 20.0, 30.0]
    assert waits(Engine(worker(), worker(), running=1, waiting=1)) == [10.0]


def test_a_failed_worker_makes_nothing_shorter():
    assert waits(Engine(*PAIR, running=1, waiting=2)) == [20.0, 30.0]
    assert waits(Engine(worker(state="failed"), waiting=1)) == [10.0]


def test_a_group_is_done_with_its_last():
    engine = Engine(worker(), worker(), running=1, waiting=2)
    html = queue_html(visible_queue(context_of(engine), VISITOR), ENGLISH)
    assert "done in about 20 s" in html


class Beginning(Engine):
    """Engine whose next job starts between two reads of the page."""

    def __init__(self, *, asked_first: str, **counts: int):
        super().__init__(worker(), **counts)
        self._asked_first = asked_first

    def waiting_job_ids(self):
        return self._then_begin("waiting_job_ids", super().waiting_job_ids())

    def unended(self, owner):
        return self._then_begin("unended", super().unended(owner))

    def _then_begin(self, asked: str, answer):
        if asked == self._asked_first:
            self._jobs = [replace(self._jobs[0], state="running"), *self._jobs[1:]]
        return answer


@pytest.mark.parametrize("asked_first", ["waiting_job_ids", "unended"])
def test_a_job_that_begins_while_the_page_asks_is_listed_once(asked_first):
    queue = visible_queue(context_of(Beginning(asked_first=asked_first, waiting=2)), VISITOR)
    assert [entry.job.id for entry in (*queue.running, *queue.waiting)] == ["0", "1"]


def test_the_header_shows_one_worker_as_ever_and_counts_several():
    assert status_html([worker(state="loading")], ENGLISH) == (
        '<p class="status" role="status" data-state="loading" title="loading."><i></i>'
        "<b>Model is loading…</b><span>loading.</span></p>"
    )
    html = status_html(PAIR, ENGLISH)
    assert 'data-state="busy"' in html and "<b>Generating</b><span>1 of 2 workers</span>" in html


@pytest.mark.parametrize(("workers", "code"), [((worker(),), 200), (PAIR, 200), ((worker(state="failed"),) * 2, 503)])
def test_the_studio_is_ill_only_where_no_worker_can_run(workers, code):
    answer = TestClient(Starlette(routes=[health_route(Engine(*workers), Access("key"), is_open=True)])).get("/healthz")
    assert answer.status_code == code
    if len(workers) == 1:
        assert json.loads(answer.text) == {"worker": "ready", "waiting": 0}


def test_health_lists_several_workers():
    answer = TestClient(Starlette(routes=[health_route(Engine(*PAIR), Access("key"), is_open=True)])).get("/healthz").json()
    assert answer == {"worker": "busy", "waiting": 0, "workers": {"worker-1": "busy", "worker-2": "failed"}}


IDLE = UnusedAccelerator(found="8 TPU v6e chips are here, but libtpu is not installed", fix="`pip install it`")
CHOSEN = UnusedAccelerator(found="8 TPU v6e chips are here and left alone", fix="", is_fault=False)


def with_notice(notice: UnusedAccelerator | None, name: str = "worker") -> WorkerView:
    view = worker(name)
    return replace(view, facts=replace(view.facts, notice=notice))


@pytest.mark.parametrize(
    ("workers", "detail"),
    [
        ([with_notice(IDLE)], f"{IDLE.found}; {IDLE.fix}"),
        ([with_notice(IDLE, "worker-1"), with_notice(IDLE, "worker-2")], f"{IDLE.found}; {IDLE.fix}"),
        ([with_notice(CHOSEN)], None),
        ([with_notice(None)], None),
    ],
)
def test_health_says_once_which_accelerator_is_not_used_by_mistake(workers, detail):
    answer = TestClient(Starlette(routes=[health_route(Engine(*workers), Access("key"), is_open=False)])).get("/healthz")
    assert answer.status_code == 200 and answer.json().get("detail") == detail


@pytest.mark.parametrize("notice", [IDLE, CHOSEN])
def test_the_system_shows_every_visitor_what_is_not_used(tmp_path, notice):
    engine = Engine(with_notice(notice), settings=from_environment(tmp_path, {}))
    [devices, *_] = build_report(engine, caller()).sections
    assert devices[1][-1] == ("Not used", str(notice))
    assert "Not used" not in build_report(Engine(worker(), settings=from_environment(tmp_path, {})), caller()).text()


def values(text: str) -> list[str]:
    return [line for line in text.splitlines() if re.match("studio_(worker|warm|device)", line)]


def test_the_only_workers_metrics_have_no_label():
    assert values(metrics_text(Engine(worker()))) == [
        "studio_worker_ready 1",
        "studio_warm_shapes 1",
        'studio_device_bytes_in_use{device="TPU_0"} 1',
        'studio_device_bytes_limit{device="TPU_0"} 4',
    ]


def test_several_workers_metrics_have_their_names():
    lines = values(metrics_text(Engine(*PAIR)))
    assert lines[:2] == ['studio_worker_ready{worker="worker-1"} 1', 'studio_worker_ready{worker="worker-2"} 0']
    assert 'studio_device_bytes_in_use{worker="worker-2",device="TPU_0"} 1' in lines


def test_the_system_says_what_is_done_without(tmp_path):
    facts = replace(worker().facts, refused=("No option x here", "No kernel y here"))
    sections = dict(build_report(Engine(worker(facts=facts), settings=from_environment(tmp_path, {})), VISITOR).sections)
    assert dict(sections[ENGLISH.system_worker])[ENGLISH.system_fallbacks] == "No option x here. No kernel y here."


RATES = {"denoise": Rate(flops_per_second=2.5e15, mfu=0.615), "decode": Rate(flops_per_second=8e11, mfu=None)}


def test_the_last_videos_rates_are_in_the_metrics_and_in_the_system(tmp_path):
    view = worker(facts=replace(worker().facts, rates=RATES))
    assert WorkerFacts.from_json(view.facts.to_json()) == view.facts
    lines = metrics_text(Engine(view)).splitlines()
    assert 'studio_flops_per_second{stage="denoise"} 2500000000000000.0' in lines
    assert [line for line in lines if line.startswith("studio_mfu")] == ['studio_mfu{stage="denoise"} 0.615']
    sections = dict(build_report(Engine(view, settings=from_environment(tmp_path, {})), VISITOR).sections)
    said = dict(sections[ENGLISH.system_worker])[ENGLISH.system_rates]
    assert "2.5 PFLOP/s, 62 % of the peak (MFU)" in said and "800 GFLOP/s" in said


def test_the_system_shows_a_block_for_each_of_several_workers(tmp_path):
    def titles(*workers):
        engine = Engine(*workers, settings=from_environment(tmp_path, {}))
        return [title for title, _ in build_report(engine, caller(is_operator=True)).sections][:2]

    assert titles(worker()) == ["Devices", "Worker"]
    assert titles(*PAIR) == ["Worker 1", "Worker 2"]
    assert titles(worker(machine="slice-a")) == ["Worker 1", "Storage"]
    assert titles()[0] == "Worker"


def test_the_operator_alone_sees_which_machine_of_a_cluster_a_worker_is_on(tmp_path):
    engine = Engine(worker("node-1", machine="slice-a, 10.0.0.7"), settings=from_environment(tmp_path, {}))
    shown = [build_report(engine, caller(is_operator=is_operator)).text() for is_operator in (True, False)]
    assert "slice-a, 10.0.0.7 (node-1)" in shown[0] and "10.0.0.7" not in shown[1] and "node-1" not in shown[1]


def test_where_no_machine_of_the_cluster_is_there_yet_the_page_says_so(tmp_path):
    assert ENGLISH.worker_none in status_html((), ENGLISH) and 'data-state="starting"' in status_html((), ENGLISH)
    engine = Engine(settings=from_environment(tmp_path, {}))
    assert ENGLISH.worker_none in build_report(engine, VISITOR).text()
    health = TestClient(Starlette(routes=[health_route(engine, Access("key"), is_open=True)])).get("/healthz")
    assert health.status_code == 200 and health.json()["worker"] == "starting"
    assert "studio_jobs" in metrics_text(engine) and "studio_worker_ready" not in metrics_text(engine)
    assert waits(Engine(waiting=2)) == [10.0, 20.0]


def test_the_operator_sees_the_end_of_each_log(tmp_path):
    for name in "ab":
        (tmp_path / name).write_text(f"{name} said this\n")
    workers = [worker(name, log=tmp_path / name) for name in "ab"]
    engine = Engine(*workers, settings=from_environment(tmp_path, {}))
    assert build_report(engine, caller(is_operator=True)).log == "a\na said this\n\nb\nb said this"
    assert build_report(engine, caller(is_operator=False)).log == ""
