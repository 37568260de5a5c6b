"""Traces of steps and decoder, opened with the reader that XProf uses."""

from pathlib import Path

import jax
import pytest

from backend.contract.events import Finished
from backend.contract.request import GenerationRequest
from backend.pipeline.generate import generate
from backend.pipeline.profiling import Profile, Tracer
from backend.pipeline.warm_up import calls
from presets import load_preset


def names_in(folder: Path) -> set[str]:
    """The names of all events of the one trace in this folder."""
    [path] = folder.rglob("*.xplane.pb")
    trace = jax.profiler.ProfileData.from_file(str(path))
    return {event.name for plane in trace.planes for line in plane.lines for event in line.events}


def steps_in(folder: Path) -> set[int]:
    [path] = folder.rglob("*.xplane.pb")
    trace = jax.profiler.ProfileData.from_file(str(path))
    events = (event for plane in trace.planes for line in plane.lines for event in line.events if event.name == "unit")
    return {int(dict(event.stats)["step_num"]) for event in events}


@pytest.mark.demo_model
@pytest.mark.parity
def test_the_steps_that_were_asked_for_and_the_decoder_are_traced(loaded, tmp_path):
    request = GenerationRequest.from_preset(load_preset("wan-tiny"), prompt="a red circle", steps=6, seed=1)
    profile = Profile(folder=tmp_path / "traces", first=2, last=3)
    *_, last = generate(request, loaded, tmp_path / "video", lambda: False, profile)
    assert isinstance(last, Finished)
    steps, decoder = (tmp_path / "traces/video" / name for name in ("steps", "decoder"))
    assert steps_in(steps) == {2, 3} and steps_in(decoder) == {1, 2}
    assert len(names_in(steps)) > 50


@pytest.mark.demo_model
@pytest.mark.parity
def test_the_programs_operations_say_what_they_belong_to(loaded, tmp_path):
    request = GenerationRequest.from_preset(load_preset("wan-tiny"), prompt="a red circle", steps=1, seed=1)
    list(generate(request, loaded, tmp_path, lambda: False))
    programs = {call.program.key: call.program for call in calls(loaded.model, request)}
    texts = " ".join(one.executable.as_text() for program in programs.values() for one in program._compiled.values())
    for scope in ("attention/", "products/", "decoder/"):
        assert scope in texts, scope


def test_nothing_is_traced_that_was_not_asked_for(tmp_path):
    with Tracer(None, 1, 5) as tracer, tracer.unit(1, pytest.fail):
        pass
    folder = tmp_path / "trace"
    with Tracer(folder, 2, 9) as tracer:
        with tracer.unit(1, pytest.fail):
            pass
        assert not folder.exists()
        with tracer.unit(2, lambda: None):
            jax.numpy.ones(3).block_until_ready()
    assert steps_in(folder) == {2}  # a work that ends before its last unit leaves a whole trace
