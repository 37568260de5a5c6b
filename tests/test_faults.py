"""A short fault run: the real server, the demo model, and faults every two seconds. The long one: `python -m benchmarks.faults`."""

import pytest

from benchmarks.faults import run


@pytest.mark.alone
@pytest.mark.demo_model
def test_every_job_ends_as_its_visitor_left_it(tmp_path):
    figures = run(visitors=2, jobs=4, seed=4, seconds=150.0, parent=tmp_path, spoiled=0.25)
    assert figures["violations"] == []
    assert sum(figures["faults"].values()) >= 3 and sum(figures["states"].values()) == 4
