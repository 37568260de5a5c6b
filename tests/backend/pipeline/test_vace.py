"""Run a VACE model with the real pipeline and a tiny checkpoint: unchanged areas, stages, warming up, and counts of operations."""

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file

from backend.cli.precompile_run import requests_to_compile
from backend.media.clips import read_part
from backend.media.video import read_frames
from backend.pipeline import generate as pipeline
from backend.pipeline import inputs
from backend.pipeline.load import load
from backend.pipeline.stage_files import EMBEDDINGS, LATENTS, read_conditions
from backend.pipeline.storyboard import generate_video
from backend.pipeline.storyboard_loop import StoryboardFiles
from backend.pipeline.warm_up import calls, warm_up
from backend.schemas.clip import Part
from backend.schemas.events import Compiling, Encoding, Finished, ShotFinished, Step
from backend.schemas.request import GenerationRequest
from tests.clip_files import run_ffmpeg
from tests.parity.tiny_checkpoints import make_checkpoint, make_preset
from tests.parity.tiny_preset import find_also


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The preset and the model; requests find the preset by its name."""
    folder = make_checkpoint("wan2.1-vace", tmp_path_factory.mktemp("vace"))
    preset = make_preset("wan2.1-vace", folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STUDIO_DATA_DIR", str(tmp_path_factory.mktemp("data")))
        find_also(patch, preset)
        yield preset, load(preset, None, lambda event: None)


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("files")
    paths = {name: str(folder / name) for name in ("clip.mp4", "mask.png", "picture.png")}
    run_ffmpeg("-f", "lavfi", "-i", "testsrc2=s=96x96:r=16:d=2,hue=s=0", "-f", "lavfi", "-i", "sine=440:d=2", "-pix_fmt", "yuv420p",
               "-c:v", "libx264", "-crf", "8", "-c:a", "aac", paths["clip.mp4"])  # fmt: skip
    mask = np.zeros((96, 96), np.uint8)
    mask[32:64, 32:64] = 255
    Image.fromarray(mask).save(paths["mask.png"])
    Image.new("RGB", (40, 90), "red").save(paths["picture.png"])
    return paths


def request_of(preset, **changes) -> GenerationRequest:
    settings = {"prompt": "a circle", "seed": 1, "steps": 2, "guidance": (1.0,), "width": 64, "height": 64, "num_frames": 9}
    return GenerationRequest.from_preset(preset, **settings | changes)


def frames_of(folder) -> np.ndarray:
    return np.stack(list(read_frames(folder / "video.mp4"))).astype(float)


def psnr(one: np.ndarray, other: np.ndarray) -> float:
    return float(-10 * np.log10(np.square((one - other) / 255).mean()))


def test_outside_the_mask_the_clip_stays_and_its_sound_too(made, files, tmp_path):
    preset, loaded = made
    request = request_of(preset, video=files["clip.mp4"], mask=files["mask.png"], references=(files["picture.png"],))
    events = list(pipeline.generate(request, loaded, tmp_path / "kept", lambda: False))
    assert isinstance(events[-1], Finished) and events[-1].result.num_frames == 9 and events[-1].result.notes == ()
    assert load_file(tmp_path / "kept" / LATENTS)["latents"].shape == (1, 16, 3, 8, 8)
    own, outside = read_part(request.video, Part.from_request(request)).astype(float), np.ones((64, 64), bool)
    outside[20:44, 20:44] = False
    assert psnr(frames_of(tmp_path / "kept")[:, outside], own[:, outside]) >= 35
    plain = request.with_changes(keeps_pixels=False)
    list(pipeline.generate(plain, loaded, tmp_path / "decoded", lambda: False))
    assert psnr(frames_of(tmp_path / "decoded")[:, outside], own[:, outside]) < 25  # the tiny autoencoder is untrained
    np.testing.assert_array_equal(*(load_file(tmp_path / name / LATENTS)["latents"] for name in ("kept", "decoded")))


def test_a_storyboards_shots_are_shown_the_figures_that_they_name(made, files, tmp_path):
    preset, loaded = made
    rows = [{"prompt": "Anna walks"}, {"prompt": "Anna sits"}]
    figures = [{"name": "Anna", "image": files["picture.png"]}]
    story = request_of(preset, shots=rows, figures=figures, steps=1)
    shots = [
        event.result.request
        for event in generate_video(story, loaded, tmp_path / "a", lambda: False)
        if isinstance(event, ShotFinished)
    ]
    assert [one.references for one in shots] == [(files["picture.png"],)] * 2
    assert [one.extend for one in shots] == [None, "after"], "a shot that continues receives them too"
    other = StoryboardFiles(request_of(preset, shots=rows, steps=1), tmp_path / "a")
    assert StoryboardFiles(story, tmp_path / "a").read_result(0) and other.read_result(0) is None, (
        "without the figure it is another shot"
    )


def test_the_clip_is_decoded_once_for_one_video(made, files, tmp_path, monkeypatch):
    (preset, loaded), parts, read = made, [], inputs.read_part
    monkeypatch.setattr(inputs, "read_part", lambda path, part: parts.append(part) or read(path, part))
    request = request_of(preset, video=files["clip.mp4"], mask=files["mask.png"])
    assert isinstance(list(pipeline.generate(request, loaded, tmp_path, lambda: False))[-1], Finished)
    assert parts == [Part.from_request(request)]


def test_a_stopped_video_keeps_the_clips_pixels_too(made, files, tmp_path):
    preset, loaded = made
    request = request_of(preset, video=files["clip.mp4"], mask=files["mask.png"], steps=4)
    steps = []
    events = pipeline.generate(request, loaded, tmp_path, lambda: len(steps) > 0)
    for event in events:
        steps += [event] if isinstance(event, Step) else []
    own = read_part(request.video, Part.from_request(request)).astype(float)
    assert psnr(frames_of(tmp_path)[:, :16], own[:, :16]) >= 35


def test_warming_up_finds_every_program(made, files, tmp_path):
    preset, loaded = made
    request = request_of(preset, references=(files["picture.png"],) * 2, keyframes=("/k.png",), keyframe_at=(0,), steps=3)
    keys = [call.program.key for call in calls(loaded.model, request)]
    assert (keys.count("image_encode"), keys.count("vae_encode_first"), keys.count("vae_encode_next")) == (2, 2, 4)
    assert (keys.count("denoise_step"), keys.count("vae_decode_first"), keys.count("vae_decode_next")) == (3, 1, 2)
    list(warm_up(loaded.model, request))
    other = request.with_changes(keyframes=(files["picture.png"],), keyframe_at=(8,), control_scale=0.5)
    events = list(pipeline.generate(other, loaded, tmp_path, lambda: False))
    assert not [event for event in events if isinstance(event, Compiling)] and isinstance(events[-1], Finished)


def test_what_was_encoded_holds_for_this_clip_and_these_places(made, files, tmp_path):
    preset, loaded = made
    request = request_of(preset, video=files["clip.mp4"], extend="after", overlap=5, step_cache=0.2)
    events = list(pipeline.generate(request, loaded, tmp_path, lambda: False))
    assert any(isinstance(event, Encoding) for event in events)
    conditions = load_file(tmp_path / EMBEDDINGS)
    assert conditions["control_latents"].shape == (1, 96, 3, 8, 8)
    own = read_part(request.video, Part.from_request(request)).astype(float)
    assert psnr(frames_of(tmp_path)[:5], own) >= 35
    assert read_conditions(tmp_path, request.with_changes(seed=9, control_scale=0.3, keeps_pixels=False)) is not None
    for changes in ({"overlap": 4}, {"extend": "before"}, {"trim": (0.0, 1.0)}, {"fps": 8}, {"margins": (8, 0, 0, 0)}):
        assert read_conditions(tmp_path, request.with_changes(**changes)) is None


def test_precompiling_thinks_of_a_reference(made):
    preset, loaded = made
    plain, *others = requests_to_compile(preset, loaded.model, {})
    (referring,) = (one for one in others if one.references)
    assert (plain.references, len(referring.references), referring.video) == ((), 1, None)
    assert loaded.model.latent_shape(referring)[2] == loaded.model.latent_shape(plain)[2] + 1
