"""Control clips equal diffusers' `LTX2InContextPipeline`, with tiny random checkpoints and the same clip, pictures, noise, LoRA
and prompt, in float32.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers.pipelines.ltx2 import pipeline_ltx2_ic_lora as in_context_module
from PIL import Image
from safetensors.numpy import load_file
from safetensors.torch import save_file

from backend.errors import ModelError
from backend.media.video import write_frames
from backend.models.ltx.in_context import CONTROL, level_ratio
from backend.models.model import SOUND, VIDEO, Latents
from backend.pipeline import generate as pipeline_module
from backend.pipeline.denoising_loop import draw_initial_noise
from backend.pipeline.inputs import open_inputs
from backend.pipeline.load import merge_loras
from backend.pipeline.warm_up import calls
from backend.sampling.solvers import make_schedule, make_step_inputs
from backend.schemas.events import Step
from backend.schemas.request import GenerationRequest
from backend.settings import from_environment
from tests.parity.ltx_runs import (
    ALL,
    ANCESTRAL,
    DISTILLED,
    LATENT_TOLERANCE,
    LEAST_PSNR,
    LEAST_SNR,
    OFF,
    Tiny,
    arguments_of,
    decoded,
    finished,
    kept_streams,
    normalised,
    scheduler_of,
)
from tests.parity.test_ltx_keyframes import keep_clean, pictures  # noqa: F401
from tests.parity.tiny_ltx import KINDS, SIDE, in_context_pipeline_of
from tests.parity.tiny_runs import video_of

pytestmark = [pytest.mark.parity, pytest.mark.demo_model]

FRAMES = 17
WITH_PICTURES = {"image": "first", "keyframes": ("second",), "keyframe_at": (9,)}
SMALLER = {"control_downscale": 2}
IN_PART = {"control_scale": 0.6}


@pytest.fixture(scope="module")
def clip(tmp_path_factory) -> str:
    """A square that moves over a slope."""
    path = tmp_path_factory.mktemp("clips") / "square.mp4"
    slope = np.linspace(0, 160, SIDE)[:, None, None] + np.zeros((SIDE, SIDE, 3))
    frames = []
    for number in range(FRAMES):
        frame = slope.copy()
        frame[16:40, 2 * number : 2 * number + 20] = (240, 60, 3 * number)
        frames.append(frame.astype(np.uint8))
    write_frames(iter(frames), path, fps=24, comment="")
    return str(path)


def request_of(made: Tiny, clip: str, pictures: dict[str, str], **given) -> GenerationRequest:  # noqa: F811
    paths = {name: pictures[value] for name, value in given.items() if isinstance(value, str) and value in pictures}
    if "keyframes" in given:
        paths["keyframes"] = tuple(pictures[name] for name in given["keyframes"])
    return made.request(num_frames=FRAMES, control=clip, **given | paths)


def run_reference(
    made: Tiny, request: GenerationRequest, lora: tuple[Path, float] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return diffusers' latents of picture and sound, from our noise, normalised like ours."""
    noise = draw_initial_noise(request, made.loaded.model)
    drawn, changes = [np.asarray(noise[name]) for name in (VIDEO, SOUND)], [] if lora is None else [lora[0], lora[1]]
    return kept_streams(lambda: _run_reference(made, request, noise, lora), made, request, "control", *drawn, *changes)


def _run_reference(
    made: Tiny, request: GenerationRequest, noise: Latents, lora: tuple[Path, float] | None
) -> tuple[np.ndarray, np.ndarray]:
    model = made.loaded.model
    pipeline = in_context_pipeline_of(made.parts | {"scheduler": scheduler_of(made, request)})
    frames = [Image.fromarray(frame) for frame in open_inputs(request)["control"][0]]
    reference = in_context_module.LTX2ReferenceCondition(frames=frames, strength=request.control_scale)
    placed = [*([(0, request.image)] if request.image else []), *zip(request.keyframe_at, request.keyframes, strict=True)]
    conditions = [
        in_context_module.LTX2VideoCondition(frames=Image.open(path), index=(place - 1) // 8 + 1 if place else 0, crf=0)
        for place, path in placed
    ]
    side = SIDE // 32 // request.control_downscale
    shape = (1, noise[VIDEO].shape[1], noise[VIDEO].shape[2], side, side)
    control = None
    if request.control_scale < 1:
        blank = {CONTROL: np.zeros(shape, np.float32)}  # a state from zeros is its noise, times the clip's share of noise
        control = model.start(request, blank, noise)[CONTROL].sample / (1 - request.control_scale)

    def tokens(latents: Any) -> torch.Tensor:
        return torch.from_numpy(np.array(latents)).flatten(2).transpose(1, 2)

    def our_noise(shape: tuple[int, ...], **given: Any) -> torch.Tensor:
        if shape[1] == noise[SOUND].shape[2]:
            return torch.from_numpy(np.array(noise[SOUND])).transpose(1, 2).flatten(2)
        video = tokens(noise[VIDEO])
        after = torch.zeros(1, 0, shape[2]) if control is None else tokens(control)
        between = torch.zeros(1, shape[1] - video.shape[1] - after.shape[1], shape[2])
        return torch.cat([video, between, after], dim=1)

    own = {}
    if request.solver == "ltx-ancestral":
        num_appended = len([place for place, _ in placed if place]) * (SIDE // 32) ** 2 + side * side * shape[2]
        own = {"callback_on_step_end": keep_clean(pipeline, num_appended)}
    if lora is not None:
        pipeline.load_lora_weights(lora[0], adapter_name="control")
        pipeline.transformer.set_adapters(["control"], [lora[1]])
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(in_context_module, "randn_tensor", our_noise)
            given = dict(reference_conditions=[reference], reference_downscale_factor=request.control_downscale)
            given |= {"conditions": conditions or None}
            return normalised(made, *pipeline(**given, **arguments_of(made, request), **own))
    finally:
        if lora is not None:
            pipeline.unload_lora_weights()


def assert_equal(made: Tiny, request: GenerationRequest, lora: tuple[Path, float] | None = None) -> None:
    video, sound, _ = finished(made, request)
    expected = run_reference(made, request, lora)
    assert np.abs(video - expected[0]).max() <= LATENT_TOLERANCE and np.abs(sound - expected[1]).max() <= LATENT_TOLERANCE


CASES = [
    (KINDS[0], SMALLER | OFF | {"steps": 2}),
    (KINDS[1], WITH_PICTURES | ALL | {"steps": 2}),
    (KINDS[2], IN_PART | DISTILLED | {"steps": 2}),
]
MORE_CASES = [
    (KINDS[0], ALL | {"steps": 2}),
    (KINDS[0], IN_PART | WITH_PICTURES | ALL | {"steps": 2}),
    (KINDS[1], DISTILLED | {"steps": 1}),
    (KINDS[1], SMALLER | IN_PART | ALL | {"steps": 2}),
    (KINDS[1], ALL | {"steps": 8}),
    (KINDS[2], DISTILLED | {"steps": 1}),
    (KINDS[2], WITH_PICTURES | SMALLER | DISTILLED | {"steps": 8}),
    (KINDS[2], ANCESTRAL | {"steps": 8}),
    (KINDS[2], WITH_PICTURES | ANCESTRAL | {"steps": 2}),
    (KINDS[2], IN_PART | ALL | {"steps": 8}),
]


@pytest.mark.parametrize("kind, given", CASES + [pytest.param(*case, marks=pytest.mark.slow) for case in MORE_CASES])
def test_a_control_clip_equals_diffusers(tiny_ltx, clip, pictures, kind, given):  # noqa: F811
    made = tiny_ltx(kind)
    assert_equal(made, request_of(made, clip, pictures, **given))


@pytest.mark.parametrize("kind", [KINDS[1], *(pytest.param(kind, marks=pytest.mark.slow) for kind in (KINDS[0], KINDS[2]))])
def test_its_pixels_and_its_sound_equal_diffusers(tiny_ltx, clip, pictures, kind):  # noqa: F811
    made = tiny_ltx(kind)
    request = request_of(made, clip, pictures, steps=2, **DISTILLED)
    video, sound, waveform = finished(made, request)
    pixels, expected = decoded(made, *run_reference(made, request))
    error = np.square(video_of(request, made.loaded, video).clip(0, 1) - pixels).mean()
    assert -10 * np.log10(max(error, 1e-12)) >= LEAST_PSNR
    noise = np.square(waveform - expected[:, : waveform.shape[1]]).mean()
    assert 10 * np.log10(np.square(expected).mean() / max(noise, 1e-12)) >= LEAST_SNR


def in_context_lora(made: Tiny, style: str) -> dict[str, torch.Tensor]:
    """Return a LoRA of rank 4 for the attentions and feed-forwards of the video's stream, with diffusers' names or the names of
    the makers and ComfyUI.
    """
    generator, state = torch.Generator().manual_seed(3), {}
    prefix = {"diffusers": "transformer.", "makers": "diffusion_model."}[style]
    for name, weight in made.parts["transformer"].state_dict().items():
        parts = name.split(".")
        if parts[0] != "transformer_blocks" or weight.ndim != 2 or parts[2] not in ("attn1", "attn2", "ff"):
            continue
        stem = prefix + name.removesuffix(".weight")
        state[f"{stem}.lora_A.weight"] = 0.1 * torch.randn(4, weight.shape[1], generator=generator)
        state[f"{stem}.lora_B.weight"] = 0.1 * torch.randn(weight.shape[0], 4, generator=generator)
    return state


@pytest.mark.parametrize("style", ["makers", pytest.param("diffusers", marks=pytest.mark.slow)])
def test_a_lora_of_control_clips_equals_diffusers(tiny_ltx, clip, pictures, style):  # noqa: F811
    made, folder = tiny_ltx(KINDS[1]), from_environment().loras_dir
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"control-{style}.safetensors"
    save_file(in_context_lora(made, style), path, metadata={"reference_downscale_factor": "2"})
    given = dict(loras=({"source": path.name, "scale": 0.8},))
    request = request_of(made, clip, pictures, steps=2, **given, **SMALLER, **DISTILLED)
    assert_equal(made, request, (path, 0.8))
    merge_loras(made.loaded, (), lambda event: None)


def test_a_lora_of_smaller_clips_is_refused_with_a_larger_one(tiny_ltx, clip, pictures, tmp_path):  # noqa: F811
    made, folder = tiny_ltx(KINDS[1]), from_environment().loras_dir
    folder.mkdir(parents=True, exist_ok=True)
    save_file(in_context_lora(made, "makers"), folder / "smaller.safetensors", metadata={"reference_downscale_factor": "2"})
    request = request_of(made, clip, pictures, steps=1, loras=({"source": "smaller.safetensors"},), **DISTILLED)
    with pytest.raises(ModelError) as caught:
        list(pipeline_module.generate(request, made.loaded, tmp_path, lambda: False))
    assert str(caught.value) == (
        "The LoRA smaller.safetensors was trained with control clips made 2 times smaller, and the request has "
        "control_downscale=1; set control_downscale to 2"
    )
    assert not list(tmp_path.glob("*.safetensors")) and not list(tmp_path.glob("*.mp4"))


@pytest.mark.parametrize("solver", ["ltx", "ltx-distilled", "ltx-ancestral"])
def test_a_clip_that_is_followed_in_part_goes_to_the_next_level(solver):
    schedule = make_schedule(solver, 8, 1.0, num_tokens=100)
    for index in range(8):
        ratio = level_ratio(make_step_inputs(schedule, index, 1.0), schedule.noise is not None)
        assert ratio == pytest.approx(schedule.sigmas[index + 1] / schedule.sigmas[index], abs=1e-5)


@pytest.mark.slow
def test_a_clip_that_is_followed_in_part_continues_after_a_stop(tiny_ltx, clip, pictures, tmp_path):  # noqa: F811
    """The bits are the same: the clip's noisy latents are stored with the states of the streams."""
    made = tiny_ltx(KINDS[2])
    request = request_of(made, clip, pictures, steps=8, **ANCESTRAL, **IN_PART)
    events = pipeline_module.generate(request, made.loaded, tmp_path, lambda: False)
    for event in events:
        if isinstance(event, Step) and event.index == 3:
            events.close()
    rest = list(pipeline_module.generate(request, made.loaded, tmp_path, lambda: False))
    assert 0 < sum(isinstance(event, Step) for event in rest) <= 5
    latents, (video, sound, _) = load_file(tmp_path / "stage2_latents.safetensors"), finished(made, request)
    assert latents.keys() == {"latents", "sound.latents"}
    np.testing.assert_array_equal(latents["latents"], video)
    np.testing.assert_array_equal(latents["sound.latents"], sound)


@pytest.mark.parametrize("given", [{}, SMALLER, IN_PART | WITH_PICTURES])
def test_its_tokens_count_wherever_a_step_is_described(tiny_ltx, clip, pictures, given):  # noqa: F811
    """The tokens count in the attention lengths of predictions, and in the programs that are compiled ahead."""
    made = tiny_ltx(KINDS[0])
    request, model = request_of(made, clip, pictures, steps=2, **OFF, **given), made.loaded.model
    appended = {(): 12, ("control_downscale",): 3}.get(tuple(given), 16)
    assert (
        model.attention_lengths(request).keys == model.attention_lengths(made.request(num_frames=FRAMES, **OFF)).keys + appended
    )
    keys = [call.program.key for call in calls(model, request)]
    assert keys.count("denoise_step") == 2 and keys.count("image_encode") == 1 + 2 * ("image" in given)
    step = next(call for call in calls(model, request) if call.program.key == "denoise_step")
    states = step.arguments[1]
    assert (CONTROL in states) == ("control_scale" in given)


@pytest.mark.slow
def test_a_video_that_continues_follows_a_clip_too(tiny_ltx, clip, pictures, tmp_path):  # noqa: F811
    """The video begins with the frames of one clip, and follows another clip."""
    made = tiny_ltx(KINDS[1])
    given = dict(video=clip, extend="after", overlap=9, keeps_pixels=False)
    request = request_of(made, clip, pictures, steps=2, **DISTILLED, **SMALLER, **given)
    follows, alone = (finished(made, one)[0] for one in (request, made.request(num_frames=FRAMES, steps=2, **DISTILLED, **given)))
    np.testing.assert_array_equal(follows[:, :, :2], alone[:, :, :2])
    assert np.abs(follows[:, :, 2:] - alone[:, :, 2:]).max() > 10 * LATENT_TOLERANCE
