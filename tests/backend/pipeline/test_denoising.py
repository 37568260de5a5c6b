"""Check how far calls run ahead of the devices, and the step that each expert does before its first counted step."""

import dataclasses

import jax
import numpy as np
import pytest

from backend.models.model import VIDEO
from backend.pipeline import denoising as module
from backend.pipeline import generate as pipeline
from backend.pipeline.denoising_loop import MOST_AHEAD, Denoising, should_warm_up
from backend.pipeline.encoding import encode_conditions
from backend.pipeline.preparing import prepare
from backend.pipeline.run import Run
from backend.runtime.program import Program
from backend.schemas.request import GenerationRequest
from presets import load_preset

pytestmark = [pytest.mark.parity, pytest.mark.demo_model]
STEPS = 11
STEP = "denoise_step"


@pytest.fixture
def run(loaded, tmp_path) -> Run:
    """A run with guidance in half of its steps, so that it has two step contexts."""
    request = GenerationRequest.from_preset(
        load_preset("wan-tiny"), prompt="a red circle", seed=1, steps=STEPS, guidance_interval=(0.0, 0.5)
    )
    return Run(request=request, loaded=loaded, folder=tmp_path, is_cancelled=lambda: False)


def conditions_of(run: Run):
    list(prepare(run))
    events = encode_conditions(run)
    while True:
        try:
            next(events)
        except StopIteration as end:
            return end.value


@pytest.fixture
def calls(monkeypatch) -> list[str]:
    """The keys of the programs that run, in order."""
    keys, call = [], Program.__call__

    def counted(self, *arguments):
        keys.append(self.key)
        return call(self, *arguments)

    monkeypatch.setattr(Program, "__call__", counted)
    return keys


def test_no_more_steps_are_called_than_may_be_ahead(run, calls, monkeypatch):
    loop, waits, wait = Denoising(run, conditions_of(run)), [], jax.block_until_ready

    def waiting(tree):
        waits.append(calls.count(STEP))
        return wait(tree)

    monkeypatch.setattr(module.jax, "block_until_ready", waiting)
    while loop.steps_done < loop.total_steps:
        loop.step()
    assert calls.count(STEP) == STEPS and waits == [MOST_AHEAD, 2 * MOST_AHEAD]


def test_a_look_at_the_video_is_a_wait_too(run, calls, monkeypatch):
    loop, waits = Denoising(run, conditions_of(run)), []
    monkeypatch.setattr(module.jax, "block_until_ready", lambda tree: waits.append(calls.count(STEP)))
    while loop.steps_done < loop.total_steps:
        loop.step()
        loop.current_latents(is_clean=True)
    assert waits == []


def test_where_experts_take_turns_the_last_one_is_done_before_its_copies_are_freed(run, calls, monkeypatch):
    loop, waits = Denoising(run, conditions_of(run)), []
    monkeypatch.setattr(run.model, "spec", dataclasses.replace(run.model.spec, num_experts=2))
    monkeypatch.setattr(module.jax, "block_until_ready", lambda tree: waits.append(calls.count(STEP)))
    while loop.steps_done < loop.total_steps:
        loop.step()
        loop.current_latents(is_clean=True)
    assert waits == [5]  # one wait in 11 steps, before the first step without guidance


def test_each_lane_has_one_step_before_the_first_that_counts_and_only_once(run, calls):
    conditions = conditions_of(run)
    for program in (run.model._guided.step, run.model._unguided.step):
        program._has_run.clear()
    calls.clear()
    loop = Denoising(run, conditions)
    loop.warm_up()
    assert calls.count(STEP) == 2 and loop.steps_done == 0 and run.clock.seconds["denoise"] == 0
    calls.clear()
    loop.warm_up()
    Denoising(run, conditions).warm_up()
    assert calls == []


def test_the_latents_are_the_same_with_it_and_without(run):
    conditions, made = conditions_of(run), []
    for warms in (False, True):
        loop = Denoising(run, conditions)
        if warms:
            for program in (run.model._guided.step, run.model._unguided.step):
                program._has_run.clear()
            loop.warm_up()
        while loop.steps_done < loop.total_steps:
            loop.step()
        made.append(loop.current_latents(is_clean=False)[VIDEO])
    np.testing.assert_array_equal(*made)


def test_accelerators_warm_up_and_a_cpu_does_not(run, tmp_path, calls, monkeypatch):
    assert not should_warm_up(run.model, run.request)
    counts = []
    for warms in (False, True):
        monkeypatch.setattr("backend.pipeline.denoising.should_warm_up", lambda *_, warms=warms: warms)
        for program in (run.model._guided.step, run.model._unguided.step):
            program._has_run.clear()
        calls.clear()
        list(pipeline.generate(run.request, run.loaded, tmp_path / str(warms), lambda: False))
        counts.append(calls.count(STEP))
    assert counts == [STEPS, STEPS + 2]
