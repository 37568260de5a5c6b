"""The command writes traces of steps and decoder. The test opens them with XProf's reader."""

import subprocess
import sys
from pathlib import Path

import jax
import pytest

from backend.pipeline.generate import generate
from backend.pipeline.profiling import Tracer
from backend.pipeline.warm_up import calls
from backend.schemas.request import GenerationRequest
from backend.settings import PROJECT_FOLDER
from presets import load_preset
from tests.many_devices import without_quick

pytestmark = [pytest.mark.parity, pytest.mark.demo_model]


def units_in(folder: Path) -> set[int]:
    """Return the numbers of the units of work in the folder's only trace, which has other events too."""
    [path] = folder.rglob("*.xplane.pb")
    trace = jax.profiler.ProfileData.from_file(str(path))
    events = [event for plane in trace.planes for line in plane.lines for event in line.events]
    assert len({event.name for event in events}) > 20
    return {int(dict(event.stats)["step_num"]) for event in events if event.name == "unit"}


def test_the_command_traces_the_steps_that_were_asked_for_and_the_decoder(tmp_path):
    """The environment has libtpu but no TPU. There, jax alone would crash."""
    folder, given = tmp_path / "traces", "--preset wan-tiny --prompt x --steps 6 --profile-steps 2-3 --seed 1".split()
    command = [sys.executable, "app.py", "generate", *given, "--profile", folder, "--output", tmp_path / "out.mp4"]
    done = subprocess.run(
        [*command, "--data-dir", tmp_path / "data"], cwd=PROJECT_FOLDER, env=without_quick(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    [video] = folder.iterdir()
    assert units_in(video / "steps") == {2, 3} and units_in(video / "decoder") == {1, 2}


def test_the_programs_operations_say_what_they_belong_to(loaded, tmp_path):
    request = GenerationRequest.from_preset(load_preset("wan-tiny"), prompt="a red circle", steps=1, seed=1)
    list(generate(request, loaded, tmp_path, lambda: False))
    programs = {call.program.key: call.program for call in calls(loaded.model, request)}
    texts = " ".join(one.executable.as_text() for program in programs.values() for one in program._compiled.values())
    for scope in ("attention/", "products/", "decoder/"):
        assert scope in texts, scope


def test_only_the_units_that_were_asked_for_are_traced_and_work_that_ends_early_ends_its_trace(monkeypatch):
    said = []
    monkeypatch.setattr(jax.profiler, "start_trace", lambda folder, profiler_options: said.append(f"start {folder}"))
    monkeypatch.setattr(jax.profiler, "stop_trace", lambda: said.append("stop"))
    with Tracer(None, 1, 5) as tracer, tracer.trace_unit(1, pytest.fail):
        pass
    assert said == []
    with Tracer(Path("here"), 2, 3) as tracer:
        for number in range(1, 6):
            with tracer.trace_unit(number, lambda: said.append("wait")):
                said.append(number)
    assert said == [1, "start here", 2, "wait", 3, "wait", "stop", 4, 5]
    said.clear()
    with pytest.raises(KeyError), Tracer(Path("here"), 1, 9) as tracer, tracer.trace_unit(1, list):
        raise KeyError
    assert said == ["start here", "stop"]
