"""Animate-2 equals diffusers' modular pipelines: base and distilled, one segment and three, with tiny random checkpoints."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from backend.media.driving_video import DrivingClip
from backend.pipeline import load as load_module
from backend.pipeline.inputs import open_inputs
from backend.pipeline.loaded import LoadedModel
from backend.schemas.driving_video import count_segments
from backend.schemas.request import GenerationRequest
from presets import Preset
from tests.clip_files import run_ffmpeg
from tests.kept import digest, kept
from tests.parity import tiny_animate
from tests.parity.test_parity import LATENT_TOLERANCE, LEAST_PSNR, psnr
from tests.parity.tiny_preset import find_also
from tests.parity.tiny_runs import latents_of, video_of

pytestmark = [
    pytest.mark.parity,
    pytest.mark.demo_model,
    pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile"),
]
CASES = [("wan2.2-animate", 22)]
MORE_CASES = [("wan2.2-animate", 9), ("wan2.2-animate-fast", 9), ("wan2.2-animate-fast", 25)]
"""Kinds and frames. 9 frames are one segment, 25 are three. 22 are three too, and the clip's end fills the last segment."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Driven:
    """A checkpoint, loaded by our code, and the input files of a video."""

    preset: Preset
    loaded: LoadedModel
    folder: Path
    files: dict[str, str]

    def request(self, num_frames: int, **changes) -> GenerationRequest:
        return GenerationRequest.from_preset(
            self.preset, prompt="a circle", seed=5, num_frames=num_frames, fps=24, **{**self.files, **changes}
        )

    @functools.cached_property
    def weights(self) -> str:
        return digest(*(path.read_bytes() for path in sorted(self.folder.rglob("*.safetensors"))))


@pytest.fixture(scope="module")
def driven(tmp_path_factory, caches_in_a_folder_of_their_own):
    folder = tiny_animate.write_checkpoint(tiny_animate.make_parts("wan2.2-animate"), tmp_path_factory.mktemp("animate"))
    place = tmp_path_factory.mktemp("files")
    files = {"image": str(place / "figure.png"), "drive": str(place / "clip.mp4")}
    rows, columns = np.mgrid[:64, :64]
    inside = (rows - 30) ** 2 + (columns - 24) ** 2 < 12**2
    Image.fromarray(np.where(inside[..., None], (242, 218, 50), (14, 20, 82)).astype(np.uint8)).save(files["image"])
    moving = ["-f", "lavfi", "-i", "testsrc2=s=80x48:r=24:d=2", "-c:v", "libx264", "-crf", "8", "-pix_fmt", "yuv420p"]
    run_ffmpeg(*moving, files["drive"])

    with pytest.MonkeyPatch.context() as patch:
        presets = find_also(patch)

        @functools.cache
        def make(kind: str) -> Driven:
            preset = presets[f"tiny-{kind}"] = tiny_animate.make_preset(kind, folder)
            loaded = load_module.load(preset, None, lambda event: None)
            return Driven(preset=preset, loaded=loaded, folder=folder, files=files)

        yield make


def reference(made: Driven, kind: str, request: GenerationRequest) -> tuple[np.ndarray, np.ndarray]:
    """Return diffusers' latents of all segments without the latents of the picture, and its video [F, H, W, 3] in [0, 1]. The
    input is the clip's frames as we read them, already with their bars.
    """
    clip = open_inputs(request)["drive"][0]
    assert isinstance(clip, DrivingClip)
    count = count_segments(request)
    pieces = list(clip.segments(count, request.segment_frames))
    frames = np.concatenate([pieces[0], *(piece[1:] for piece in pieces[1:])])[: request.num_frames]

    def run() -> np.ndarray:
        tiny_animate.uncompiled()
        pipeline, latents = tiny_animate.make_pipeline(kind, made.folder), []
        with _collecting(latents):
            videos = pipeline(
                prompt=request.prompt,
                negative_prompt=request.negative_prompt,
                prompt_ref=tiny_animate.WORDS,
                image=Image.open(request.image),
                driving_video=[Image.fromarray(frame) for frame in frames],
                height=request.height,
                width=request.width,
                num_inference_steps=request.steps,
                segment_frame_length=request.segment_frames,
                generator=torch.Generator().manual_seed(request.seed),
                output_type="np",
                output="videos",
            )
        assert len(latents) == count
        flat = [np.concatenate(latents, axis=2).ravel(), np.asarray(videos[0], np.float32).ravel()]
        return np.concatenate(flat)

    made_now = kept(run, made.weights, request, frames, kind)
    shape = (1, 16, count * ((request.segment_frames - 1) // 4 + 1), request.height // 8, request.width // 8)
    size = int(np.prod(shape))
    return made_now[:size].reshape(shape), made_now[size:].reshape(-1, request.height, request.width, 3)


@contextlib.contextmanager
def _collecting(latents: list[np.ndarray]):
    """Append the clean latents [1, C, F, H, W] of each segment to the list when diffusers decodes them."""
    from diffusers.modular_pipelines.wan_animate_2 import denoise

    decode = denoise.decode_vae

    def kept_and_decoded(vae, array):
        latents.append(array.numpy() if array.ndim == 5 else array[None].numpy())
        return decode(vae, array if array.ndim == 5 else array[None])

    denoise.decode_vae = kept_and_decoded
    try:
        yield
    finally:
        denoise.decode_vae = decode


@pytest.mark.parametrize("kind, num_frames", CASES + [pytest.param(*case, marks=pytest.mark.slow) for case in MORE_CASES])
def test_every_segment_equals_diffusers(kind, num_frames, driven):
    made = driven(kind)
    request = made.request(num_frames)
    ours = latents_of(request, made.loaded)
    latents, video = reference(made, kind, request)
    assert ours.shape == latents.shape
    assert np.abs(ours - latents).max() <= LATENT_TOLERANCE
    decoded = video_of(request, made.loaded, ours)
    assert psnr(decoded[:num_frames], video) >= LEAST_PSNR
