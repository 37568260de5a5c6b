"""libtpu compiles the whole guided steps of Wan 14B and HunyuanVideo at 720p for a v6e-8, and Wan 2.2's decoder. Memory and
predicted time stay within stored ceilings. `compile_run` asks the compiler only about changed programs. With KEEP_COSTS=1 in
the environment, it also stores the answers.
"""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterable

import numpy as np
import pytest

from backend.settings import PROJECT_FOLDER, tpu_compiler_environment
from tests.kept import kept
from tests.many_devices import without_quick

# Compiled with jax 0.10.2, libtpu 0.0.51 at 15.1 and 14.1 GiB. Copies of matrices, which save each step a gather, take 10.3 GiB.
# The target for everything at once is 24 GB. Predicted at 2.73 and 0.70 s, where the published runs measured 4.59 and 1.26.
CEILINGS = {"wan2.1-t2v-14b-720p": (16.0 * 2**30, 2.79), "wan2.1-t2v-14b-480p": (15.0 * 2**30, 0.73)}  # bytes a chip, seconds

# Compiled with the same at 2.7 GiB and 12.5 ms: 0.37 s for the later frames of a clip of 121.
DECODER_BYTES, DECODER_SECONDS = 3.0 * 2**30, 0.0135

pytestmark = [
    pytest.mark.tpu_compiler,
    pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed"),
]


CASES = {preset: "v6e:2x4,denoise_step" for preset in CEILINGS} | {
    "hunyuanvideo-1.5-t2v-720p": "v6e:2x4,denoise_step",
    "wan2.2-ti2v-5b-720p": "v6e:2x4,vae_decode_next",
    "wan2.1-t2v-1.3b-480p": "v6e:1x1,denoise_step",
    "wan2.1-live-1.3b-480p": "v6e:1x1,denoise_step",
    "matrix-game-2.0": "v6e:1x1,denoise_step",
    "wan-tiny": "v6e:1x1",
}


SOURCES = sorted(
    path
    for folder in ("backend", "kernels", "presets", "tests/backend/tpu_analysis")
    for path in (PROJECT_FOLDER / folder).rglob("*.*")
    if path.suffix in (".py", ".json", ".toml")
) + [PROJECT_FOLDER / "benchmarks" / "all_presets.json"]


def reports_on(presets: Iterable[str]) -> dict[str, dict]:
    """Return the reports on these presets, from an earlier run if no source file has changed."""
    if os.environ.get("KEEP_COSTS"):
        return compile_run(presets, "--write")
    told = kept(lambda: np.frombuffer(json.dumps(compile_run(presets)).encode(), np.uint8), list(presets), *SOURCES)
    return json.loads(told.tobytes())


def compile_run(presets: Iterable[str], *words: str) -> dict[str, dict]:
    """Compute the reports on these presets in one process, because the start of libtpu and of the libraries takes longest."""
    cases = [f"{preset},{CASES[preset]}" for preset in presets]
    done = subprocess.run(
        [sys.executable, "-m", "tests.backend.tpu_analysis.compile_run", *cases, *words],
        cwd=PROJECT_FOLDER,
        env=tpu_compiler_environment(without_quick()),
        capture_output=True,
        text=True,
        timeout=3000,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def reports(request) -> dict[str, dict]:
    """Return the reports on all presets that this test run selects by the parameter `preset`."""
    items = [item for item in request.session.items if item.path == request.path and "reports" in item.fixturenames]
    return reports_on(dict.fromkeys(item.callspec.params["preset"] for item in items))


@pytest.mark.parametrize("preset", ["wan2.1-t2v-14b-720p", pytest.param("wan2.1-t2v-14b-480p", marks=pytest.mark.slow)])
def test_the_step_fits_and_is_predicted_under_its_target(reports, preset):
    found = reports[preset]
    step, (most_bytes, most_seconds) = found["components"]["denoise_step"], CEILINGS[preset]
    assert step["hbm_bytes_per_device"] <= most_bytes
    assert step["predicted_seconds"] <= most_seconds
    assert found["roofline_seconds"] < found["floor_seconds"] < step["predicted_seconds"]
    kinds = step["breakdown"]
    assert kinds["hidden collectives"] > 3 * kinds["collectives"]  # they overlap with the attention and the products


@pytest.mark.parametrize("preset", ["hunyuanvideo-1.5-t2v-720p"])
def test_hunyuanvideos_step_fits_and_is_predicted_under_its_target(reports, preset):
    """Compiled with the same at 11.9 GiB, predicted at 2.76 s; the target is 3.0, the published run measured 5.81."""
    found = reports[preset]
    step = found["components"]["denoise_step"]
    assert found["hbm_bytes_per_device"] <= 17.5 * 2**30 and step["hbm_bytes_per_device"] <= 12.5 * 2**30
    assert found["floor_seconds"] < step["predicted_seconds"] <= 2.82
    # the other tokens are written into the padding of the video tokens, not joined by copies
    assert step["breakdown"]["layout"] <= 0.05


@pytest.mark.parametrize("preset", ["wan2.2-ti2v-5b-720p"])
def test_wan_22s_decoder_compiles_and_is_predicted_under_its_target(reports, preset):
    decoder = reports[preset]["components"]["vae_decode_next"]
    assert decoder["hbm_bytes_per_device"] <= DECODER_BYTES
    assert decoder["predicted_seconds"] <= DECODER_SECONDS


@pytest.mark.parametrize("preset", ["wan2.1-live-1.3b-480p"])
def test_one_chip_alone_keeps_up_with_a_live_video(reports, preset):
    """Compiled with the same at 8.3 GiB, predicted at 0.076 s. A block of 12 frames has five such passes and three latent
    frames to decode, 0.04 s each; 0.75 s are available at 16 frames per second.
    """
    step = reports[preset]["components"]["denoise_step"]
    assert step["hbm_bytes_per_device"] <= 9 * 2**30
    assert step["breakdown"]["attention"] > 0.04  # attention to the ring and to the text, not only to the text
    assert step["breakdown"]["layout"] <= 0.003  # the ring is read in place, not copied for each layer
    assert step["predicted_seconds"] <= 0.08


@pytest.mark.parametrize("preset", ["matrix-game-2.0"])
def test_one_chip_alone_keeps_up_with_a_video_that_is_steered(reports, preset):
    """Compiled with the same at 4.2 GiB, predicted at 0.027 s. A block of 12 frames has four such passes and three latent
    frames to decode, 0.022 s each; 0.48 s are available at 25 frames per second.
    """
    step = reports[preset]["components"]["denoise_step"]
    assert step["hbm_bytes_per_device"] <= 4.6 * 2**30
    assert step["breakdown"]["layout"] <= 0.01  # the rings are written in place
    assert step["predicted_seconds"] <= 0.029


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["wan2.1-t2v-1.3b-480p"])
def test_one_chip_alone_runs_the_small_wan(reports, preset):
    found = reports[preset]
    assert found["fits"] and found["components"]["denoise_step"]["breakdown"]["attention"] > 0


@pytest.mark.parametrize("preset", ["wan-tiny"])
def test_the_demo_model_compiles_for_a_chip_from_prompt_to_pixels(reports, preset):
    found = reports[preset]
    assert found["fits"] and found["predicted_total_seconds"] > 0
    programs = {"text_encode", "prompt_keys", "denoise_step", "vae_decode_first", "vae_decode_next"}
    assert programs <= found["components"].keys()


@pytest.mark.slow
@pytest.mark.parametrize("preset", CASES)
def test_the_costs_that_are_kept_are_those_that_the_compiler_gives(reports, preset):
    kept, found = reports[preset]["components"], compile_run([preset], "--again")[preset]["components"]
    assert kept.keys() == found.keys()
    for name, cost in found.items():
        assert kept[name] | {"compile_seconds": 0} == cost | {"compile_seconds": 0}
