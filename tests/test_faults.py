"""Test with a short fault run: the real server, the demo model and faults every two seconds.

`python -m benchmarks.faults` is the long run.
"""

import json
import subprocess
import sys

import pytest

from backend.settings import PROJECT_FOLDER
from tests.many_devices import without_quick


@pytest.mark.slow  # two minutes; tests/backend/engine/test_{disasters,recovery}.py test single faults
@pytest.mark.demo_model
def test_every_job_ends_as_its_visitor_left_it(tmp_path):
    words = "--visitors 2 --jobs 4 --seed 4 --seconds 300 --spoiled 0.17 --json".split()
    command = [sys.executable, "-m", "benchmarks.faults", *words, tmp_path / "figures.json"]
    done = subprocess.run(command, cwd=PROJECT_FOLDER, env=without_quick(), capture_output=True, text=True, timeout=420)
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures["violations"] == [], done.stderr
    assert done.returncode == 0
    assert sum(figures["faults"].values()) >= 3 and sum(figures["states"].values()) == 4
