"""Keyframes of LTX-2 equal diffusers' `LTX2ConditionPipeline`, with tiny random checkpoints and the same pictures, noise and
prompt, in float32. That pipeline counts in latent frames, and reaches only the pixel frames 0 and 8n + 1. The makers' code and
our code accept any frame, so the test gives the pipeline the places of the others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from diffusers.pipelines.ltx2 import pipeline_ltx2_condition as condition_module
from PIL import Image

from backend.models.model import SOUND, VIDEO, Latents
from backend.pipeline.denoising_loop import draw_initial_noise
from backend.schemas.extension import Appended
from backend.schemas.request import GenerationRequest
from tests.parity.ltx_runs import (
    ALL,
    ANCESTRAL,
    DISTILLED,
    LATENT_TOLERANCE,
    OFF,
    Tiny,
    arguments_of,
    finished,
    kept_streams,
    normalised,
    scheduler_of,
)
from tests.parity.tiny_ltx import KINDS, SIDE, condition_pipeline_of

pytestmark = [pytest.mark.parity, pytest.mark.demo_model]

FRAMES = 17
MIDDLE = {"keyframes": ("second",), "keyframe_at": (9,)}
ENDS = {"image": "first", "last_image": "second"}
SEVERAL = {"keyframes": ("third", "first", "second"), "keyframe_at": (12, 0, 1), "last_image": None}


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> dict[str, str]:
    """Three pictures of the video's size, so that nothing is resized."""
    folder = tmp_path_factory.mktemp("pictures")
    rows, columns = np.mgrid[:SIDE, :SIDE]
    channels = {"first": (4 * rows, 255 - 3 * columns, rows * columns), "second": (255 - 2 * rows, rows + columns, 3 * columns),
                "third": (rows * rows, 90 + 0 * rows, 4 * columns)}  # fmt: skip
    for name, values in channels.items():
        Image.fromarray(np.stack(values, -1).astype(np.uint8)).save(folder / f"{name}.png")
    return {name: str(folder / f"{name}.png") for name in channels}


def request_of(made: Tiny, pictures: dict[str, str], given: dict[str, Any], **changes) -> GenerationRequest:
    paths = {name: tuple(pictures.get(one, one) for one in value) if isinstance(value, tuple) else pictures.get(value)
             for name, value in given.items()}  # fmt: skip
    return made.request(num_frames=FRAMES, **paths, **changes)


def run_reference(made: Tiny, request: GenerationRequest) -> tuple[np.ndarray, np.ndarray]:
    """Return diffusers' latents of picture and sound, from our noise, normalised like ours."""
    noise = draw_initial_noise(request, made.loaded.model)
    drawn = [np.asarray(noise[name]) for name in (VIDEO, SOUND)]
    return kept_streams(lambda: _run_reference(made, request, noise), made, request, "key frames", *drawn)


def _run_reference(made: Tiny, request: GenerationRequest, noise: Latents) -> tuple[np.ndarray, np.ndarray]:
    pipeline = condition_pipeline_of(made.parts | {"scheduler": scheduler_of(made, request)})
    last = [(request.num_frames - 1, request.last_image)] if request.last_image else []
    first = [(0, request.image)] if request.image else []
    placed = [*first, *zip(request.keyframe_at, request.keyframes, strict=True), *last]
    conditions = [
        condition_module.LTX2VideoCondition(frames=Image.open(path), index=(place - 1) // 8 + 1 if place else 0, crf=0)
        for place, path in placed
    ]
    own: dict[str, Any] = {}
    if request.solver == "ltx-ancestral":
        own["callback_on_step_end"] = keep_clean(pipeline, len(Appended.from_request(request).frames) * (SIDE // 32) ** 2)
    places, coordinates = iter(Appended.from_request(request).frames), pipeline._prepare_keyframe_coords

    def placed_coordinates(**given: Any) -> torch.Tensor:
        place = next(places)
        assert given["pixel_frame_idx"] == place or place % 8 != 1
        return coordinates(**given | {"pixel_frame_idx": place})

    def our_noise(shape: tuple[int, ...], **given: Any) -> torch.Tensor:
        stream = SOUND if shape[1] == noise[SOUND].shape[2] else VIDEO
        own = torch.from_numpy(np.array(noise[stream]))
        tokens = own.transpose(1, 2).flatten(2) if stream == SOUND else own.flatten(2).transpose(1, 2)
        return torch.cat([tokens, torch.zeros(1, shape[1] - tokens.shape[1], shape[2])], dim=1)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(condition_module, "randn_tensor", our_noise)
        patch.setattr(pipeline, "_prepare_keyframe_coords", placed_coordinates, raising=False)
        return normalised(made, *pipeline(conditions=conditions, **arguments_of(made, request), **own))


def keep_clean(pipeline: Any, num_appended: int) -> Callable[..., dict[str, Any]]:
    """Return a callback for diffusers' pipeline after each ancestral step. It restores the pictures' latents, to which the step
    adds noise too. The pipeline's scheduler gets noise for `num_appended` more tokens.
    """
    noises = pipeline.scheduler.noises
    padded = [torch.nn.functional.pad(video, (0, 0, 0, num_appended)) for video, *_ in noises]
    pipeline.scheduler.noises = [[video, *rest] for video, (_, *rest) in zip(padded, noises, strict=True)]
    prepare, prepared = pipeline.prepare_latents, []

    def put_back(pipe: Any, index: int, timestep: Any, tensors: dict[str, Any]) -> dict[str, Any]:
        _, mask, clean, *_ = prepared[0]
        return {"latents": torch.where(mask > 0, clean, tensors["latents"])}

    def prepare_latents(**given: Any) -> Any:
        prepared.append(prepare(**given))
        return prepared[0]

    pipeline.prepare_latents = prepare_latents
    return put_back


CASES = [(KINDS[1], ENDS, ALL), (KINDS[2], SEVERAL, DISTILLED)]
MORE_CASES = [
    (KINDS[0], MIDDLE, OFF),
    (KINDS[0], ENDS, ALL),
    (KINDS[0], SEVERAL, OFF),
    (KINDS[1], MIDDLE, ALL),
    (KINDS[1], SEVERAL, OFF),
    (KINDS[2], MIDDLE, ALL),
    (KINDS[2], ENDS, ALL),
    (KINDS[2], ENDS, OFF),
    (KINDS[2], ENDS, dict(ANCESTRAL, steps=8)),
]


@pytest.mark.parametrize("kind, given, changes", CASES + [pytest.param(*case, marks=pytest.mark.slow) for case in MORE_CASES])
def test_key_frames_equal_diffusers(tiny_ltx, pictures, kind, given, changes):
    made = tiny_ltx(kind)
    request = request_of(made, pictures, given, **{"steps": 2} | changes)
    video, sound, _ = finished(made, request)
    expected = run_reference(made, request)
    assert np.abs(video - expected[0]).max() <= LATENT_TOLERANCE and np.abs(sound - expected[1]).max() <= LATENT_TOLERANCE
