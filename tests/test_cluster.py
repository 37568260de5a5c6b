"""Tests with real Ray on this machine: lost slices, new slices, and the command line without slices.

The long run, with the demo model and forty jobs, is `python -m benchmarks.cluster`.
"""

import importlib.util
import json
import os
import subprocess
import sys

import pytest

from backend.settings import PROJECT_FOLDER
from tests.clock import is_within
from tests.many_devices import without_quick

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="Ray is an extra: pip install -r requirements-cluster.txt"
)


def broken(tmp_path, *words: str, seconds: float) -> dict:
    """Run with killed slices and return the figures. Fails the test if the run reports violations."""
    command = [sys.executable, "-m", "benchmarks.cluster", *words, "--json", str(tmp_path / "figures.json")]
    environment = without_quick() | {"STUDIO_CACHE_DIR": os.environ["STUDIO_CACHE_DIR"], "STUDIO_TEST_STEP_SECONDS": "1"}
    done = subprocess.run(command, cwd=PROJECT_FOLDER, env=environment, capture_output=True, text=True, timeout=seconds)
    ended = f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert (tmp_path / "figures.json").exists(), ended
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures["violations"] == [] and done.returncode == 0, ended
    return figures


@pytest.mark.bench
def test_videos_go_on_elsewhere_when_a_slice_is_lost(tmp_path):
    """Each worker process also crashes once in each video, and restarts on its node."""
    words = "--pipeline tests.fake_pipeline --nodes 2 --jobs 2 --steps 5 --kill-seconds 3".split()
    figures = broken(tmp_path, *words, "--prompt", "a square that may trip", seconds=900)
    assert figures["raylets_killed"] >= 1 and figures["jobs_interrupted"] >= 1
    assert is_within(max(figures["loss_noticed_seconds"]), 15)


@pytest.mark.slow
@pytest.mark.demo_model
def test_forty_videos_are_finished_while_a_slice_is_lost_every_twenty_seconds(tmp_path):
    figures = broken(tmp_path, seconds=1800)
    assert figures["jobs"] == 40 and figures["raylets_killed"] >= 3


@pytest.mark.slow
@pytest.mark.demo_model
def test_a_slice_of_two_hosts_is_one_worker_and_its_videos_go_on_when_one_host_is_lost(tmp_path):
    words = "--nodes 2 --hosts 2 --jobs 4 --steps 40 --kill-seconds 15".split()
    figures = broken(tmp_path, *words, seconds=900)
    assert figures["jobs"] == 4 and figures["raylets_killed"] >= 1 and figures["jobs_interrupted"] >= 1


@pytest.mark.slow
@pytest.mark.demo_model
def test_a_storyboard_continues_on_another_slice_with_the_shot_that_it_had_reached(tmp_path):
    words = "--nodes 2 --jobs 2 --steps 40 --shots 2 --kill-seconds 25".split()
    figures = broken(tmp_path, *words, seconds=600)
    assert figures["jobs"] == 2 and figures["raylets_killed"] >= 1 and figures["jobs_interrupted"] >= 1
