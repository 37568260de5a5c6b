"""Animate-1 equals diffusers' `WanAnimatePipeline`: animation and replacement, one segment and three, and its published pixels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import AutoencoderKLWan, FlowMatchEulerDiscreteScheduler, WanAnimatePipeline, WanAnimateTransformer3DModel
from PIL import Image
from transformers import AutoTokenizer, CLIPImageProcessorPil, CLIPVisionModelWithProjection

from backend.models.wan import conditions, model, text_encoder
from backend.pipeline import load as load_module
from backend.pipeline.inputs import open_inputs
from backend.schemas.request import GenerationRequest
from presets import Preset
from tests.clip_files import run_ffmpeg
from tests.kept import digest, kept
from tests.parity import tiny_posed
from tests.parity.published import (
    SEED,
    STEPS,
    TEXT_POSITIONS,
    TINY_TRANSFORMER,
    TINY_VAE,
    _clip,
    _seeded,
    _silent_text_encoder,
)
from tests.parity.test_parity import LEAST_PSNR, psnr
from tests.parity.test_published import PROMPTS, black, ends
from tests.parity.tiny_checkpoints import DEMO
from tests.parity.tiny_preset import find_also
from tests.parity.tiny_runs import latents_of, video_of

pytestmark = [pytest.mark.parity, pytest.mark.demo_model]
KIND = tiny_posed.KINDS[0]


@pytest.fixture(scope="module")
def posed(tmp_path_factory, caches_in_a_folder_of_their_own):
    """A checkpoint loaded by our code, its folder, and the input files of videos."""
    folder = tiny_posed.write_checkpoint(tiny_posed.make_parts(KIND), tmp_path_factory.mktemp("posed"))
    place = tmp_path_factory.mktemp("files")
    files = {name: str(place / name) for name in ("figure.png", "poses.mp4", "face.mp4", "clip.mp4", "mask.png")}
    rows, columns = np.mgrid[:64, :64]
    inside = (rows - 30) ** 2 + (columns - 24) ** 2 < 12**2
    Image.fromarray(np.where(inside[..., None], (242, 218, 50), (14, 20, 82)).astype(np.uint8)).save(files["figure.png"])
    Image.fromarray(np.where((columns > 20) & (rows > 8), 255, 0).astype(np.uint8)).save(files["mask.png"])
    for name, source in (("poses.mp4", "testsrc2=s=64x64"), ("face.mp4", "testsrc=s=32x32"), ("clip.mp4", "smptebars=s=64x64")):
        run_ffmpeg("-f", "lavfi", "-i", f"{source}:r=24:d=2", "-c:v", "libx264", "-crf", "8", "-pix_fmt", "yuv420p", files[name])
    preset = tiny_posed.make_preset(KIND, folder)
    with pytest.MonkeyPatch.context() as patch:
        find_also(patch, preset)
        yield preset, load_module.load(preset, None, lambda event: None), folder, files


def request_of(preset: Preset, files: dict[str, str], num_frames: int, is_put: bool, **changes) -> GenerationRequest:
    given = {"image": files["figure.png"], "drive": files["poses.mp4"], "face": files["face.mp4"]}
    given |= {"video": files["clip.mp4"], "mask": files["mask.png"]} if is_put else {}
    return GenerationRequest.from_preset(preset, prompt="a circle", seed=5, num_frames=num_frames, fps=24, **given, **changes)


def reference(folder: Path, request: GenerationRequest) -> np.ndarray:
    """Return diffusers' video [F, H, W, 3] in [0, 1] from the frames as we read them."""
    inputs = open_inputs(request)
    names = ("drive", "face")
    clips = {name: next(inputs[name][0].segments(1, request.num_frames)) for name in names}
    shown = [*clips.values()]
    given = {"pose_video": clips["drive"], "face_video": clips["face"]}
    if request.video:
        mask = np.repeat(inputs["mask"][0][..., None].astype(np.uint8) * 255, 3, axis=3)
        given |= {"background_video": inputs["video"][0], "mask_video": mask}
        shown += [inputs["video"][0], mask]

    def run() -> np.ndarray:
        pipeline = WanAnimatePipeline.from_pretrained(folder)
        pipeline.set_progress_bar_config(disable=True)
        return pipeline(
            image=Image.open(request.image),
            **{name: [Image.fromarray(frame) for frame in frames] for name, frames in given.items()},
            mode="replace" if request.video else "animate",
            prompt=request.prompt,
            negative_prompt=request.negative_prompt,
            height=request.height,
            width=request.width,
            segment_frame_length=request.segment_frames,
            num_inference_steps=request.steps,
            guidance_scale=request.guidance[0],
            generator=torch.Generator().manual_seed(request.seed),
            output_type="np",
        ).frames[0]

    weights = digest(*(path.read_bytes() for path in sorted(folder.rglob("*.safetensors"))))
    return kept(run, weights, request, *shown)


@pytest.mark.parametrize(
    "num_frames, is_put, changes",
    [
        pytest.param(9, False, {"guidance": (3.0,)}, id="moved, guided"),
        pytest.param(22, False, {}, id="moved, three segments", marks=pytest.mark.slow),
        pytest.param(22, True, {}, id="put into a clip, three segments"),
    ],
)
def test_every_way_equals_diffusers(num_frames, is_put, changes, posed):
    preset, loaded, folder, files = posed
    request = request_of(preset, files, num_frames, is_put, **changes)
    ours = video_of(request, loaded, latents_of(request, loaded))[:num_frames]
    theirs = reference(folder, request)
    assert ours.shape == theirs.shape
    assert np.abs(ours - theirs).max() <= 1e-3
    assert psnr(ours, theirs) >= LEAST_PSNR


# Source: huggingface/diffusers, tests/pipelines/wan/test_wan_animate.py: 17 frames of black poses and faces; their tolerance is 1e-3
PUBLISHED_FRAMES, PUBLISHED_SHIFT, PUBLISHED_SEGMENT = 17, 7.0, 77
PUBLISHED = (
    0.4525, 0.4521, 0.4486, 0.4534, 0.4523, 0.4529, 0.4540, 0.4533,
    0.5055, 0.5203, 0.5363, 0.4827, 0.5057, 0.5176, 0.5117, 0.5139)  # fmt: skip
OWN = dict(
    in_channels=36,
    latent_channels=16,
    out_channels=16,
    image_dim=4,
    motion_encoder_channel_sizes={"4": 16, "8": 16, "16": 16},
    motion_encoder_size=16,
    motion_style_dim=8,
    motion_dim=4,
    motion_encoder_dim=16,
    face_encoder_hidden_dim=16,
    face_encoder_num_heads=2,
    inject_face_latents_blocks=2,
)


def published_pipeline() -> WanAnimatePipeline:
    """Build their pipeline with text embeddings of zero, as in `tests.parity.published`."""
    pipeline = WanAnimatePipeline(
        vae=_seeded(AutoencoderKLWan, **TINY_VAE, z_dim=16),
        scheduler=FlowMatchEulerDiscreteScheduler(shift=PUBLISHED_SHIFT),
        text_encoder=_silent_text_encoder(),
        tokenizer=AutoTokenizer.from_pretrained(DEMO / "tokenizer"),
        transformer=_seeded(WanAnimateTransformer3DModel, **TINY_TRANSFORMER, **OWN),
        image_encoder=_seeded(CLIPVisionModelWithProjection, config=_clip(4)),
        image_processor=CLIPImageProcessorPil(crop_size=4, size=4),
    )
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def test_diffusers_still_gives_what_it_publishes():
    frames = [black(16)] * PUBLISHED_FRAMES
    video = published_pipeline()(
        image=black(16),
        pose_video=frames,
        face_video=frames,
        **PROMPTS,
        height=16,
        width=16,
        num_inference_steps=STEPS,
        guidance_scale=1.0,
        max_sequence_length=TEXT_POSITIONS,
        generator=torch.Generator().manual_seed(SEED),
        output_type="np",
    ).frames[0]
    np.testing.assert_allclose(ends(video.transpose(0, 3, 1, 2)), PUBLISHED, atol=1e-3)


def test_we_give_what_diffusers_publishes(tmp_path, monkeypatch):
    published_pipeline().save_pretrained(tmp_path / "model")
    own = dict(
        name="published-posed",
        width=16,
        height=16,
        sizes=[[16, 16]],
        steps=STEPS,
        solver="euler",
        flow_shift=PUBLISHED_SHIFT,
        segment_frames=PUBLISHED_SEGMENT,
    )
    preset = Preset(**{**tiny_posed.make_preset(KIND, tmp_path / "model").model_dump(), **own})
    for module in (text_encoder, conditions, model):
        monkeypatch.setattr(module, "TEXT_TOKENS", TEXT_POSITIONS)
    monkeypatch.setattr(model, "text_lengths", lambda platform: (TEXT_POSITIONS,))
    find_also(monkeypatch, preset)
    clip, picture = tmp_path / "black.gif", tmp_path / "black.png"
    run_ffmpeg("-f", "lavfi", "-i", f"color=black:s=16x16:r=10:d={PUBLISHED_FRAMES / 10}", str(clip))
    black(16).save(picture)
    request = GenerationRequest.from_preset(
        preset, **PROMPTS, image=str(picture), drive=str(clip), face=str(clip), seed=SEED, fps=10, num_frames=PUBLISHED_FRAMES
    )
    loaded = load_module.load(preset, None, lambda event: None)
    video = video_of(request, loaded, latents_of(request, loaded))[:PUBLISHED_FRAMES]
    np.testing.assert_allclose(ends(video.transpose(0, 3, 1, 2)), PUBLISHED, atol=1e-3)
