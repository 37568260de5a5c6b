"""Score ltx-tiny on held-out scenes, seen by the detector and heard by the ear, made by the studio's own pipeline.

python -m training.evaluate_ltx --videos 200 --json models/ltx-tiny/scores.json

Half of the videos are from text, half begin with a picture; every sixth is asked to be silent. `pitch` is the share of frames
in which the tone is within two semitones of where the shape is seen, `side` the share of those off the middle that are heard
on their side, `kind` the share of videos whose tone is that of the shape, `silence` the share of silent ones below -50 dBFS.
A quarter as many videos more follow a sound that rises, falls, or wanders to one side, with a prompt that says nothing of
motion: `follows`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import random
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from backend.media.sound import MODEL_SOUND, Sound
from backend.media.video import read_frames
from backend.pipeline.generate import generate
from backend.pipeline.load import load
from backend.pipeline.loaded import LoadedModel
from backend.schemas.request import GenerationRequest
from presets import Preset, load_preset
from training.detector import detect, positions
from training.ear import QUIET, hear, semitones
from training.evaluate import PROPERTIES
from training.hum import RATE, hum, notes
from training.model_configs import FPS
from training.prompts import describe, describe_look
from training.world import Scene, held_out_triples, render, sample_scene

SIDE, FRAMES = 96, 17
NEAR = 2.0  # semitones
OFF_MIDDLE = 0.1  # of the width
SILENT_EVERY = 6
DRIVEN = ("up", "down", "right", "left")

logger = logging.getLogger(__name__)


def scene_for(number: int, rng: random.Random) -> Scene:
    """A held-out scene; every sixth is silent."""
    triples = sorted(held_out_triples())
    scene = sample_scene(rng, triples[number % len(triples)])
    return dataclasses.replace(scene, is_silent=number % SILENT_EVERY == 0)


def make(loaded: LoadedModel, preset: Preset, folder: Path, **given: Any) -> tuple[torch.Tensor, Sound]:
    """The frames [F, H, W, 3] and the sound of one video; the sound is as the model made it."""
    request = GenerationRequest.from_preset(preset, **given)
    for _ in generate(request, loaded, folder, lambda: False):
        pass
    sound = Sound(samples=np.zeros((2, 1), np.float32), rate=RATE) if given.get("sound") else Sound.read(folder / MODEL_SOUND)
    return torch.from_numpy(np.stack(list(read_frames(folder / "video.mp4")))), sound


def score(scene: Scene, video: torch.Tensor, sound: Sound) -> dict[str, list[bool]]:
    """What is right, by name: one entry a video, or one a frame."""
    seen = detect(video)
    found = {name: [getattr(seen, name) == wanted] for name in PROPERTIES if (wanted := getattr(scene, name)) is not None}
    moments = (torch.arange(len(video)) + 0.5) / FPS
    heard = hear(torch.from_numpy(sound.samples), sound.rate, moments)
    if scene.is_silent:
        return found | {"silence": [heard.level < QUIET]}
    try:
        x, y, _ = positions(video).unbind(1)
    except ValueError:
        return found | {"pitch": [False] * len(video), "side": [False] * len(video), "kind": [False]}
    off = (x - 0.5).abs() > OFF_MIDDLE
    return found | {
        "pitch": (semitones(heard.pitch, notes(y)) <= NEAR).tolist(),
        "side": ((heard.side > 0.5) == (x > 0.5))[off].tolist(),
        "kind": [heard.kind == scene.shape],
    }


def driven(number: int, rng: random.Random) -> Scene:
    """A scene whose sound says where the shape goes; its colour and shape are those of a held-out one."""
    colour, shape, _ = rng.choice(sorted(held_out_triples()))
    return sample_scene(rng, (colour, shape, DRIVEN[number % len(DRIVEN)]))


def evaluate(model: Path, videos: int, seed: int, **settings: Any) -> dict[str, Any]:
    """The shares of what is right, by task."""
    preset, rng = load_preset("ltx-tiny"), random.Random(seed)
    loaded = load(preset, str(model), lambda event: None)
    found: dict[str, dict[str, list[bool]]] = defaultdict(lambda: defaultdict(list))

    def add(task: str, scores: dict[str, list[bool]]) -> None:
        for name, right in scores.items():
            found[task][name] += right

    for number in range(videos):
        scene, given = scene_for(number // 2, rng), dict(settings)
        with tempfile.TemporaryDirectory() as place:
            if number % 2:
                first = ((render(scene, FRAMES, SIDE, SIDE)[:, 0].permute(1, 2, 0) + 1) * 127.5).round().byte().numpy()
                given["image"] = f"{place}/first.png"
                Image.fromarray(first).save(given["image"])
            made = make(loaded, preset, Path(place) / "job", prompt=describe(scene, rng), seed=seed + number, **given)
        add("image_to_video" if number % 2 else "text_to_video", score(scene, *made))
        logger.info("%d of %d", number + 1, videos)
    for number in range(videos // 4):
        scene = driven(number, rng)
        with tempfile.TemporaryDirectory() as place:
            given: dict[str, Any] = dict(settings, sound=f"{place}/own.wav", prompt=describe_look(scene, rng), seed=seed + number)
            Sound(samples=hum(scene, FRAMES, SIDE, SIDE).float().numpy(), rate=RATE).write(Path(given["sound"]))
            video, _ = make(loaded, preset, Path(place) / "job", **given)
        seen = detect(video)
        add("given_sound", {name: [getattr(seen, name) == getattr(scene, name)] for name in ("colour", "shape", "background")})
        add("given_sound", {"follows": [seen.motion == scene.motion]})
    return {task: {name: _share(right) for name, right in each.items() if right} for task, each in found.items()}


def _share(right: list[bool]) -> float:
    return round(sum(right) / len(right), 4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=Path("models/ltx-tiny"))
    parser.add_argument("--videos", type=int, default=200)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--steps", type=int, help="the preset's own if not given")
    parser.add_argument("--guidance", type=float, help="likewise, of picture and sound")
    parser.add_argument("--json", type=Path, help="write the scores there too")
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    own = {"steps": given.steps, "guidance": given.guidance and (given.guidance,), "sound_guidance": given.guidance}
    settings = {name: value for name, value in own.items() if value is not None}
    scores = evaluate(given.model, given.videos, given.seed, **settings)
    text = json.dumps({"videos": given.videos, "seed": given.seed, **scores}, indent=2)
    sys.stdout.write(text + "\n")
    if given.json:
        given.json.write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main()
