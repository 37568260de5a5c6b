"""A process that ends with its parent."""

import os
import subprocess
import sys
import time
from pathlib import Path

from backend.settings import module_environment

CHILD = """
import sys, threading
from backend.commands.parent import end_with
end_with(int(sys.argv[1]))
threading.Thread(target=threading.Event().wait).start()  # its end would be waited for
print("waits", flush=True)
raise OSError("as where the terminal is gone")
"""
PARENT = f"""
import os, subprocess, sys
words = [sys.executable, "-c", {CHILD!r}, sys.argv[1] if sys.argv[1:] else str(os.getpid())]
child = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
print(child.pid, child.stdout.readline(), flush=True)
input()
"""


def started(*words: str) -> tuple[subprocess.Popen, int]:
    """A process, and its child that waits for ever."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    parent = subprocess.Popen([sys.executable, "-c", PARENT, *words], env=module_environment(), **pipes)
    return parent, int(parent.stdout.readline().split()[0])


def test_a_process_that_waits_for_ever_ends_with_its_parent():
    parent, child = started()
    with parent:
        assert is_there(child)
        parent.kill()
    assert ends(child)


def test_one_that_asks_only_when_its_parent_is_gone_ends_too():
    parent, child = started(str(os.getpid()))  # as if this process had been the parent
    with parent:
        assert ends(child)
        parent.kill()


def is_there(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text("utf-8").rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def ends(process: int, seconds: float = 60) -> bool:
    until = time.monotonic() + seconds
    while is_there(process) and time.monotonic() < until:
        time.sleep(0.05)
    return not is_there(process)
