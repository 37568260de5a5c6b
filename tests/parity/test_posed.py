"""Animate-1 gives what diffusers' `WanAnimatePipeline` gives: moved and put into a clip, one segment and three, and its published
pixels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import WanAnimatePipeline
from PIL import Image

from backend.contract import settings as settings_module
from backend.contract.request import GenerationRequest
from backend.pipeline import load as load_module
from backend.pipeline.inputs import open_inputs
from presets import Preset, load_preset
from tests.clip_files import run_ffmpeg
from tests.kept import digest, kept
from tests.parity import tiny_posed
from tests.parity.test_parity import LEAST_PSNR, psnr
from tests.parity.tiny_runs import latents_of, video_of

pytestmark = [pytest.mark.parity, pytest.mark.demo_model]
KIND = tiny_posed.KINDS[0]


@pytest.fixture(scope="module")
def posed(tmp_path_factory, caches_in_a_folder_of_their_own):
    """A checkpoint loaded by us, its folder, and the files that videos are made from."""
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
        patch.setattr(settings_module, "load_preset", lambda name: preset if name == preset.name else load_preset(name))
        yield preset, load_module.load(preset, None, lambda event: None), folder, files


def request_of(preset: Preset, files: dict[str, str], num_frames: int, is_put: bool, **changes) -> GenerationRequest:
    given = {"image": files["figure.png"], "drive": files["poses.mp4"], "face": files["face.mp4"]}
    given |= {"video": files["clip.mp4"], "mask": files["mask.png"]} if is_put else {}
    return GenerationRequest.from_preset(preset, prompt="a circle", seed=5, num_frames=num_frames, fps=24, **given, **changes)


def reference(folder: Path, request: GenerationRequest) -> np.ndarray:
    """diffusers' video [F, H, W, 3] in [0, 1] from the frames as we read them."""
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
