"""A standby process replaces a worker that dies, and saves the time of its imports."""

import os
import signal
import subprocess
import sys

import pytest

from backend.engine.engine import Engine
from backend.schemas.events import Finished, Step
from backend.settings import PROJECT_FOLDER
from backend.worker_pool import supervisor as supervisor_module
from tests.backend.conftest import all_events, request, wait_for
from tests.backend.worker_pool.test_supervisor import first_step, is_alive


def standby_of(engine: Engine) -> int:
    """Return the id of the standby process as soon as it exists."""
    wait_for(lambda: engine.pool.workers()[0].standby_pid is not None)
    return engine.pool.workers()[0].standby_pid


@pytest.fixture
def engine(make_engine, monkeypatch) -> Engine:
    monkeypatch.setattr(supervisor_module, "STANDBY_SECONDS", 0.0)
    return make_engine(has_standby=True)


def test_it_takes_the_place_of_a_worker_that_is_killed_and_another_one_stands_by(engine, close_gate):
    standby, gate = standby_of(engine), close_gate("a held square")
    job = engine.submit(request("a held square", steps=5))
    first_step(engine, job.id)
    os.kill(engine.pool.workers()[0].pid, signal.SIGKILL)
    gate.open()
    steps = [event.index for event in all_events(engine, job.id) if isinstance(event, Step)]
    assert steps[-1] == 5 and steps == sorted(steps)
    assert engine.pool.workers()[0].pid == standby and "worker-" in engine.pool.workers()[0].log.name
    assert standby_of(engine) != standby


def test_one_that_has_died_itself_is_no_loss(engine):
    standby = standby_of(engine)
    os.kill(standby, signal.SIGKILL)
    wait_for(lambda: not is_alive(standby))
    pid = engine.pool.workers()[0].pid
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: engine.pool.workers()[0].pid not in (None, pid))
    assert engine.pool.workers()[0].pid != standby
    assert isinstance(all_events(engine, engine.submit(request()).id)[-1], Finished)


def test_it_ends_with_its_engine(engine):
    standby = standby_of(engine)
    engine.close()
    assert not is_alive(standby)


def test_there_is_none_where_memory_is_short(make_engine, monkeypatch):
    monkeypatch.setattr(supervisor_module, "STANDBY_SECONDS", 0.0)
    asked = []
    monkeypatch.setattr(supervisor_module, "free_memory", lambda: asked.append(10**9) or asked[-1])
    engine = make_engine(has_standby=True)
    wait_for(lambda: len(asked) > 1)
    assert engine.pool.workers()[0].standby_pid is None


def test_importing_ahead_touches_no_device():
    """A TPU belongs to the working process."""
    code = "from backend.workers.pipeline import import_ahead; import_ahead(None); from jax._src import xla_bridge as bridge; "
    code += "assert not bridge._backends; import sys; assert 'backend.models.wan.model' in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], cwd=PROJECT_FOLDER, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
