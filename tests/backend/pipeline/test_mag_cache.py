"""Check MagCache on the demo models: its two programs, the arrays that a run keeps between them, and the measuring command."""

import json

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from app import main
from backend.catalog.measured_ratios import add_measured_ratios
from backend.media.video import read_request
from backend.pipeline import generate as pipeline
from backend.pipeline.denoising_loop import Denoising
from backend.pipeline.run import Run
from backend.pipeline.stage_files import LATENTS
from backend.pipeline.warm_up import calls
from backend.runtime.program import Program
from backend.schemas.request import GenerationRequest
from backend.schemas.step_plan import plan_steps
from backend.settings import DATA_VARIABLE
from presets import load_preset
from presets.magnitude_files import published_magnitudes, read_magnitudes
from tests.backend.pipeline.test_denoising import conditions_of

pytestmark = [pytest.mark.parity, pytest.mark.demo_model]
KEPT, REUSED = "denoise_step_kept", "denoise_step_reused"


def a_request(**changes) -> GenerationRequest:
    settings = {"prompt": "a red circle moving right on a black background", "seed": 1, "mag_cache": 0.12} | changes
    return GenerationRequest.from_preset(load_preset("wan-tiny"), **settings)


def finished(request, loaded, folder):
    *_, last = pipeline.generate(request, loaded, folder, lambda: False)
    return last.result


@pytest.mark.parametrize("changes", [{}, {"guidance_interval": (0.0, 0.5)}, {"guidance": (1.0,)}, {"steps": 1}])
def test_the_programs_of_a_run_are_those_of_the_plan(loaded, changes):
    request = a_request(**changes)
    keys = [call.program.key for call in calls(loaded.model, request)]
    steps = [key for key in keys if key.startswith("denoise_step")]
    assert steps == [REUSED if reuses else KEPT for reuses in (step.reuses for step in plan_steps(request))]


def test_no_step_has_a_branch_and_one_that_reuses_runs_no_layers(loaded):
    """Branches in which JAX selects code for the platform do not count. The step cache has one more branch."""
    found = {}
    for request in (a_request(), a_request(mag_cache=0.0, step_cache=0.1)):
        for call in calls(loaded.model, request):
            if call.program.key.startswith("denoise_step") and call.program.key not in found:
                found[call.program.key] = str(jax.make_jaxpr(call.program._function)(*call.arguments))
    branches = {key: text.count("= cond[") - text.count("= platform_index[") for key, text in found.items()}
    assert branches == {KEPT: 0, REUSED: 0, "denoise_step_cached": 1}
    assert (found[KEPT].count("= scan["), found[REUSED].count("= scan[")) == (1, 0)
    call = next(call for call in calls(loaded.model, a_request()) if call.program.key == REUSED)
    assert call.arguments[0].stacks == {} and call.arguments[0].outer


def test_an_error_that_no_step_keeps_to_changes_nothing(loaded, tmp_path):
    for name, error in (("plain", 0.0), ("strict", 1e-9)):
        finished(a_request(mag_cache=error), loaded, tmp_path / name)
    plain, strict = (load_file(tmp_path / name / LATENTS)["latents"] for name in ("plain", "strict"))
    np.testing.assert_array_equal(strict, plain)


def test_the_result_says_how_many_steps_were_reused_and_the_video_carries_the_setting(loaded, tmp_path):
    request = a_request()
    result, count = finished(request, loaded, tmp_path), sum(step.reuses for step in plan_steps(request))
    assert result.notes == (f"MagCache reused the work of other steps in {count} of 20 steps",)
    assert count > 8 and read_request(tmp_path / "video.mp4").mag_cache == 0.12


def test_what_layers_added_is_held_only_for_a_step_that_reuses_it(loaded, tmp_path):
    run = Run(request=a_request(), loaded=loaded, folder=tmp_path, is_cancelled=lambda: False)
    loop, reuses = Denoising(run, conditions_of(run)), [*(step.reuses for step in plan_steps(run.request)), False]
    for following in reuses[1:]:
        loop.step()
        assert (loop._step_state is not None) == following == (not loop.can_save_before_next_step)


def test_warming_up_runs_both_kinds_of_step_once(loaded, tmp_path, monkeypatch):
    run, keys, call = Run(request=a_request(), loaded=loaded, folder=tmp_path, is_cancelled=lambda: False), [], Program.__call__
    conditions = conditions_of(run)

    def counted(self, *arguments):
        keys.append(self.key)
        return call(self, *arguments)

    monkeypatch.setattr(Program, "__call__", counted)
    monkeypatch.setattr(Program, "has_run", lambda self, *arguments: False)
    Denoising(run, conditions).warm_up()
    assert [key for key in keys if key.startswith("denoise_step")] == [KEPT, REUSED]


def test_the_command_that_measures_gives_what_the_tree_has(tmp_path, monkeypatch, capfd):
    """The command measures the demo model again in another process. It writes to the data folder, where requests read the
    result.
    """
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path / "other"))
    words = ["measure-cache", "--preset", "wan-tiny", "--seed", "0", "--data-dir", str(tmp_path)]
    assert main(words) == 0
    path = tmp_path / "magnitudes" / "wan-tiny.json"
    measured, known = read_magnitudes(path), published_magnitudes("embedded:wan-tiny")
    told = capfd.readouterr().out
    assert told.startswith(f"{path}\nreused steps of 20, by --mag-cache: ") and "at 0.24" in told
    for branch in ("prompt", "other"):
        ours, theirs = (getattr(one.ratios["t2v"], branch) for one in (measured, known))
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-3)  # measured on another processor, and rounded to five digits
    data = json.loads(path.read_text())
    path.write_text(json.dumps(data | {"ratios": {"t2v": {"prompt": [2.0] * 20, "other": [2.0] * 20}}}))
    assert not any(step.reuses for step in plan_steps(add_measured_ratios(a_request(), path.parent))), (
        "the data folder counts before the tree, and --data-dir names it"
    )


def test_the_command_refuses_in_one_sentence(capfd):
    assert main(["measure-cache", "--preset", "ltx-tiny"]) == 2
    assert capfd.readouterr().err == "preset=ltx-tiny does not support --mag-cache; choose another\n"
