"""Every kind of conditioning gives the same result on eight devices as on one: clips, experts, and steps that change the mesh."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from backend.settings import PROJECT_FOLDER
from tests.clip_files import counting_clip
from tests.parity import tiny_animate, tiny_hunyuan, tiny_ltx, tiny_posed
from tests.parity.tiny_checkpoints import make_checkpoint

pytestmark = [pytest.mark.slow, pytest.mark.demo_model]  # minutes: seven kinds compiled for eight devices

LATENT_TOLERANCE = 1e-3  # the project's bar; another order of float32 sums leaves about 1e-5
CASES = {
    "wan2.2-i2v": {
        "image": "first",
        "last_image": "last",
        "guidance_interval": [0.0, 0.75],
    },  # guided high, guided low, unguided low
    "wan2.2-i2v, with fresh noise": {"image": "first", "solver": "rcm", "guidance": [1.0, 1.0]},
    "wan2.1-flf2v": {"image": "first", "last_image": "last", "step_cache": 0.3},
    "wan2.1-i2v, in two sizes": {"image": "first", "steps": 6, "progressive": 2, "latent_spectrum": [2.0, 1.5]},
    "wan2.2-ti2v": {"image": "first", "guidance_interval": [0.0, 0.5], "nag": 9.0, "negative_prompt": "a white star"},
    "wan2.1-vace": {
        "references": ["first"],
        "keyframes": ["first", "last"],
        "keyframe_at": [0, 8],
        "guidance_interval": [0.0, 0.5],
    },
    "wan2.2-vace": {"keyframes": ["last"], "keyframe_at": [4], "references": ["first", "last"], "control_scale": 0.5},
    "hunyuanvideo-1.5-t2v": {"guidance_interval": [0.0, 0.5], "step_cache": 0.3},
    "hunyuanvideo-1.5-t2v, MagCache": {"mag_cache": 0.2, "mag_ratios": [1.0, 1.0, 0.97, 0.98], "steps": 6},
    "wan2.2-t2v, MagCache": {"mag_cache": 0.2, "mag_ratios": [1.0, 1.0, 0.97, 0.98], "guidance_interval": [0.0, 0.7], "steps": 8},
    "hunyuanvideo-1.5-i2v": {"image": "first", "negative_prompt": 'no "text"'},
    "wan2.2-animate": {"image": "first", "drive": "clip", "num_frames": 22, "fps": 24, "guidance_interval": [0.0, 0.7]},
    "wan2.2-animate-fast": {"image": "first", "drive": "clip", "num_frames": 17, "fps": 24},
    "wan2.2-animate-poses": {
        "image": "first",
        **dict.fromkeys(("drive", "face", "video"), "clip"),
        "mask": "last",
        "num_frames": 22,
        "fps": 24,
        "guidance": [3.0],
        "guidance_interval": [0.0, 0.7],
    },
    "ltx-2.0": {"image": "first", "guidance_interval": [0.0, 0.5]},
    "ltx-2.0, going on": {"video": "clip", "extend": "after", "overlap": 9, "num_frames": 17, "guidance_interval": [0.0, 0.5]},
    "ltx-2.5": {
        "solver": "ltx-ancestral",
        "steps": 8,
        "guidance": [1.0],
        "sound_guidance": 1.0,
        "keyframes": ["first", "last"],
        "keyframe_at": [0, 5],
    },
    "ltx-2.5, in two sizes": {
        "in_two_sizes": True,
        "width": 128,
        "height": 128,
        "steps": 5,
        "sound_guidance": 1.0,
        "image": "first",
    },
    "ltx-2.3, with a control clip": {
        "control": "clip",
        "control_scale": 0.7,
        "control_downscale": 2,
        "image": "first",
        "keyframes": ["last"],
        "keyframe_at": [5],
        "guidance_interval": [0.0, 0.5],
    },
    "ltx-2.3": {
        "image": "first",
        "last_image": "last",
        "perturbed_guidance": [1.0, 0.5],
        "modality_guidance": [3.0, 2.0],
        "guidance_rescale": [0.7, 0.3],
    },
}
COPIES = {"wan2.2-i2v": 5, "wan2.2-vace": 8}  # matrices of a layer that are gathered when an expert's turn comes
OTHER_MESHES = {  # a second stack that is split over tp too; steps that change the mesh around tp
    "wan2.2-vace": {"dp": 1, "sp": 1, "tp": 2},
    "wan2.2-ti2v": {"dp": 2, "sp": 2, "tp": 2},
    "wan2.2-animate": {"dp": 2, "sp": 2, "tp": 2},
    "ltx-2.3": {"dp": 2, "sp": 2, "tp": 2},
    "ltx-2.3, with a control clip": {"dp": 1, "sp": 2, "tp": 2},
}


def latents(family: str, folder: Path, changes: dict, devices: int) -> tuple[np.ndarray, str]:
    output = folder.parent / f"{devices}.npy"
    environment = {**os.environ, "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}", "JAX_PLATFORMS": "cpu"}
    words = [sys.executable, "-m", "tests.parity.mesh_family_run", family, str(folder), str(output), json.dumps(changes)]
    done = subprocess.run(words, cwd=PROJECT_FOLDER, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return np.load(output), done.stdout.splitlines()[-1]


@pytest.mark.parametrize("case", CASES)
def test_eight_devices_equal_one(case, pictures, tmp_path):
    family = case.partition(",")[0]
    place = tmp_path / "model"
    maker = next((maker for maker in (tiny_animate, tiny_posed, tiny_hunyuan, tiny_ltx) if family in maker.KINDS), None)
    folder = make_checkpoint(family, place) if maker is None else maker.write_checkpoint(maker.make_parts(family), place)
    paths = {"first": pictures["image"], "last": pictures["last_image"]}
    paths["clip"] = str(counting_clip(tmp_path / "clip.mp4", 25, 24, (64, 64), sound=True))

    def path(value):
        return [paths.get(one, one) for one in value] if isinstance(value, list) else paths.get(value, value)

    changes = {name: path(value) for name, value in CASES[case].items()}
    one, _ = latents(family, folder, changes, 1)
    eight, mesh = latents(family, folder, changes | {"copies": COPIES.get(case)}, 8)
    assert mesh == "dp=2 sp=4 tp=1"
    assert np.abs(eight - one).max() <= LATENT_TOLERANCE
    if (other := OTHER_MESHES.get(case)) is not None:
        cut, mesh = latents(family, folder, changes | {"mesh": other}, math.prod(other.values()))
        assert mesh == " ".join(f"{axis}={size}" for axis, size in other.items())
        assert np.abs(cut - one).max() <= LATENT_TOLERANCE
