"""Tests of who sees and stops long work."""

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from backend.media.sandbox import Task
from wan_ui.gateway.visitors import COOKIE, owner_name
from wan_ui.routes.tasks import PATH, tasks_routes

MINE, THEIRS = "A" * 43, "B" * 43


class FakeSandbox:
    """A sandbox with one task of each kind for one visitor."""

    def __init__(self):
        self.stopped = []
        self.kinds = ("export", "film", "comparison", "import", "project")

    def tasks(self, owner):
        own = owner == owner_name({COOKIE: MINE})
        return [Task(id=kind, kind=kind, share=None if kind == "film" else 0.42) for kind in self.kinds] if own else []

    def stop_task(self, task_id, owner):
        is_there = task_id in [task.id for task in self.tasks(owner)]
        self.stopped += [task_id] * is_there
        return is_there


@pytest.fixture
def sandbox():
    return FakeSandbox()


def site(sandbox, cookie):
    class Engine:
        pass

    engine = Engine()
    engine.sandbox = sandbox
    context = type("Desk", (), {"engine": engine})()
    return TestClient(Starlette(routes=tasks_routes(context)), cookies={COOKIE: cookie} if cookie else {})


def test_a_visitor_sees_their_own_in_their_language(sandbox):
    told = site(sandbox, MINE).get(PATH).json()
    assert told["stop"] == "Stop"
    assert told["tasks"][:2] == [
        {"id": "export", "text": "Exporting · 42 %", "percent": 42},
        {"id": "film", "text": "Cutting the film · waiting for other tasks", "percent": None},
    ]
    chinese = site(sandbox, MINE).get(PATH, headers={"accept-language": "zh"}).json()
    assert all(one["text"] not in str(told) for one in chinese["tasks"])


@pytest.mark.parametrize("cookie", [THEIRS, None])
def test_nobody_else_sees_or_stops_them(sandbox, cookie):
    assert site(sandbox, cookie).get(PATH).json()["tasks"] == []
    assert site(sandbox, cookie).post(f"{PATH}/export/stop").status_code == 404 and sandbox.stopped == []


def test_the_owner_stops_one(sandbox):
    assert site(sandbox, MINE).post(f"{PATH}/export/stop").status_code == 200 and sandbox.stopped == ["export"]
    assert site(sandbox, MINE).post(f"{PATH}/nothing/stop").status_code == 404
