"""Score the cost of a setting for a demo model: the same held-out scenes and seeds with and without it, by the studio's pipeline.

python -m training.evaluate_settings --preset wan-tiny --videos 200 --set progressive=2 --set step_cache=0.1

Each `--set NAME=VALUE` is tested separately. Prints one JSON object with results for the preset's own settings and for each
change, for text to video and image to video. The results are the shares of videos in which the detector reads each property of
the prompt, and the mean seconds of denoising.
"""

import argparse
import json
import logging
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from backend.media.video import read_frames
from backend.pipeline.generate import generate
from backend.pipeline.load import load
from backend.pipeline.loaded import LoadedModel
from backend.schemas.events import Finished
from backend.schemas.request import GenerationRequest
from presets import Preset, load_preset
from training.detector import detect
from training.evaluate import held_out_scenes, shares
from training.prompts import describe
from training.world import Scene, render

logger = logging.getLogger(__name__)


def score(loaded: LoadedModel, preset: Preset, videos: int, seed: int, task: str, changes: dict[str, Any]) -> dict[str, float]:
    """Return the shares and the mean `seconds` of denoising for videos of a task, "t2v" or "i2v"."""
    rng, detections, spent = random.Random(seed), [], []
    scenes = held_out_scenes(rng, videos, preset.name == "hunyuan-tiny")
    prompts = [describe(scene, rng) for scene in scenes]
    for number, (scene, prompt) in enumerate(zip(scenes, prompts, strict=True)):
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            given = {"image": _first_frame(scene, preset, folder)} if task == "i2v" else {}
            request = GenerationRequest.from_preset(preset, prompt=prompt, seed=seed + number, **given, **changes)
            *_, final = generate(request, loaded, folder / "job", lambda: False)
            assert isinstance(final, Finished), final
            detections.append(detect(torch.from_numpy(np.stack(list(read_frames(Path(final.result.path)))))))
            spent.append(final.result.seconds["denoise"])
    logger.info("%s of %d videos with %s", task, videos, changes or "the preset's own settings")
    return shares(scenes, detections) | {"seconds": round(sum(spent) / len(spent), 3)}


def _first_frame(scene: Scene, preset: Preset, folder: Path) -> str:
    pixels = render(scene, preset.num_frames, preset.width, preset.height)[:, 0]
    path = folder / "first.png"
    Image.fromarray(((pixels + 1) * 127.5).round().byte().permute(1, 2, 0).numpy()).save(path)
    return str(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", default="wan-tiny")
    parser.add_argument("--videos", type=int, default=200, help="videos of each task and each setting")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="a changed setting; repeat the option for more"
    )
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    preset = load_preset(arguments.preset)
    loaded = load(preset, preset.model_source, lambda event: None)
    found = {}
    for change in ("", *arguments.set):
        name, _, value = change.partition("=")
        changes = {name: json.loads(value)} if change else {}
        found[change or "as it is"] = {
            task: score(loaded, preset, arguments.videos, arguments.seed, task, changes) for task in preset.tasks
        }
    sys.stdout.write(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
