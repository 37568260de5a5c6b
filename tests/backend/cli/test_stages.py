"""Check `encode`, `denoise` and `decode`: their joint result, their continuation after a stop, and their refusals."""

import functools
import json
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file

from backend.cli import stages_run
from backend.cli.command_line import parse
from backend.cli.stages_run import run_in_this_process
from backend.engine import folder as request_folder
from backend.errors import RequestError
from backend.media.video import read_frames, read_request
from backend.pipeline.generate import generate
from backend.pipeline.load import load
from backend.pipeline.run import Run
from backend.schemas.events import Finished, Step
from backend.schemas.settings import find_preset
from backend.schemas.step_plan import plan_steps
from backend.settings import PROJECT_FOLDER
from tests.clock import is_within

pytestmark = pytest.mark.demo_model
PROMPT = "a red circle moving right on a black background"
STEPS = 40


def words_of(stage: str, folder: Path, *words: str) -> list[str]:
    return [stage, "--run", str(folder), "--data-dir", str(folder.parent / "data"), *words]


def run(stage: str, folder: Path, *words: str) -> None:
    """Run the stage in this process, and require success. Raises: RequestError."""
    assert run_in_this_process(parse(words_of(stage, folder, *words))) == 0


def started(stage: str, folder: Path) -> subprocess.Popen:
    """Start the stage in a separate process."""
    command = [sys.executable, str(PROJECT_FOLDER / "app.py"), *words_of(stage, folder)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def latents(folder: Path) -> np.ndarray:
    return load_file(folder / "stage2_latents.safetensors")["latents"]


def copy_of(folder: Path, other: Path) -> Path:
    return Path(shutil.copytree(folder, other))


@pytest.fixture(scope="module", autouse=True)
def each_stage_is_loaded_once() -> Iterator[None]:
    """Load each stage once in this process. Processes that a test starts load as usual."""
    kept = functools.cache(lambda preset, stages: load(find_preset(preset), None, lambda event: None, stages=stages))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stages_run, "load", lambda preset, *others, **_: kept(preset.name, others[-1]))
        yield


@pytest.fixture(scope="module")
def encoded(tmp_path_factory) -> Path:
    """The folder that the first stage writes, with an image as input."""
    folder = tmp_path_factory.mktemp("stages") / "encoded"
    picture = folder.parent / "square.png"
    Image.fromarray(np.full((96, 96, 3), (14, 20, 82), np.uint8)).save(picture)
    words = ("--preset", "wan-tiny", "--prompt", PROMPT, "--seed", "3", "--image", str(picture))
    run("encode", folder, *words, "--steps", str(STEPS))
    return folder


@pytest.fixture(scope="module")
def whole(encoded) -> Path:
    """The folder of a video made in three stages. Tests must not change it."""
    folder = copy_of(encoded, encoded.with_name("whole"))
    run("denoise", folder)
    run("decode", folder)
    return folder


def test_three_stages_make_what_one_run_makes(whole, tmp_path):
    request = read_request(whole / "video.mp4")
    assert (request.seed, request.prompt) == (3, PROMPT) and len(list(read_frames(whole / "video.mp4"))) == 17
    loaded = load(find_preset("wan-tiny"), None, lambda event: None)
    *_, ended = generate(request_folder.read_request(whole), loaded, tmp_path, lambda: False)
    assert isinstance(ended, Finished)
    np.testing.assert_array_equal(latents(whole), latents(tmp_path))


def test_what_is_there_is_told_and_not_made_again_and_a_changed_seed_keeps_the_old_video(whole, tmp_path, capsys):
    changed = copy_of(whole, tmp_path / "changed")
    run("decode", changed, "--json")
    assert set(json.loads(capsys.readouterr().out)["seconds"]) == {"total"}
    run("denoise", changed, "--seed", "4", "--steps", "2")
    assert np.abs(latents(changed) - latents(whole)).max() > 0.1
    run("decode", changed)
    assert (changed / "video-1.mp4").read_bytes() == (whole / "video.mp4").read_bytes()
    assert read_request(changed / "video.mp4").seed == 4
    assert "The previous video was renamed to video-1.mp4" in capsys.readouterr().err


def test_a_stopped_denoising_continues_and_comes_to_the_same(encoded, whole, tmp_path, capsys):
    stopped = copy_of(encoded, tmp_path / "stopped")
    with started("denoise", stopped) as process:
        for line in process.stderr:
            if line.startswith("Step 2 "):
                process.send_signal(signal.SIGINT)
                break
        rest = process.stderr.read()
    assert process.returncode == 1 and "Stopped after step " in rest and f"denoise --run {stopped}` continues" in rest
    assert (stopped / "stage2_state.safetensors").is_file() and not (stopped / "stage2_latents.safetensors").exists()
    capsys.readouterr()
    run("denoise", stopped)
    told = capsys.readouterr().err
    assert "Step 1 of" not in told and f"Step {STEPS} of {STEPS}" in told
    assert not (stopped / "stage2_state.safetensors").exists()
    np.testing.assert_allclose(latents(stopped), latents(whole), atol=1e-5)


WAITING = """
import sys, time
from backend.pipeline.state_saver import StateSaver

def save_and_wait(self, copy, save=StateSaver.save, saved=[]):
    save(self, copy)
    self._writing.result()
    saved.append(copy)
    if len(saved) == 3:
        print("waiting", flush=True)
        time.sleep(600)

StateSaver.save, StateSaver.__init__.__defaults__ = save_and_wait, (0.0,)
from backend.cli.stages_run import run_in_this_process
run_command(run_in_this_process)
"""


def killed_midway(encoded: Path, folder: Path) -> Path:
    """Return a run whose denoising was killed after its third step was stored. The run waits there on any processor."""
    killed = copy_of(encoded, folder / "killed")
    words = [sys.executable, "-c", WAITING, *words_of("denoise", killed)]
    with subprocess.Popen(words, cwd=PROJECT_FOLDER, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout.readline() == "waiting\n"
        process.kill()
    assert process.returncode == -signal.SIGKILL and not (killed / "stage2_latents.safetensors").exists()
    return killed


def test_a_stop_among_steps_that_reuse_others_leaves_a_state_that_reuses_nothing(encoded, tmp_path):
    """The result after a stop at any step equals the result without a stop."""
    whole = copy_of(encoded, tmp_path / "whole")
    run("denoise", whole, "--mag-cache", "0.12", "--steps", "12")
    request = request_folder.read_request(whole)
    reuses = [step.reuses for step in plan_steps(request)]
    assert (request.mag_cache, sum(reuses)) == (0.12, 6)
    loaded = stages_run.load(find_preset(request.preset), ("denoise",))
    for stop in range(2, 8):
        folder = copy_of(encoded, tmp_path / str(stop))
        (folder / "request.json").write_bytes((whole / "request.json").read_bytes())
        seen = []
        for event in stages_run._denoise(
            Run(request=request, loaded=loaded, folder=folder, is_cancelled=lambda seen=seen, stop=stop: len(seen) >= stop)
        ):
            seen += [event] if isinstance(event, Step) else []
        kept = folder / "stage2_state.safetensors"
        assert kept.exists() or reuses[len(seen)]
        assert not kept.exists() or not reuses[int(load_file(kept)["steps_done"][0])]
        run("denoise", folder)
        np.testing.assert_array_equal(latents(folder), latents(whole))


@pytest.mark.slow  # tests/backend/pipeline/test_resume.py has a faster test of a kill
def test_a_killed_denoising_continues_from_its_last_kept_step(encoded, whole, tmp_path, capsys):
    killed = killed_midway(encoded, tmp_path)
    capsys.readouterr()
    run("denoise", killed)
    told = capsys.readouterr().err
    assert "Step 2 of" not in told and "Step 3 of" in told and f"Step {STEPS} of {STEPS}" in told
    np.testing.assert_array_equal(latents(killed), latents(whole))


@pytest.mark.bench
@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_signal_ends_a_stage_within_ten_seconds_also_while_it_compiles(encoded, tmp_path, monkeypatch, number):
    folder = copy_of(encoded, tmp_path / "run")
    monkeypatch.setenv("STUDIO_CACHE_DIR", str(tmp_path / "nothing compiled"))
    with started("denoise", folder) as process:
        for line in process.stderr:
            if line.startswith("Compiling"):
                process.send_signal(number)
                break
        began = time.monotonic()
        rest = process.stderr.read()
    assert process.returncode == 1 and is_within(time.monotonic() - began, 10) and "Stopped" in rest


@pytest.mark.bench
def test_a_stage_that_is_done_waits_for_nothing(tmp_path):
    began = time.monotonic()
    with stages_run._stop_on_signal(threading.Event(), tmp_path):
        pass
    assert is_within(time.monotonic() - began, stages_run.STOP_SECONDS / 2)


def test_a_stage_without_what_it_needs_is_refused_and_leaves_nothing(whole, tmp_path):
    new, begin = tmp_path / "new", ("--preset", "wan-tiny", "--prompt", PROMPT)
    for stage, folder, words, message in (
        ("encode", new, (), "preset and prompt are missing"),
        ("encode", new, ("--preset", "wan-tny", "--prompt", PROMPT), "did you mean wan-tiny?"),
        (
            "encode",
            whole,
            ("--preset", "wan-tiny", "--prompt", "another"),
            "is the folder of another video; choose another folder",
        ),
        ("encode", whole.parent, begin, "must be a new or an empty folder"),
        ("denoise", new, (), "must be a folder that `app.py encode` or the studio has written"),
        ("denoise", whole, ("--steps", "0"), "steps=0 must be between 1 and 100"),
        ("decode", new, (), "must be a folder that `app.py encode` or the studio has written"),
        ("decode", tmp_path / "data" / "jobs", ("--data-dir", str(tmp_path / "data")), "is a folder of the studio"),
    ):
        with pytest.raises(RequestError) as refused:
            run(stage, folder, *words)
        assert message in str(refused.value)
    assert not new.exists() and request_folder.read_request(whole).steps == STEPS
