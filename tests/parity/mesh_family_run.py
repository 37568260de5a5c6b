"""Run by `test_mesh_families.py` in a process with the required devices: run one family's tiny checkpoint on all devices.

Arguments: the family, the checkpoint's folder, the file for the latents, and the request's changes as JSON. The changes can
have a fixed "mesh", and "copies", the number of a layer's matrices that each device holds whole.
"""

import functools
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from backend.pipeline import generate as pipeline
from backend.pipeline import load as load_module
from backend.schemas import settings as settings_module
from backend.schemas.request import GenerationRequest
from presets import loader
from tests.parity import tiny_animate, tiny_checkpoints, tiny_hunyuan, tiny_ltx, tiny_posed


def main() -> None:
    family, folder, output, changes = sys.argv[1:]
    makers = {kind: maker for maker in (tiny_animate, tiny_posed, tiny_hunyuan, tiny_ltx) for kind in maker.KINDS}
    preset = makers.get(family, tiny_checkpoints).make_preset(family, Path(folder))
    given = json.loads(changes)
    if given.pop("in_two_sizes", False):
        preset = tiny_ltx.in_two_sizes(preset)
    settings_module.load_preset = lambda name: preset
    solvers = (given["solver"],) if "solver" in given else preset.solvers
    preset = preset.model_copy(update={"latent_spectrum": given.pop("latent_spectrum", None), "solvers": solvers})
    loader.LEAST_STEPS = 1  # tiny presets have few steps
    if (copies := given.pop("copies", None)) is not None:
        load_module.ModelPlan = functools.partial(load_module.ModelPlan, num_copies=copies)
    loaded = load_module.load(preset, None, lambda event: None, given.pop("mesh", {}))
    settings = {"prompt": "a circle", "seed": 5, "width": 64, "height": 64, "num_frames": 9} | given
    request = GenerationRequest.from_preset(preset, **settings)
    with tempfile.TemporaryDirectory() as place:
        list(pipeline.generate(request, loaded, Path(place), lambda: False))
        saved = sorted(load_file(Path(place) / "stage2_latents.safetensors").items())
        # the latents of all streams
        np.save(output, np.concatenate([values.ravel() for name, values in saved if name.endswith("latents")]))
    sys.stdout.write(loaded.model.layout(True).plan_text + "\n")


if __name__ == "__main__":
    main()
