"""The engine and its worker run on a machine with an unused accelerator. The log states this once, and the page shows it."""

import logging

import pytest

from backend.schemas.events import Failed, Finished
from tests.backend.conftest import all_events, request, wait_for
from tests.made_up_machine import plain_machine, tpu_machine

HELD = "Unable to initialize backend 'tpu': ABORTED: The TPU is already in use by process with pid 77."


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """The folder of the simulated machine."""
    monkeypatch.setenv("MADE_UP_MACHINE", str(tmp_path / "machine"))
    for name in ("JAX_PLATFORMS", "TPU_ACCELERATOR_TYPE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "machine"


def notice_of(engine):
    return engine.pool.workers()[0].facts.notice


def said(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_a_worker_on_the_cpu_of_a_tpu_vm_says_so_and_works(machine, make_engine, caplog):
    tpu_machine(machine, files=None)
    with caplog.at_level(logging.WARNING):
        engine = make_engine(pipeline="tests.idle_pipeline")
        wait_for(lambda: notice_of(engine) is not None)
        assert isinstance(all_events(engine, engine.submit(request()).id)[-1], Finished)
    assert notice_of(engine).is_fault and "8 TPU v6e chips" in notice_of(engine).found
    assert [text for text in said(caplog) if "TPU" in text] == [str(notice_of(engine))]


def test_a_choice_is_known_and_not_complained_of(machine, make_engine, caplog, monkeypatch):
    tpu_machine(machine)
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    with caplog.at_level(logging.WARNING):
        engine = make_engine(pipeline="tests.idle_pipeline")
        wait_for(lambda: notice_of(engine) is not None)
    assert not notice_of(engine).is_fault and "JAX_PLATFORMS=cpu" in notice_of(engine).found
    assert said(caplog) == []


def test_a_machine_without_accelerators_has_nothing_to_say(machine, make_engine):
    plain_machine(machine)
    engine = make_engine(pipeline="tests.idle_pipeline")
    wait_for(lambda: engine.pool.workers()[0].facts.devices)
    assert notice_of(engine) is None


def test_chips_that_another_process_holds_fail_the_job_with_the_remedy_until_they_are_free(machine, make_engine):
    refusal = tpu_machine(machine) / "refusal"
    refusal.write_text(HELD)
    engine = make_engine(pipeline="tests.idle_pipeline")
    wait_for(lambda: engine.pool.status().state == "failed")
    assert engine.pool.status().detail == "Another process, 77, holds 8 TPU v6e chips; `kill 77`, then start again"
    assert notice_of(engine).is_fault
    failed = all_events(engine, engine.submit(request()).id)[-1]
    assert isinstance(failed, Failed) and (failed.cause, failed.fix) == (notice_of(engine).found, notice_of(engine).fix)
    refusal.unlink()
    assert isinstance(all_events(engine, engine.submit(request()).id)[-1], Finished)


def test_a_runtime_that_ends_the_process_has_left_its_reason_in_the_log(machine, make_engine):
    """The error of a libtpu that is newer than jaxlib (issue 185 of weathernext)."""
    said = "ABORT F0929 pjrt_c_api_helpers.cc:258: Unexpected PJRT_Plugin_Attributes_Args size: expected 32, got 24.\n"
    (tpu_machine(machine) / "refusal").write_text(said)
    engine = make_engine(pipeline="tests.idle_pipeline")
    wait_for(lambda: "do not belong together" in engine.pool.status().detail)  # the worker restarts now and then
    assert notice_of(engine).is_fault
