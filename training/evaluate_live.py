"""Score wan-live-tiny on rollouts of ten seconds with held-out looks, made by the studio's own pipeline, read by the detector.

python -m training.evaluate_live --videos 200 --json models/wan-live-tiny/scores.json

`follows` is the share of new actions that are seen in the second block after they were said; `colour`, `shape` and `background`
are read in the last second; `takes_over` is the share of new prompts whose look is complete in the third block.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

from backend.models.model import VIDEO
from backend.pipeline import prompt_schedule
from backend.pipeline.decoding import decode_frames
from backend.pipeline.denoising import Denoising
from backend.pipeline.load import load
from backend.pipeline.loaded import LoadedModel
from backend.pipeline.previews import frames_to_uint8
from backend.pipeline.run import Run
from backend.runtime.work import run as do
from backend.schemas.prompt_cues import Cue, merge_cues
from backend.schemas.request import GenerationRequest
from presets import Preset, load_preset
from training.detector import detect, positions
from training.live_world import ACTIONS, BLOCK_FRAMES, FARTHEST, NEAREST, RADII, Look, held_out_looks, sample_actions, scene_of
from training.prompts import describe_look

logger = logging.getLogger(__name__)

BLOCKS = 40
LEAST_SHARE = 0.5  # of the movement that an action asks for
STILL = 0.02  # a shape moves less than this share in a block in which nothing is asked for, and grows less than twice this


def rollout(loaded: LoadedModel, preset: Preset, request: GenerationRequest) -> torch.Tensor:
    """The video, uint8 [F, H, W, 3]."""
    with tempfile.TemporaryDirectory() as folder:
        run = Run(request=request, loaded=loaded, folder=Path(folder), is_cancelled=lambda: False)
        conditions = do(prompt_schedule.encode_all_texts(loaded.model, loaded.weights, request, {}))
        loop = Denoising(run, conditions)
        while loop.steps_done < loop.total_steps:
            loop.step()
        latents = loop.current_state().join_latents(clean=False)[VIDEO]
        return torch.from_numpy(np.concatenate([frames_to_uint8(frames) for frames in decode_frames(run, latents)]))


def follows(video: torch.Tensor, block: int, action: str) -> bool | None:
    """Whether this block of the video, from 1, shows the action; None where the world leaves it no room."""
    end = BLOCK_FRAMES * block
    try:
        before, after = positions(video[end - BLOCK_FRAMES : end + 1])[[0, -1]]
    except ValueError:
        return False
    across, down, factor = ACTIONS[action]
    moved, grown = (after - before)[:2], (after[2] / before[2]).item()
    if action == "stay":
        return bool(moved.abs().max() < STILL and abs(grown - 1) < 2 * STILL)
    if factor != 1:
        room = (RADII[1] / before[2] if factor > 1 else before[2] / RADII[0]).item()
        if room < 1.15 * max(factor, 1 / factor):  # with some to spare, because areas are not circles' alone
            return None
        return (grown - 1) * (factor - 1) > LEAST_SHARE * (factor - 1) ** 2
    wanted, place = (across, 0) if across else (down, 1)
    room = FARTHEST - before[place] if wanted > 0 else before[place] - NEAREST
    return None if room < abs(wanted) else bool(moved[place] / wanted > LEAST_SHARE)


def shows(video: torch.Tensor, look: Look) -> dict[str, bool]:
    """Which properties of the look the video has."""
    seen = detect(video)
    return {name: getattr(seen, name) == getattr(look, name) for name in ("colour", "shape", "background")}


def evaluate(model: Path, videos: int, seed: int) -> dict[str, float]:
    """The shares."""
    preset, rng = load_preset("wan-live-tiny"), random.Random(seed)
    loaded = load(preset, str(model), lambda event: None)
    looks = sorted(held_out_looks(), key=str)
    found: dict[str, list[bool]] = {name: [] for name in ("follows", "colour", "shape", "background", "takes_over")}
    for number in range(videos):
        first, second = rng.sample(looks, 2)
        change = rng.randint(12, 24) if number % 2 else BLOCKS
        actions = sample_actions(rng, BLOCKS, longest=6)
        said = [
            Cue(block=block + 1, action=action)
            for block, action in enumerate(actions)
            if block == 0 or action != actions[block - 1]
        ]
        cues = [*said, *([Cue(block=change, prompt=describe_look(scene_of(second), rng))] if change < BLOCKS else [])]
        request = GenerationRequest.from_preset(
            preset,
            prompt=describe_look(scene_of(first), rng),
            num_frames=1 + BLOCK_FRAMES * BLOCKS,
            seed=seed + number,
            cues=merge_cues(cues),
        )
        video = rollout(loaded, preset, request)
        for cue in said:
            if cue.action is not None and cue.block + 1 <= BLOCKS and actions[cue.block - 1 : cue.block + 1] == (cue.action,) * 2:
                if (
                    not change - 1 <= cue.block <= change + 2
                    and (answer := follows(video, cue.block + 1, cue.action)) is not None
                ):
                    found["follows"].append(answer)
        for name, answer in shows(video[-17:], second if change < BLOCKS else first).items():
            found[name].append(answer)
        if change < BLOCKS:
            third = BLOCK_FRAMES * (change + 2)
            found["takes_over"].append(all(shows(video[third - BLOCK_FRAMES + 1 : third + 1], second).values()))
        logger.info("%d of %d", number + 1, videos)
    return {name: round(sum(answers) / len(answers), 4) for name, answers in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=Path("models/wan-live-tiny"))
    parser.add_argument("--videos", type=int, default=200)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--json", type=Path, help="write the scores there too")
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    text = json.dumps(
        {"videos": given.videos, "seconds": 10, "seed": given.seed, "scores": evaluate(given.model, given.videos, given.seed)},
        indent=2,
    )
    sys.stdout.write(text + "\n")
    if given.json:
        given.json.write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main()
