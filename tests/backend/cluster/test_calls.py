"""Check that no call follows the end of the connection. The fake Ray lists calls after its shutdown.

Real Ray sometimes ends the process at such a call, and with it `benchmarks.cluster`.
"""

import sys
import threading
import time
from functools import partial
from types import SimpleNamespace

import pytest

from backend.cluster.calls import Calls, Disconnected
from backend.cluster.transport import ClusterTransport
from backend.settings import from_environment
from backend.worker_pool.nodes import Cluster
from backend.workers.process import WorkerPlan
from tests.backend.conftest import wait_for


class Ray:
    """A fake of the part of Ray that a transport uses. Answers are computed when they are read; `late` lists the calls after
    the end.
    """

    exceptions = SimpleNamespace(RayError=OSError, ActorUnavailableError=ConnectionError, GetTimeoutError=TimeoutError)

    def __init__(self):
        self.calls, self.late, self.is_down, self.held = [], [], False, 0

    def shutdown(self):
        self.is_down = True
        self.late += ["a reference"] * self.held

    def wait(self, answers, timeout):
        self._note("wait")
        time.sleep(timeout)
        return ([], answers) if "fetch_batch" in answers[0].method else (answers, [])

    def get(self, answer, timeout):
        self._note("get")
        if answer.method == "fetch_batch":
            time.sleep(timeout)
            raise TimeoutError
        return None

    def call(self, method):
        self._note(method)
        self.calls.append(method)
        return Answer(self, method)

    def _note(self, name):
        if self.is_down:
            self.late.append(name)


class Answer:
    """A reference, counted by Ray."""

    def __init__(self, ray, method):
        self.ray, self.method = ray, method
        ray.held += 1

    def __del__(self):
        self.ray.held -= 1


class Actor:
    """A node that accepts every call and returns nothing."""

    def __init__(self, ray):
        self._ray = ray

    def __getattr__(self, method):
        return SimpleNamespace(remote=lambda *values: self._ray.call(method))


@pytest.fixture
def ray(monkeypatch):
    made = Ray()
    monkeypatch.setitem(sys.modules, "ray", made)
    monkeypatch.setitem(sys.modules, "ray.exceptions", made.exceptions)
    return made


@pytest.fixture
def cluster(ray, monkeypatch):
    monkeypatch.setattr("backend.worker_pool.nodes._join_cluster", lambda address: None)
    return Cluster("somewhere:1")


def test_a_link_that_waits_for_its_node_calls_nothing_after_the_end(ray, cluster, tmp_path):
    """The transport of a lost worker, which no thread stops, is in the middle of a call. The thread that kills the worker is
    too.
    """
    ask = partial(cluster._calls.ask, Actor(ray))
    plan = WorkerPlan(preset="wan-tiny", model=None, warm_up=False, settings=from_environment(), transport="cluster", node=ask)
    codes = []
    transport = ClusterTransport(plan, tmp_path / "log", lambda message: None, codes.append)
    wait_for(lambda: "fetch_batch" in ray.calls)
    threading.Thread(target=transport.kill).start()
    cluster.disconnect()
    assert ray.is_down and ray.late == []
    wait_for(lambda: codes)
    transport.kill()
    transport.stop()
    assert ray.late == []


def test_without_an_answer_of_ray_the_connection_stays(ray, cluster, monkeypatch, caplog):
    monkeypatch.setattr("backend.worker_pool.nodes._DISCONNECT_SECONDS", 0.05)
    with cluster._calls.count_call():
        cluster.disconnect()
    assert not ray.is_down and "given back when this process ends" in caplog.text


def test_an_ended_connection_takes_no_call(ray):
    calls = Calls()
    assert calls.end(0)
    with pytest.raises(Disconnected):
        calls.ask(Actor(ray), "send", seconds=1)
    assert ray.calls == []
