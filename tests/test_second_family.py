"""Tests of the interface of model families: a second family needs only a folder, an entry and a preset to work everywhere."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file

from backend import models
from backend.checkpoints.verify import verify
from backend.engine.engine import Engine
from backend.errors import ModelError, RequestError, VideoFileError
from backend.media.sound import Sound, read_sound
from backend.media.video import read_facts, read_frames
from backend.models.model import SOUND, VIDEO
from backend.pipeline import generate as pipeline
from backend.pipeline import storyboard
from backend.pipeline.denoising import denoise, finish_latents
from backend.pipeline.load import load
from backend.pipeline.run import Denoised, Run
from backend.pipeline.stage_files import read_conditions, read_state, write_state
from backend.pipeline.warm_up import calls
from backend.sampling.solvers import SamplerState
from backend.schemas.events import Cancelled, Compiling, Finished, Step
from backend.schemas.request import GenerationRequest
from backend.settings import PROJECT_FOLDER, module_environment, tpu_compiler_environment
from presets import list_presets, load_preset, loader
from tests.many_devices import without_quick
from tests.second_family.checkpoint import NAME, write_checkpoint
from tests.second_family.registered import register
from wan_ui.components.progress import StageView, advance_view
from wan_ui.form.settings import preset_updates
from wan_ui.i18n.english import ENGLISH
from wan_ui.services.presets import preset_choices
from wan_ui.stage.html import stage_html

KILLED = """
import json, os, signal, sys
from pathlib import Path
from tests.second_family.registered import generate, load
from backend.schemas.request import GenerationRequest
from backend.pipeline.state_saver import StateSaver
from presets import load_preset

def save_and_wait(self, copy, save=StateSaver.save):
    save(self, copy)
    self._writing.result()

StateSaver.save, StateSaver.is_due = save_and_wait, lambda self: True

folder, request = Path(sys.argv[1]), GenerationRequest.from_stored(json.loads(sys.argv[2]))
loaded = load(load_preset(request.preset), None, lambda event: None)
for event in generate(request, loaded, folder, lambda: False):
    if event.kind == "step" and event.index == 7:
        os.kill(os.getpid(), signal.SIGKILL)
"""
"""Makes a video until the process kills itself between two steps."""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("dots") / "model")


@pytest.fixture(autouse=True)
def registered(checkpoint, monkeypatch, tmp_path):
    monkeypatch.setattr(models, "FAMILIES", models.FAMILIES)
    monkeypatch.setattr(loader, "_read_presets", loader._read_presets)
    monkeypatch.setenv("STUDIO_DATA_DIR", str(tmp_path / "data"))
    register(checkpoint)


@pytest.fixture
def loaded():
    return load(load_preset(NAME), None, lambda event: None)


def a_request(**changes) -> GenerationRequest:
    return GenerationRequest.from_preset(load_preset(NAME), prompt="a dot", **{"seed": 1} | changes)


def latents_of(loaded, folder: Path, request: GenerationRequest) -> np.ndarray:
    list(pipeline.generate(request, loaded, folder, lambda: False))
    return load_file(folder / "stage2_latents.safetensors")["latents"]


def a_picture(path: Path, colour: str) -> str:
    Image.new("RGB", (32, 32), colour).save(path)
    return str(path)


def test_a_video_is_made_chunk_by_chunk(loaded, tmp_path):
    events = list(pipeline.generate(a_request(), loaded, tmp_path, lambda: False))
    assert [event.index for event in events if isinstance(event, Step)] == list(range(1, 10))  # three chunks of three steps
    assert isinstance(events[-1], Finished) and events[-1].result.notes == ("5 characters were read",)
    assert len(list(read_frames(tmp_path / "video.mp4"))) == 9
    assert load_file(tmp_path / "stage2_latents.safetensors")["latents"].shape == (1, 4, 5, 8, 8)


def test_it_makes_a_sound_as_long_as_the_video_from_latents_of_its_own(loaded, tmp_path):
    *_, final = pipeline.generate(a_request(), loaded, tmp_path, lambda: False)
    latents = load_file(tmp_path / "stage2_latents.safetensors")
    assert latents["sound.latents"].shape == (1, 2, 12) and final.result.has_sound  # 9 / 16 of a second, 20 latents a second
    own, heard = Sound.read(tmp_path / "stage3_sound.wav"), read_sound(tmp_path / "video.mp4")
    waves = np.tanh(latents["sound.latents"][0][..., None] * loaded.weights["vocoder"]["waves"][:, None]).reshape(2, -1)
    np.testing.assert_allclose(own.samples, waves, atol=1 / 32767)
    assert heard.rate == own.rate == 8000 and abs(heard.samples.shape[1] - 4500) <= 1024  # AAC works 1024 samples at a time
    samples = min(heard.samples.shape[1], 4500)
    assert np.corrcoef(own.samples[:, :samples].ravel(), heard.samples[:, :samples].ravel())[0, 1] > 0.9
    other = pipeline.generate(a_request(seed=2), loaded, tmp_path / "other", lambda: False)
    assert list(other) and np.abs(Sound.read(tmp_path / "other" / "stage3_sound.wav").samples - own.samples).max() > 0.1


def test_without_its_sound_the_video_is_the_same_and_silent(loaded, tmp_path):
    *_, sounding = pipeline.generate(a_request(), loaded, tmp_path / "sounding", lambda: False)
    *_, silent = pipeline.generate(a_request(keeps_sound=False), loaded, tmp_path / "silent", lambda: False)
    assert sounding.result.has_sound and not silent.result.has_sound
    frames = [np.stack(list(read_frames(tmp_path / name / "video.mp4"))) for name in ("sounding", "silent")]
    np.testing.assert_array_equal(*frames)
    with pytest.raises(VideoFileError, match="the sound could not be read"):
        read_sound(tmp_path / "silent" / "video.mp4")
    assert not (tmp_path / "silent" / "stage3_sound.wav").exists()


def test_a_stopped_video_has_its_sound_so_far(loaded, tmp_path):
    seen: list[Step] = []
    for event in pipeline.generate(a_request(), loaded, tmp_path, lambda: len(seen) >= 3):
        seen.extend([event] if isinstance(event, Step) else [])
    assert isinstance(event, Cancelled) and event.result.has_sound
    seconds = event.result.num_frames / 16
    assert read_sound(tmp_path / "video.mp4").samples.shape[1] / 8000 == pytest.approx(seconds, abs=0.14)


def test_a_storyboard_has_the_sound_of_its_shots_one_after_another(checkpoint, loaded, tmp_path):
    request = a_request(shots=({"prompt": "a dot", "num_frames": 9}, {"prompt": "a line", "num_frames": 5}))
    *_, final = storyboard.generate_video(request, loaded, tmp_path, lambda: False)
    assert isinstance(final, Finished) and final.result.has_sound
    shots = [read_sound(tmp_path / "shots" / str(number) / "video.mp4") for number in (1, 2)]
    whole = read_sound(tmp_path / "video.mp4")
    assert whole.samples.shape[1] / whole.rate == pytest.approx(final.result.num_frames / 16, abs=0.14)
    first = shots[0].samples[:, :4000]
    assert np.corrcoef(first.ravel(), whole.samples[:, :4000].ravel())[0, 1] > 0.9


def test_warming_up_finds_every_program_that_runs(loaded, tmp_path):
    events = list(pipeline.generate(a_request(), loaded, tmp_path, lambda: False))
    compiled = [event.what for event in events if isinstance(event, Compiling)]
    assert len(compiled) == len(set(compiled)) + 3  # step and memory of the last chunk, and the last piece, are shorter
    assert not any(
        isinstance(event, Compiling) for event in pipeline.generate(a_request(seed=2), loaded, tmp_path, lambda: False)
    )
    counted = [call.program.key for call in calls(loaded.model, a_request())]
    keys = ("text_encoder", "text_encoder_2", "denoise_step", "settle", "decode_first", "decode_next", "decode_sound")
    assert [counted.count(key) for key in keys] == [1, 1, 9, 2, 1, 2, 1]


def test_a_reference_picture_and_the_chunks_before_count(loaded, tmp_path):
    plain = latents_of(loaded, tmp_path / "plain", a_request())
    red, green = (a_picture(tmp_path / f"{colour}.png", colour) for colour in ("red", "green"))
    one = latents_of(loaded, tmp_path / "one", a_request(references=(red,)))
    two = latents_of(loaded, tmp_path / "two", a_request(references=(red, green)))
    assert np.abs(plain - one).max() > 0.01 and np.abs(one - two).max() > 0.01
    short = latents_of(loaded, tmp_path / "short", a_request(num_frames=3))
    assert short.shape[2] == 2  # its only chunk has other noise, so only the next lines test the memory
    run = Run(request=a_request(), loaded=loaded, folder=tmp_path / "plain", is_cancelled=lambda: False)
    conditions = read_conditions(run.folder, run.request)
    first = Denoised(states=_states(plain[:, :, :2]), steps_done=3, chunks=())
    again = _end_of(denoise(run, conditions, first))
    np.testing.assert_array_equal(finish_latents(run, conditions, again)[VIDEO], plain)
    other = _end_of(denoise(run, conditions, Denoised(states=_states(plain[:, :, :2] + 1), steps_done=3)))
    assert np.abs(finish_latents(run, conditions, other)[VIDEO][:, :, 2:] - plain[:, :, 2:]).max() > 0.01


def _states(latents: np.ndarray) -> dict[str, SamplerState]:
    """Return the sampler states at the end of the first chunk. Later chunks ignore its audio."""
    streams = {VIDEO: latents, SOUND: np.zeros((1, 2, 4), np.float32)}
    return {name: SamplerState(sample=one, before=one, clean=one, older=one) for name, one in streams.items()}


def _end_of(generator):
    while True:
        try:
            next(generator)
        except StopIteration as end:
            return end.value


def test_a_denoising_that_was_stopped_in_its_second_chunk_ends_the_same(loaded, tmp_path):
    latents_of(loaded, tmp_path / "whole", a_request())
    whole = load_file(tmp_path / "whole" / "stage2_latents.safetensors")
    seen: list[Step] = []
    run = Run(request=a_request(), loaded=loaded, folder=tmp_path / "whole", is_cancelled=lambda: len(seen) >= 4)
    conditions, denoising = read_conditions(run.folder, run.request), None
    steps = denoise(run, conditions)
    try:
        while True:
            seen.append(next(steps))
    except StopIteration as end:
        denoising = end.value
    assert denoising.steps_done == 5 and len(denoising.chunks) == 1
    write_state(run, denoising)
    going_on = Run(request=a_request(), loaded=loaded, folder=tmp_path / "whole", is_cancelled=lambda: False)
    ended = _end_of(denoise(going_on, conditions, read_state(run.folder, run.request)))
    latents = finish_latents(going_on, conditions, ended)
    np.testing.assert_array_equal(latents[VIDEO], whole["latents"])
    np.testing.assert_array_equal(latents[SOUND], whole["sound.latents"])


def test_a_process_that_is_killed_loses_neither_pictures_nor_sound(checkpoint, loaded, tmp_path):
    latents_of(loaded, tmp_path / "whole", a_request())
    whole = load_file(tmp_path / "whole" / "stage2_latents.safetensors")
    words = [sys.executable, "-W", "ignore", "-c", KILLED, str(tmp_path / "killed"), json.dumps(a_request().to_json())]
    environment = dict(os.environ) | {"DOTS_CHECKPOINT": str(checkpoint)}
    done = subprocess.run(words, cwd=PROJECT_FOLDER, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == -signal.SIGKILL, done.stderr[-3000:]
    assert not (tmp_path / "killed" / "stage2_latents.safetensors").exists()
    events = list(pipeline.generate(a_request(), loaded, tmp_path / "killed", lambda: False))
    assert [event.index for event in events if isinstance(event, Step)][0] > 5 and events[-1].result.has_sound
    latents = load_file(tmp_path / "killed" / "stage2_latents.safetensors")
    assert latents.keys() == whole.keys() >= {"latents", "sound.latents"}
    for name, values in whole.items():
        np.testing.assert_array_equal(latents[name], values)


@pytest.mark.slow  # tests/backend/cli/test_stages.py runs the stages with another family
def test_the_three_stages_each_in_a_process_make_the_same_sound(checkpoint, loaded, tmp_path):
    list(pipeline.generate(a_request(), loaded, tmp_path / "whole", lambda: False))
    run = ["--run", str(tmp_path / "run"), "--data-dir", str(tmp_path / "data"), "--json"]
    for words in (["encode", "--preset", NAME, "--prompt", a_request().prompt], ["denoise", "--seed", "1"], ["decode"]):
        _run(["backend.cli.stages_run", *words, *run], checkpoint, dict(os.environ))
    sounds = [(tmp_path / name / "stage3_sound.wav").read_bytes() for name in ("whole", "run")]
    assert sounds[0] == sounds[1] and read_facts(tmp_path / "run" / "video.mp4")


def test_what_it_takes_and_how_long_its_videos_are_is_checked(tmp_path):
    with pytest.raises(RequestError, match=r"num_frames=8 must be 2n\+1; nearest: 7 or 9"):
        a_request(num_frames=8)
    with pytest.raises(RequestError, match="solver=unipc must be one of euler for dots-tiny"):
        a_request(solver="unipc")
    with pytest.raises(RequestError, match="references was given but wan-tiny does not take it"):
        GenerationRequest.from_preset(load_preset("wan-tiny"), prompt="a dot", references=("/picture.png",))


def test_its_checkpoint_is_verified_and_another_familys_is_told_apart(checkpoint, tmp_path):
    found = verify(checkpoint, models.recognise)
    assert (found.kind, found.problems) == ("dots", ())
    with pytest.raises(ModelError, match="is a dots .*and the preset wan-tiny is for another kind"):
        load(load_preset("wan-tiny"), str(checkpoint), lambda event: None)


def test_it_goes_through_the_queue_in_a_worker_of_its_own(checkpoint, monkeypatch, tmp_path):
    monkeypatch.setenv("DOTS_CHECKPOINT", str(checkpoint))
    engine = Engine(tmp_path / "data", warm_up=False, pipeline="tests.second_family.registered")
    try:
        picture = a_picture(tmp_path / "red.png", "red")
        job = engine.submit(a_request(references=(picture, picture)))
        assert [Path(path).name for path in job.request.references] == ["references-1.png", "references-2.png"]
        *_, (_, final) = engine.event_log.follow(job.id)
        assert isinstance(final, Finished) and final.result.num_frames == 9 and final.result.has_sound
        page = stage_html(advance_view(StageView(), final), engine.jobs.find(job.id), ENGLISH)
        assert 'data-player="sound"' in page and not re.search(r'<button hidden[^>]* data-player="sound"', page)
        assert engine.has_weights(load_preset(NAME)) and engine.estimates.estimate(job.request).basis == "measured"
    finally:
        engine.close()


def test_the_form_offers_it_and_what_it_allows():
    choices = preset_choices("t2v", lambda preset: preset.name == NAME)
    assert [preset.name for preset in choices.available] == [NAME] and NAME in {preset.name for preset in list_presets()}
    offered = json.dumps([update for update in preset_updates(load_preset(NAME), ENGLISH)], default=str)
    assert "32 x 32" in offered or "32x32" in offered


def test_its_programs_are_compiled_into_files_and_used(checkpoint, tmp_path):
    words = ["backend.cli.precompile_run", "--preset", NAME, "--output", str(tmp_path / "programs")]
    (tmp_path / "programs").mkdir()
    found = _report(words, checkpoint, dict(os.environ))
    assert {file["program"] for file in found["files"]} >= {"the denoising step", "the first pixels", "the memory of a chunk"}
    loaded = load(load_preset(NAME), None, lambda event: None, executables=tmp_path / "programs")
    events = list(pipeline.generate(a_request(), loaded, tmp_path / "job", lambda: False))
    assert [event for event in events if isinstance(event, Compiling) and event.is_loaded]


@pytest.mark.tpu_compiler
def test_the_tpus_compiler_counts_its_programs(checkpoint):
    pytest.importorskip("libtpu")
    words = ["backend.cli.check_tpu_run", "--preset", NAME, "--topology", "v6e:1x1"]
    found = _report(words, checkpoint, tpu_compiler_environment(without_quick()))
    assert found["fits"] and found["components"]["denoise_step"]["repeats"] == 9
    assert found["components"]["decode_sound"]["repeats"] == 1
    assert set(found["weight_bytes_per_device"]) == {"text encoder", "text encoder 2", "transformer", "vae", "vocoder"}


def _report(words: list[str], checkpoint: Path, environment: dict[str, str]) -> dict:
    return json.loads(_run(words, checkpoint, environment).splitlines()[-1])["report"]


def _run(words: list[str], checkpoint: Path, environment: dict[str, str]) -> str:
    """Run a command's module in a process in which the family is registered, and return its output."""
    environment = module_environment(environment) | {"DOTS_CHECKPOINT": str(checkpoint)}
    command = [sys.executable, "-W", "ignore", "-m", "tests.second_family.registered", *words]
    done = subprocess.run(command, cwd=PROJECT_FOLDER, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
