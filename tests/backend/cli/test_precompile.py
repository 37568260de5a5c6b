"""Run `precompile` through the command line, and the engine that loads the result."""

import json
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest

from backend.cli import precompile_run
from backend.cli.precompile_run import drafts_to_compile, requests_to_compile
from backend.engine.instant import MOST_FRAMES
from backend.settings import PROJECT_FOLDER
from presets import list_presets, load_preset

PROMPT = "a red circle moving right on a black background"


def app(*words: object) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "app.py", *map(str, words)], cwd=PROJECT_FOLDER, capture_output=True, text=True)


@pytest.mark.parametrize("preset", [one for one in list_presets() if not one.live], ids=lambda preset: preset.name)
def test_every_presets_requests_can_be_made_and_cover_what_needs_programs_of_its_own(preset):
    model = SimpleNamespace(prompts_for_all_programs=lambda example: [example])
    made = list(requests_to_compile(preset, model, {}))
    assert {request.task for request in made} == set(preset.tasks)
    assert any(request.extend for request in made) is preset.continues
    assert any(request.references for request in made) is ("references" in preset.inputs)
    assert any(request.last_image for request in made) is preset.takes_last_image
    assert any(request.keyframes for request in made) is ("keyframes" in preset.inputs)
    assert all(request.drive for request in made) is ("drive" in preset.inputs)
    if {"drive", "video"} <= preset.inputs.keys():
        assert any(request.video and request.mask for request in made), "a figure is put into a clip"


@pytest.mark.parametrize("preset", [one for one in list_presets() if not one.live], ids=lambda preset: preset.name)
def test_the_drafts_of_every_preset_that_has_drafts_cover_its_tasks(preset):
    model = SimpleNamespace(prompts_for_all_programs=lambda example: [example])
    drafts = drafts_to_compile(preset, list(requests_to_compile(preset, model, {"quantize": None})))
    assert {draft.task for draft in drafts} == (set() if "drive" in preset.inputs else set(preset.tasks))
    assert all(draft.preset == preset.name and draft.num_frames <= MOST_FRAMES for draft in drafts)


@pytest.mark.parametrize("is_instant", [False, True])
def test_instant_also_compiles_the_drafts(is_instant, tmp_path, monkeypatch):
    plan = SimpleNamespace(plan_text="one chip")
    model = SimpleNamespace(prompts_for_all_programs=lambda example: [example], layout=lambda is_guided: plan)
    compiled = []
    monkeypatch.setattr(precompile_run, "describe_model", lambda *given: model)
    monkeypatch.setattr(precompile_run, "warm_up", lambda model, request: compiled.append(request) or ())
    preset, sizes = load_preset("wan-tiny"), {"num_frames": 33}
    precompile_run.write_programs(preset, None, tmp_path, {}, sizes, is_instant=is_instant)
    assert {(request.task, request.num_frames) for request in compiled} == {
        (task, frames) for task in ("t2v", "i2v") for frames in ((33, 13) if is_instant else (33,))
    }


@pytest.mark.demo_model
def test_the_engine_loads_what_was_precompiled(tmp_path):
    done = app("precompile", "--preset", "wan-tiny", "--output", tmp_path / "programs", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    programs = {file["program"] for file in found["files"]}
    assert {"the text encoder", "the denoising step", "the decoder", "the encoder's next frames"} <= programs
    assert all((tmp_path / "programs" / file["file"]).stat().st_size == file["bytes"] for file in found["files"])
    words = ["generate", "--preset", "wan-tiny", "--prompt", PROMPT, "--steps", 2, "--seed", 1, "--data-dir", tmp_path / "data"]
    made = app(*words, "--output", tmp_path / "out.mp4", "--executables", tmp_path / "programs")
    assert made.returncode == 0, made.stderr
    lines = [re.sub(r" \(\d of \d.*\)$", "", line) for line in made.stderr.splitlines()]
    compiled = {line.removeprefix("Compiling ") for line in lines if line.startswith("Compiling ")}
    loaded = {line.removeprefix("Loaded ").removesuffix(" precompiled") for line in lines if line.endswith(" precompiled")}
    assert loaded == compiled and len(loaded) == 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"--preset": "wan-tny"}, "did you mean wan-tiny?"),
        ({"--frames": 16}, "num_frames=16 must be 4n+1"),
        ({"--topology": "v9:2x2"}, "topology='v9:2x2' must be a chip and a shape"),
        ({"--output": "/proc/none"}, "must be a writable folder"),
        ({"--preset": "wan-tiny-animate", "--instant": "--json"}, "leave out --instant"),
    ],
)
def test_what_cannot_be_precompiled_is_refused_at_once(tmp_path, options, message):
    words = {"--preset": "wan-tiny", "--output": tmp_path / "out", **options}
    done = app("precompile", *(word for pair in words.items() for word in pair))
    assert (done.returncode, done.stdout) == (2, "") and message in done.stderr and done.stderr.count("\n") == 1


def test_a_folder_of_executables_must_be_there(tmp_path):
    done = app("generate", "--preset", "wan-tiny", "--prompt", PROMPT, "--executables", tmp_path / "none")
    assert done.returncode == 2 and "must be a folder that `precompile` wrote" in done.stderr


@pytest.mark.slow  # tests/backend/runtime/test_mesh.py tests the refusal
@pytest.mark.demo_model
def test_a_mesh_that_the_devices_do_not_allow_is_refused_with_the_legal_ones(tmp_path):
    words = ["--preset", "wan-tiny", "--prompt", PROMPT, "--data-dir", tmp_path, "--sp", 3, "--output", tmp_path / "out.mp4"]
    done = app("generate", *words)
    assert done.returncode == 1 and "--sp 3 on 1 chips must be one of: dp=1 sp=1 tp=1" in done.stderr


def test_models_with_sound_are_compiled_for_pictures_anywhere_for_a_given_sound_and_for_a_clips_own():
    model = SimpleNamespace(prompts_for_all_programs=lambda example: [example])
    made = list(requests_to_compile(load_preset("ltx-2.5-704p"), model, {}))
    assert [(tuple(one.inputs()), one.make) for one in made] == [
        ((), "video"), (("image",), "video"), (("image", "last_image"), "video"), (("keyframes",), "video"),
        (("video",), "sound"), (("control",), "video"), (("sound",), "video"), (("video",), "video"),
    ]  # fmt: skip
