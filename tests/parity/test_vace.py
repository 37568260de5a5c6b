"""VACE gives what diffusers' `WanVACEPipeline` gives in every use: tiny random checkpoints, float32, and its published pixels.

The pipeline is given what our uses come to: a clip with a mask, and pictures. What these are is tested in
`tests/backend/media/test_source.py`; here their pixels go through both.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from backend.media.source import build_source
from backend.models.wan import conditions, model, text_encoder
from backend.pipeline import load as load_module
from backend.pipeline.inputs import open_inputs
from backend.schemas.request import GenerationRequest
from tests.clip_files import run_ffmpeg
from tests.kept import kept
from tests.parity.published import (
    EULER,
    GUIDANCE,
    SEED,
    STEPS,
    TEXT_POSITIONS,
    Published,
    make_pipeline,
    make_published_preset,
)
from tests.parity.test_parity import LATENT_TOLERANCE, LEAST_PSNR, psnr
from tests.parity.test_published import PROMPTS, black, ends
from tests.parity.tiny_checkpoints import HIDDEN, VACE_LAYERS
from tests.parity.tiny_preset import find_also
from tests.parity.tiny_runs import Tiny, decode_reference, latents_of, video_of
from tests.rounding import rounding

pytestmark = [pytest.mark.parity, pytest.mark.demo_model]


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, str]:
    """A moving clip of 64 frames, 16 a second, a mask of a box, and pictures."""
    folder = tmp_path_factory.mktemp("files")
    paths = {name: str(folder / name) for name in ("clip.mp4", "mask.png", "moving.mp4", "one.png", "two.png", "three.png")}
    moving = ["-f", "lavfi", "-i", "testsrc2=s=96x96:r=16:d=4", "-c:v", "libx264", "-crf", "8", "-pix_fmt", "yuv420p"]
    run_ffmpeg(*moving, paths["clip.mp4"])
    box = "color=black:s=96x96:r=16:d=4[b];color=white:s=30x30:r=16:d=4[w];[b][w]overlay=x=10+30*t:y=20"
    run_ffmpeg("-filter_complex", box, "-c:v", "libx264", "-crf", "4", "-pix_fmt", "yuv420p", paths["moving.mp4"])
    mask = np.zeros((96, 96), np.uint8)
    mask[24:60, 30:80] = 255
    Image.fromarray(mask).save(paths["mask.png"])
    rows, columns = np.mgrid[:64, :64]
    for index, name in enumerate(("one.png", "two.png", "three.png")):
        inside = (rows - 30) ** 2 + (columns - 16 - 14 * index) ** 2 < 12**2
        pixels = np.where(inside[..., None], (242, 90 * index, 50), (14, 20, 82 + 60 * index)).astype(np.uint8)
        Image.fromarray(pixels).save(paths[name])
    return paths


USES = {
    "nothing": {},
    "control": {"control": "clip.mp4"},
    "edges": {"control": "clip.mp4", "control_kind": "edges"},
    "grey": {"control": "clip.mp4", "control_kind": "grey", "control_scale": 0.6},
    "mask": {"video": "clip.mp4", "mask": "mask.png"},
    "moving mask": {"video": "clip.mp4", "mask": "moving.mp4", "trim": (0.5, 0.5 + 9 / 16)},
    "mask and control": {"video": "clip.mp4", "mask": "mask.png", "control": "clip.mp4", "control_kind": "edges"},
    "margins": {"video": "clip.mp4", "margins": (8, 4, 12, 0)},
    "one reference": {"references": ("one.png",)},
    "two references and a mask": {"video": "clip.mp4", "mask": "mask.png", "references": ("one.png", "two.png")},
    "key frames": {"keyframes": ("one.png", "two.png", "three.png"), "keyframe_at": (0, 4, 8)},
    "after": {"video": "clip.mp4", "extend": "after", "overlap": 5},
    "before": {"video": "clip.mp4", "extend": "before", "overlap": 4},
}
OFTEN = {"wan2.1-vace": ("two references and a mask", "key frames"), "wan2.2-vace": ("mask and control",)}
"""References, masks, control clips and keyframes, with one expert and with two. The other uses are among the slow tests."""


def request_of(made: Tiny, files: dict[str, str], use: str, **changes) -> GenerationRequest:
    def path(value):
        return tuple(map(path, value)) if isinstance(value, tuple) else files.get(value, value)

    return made.request(**{name: path(value) for name, value in USES[use].items()}, **changes)


def run_reference(made: Tiny, request: GenerationRequest, *changes: object) -> np.ndarray:
    """Return diffusers' latents without the references' frames. `changes` are the test's changes of the reference."""
    inputs = open_inputs(request)
    source = build_source(request, inputs)
    shown = [] if source is None else [np.asarray(source.frames), np.asarray(source.is_new)]
    shown += [np.asarray(picture) for picture in inputs["references"]] if request.references else []
    return kept(lambda: _run_reference(made, request, inputs, source), made.weights, request, *shown, *changes)


def _run_reference(made: Tiny, request: GenerationRequest, inputs, source) -> np.ndarray:
    given = {}
    if source is not None:
        given["video"] = [Image.fromarray(frame) for frame in source.frames]
        given["mask"] = [Image.fromarray(mask.astype(np.uint8) * 255) for mask in source.is_new]
    if request.references:
        given["reference_images"] = list(inputs["references"])
    second = {"guidance_scale_2": request.guidance[1]} if len(request.guidance) > 1 else {}
    latents = made.reference(
        prompt=request.prompt,
        negative_prompt=request.negative_prompt,
        height=request.height,
        width=request.width,
        num_frames=request.num_frames,
        num_inference_steps=request.steps,
        guidance_scale=request.guidance[0],
        **second,
        conditioning_scale=request.control_scale,
        generator=torch.Generator().manual_seed(request.seed),
        output_type="latent",
        **given,
    ).frames.numpy()
    return latents[:, :, len(request.references) :]


CASES = [
    pytest.param(family, use, marks=() if use in often else pytest.mark.slow) for family, often in OFTEN.items() for use in USES
]


@pytest.mark.parametrize("family, use", CASES)
def test_every_use_equals_diffusers(family, use, tiny, files):
    made = tiny(family)
    request = request_of(made, files, use, steps=3)
    ours, reference = latents_of(request, made.loaded), run_reference(made, request)
    assert np.abs(ours - reference).max() <= LATENT_TOLERANCE
    assert psnr(video_of(request, made.loaded, ours), decode_reference(made, reference)) >= LEAST_PSNR
    assert made.loaded.model.spec.name == family


@pytest.mark.parametrize("steps", [6, pytest.param(1, marks=pytest.mark.slow)])
def test_without_guidance_too(steps, tiny, files):
    made = tiny("wan2.1-vace")
    request = request_of(made, files, "mask", steps=steps, guidance=(1.0,))
    assert np.abs(latents_of(request, made.loaded) - run_reference(made, request)).max() <= LATENT_TOLERANCE


@pytest.mark.slow
def test_all_that_is_shown_does_something(tiny, files):
    """The equality above is not an equality of constants: the latents of each use differ from a video from the prompt alone."""
    made = tiny("wan2.1-vace")
    plain = latents_of(request_of(made, files, "nothing", steps=2), made.loaded)
    for use in ("edges", "mask", "key frames", "one reference"):
        assert np.abs(latents_of(request_of(made, files, use, steps=2), made.loaded) - plain).max() > 0.01


def test_a_step_cache_that_never_reuses_changes_nothing(tiny, files):
    made = tiny("wan2.1-vace")
    plain, cached = (request_of(made, files, "key frames", steps=3, step_cache=threshold) for threshold in (0.0, 1e-9))
    expected, found = (latents_of(request, made.loaded) for request in (plain, cached))
    layers, control = VACE_LAYERS["wan2.1-vace"]
    bound = rounding(expected, guidance=4.0, additions=(layers + len(control)) * HIDDEN)
    np.testing.assert_allclose(found, expected, rtol=0, atol=bound)  # the same sums in another program


# 17 black frames of 16 x 16 that all stay, and as many black references as the key; their tolerance is 1e-3
PUBLISHED_FRAMES = 17
PUBLISHED = {
    0: Published(family="wan2.1-vace", **EULER, pixels=(
        0.4523, 0.45198, 0.44872, 0.45326, 0.45211, 0.45258, 0.45344, 0.453,
        0.52431, 0.52572, 0.50701, 0.5118, 0.53717, 0.53093, 0.50557, 0.51402)),
    1: Published(family="wan2.1-vace", **EULER, pixels=(
        0.45247, 0.45214, 0.44874, 0.45314, 0.45171, 0.45299, 0.45428, 0.45317,
        0.51378, 0.52658, 0.53361, 0.52303, 0.46204, 0.50435, 0.52555, 0.51342)),
    2: Published(family="wan2.1-vace", **EULER, pixels=(
        0.45321, 0.45221, 0.44818, 0.45375, 0.45268, 0.4519, 0.45271, 0.45253,
        0.51244, 0.52223, 0.51253, 0.51321, 0.50743, 0.51177, 0.51626, 0.50983)),
}  # fmt: skip


@pytest.mark.parametrize("references", PUBLISHED)
def test_diffusers_still_gives_what_it_publishes(references):
    shown = {"reference_images": [[black(16)] * references]} if references else {}
    video = make_pipeline(PUBLISHED[references])(
        **PROMPTS,
        **shown,
        video=[black(16)] * PUBLISHED_FRAMES,
        mask=[Image.new("L", (16, 16))] * PUBLISHED_FRAMES,
        height=16,
        width=16,
        num_frames=PUBLISHED_FRAMES,
        num_inference_steps=STEPS,
        guidance_scale=GUIDANCE,
        max_sequence_length=TEXT_POSITIONS,
        generator=torch.Generator().manual_seed(SEED),
        output_type="np",
    ).frames[0]
    np.testing.assert_allclose(ends(video.transpose(0, 3, 1, 2)), PUBLISHED[references].pixels, atol=1e-3)


@pytest.mark.parametrize("references", [pytest.param(0, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.slow), 2])
def test_we_give_what_diffusers_publishes(references, tmp_path, monkeypatch):
    case = PUBLISHED[references]
    make_pipeline(case).save_pretrained(tmp_path / "model")
    lengths = {"num_frames": PUBLISHED_FRAMES, "frame_counts": (PUBLISHED_FRAMES,), "max_frames": PUBLISHED_FRAMES}
    preset = make_published_preset(case, tmp_path / "model").model_copy(update=lengths)
    for module in (text_encoder, conditions, model):
        monkeypatch.setattr(module, "TEXT_TOKENS", TEXT_POSITIONS)
    monkeypatch.setattr(model, "text_lengths", lambda platform: (TEXT_POSITIONS,))
    find_also(monkeypatch, preset)
    clip, picture = tmp_path / "black.gif", tmp_path / "black.png"
    run_ffmpeg("-f", "lavfi", "-i", f"color=black:s=16x16:r=10:d={PUBLISHED_FRAMES / 10}", str(clip))
    black(16).save(picture)
    shown = {"video": str(clip), "mask": str(picture), "references": (str(picture),) * references}
    request = GenerationRequest.from_preset(preset, **PROMPTS, **shown, seed=SEED, fps=10)
    loaded = load_module.load(preset, None, lambda event: None)
    video = video_of(request, loaded, latents_of(request, loaded))
    np.testing.assert_allclose(ends(video.transpose(0, 3, 1, 2)), case.pixels, atol=1e-3)
