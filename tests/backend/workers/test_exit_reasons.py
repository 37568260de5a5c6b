"""Check how the end of a worker is explained."""

import signal
from pathlib import Path

from backend.workers import exit_reasons
from backend.workers.exit_reasons import count_out_of_memory_kills, explain_exit

LOG = Path("/logs/worker.log")


def test_a_kill_by_the_system_for_memory_has_its_remedy():
    stop = explain_exit(-signal.SIGKILL, LOG, was_out_of_memory=True)
    assert stop.by == "worker" and "ran out of memory" in stop.cause and "smaller size" in stop.fix


def test_a_kill_by_somebody_is_told_apart_from_a_crash():
    assert explain_exit(-signal.SIGKILL, LOG, was_out_of_memory=False).by == "signal"
    crash = explain_exit(-signal.SIGSEGV, LOG, was_out_of_memory=True)
    assert (crash.cause, crash.by) == ("The worker was killed by signal 11 (SIGSEGV)", "worker")
    assert explain_exit(3, LOG, was_out_of_memory=False).cause == "The worker ended with exit code 3"


def test_a_reason_that_is_known_comes_first():
    assert explain_exit(-9, LOG, was_out_of_memory=True, reason="It hung").cause == "It hung"


def test_a_machine_that_has_gone_is_no_fault_of_the_worker():
    stop = explain_exit(exit_reasons.LOST, LOG, was_out_of_memory=True, reason="It hung")
    assert (stop.by, stop.cause) == ("loss", "The machine of its worker was lost")


def test_a_host_that_is_silent_is_no_fault_of_the_worker_either():
    stop = explain_exit(
        exit_reasons.HOST_LOST, LOG, was_out_of_memory=False, reason="Process 1 of the 2 hosts does not answer any more"
    )
    assert (stop.by, stop.cause) == ("signal", "Process 1 of the 2 hosts does not answer any more")
    assert "one of its hosts" in explain_exit(exit_reasons.HOST_LOST, LOG, was_out_of_memory=False).cause


def test_the_systems_count_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(exit_reasons, "_VMSTAT", tmp_path / "vmstat")
    assert count_out_of_memory_kills() == 0
    (tmp_path / "vmstat").write_text("nr_free_pages 12\noom_kill 7\npgfault 1\n")
    assert count_out_of_memory_kills() == 7
