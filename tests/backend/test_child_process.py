"""Processes that `backend.child_process` starts end with their parent, in any kind of wait."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import backend
import wan_ui
from backend.child_process import start_module
from backend.files import folder_lock
from backend.settings import PROJECT_FOLDER, module_environment

PARENT = """
import sys
from backend.child_process import start_module
from backend.settings import module_environment

child = start_module("tests.backend.waiting_child", sys.argv[1:], module_environment(), start_new_session=True)
print(child.pid, flush=True)
child.wait()
"""


def started(*words: str) -> tuple[subprocess.Popen, int]:
    """Start a process, and return it with the id of its waiting child."""
    command = [sys.executable, "-c", PARENT, *words]
    parent = subprocess.Popen(command, cwd=PROJECT_FOLDER, env=module_environment(), stdout=subprocess.PIPE, text=True)
    child = int(parent.stdout.readline())
    assert parent.stdout.readline() == "waits\n"
    return parent, child


@pytest.mark.parametrize("waits", ["lock", "native", "exit", "thread"])
def test_a_child_that_waits_ends_with_its_killed_parent(waits, tmp_path):
    with folder_lock(tmp_path):
        parent, child = started(waits, str(tmp_path))
        with parent:
            time.sleep(0.2)
            assert is_there(child)
            parent.kill()
        assert ends(child)


def test_a_stopped_child_and_what_it_has_started_end_too(tmp_path):
    parent, child = started("grandchild", str(tmp_path))
    with parent:
        grandchild = int(parent.stdout.readline())
        os.kill(child, signal.SIGSTOP)
        parent.kill()
    assert ends(child) and ends(grandchild)


def test_a_child_whose_parent_ended_first_ends_at_once():
    """The child ends before the module runs, and without the waiting thread, which may get no turn."""
    program = """
import sys
import threading
from backend.child_process import end_with_parent

threading.Thread.start = lambda thread: None
end_with_parent(int(sys.argv[1]))
print("goes on")
"""
    reading, writing = os.pipe()
    os.close(writing)
    command = [sys.executable, "-c", program, str(reading)]
    done = subprocess.run(command, cwd=PROJECT_FOLDER, env=module_environment(), pass_fds=[reading], capture_output=True)
    os.close(reading)
    assert (done.returncode, done.stdout, done.stderr) == (1, b"", b"")


def test_a_child_runs_its_module_with_its_words_and_its_exit_code():
    child = start_module("tests.backend.waiting_child", ["nothing", "5"], module_environment(), cwd=PROJECT_FOLDER)
    with child:
        assert child.wait(60) == 5


def test_a_killed_command_ends_what_it_compiles_in():
    """`check-tpu`, `precompile` and `doctor` start their modules in this way."""
    program = """
from backend.cli.module_process import run_in_process
from backend.settings import module_environment

words = ["native", "", "json"]
run_in_process("tests.backend.waiting_child", words, module_environment(), lambda message: print(message["pid"], flush=True))
"""
    parent = subprocess.Popen([sys.executable, "-c", program], cwd=PROJECT_FOLDER, stdout=subprocess.PIPE, text=True)
    with parent:
        child = int(parent.stdout.readline())
        parent.kill()
    assert ends(child)


def test_every_process_of_ours_is_started_so():
    """Workers are an exception: they continue when their server dies. `backend/workers/process.py` ends workers that
    cannot.
    """
    roots = (Path(backend.__file__).parent, Path(wan_ui.__file__).parent)
    starts = {
        path.name
        for root in roots
        for path in root.rglob("*.py")
        if re.search(r"Popen\(|subprocess_exec\(", path.read_text("utf-8"))
    }
    workers, files, others = {"process.py"}, {"ffmpeg.py"}, {"view.py", "program.py"}  # ffmpeg ends with its pipes
    assert starts == {"child_process.py"} | workers | files | others


def is_there(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text("utf-8").rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def ends(process: int, seconds: float = 10) -> bool:
    until = time.monotonic() + seconds
    while is_there(process) and time.monotonic() < until:
        time.sleep(0.05)
    return not is_there(process)
