"""Score wan-tiny-vace on held-out scenes, made by the studio's own pipeline from files as a visitor would bring them.

python -m training.evaluate_vace --videos 200 --json models/wan-tiny-vace/scores.json

As many videos follow a clip's edges as fill a masked box, widen a clip, go through key frames, go on after a clip or before
it, or show what a reference picture shows, which their prompts only name. `overlap` is the mean intersection over union of the
shape with the one in the true video; `colour`, `background` and, beside a reference, `shape` and `motion` are read by the
detector; `outside` is the least PSNR in dB of a video outside its box. The bars: overlap 0.7 where edges are followed, colour
0.95, outside 35 dB; with a reference shape and colour 0.85.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from backend.media.clips import read_part
from backend.media.video import read_frames, write_frames
from backend.pipeline.generate import generate
from backend.pipeline.load import load
from backend.pipeline.loaded import LoadedModel
from backend.schemas.clip import Part
from backend.schemas.request import GenerationRequest
from presets import Preset, load_preset
from training.detector import cover_of, detect
from training.latents import Bucket
from training.prompts import describe, describe_figure, figure_words
from training.vace_world import (
    USES,
    Task,
    Use,
    box_of,
    inner_of,
    known_frames,
    margins_of,
    reference_of,
    reference_task_for,
    task_for,
    to_frames,
    video_of,
)
from training.world import Scene, held_out_triples, sample_scene

ALL = (*USES, "reference")
SIZE = Bucket(width=96, height=96, num_frames=17, share=1.0, batch=1, clips=1)

logger = logging.getLogger(__name__)


def made_from(task: Task, folder: Path) -> dict[str, Any]:
    """What the request says besides its prompt; the files are written to the folder."""
    if task.use == "reference":
        Image.fromarray(reference_of(task, SIZE)).save(folder / "reference.png")
        return {"references": (str(folder / "reference.png"),)}
    frames, fps = to_frames(video_of(task, SIZE)), 16
    known = known_frames(task, SIZE.num_frames)
    if task.use == "keyframes":
        for place in known:
            Image.fromarray(frames[place]).save(folder / f"{place}.png")
        return {"keyframes": tuple(str(folder / f"{place}.png") for place in known), "keyframe_at": tuple(known)}
    if task.use == "margins":
        frames = frames[:, *inner_of(task, SIZE)]
    elif known:
        frames = frames[known]
    write_frames(iter(frames), folder / "clip.mp4", fps=fps, comment="")
    clip = str(folder / "clip.mp4")
    if task.use == "margins":
        return {"video": clip, "margins": margins_of(task, SIZE)}
    if known:
        return {"video": clip, "extend": task.use, "overlap": len(known)}
    if task.use == "edges":
        return {"control": clip, "control_kind": "edges"}
    mask = np.zeros((SIZE.height, SIZE.width), np.uint8)
    left, top, right, bottom = box_of(task, SIZE)
    mask[top:bottom, left:right] = 255
    Image.fromarray(mask).save(folder / "mask.png")
    return {"video": clip, "mask": str(folder / "mask.png")}


def score(loaded: LoadedModel, preset: Preset, task: Task, prompt: str, seed: int) -> dict[str, Any]:
    """One video's scores by name."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        request = GenerationRequest.from_preset(preset, prompt=prompt, seed=seed, **made_from(task, folder))
        for _ in generate(request, loaded, folder / "job", lambda: False):
            pass
        made = np.stack(list(read_frames(folder / "job/video.mp4")))
        found = {}
        if task.use == "box" and request.video is not None:
            found["outside"] = _outside(made, read_part(request.video, Part.from_request(request)), task)
    video, truth = torch.from_numpy(made), torch.from_numpy(to_frames(video_of(task, SIZE)))
    seen = detect(video)
    scene = task.scene
    same = {"colour": seen.colour == scene.colour, "background": seen.background == scene.background}
    if task.use == "reference":  # where the shape lies is the prompt's business
        return same | {"shape": seen.shape == scene.shape, "motion": seen.motion == scene.motion}
    return {"overlap": overlap(video, truth), **same, **found}


def overlap(video: torch.Tensor, truth: torch.Tensor) -> float:
    """Mean intersection over union of the shapes in two videos [F, H, W, 3]; 0 if one shows none."""
    covers = [cover_of(one) for one in (video, truth)]
    if None in covers:
        return 0.0
    union = torch.maximum(*covers).sum((1, 2)).clamp(min=1e-3)
    return float((torch.minimum(*covers).sum((1, 2)) / union).mean())


def _outside(made: np.ndarray, clip: np.ndarray, task: Task) -> float | None:
    """PSNR in dB outside the box; None if it fills the picture."""
    left, top, right, bottom = box_of(task, SIZE)
    is_outside = np.ones(made.shape[1:3], bool)
    is_outside[top:bottom, left:right] = False
    if not is_outside.any():
        return None
    error = (made[:, is_outside].astype(float) - clip[:, is_outside]) ** 2
    return 10 * math.log10(255**2 / max(error.mean(), 1e-9))


def evaluate(model: Path, videos: int, seed: int, uses: tuple[Use, ...] = ALL) -> dict[str, dict[str, float]]:
    """The scores by use."""
    preset, rng = load_preset("wan-tiny-vace"), random.Random(seed)
    loaded, triples = load(preset, str(model), lambda event: None), sorted(held_out_triples())
    seen_on_white = [triple for triple in triples if triple[0] != "white"]
    found: dict[str, list[dict[str, Any]]] = {use: [] for use in uses}
    for number in range(videos):
        use = uses[number % len(uses)]
        chosen = seen_on_white if use == "reference" else triples
        task, prompt = task_and_prompt(sample_scene(rng, chosen[number % len(chosen)]), use, rng)
        found[use].append(score(loaded, preset, task, prompt, seed + number))
        logger.info("%d of %d: %s, %s", number + 1, videos, use, found[use][-1])
    return {use: _summary(scores) for use, scores in found.items() if scores}


def task_and_prompt(scene: Scene, use: Use, rng: random.Random) -> tuple[Task, str]:
    """A task of this use and its prompt; beside a reference it says nothing of the shape and its colour."""
    if use == "reference":
        return reference_task_for(scene, use, rng), describe_figure(scene, rng, figure_words(rng))
    return task_for(scene, use, rng), describe(scene, rng)


def _summary(scores: list[dict[str, Any]]) -> dict[str, float]:
    names = [name for name in ("overlap", "colour", "shape", "motion", "background") if name in scores[0]]
    means = {name: sum(one[name] for one in scores) / len(scores) for name in names}
    outside = [one["outside"] for one in scores if one.get("outside") is not None]
    counted = {"videos": len(scores)} | {name: round(value, 4) for name, value in means.items()}
    return counted | ({"outside": round(min(outside), 2)} if outside else {})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=Path("models/wan-tiny-vace"))
    parser.add_argument("--videos", type=int, default=200)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument(
        "--use", action="append", choices=ALL, help="one of the uses; repeat the option for more, or for more videos of it"
    )
    parser.add_argument("--json", type=Path, help="write the scores there too")
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    scores = evaluate(given.model, given.videos, given.seed, tuple(given.use or ALL))
    text = json.dumps({"videos": given.videos, "seed": given.seed, "scores": scores}, indent=2)
    sys.stdout.write(text + "\n")
    if given.json:
        given.json.write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main()
