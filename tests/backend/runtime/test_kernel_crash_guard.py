"""A kernel that fails when it runs, or kills or hangs the process, is replaced by its fallback, with a report."""

import json
import os
import time

import jax
import pytest

from backend.errors import KernelRefused
from backend.runtime import kernel_fallbacks as fallbacks_module
from backend.runtime.kernel_crash_guard import KEPT_SECONDS, KernelCrashGuard
from backend.runtime.kernel_fallbacks import KernelFallbacks
from backend.schemas.events import Finished, Interrupted
from tests.backend.conftest import all_events, request

SERVE = "so XLA's slower operations serve instead"


@pytest.fixture(autouse=True)
def the_kernels_stay(monkeypatch):
    """Keep the kernels enabled in this process, where other tests need them."""
    monkeypatch.setattr(fallbacks_module, "disable_implementation", lambda name: None)


def made(folder, agree=lambda own: [own]) -> tuple[KernelCrashGuard, KernelFallbacks]:
    """Return the guard and the fallbacks of a new process."""
    fallbacks = KernelFallbacks()
    guard = KernelCrashGuard(fallbacks)
    guard.withdraw_recorded(folder, agree)
    return guard, fallbacks


def leave_a_note(folder) -> None:
    """Leave the note of a process that died in the first run of the attention kernel."""
    guard, _ = made(folder)
    with guard.guard_first_run("the denoising step", ["attention"]):
        (note,) = folder.iterdir()
        content = note.read_text()
    (folder / "1-aaaa.first-run").write_text(content)


def test_a_run_that_ends_well_leaves_nothing(tmp_path):
    guard, fallbacks = made(tmp_path)
    with guard.guard_first_run("the denoising step", ["attention"]):
        assert len(list(tmp_path.iterdir())) == 1
    assert list(tmp_path.iterdir()) == [] and fallbacks.sentences() == ()


def test_an_error_withdraws_the_kernel_here_and_in_the_next_process(tmp_path):
    guard, fallbacks = made(tmp_path)
    with pytest.raises(KernelRefused, match="A kernel in the decoder"), guard.guard_first_run("the decoder", ["convolution"]):
        raise jax.errors.JaxRuntimeError("INTERNAL: the core halted")
    why = f"The video decoder's kernel failed when it first ran here, in the decoder (INTERNAL: the core halted), {SERVE}"
    assert fallbacks.sentences() == (why,)
    assert made(tmp_path)[1].sentences() == (why,)


@pytest.mark.parametrize("text", ["RESOURCE_EXHAUSTED: no room", "UNAVAILABLE: the chip is gone"])
def test_other_faults_are_not_the_kernels(tmp_path, text):
    guard, fallbacks = made(tmp_path)
    with pytest.raises(jax.errors.JaxRuntimeError, match=text[:8]), guard.guard_first_run("the decoder", ["convolution"]):
        raise jax.errors.JaxRuntimeError(text)
    assert fallbacks.sentences() == () and list(tmp_path.iterdir()) == []


def test_a_run_that_ended_its_process_withdraws_the_kernel_and_what_goes_with_it(tmp_path):
    leave_a_note(tmp_path)
    _, fallbacks = made(tmp_path)
    assert "attention" in fallbacks and "passes" in fallbacks
    [sentence] = fallbacks.sentences()
    assert sentence == f"The attention kernel ended or hung the process when it first ran here, in the denoising step, {SERVE}"


def test_a_kernel_is_tried_again_after_a_day_and_with_other_libraries(tmp_path):
    leave_a_note(tmp_path)
    (note,) = tmp_path.iterdir()
    other = json.loads(note.read_text()) | {"versions": {"jax": "0.1"}}
    (tmp_path / "2-bbbb.first-run").write_text(json.dumps(other))
    (tmp_path / "3-cccc.first-run").write_text('{"uses":')
    long_ago = time.time() - KEPT_SECONDS - 1
    os.utime(note, (long_ago, long_ago))
    assert made(tmp_path)[1].sentences() == () and list(tmp_path.iterdir()) == []


def test_a_living_processes_run_says_nothing(tmp_path):
    guard, _ = made(tmp_path)
    with guard.guard_first_run("the denoising step", ["attention"]):
        assert made(tmp_path)[1].sentences() == ()


def test_a_process_that_is_asked_to_end_says_nothing(tmp_path):
    guard, _ = made(tmp_path)
    with guard.guard_first_run("the denoising step", ["attention"]):
        guard.forget_recent_runs()
        assert list(tmp_path.iterdir()) == []


def test_what_one_host_does_without_all_do(tmp_path):
    _, fallbacks = made(tmp_path, lambda own: [own, "passes"])
    assert fallbacks.sentences() == (f"The kernels around the attention failed on another host, {SERVE}",)


@pytest.mark.demo_model
@pytest.mark.parametrize(
    ("how", "interruptions", "why"),
    [
        ("raise", 0, "failed when it first ran here"),
        pytest.param("kill", 1, "ended or hung the process", marks=pytest.mark.slow),
        pytest.param("hang", 1, "ended or hung the process", marks=pytest.mark.slow),
    ],
)
def test_a_video_is_made_without_a_kernel_that_fails_and_says_so(make_engine, tmp_path, monkeypatch, how, interruptions, why):
    monkeypatch.setenv("STUDIO_TEST_KERNEL", how)
    monkeypatch.setenv("STUDIO_CACHE_DIR", str(tmp_path / "cache"))
    engine = make_engine(pipeline="tests.failing_kernel_pipeline", preset="wan-tiny", warm_up=False)
    events = all_events(engine, engine.submit(request(num_frames=5)).id)
    assert isinstance(events[-1], Finished), events[-1]
    assert sum(isinstance(event, Interrupted) for event in events) == interruptions
    [said] = [note for note in events[-1].result.notes if "kernel" in note]
    assert said.startswith("The video decoder's kernel") and why in said and said in engine.pool.workers()[0].facts.refused
    again = all_events(engine, engine.submit(request(num_frames=5, seed=2)).id)
    assert isinstance(again[-1], Finished) and not any(isinstance(event, Interrupted) for event in again)
