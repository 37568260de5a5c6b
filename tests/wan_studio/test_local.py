"""Tests of the server that `Studio.local` starts: `python app.py serve` with the demo model."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from backend.settings import PROJECT_FOLDER
from presets import load_preset
from tests.many_devices import without_quick
from tests.wan_ui.conftest import READY_SECONDS
from wan_studio import Studio, StudioError

SCRIPT = """
import sys
from wan_studio import Studio
studio = Studio.local(sys.argv[1], options=["--no-instant"])
print(studio.url, studio._server._process.pid, flush=True)
sys.stdin.read()
"""


def is_running(pid: int) -> bool:
    """Return whether a process of this id exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.demo_model
def test_a_local_studio_generates_a_video_and_leaves_no_process(tmp_path, monkeypatch):
    if not (Path(load_preset("wan-tiny").model_source) / "model_index.json").is_file():
        pytest.skip("the demo model has not been trained yet")
    for name, value in without_quick().items():
        monkeypatch.setenv(name, value)
    with Studio.local(tmp_path / "data", options=["--no-instant"], folder=tmp_path / "videos") as studio:
        job = studio.submit("a red circle moving right", preset="wan-tiny", num_inference_steps=1, num_frames=5, seed=1)
        video = job.result()
        assert video.path.parent == tmp_path / "videos" and video.frames.shape[0] == 5
        assert video.path.read_bytes() == (tmp_path / "data" / "runs" / job.id / "video.mp4").read_bytes()
        assert httpx.get(f"{studio.url}config").status_code == 401  # other accounts of this machine
        pid, log = studio._server._process.pid, studio._server.log
    assert not is_running(pid) and log.stat().st_mode & 0o077 == 0


def test_a_killed_program_takes_its_server_along(tmp_path):
    words = [sys.executable, "-c", SCRIPT, str(tmp_path)]
    program = subprocess.Popen(words, cwd=PROJECT_FOLDER, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    url, pid = program.stdout.readline().split()
    assert httpx.get(f"{url}healthz").status_code in (200, 503) and os.getsid(int(pid)) != os.getsid(0)
    program.send_signal(signal.SIGKILL)
    program.communicate()
    until = time.monotonic() + READY_SECONDS
    while is_running(int(pid)):
        assert time.monotonic() < until
        time.sleep(0.05)


def test_a_server_that_does_not_start_shows_its_log(tmp_path):
    with pytest.raises(StudioError, match="(?s)did not start.*--no-such-option"):
        Studio.local(tmp_path, options=["--no-such-option"])
