"""LTX-2 with progressive resolution equals diffusers' two stages: its condition pipeline at half the size, its latent
upsampler, and the condition pipeline again. The second stage encodes the pictures again. Tiny random checkpoints, our noise,
float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, LTX2LatentUpsamplePipeline
from diffusers.pipelines.ltx2 import pipeline_ltx2_condition as condition_module
from PIL import Image
from safetensors.numpy import load_file

from backend.errors import RequestError
from backend.media.pictures import crop_to
from backend.media.video import read_frames
from backend.models.model import SOUND, VIDEO, Latents
from backend.pipeline import generate as pipeline_module
from backend.pipeline import load as load_module
from backend.pipeline.denoising_loop import ChunkNoise, divide_into_chunks
from backend.schemas.events import Cancelled, Finished, Step
from backend.schemas.progressive import REFINING_LEVELS, request_at_first_size
from backend.schemas.request import GenerationRequest
from tests.parity.ltx_runs import LATENT_TOLERANCE, Tiny, arguments_of, finished, kept_streams, normalised, scheduler_of
from tests.parity.test_ltx_keyframes import keep_clean
from tests.parity.tiny_ltx import (
    SIDE,
    condition_pipeline_of,
    in_two_sizes,
    make_parts,
    make_preset,
    make_upsampler,
    write_checkpoint,
)
from tests.parity.tiny_preset import find_also

pytestmark = [pytest.mark.parity, pytest.mark.demo_model]

KIND, PRESET, FIRST = "ltx-2.5", "tiny-refining", "tiny-half"
NUM_REFINING = len(REFINING_LEVELS)
ANCESTRAL = dict(solver="ltx-ancestral")


@pytest.fixture(scope="module")
def made(tmp_path_factory, caches_in_a_folder_of_their_own) -> Tiny:
    """The checkpoint with an upsampler, and its preset. A preset for only the first size is found by name too."""
    parts = make_parts(KIND)
    folder = write_checkpoint(parts, tmp_path_factory.mktemp("refining") / "model")
    usual = make_preset(KIND, folder).model_copy(update=dict(guidance=(1.0,), solver="ltx-distilled"))
    presets = {name: usual.model_copy(update={"name": name}) for name in (PRESET, FIRST)}
    presets[PRESET] = in_two_sizes(presets[PRESET])
    with pytest.MonkeyPatch.context() as patch:
        find_also(patch, *presets.values())
        yield Tiny(preset=presets[PRESET], loaded=load_module.load(presets[PRESET], None, lambda event: None), parts=parts)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> dict[str, str]:
    """Two pictures of the video's size."""
    rows, columns = np.mgrid[: 2 * SIDE, : 2 * SIDE]
    folder = tmp_path_factory.mktemp("pictures")
    for name, values in {
        "first": (2 * rows, 255 - columns, rows * columns),
        "second": (255 - rows, rows + columns, 3 * columns),
    }.items():
        Image.fromarray((np.stack(values, -1) % 256).astype(np.uint8)).save(folder / f"{name}.png")
    return {name: str(folder / f"{name}.png") for name in ("first", "second")}


def two_stages(made: Tiny, request: GenerationRequest) -> tuple[np.ndarray, np.ndarray]:
    """Return diffusers' latents after both stages, normalised like ours."""
    model = made.loaded.model
    noise = ChunkNoise(
        request.seed, [*divide_into_chunks(model, request_at_first_size(request)), *divide_into_chunks(model, request)]
    )
    drawn = [np.asarray(noise.draw_chunk(stage)[name]) for stage in (0, 1) for name in (VIDEO, SOUND)]
    return kept_streams(lambda: _two_stages(made, request, noise), made, request, "two stages", *drawn)


def _two_stages(made: Tiny, request: GenerationRequest, noise: ChunkNoise) -> tuple[np.ndarray, np.ndarray]:
    small = request_at_first_size(request)
    own = request.to_json() | dict(preset=FIRST, width=small.width, height=small.height, steps=request.steps - NUM_REFINING)
    first = GenerationRequest.from_stored(own)
    video, sound = _stage(made, first, noise.draw_chunk(0), scheduler_of(made, first), arguments_of(made, first))
    enlarge = LTX2LatentUpsamplePipeline(vae=made.parts["vae"], latent_upsampler=make_upsampler())
    video = enlarge(latents=video, height=small.height, width=small.width, output_type="latent", return_dict=False)[0]
    options = dict(use_dynamic_shifting=False, shift_terminal=None)
    scheduler = FlowMatchEulerDiscreteScheduler.from_config(made.parts["scheduler"].config, **options)
    size = dict(width=request.width, height=request.height, sigmas=list(REFINING_LEVELS))
    begun = dict(latents=video, audio_latents=sound, noise_scale=REFINING_LEVELS[0])
    return normalised(made, *_stage(made, request, noise.draw_chunk(1), scheduler, arguments_of(made, first) | size | begun))


def _stage(
    made: Tiny, request: GenerationRequest, noise: Latents, scheduler: Any, arguments: dict[str, Any]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the latents of diffusers' condition pipeline at this request's size."""
    pipeline = condition_pipeline_of(made.parts | {"scheduler": scheduler})
    placed = [(0, request.image)] * bool(request.image) + list(zip(request.keyframe_at, request.keyframes, strict=True))
    size = request.width, request.height
    conditions = [
        condition_module.LTX2VideoCondition(frames=crop_to(Image.open(path), *size), index=place and (place - 1) // 8 + 1, crf=0)
        for place, path in placed
    ]
    own = {}
    if "noises" in vars(scheduler):
        appended = sum(place > 0 for place, _ in placed) * (request.width // 32) * (request.height // 32)
        own["callback_on_step_end"] = keep_clean(pipeline, appended)

    def our_noise(shape: Sequence[int], **given: Any) -> torch.Tensor:
        stream = SOUND if shape[1] == noise[SOUND].shape[2] else VIDEO
        drawn = torch.from_numpy(np.array(noise[stream]))
        tokens = drawn.transpose(1, 2).flatten(2) if stream == SOUND else drawn.flatten(2).transpose(1, 2)
        return torch.cat([tokens, torch.zeros(1, shape[1] - tokens.shape[1], shape[2])], dim=1)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(condition_module, "randn_tensor", our_noise)
        return pipeline(conditions=conditions or None, **arguments, **own)[:2]


def request_of(made: Tiny, pictures: dict[str, str], given: dict[str, Any], **changes: Any) -> GenerationRequest:
    paths = {name: tuple(map(pictures.get, value)) if name == "keyframes" else pictures.get(value, value) if isinstance(value, str) else value
             for name, value in given.items()}  # fmt: skip
    return made.request(num_frames=17, **paths, **changes)


PICTURE, KEYFRAME = {"image": "first"}, {"keyframes": ("second",), "keyframe_at": (9,)}


@pytest.mark.parametrize(
    "given, changes, steps",
    [
        ({}, ANCESTRAL, 11),
        (PICTURE | KEYFRAME, {}, 5),
        pytest.param({}, {}, 4, marks=pytest.mark.slow),
        pytest.param(PICTURE, ANCESTRAL, 11, marks=pytest.mark.slow),
        pytest.param(PICTURE | KEYFRAME, {}, 11, marks=pytest.mark.slow),
    ],
)
def test_both_sizes_equal_diffusers(made, pictures, given, changes, steps):
    request = request_of(made, pictures, given, steps=steps, **changes)
    video, sound, _ = finished(made, request)
    expected = two_stages(made, request)
    assert video.shape == expected[0].shape == made.loaded.model.latent_shapes(request)[VIDEO]
    assert np.abs(video - expected[0]).max() <= LATENT_TOLERANCE and np.abs(sound - expected[1]).max() <= LATENT_TOLERANCE


@pytest.mark.parametrize("stop", [1, pytest.param(2, marks=pytest.mark.slow), 4])
def test_a_denoising_continues_after_a_stop_in_either_size(made, tmp_path, stop):
    """The bits are the same: the seed determines the noise of the refining steps."""
    request = made.request(steps=5)
    events = pipeline_module.generate(request, made.loaded, tmp_path, lambda: False)
    for event in events:
        if isinstance(event, Step) and event.index == stop:
            events.close()
    rest = list(pipeline_module.generate(request, made.loaded, tmp_path, lambda: False))
    assert isinstance(rest[-1], Finished) and 0 < sum(isinstance(event, Step) for event in rest) <= 5 - stop
    latents, (video, sound, _) = load_file(tmp_path / "stage2_latents.safetensors"), finished(made, request)
    np.testing.assert_array_equal(latents["latents"], video)
    np.testing.assert_array_equal(latents["sound.latents"], sound)


@pytest.mark.parametrize("stop", [1, 4])
def test_a_video_that_is_stopped_has_its_full_size(made, tmp_path, stop):
    """The size is full even before the first refining step."""
    done: list[int] = []
    for event in pipeline_module.generate(made.request(steps=5), made.loaded, tmp_path, lambda: len(done) >= stop):
        if isinstance(event, Step):
            done.append(event.index)
    assert isinstance(event, Cancelled)
    frames = list(read_frames(tmp_path / "video.mp4"))
    assert frames[0].shape == (2 * SIDE, 2 * SIDE, 3) and len(frames) == 9


def test_the_time_left_counts_refining_steps_for_what_they_cost(made, tmp_path):
    """Refining steps see four times as many tokens."""
    events = pipeline_module.generate(made.request(steps=5), made.loaded, tmp_path, lambda: False)
    first = next(event for event in events if isinstance(event, Step))
    assert first.seconds_left > 3 * 8 * first.seconds


def test_too_few_steps_are_refused(made):
    with pytest.raises(RequestError, match="must be 4 or more: the last 3 refine"):
        made.request(steps=3)
