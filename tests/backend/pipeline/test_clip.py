"""Restyle a clip with the real pipeline and the demo model: the unchanged share, audio, stage files, and compiled programs."""

import shutil

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from backend.errors import ClipError
from backend.media.clips import read_clip_facts
from backend.media.video import read_frames, read_request
from backend.pipeline import decoding
from backend.pipeline import generate as pipeline
from backend.pipeline.inputs import open_inputs
from backend.pipeline.stage_files import EMBEDDINGS, LATENTS, STATE, read_conditions
from backend.pipeline.warm_up import calls, warm_up
from backend.runtime import work
from backend.schemas.events import Compiling, Decoding, Encoding, Finished, Step
from backend.schemas.request import GenerationRequest
from presets import load_preset
from tests.backend.pipeline.kills import make_with_copies
from tests.clip_files import run_ffmpeg

PRESET = load_preset("wan-tiny")

pytestmark = [pytest.mark.parity, pytest.mark.demo_model]


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    """A clip of two seconds with audio: a disc that moves right."""
    path = tmp_path_factory.mktemp("clip") / "disc.mp4"
    rows, columns = np.mgrid[:96, :96]
    frames = []
    for index in range(32):
        inside = (rows - 48) ** 2 + (columns - 20 - 2 * index) ** 2 < 14**2
        frames.append(np.where(inside[..., None], (230, 50, 50), (0, 0, 0)).astype(np.uint8))
    raw = ["-f", "rawvideo", "-pixel_format", "rgb24", "-video_size", "96x96", "-framerate", "16", "-i", "-"]
    heard = ["-f", "lavfi", "-i", "sine=440:d=2", "-c:v", "libx264", "-crf", "4", "-pix_fmt", "yuv420p", "-c:a", "aac"]
    run_ffmpeg(*raw, *heard, str(path), given=np.stack(frames).tobytes())
    return path


def make_request(clip, **changes) -> GenerationRequest:
    settings = {"prompt": "a blue circle moving right on a black background", "steps": 6, "seed": 1, "video": str(clip)}
    return GenerationRequest.from_preset(PRESET, **settings | {"trim": (0.25, 1.3125), "strength": 0.5} | changes)


def run(request, loaded, folder):
    return list(pipeline.generate(request, loaded, folder, lambda: False))


def frames_of(folder) -> np.ndarray:
    return np.stack(list(read_frames(folder / "video.mp4"))).astype(float)


def test_the_steps_are_those_that_are_done_and_the_second_run_compiles_nothing(loaded, clip, tmp_path):
    events = run(make_request(clip), loaded, tmp_path / "one")
    assert [type(event) for event in events if not isinstance(event, Compiling)] == [
        Encoding,
        *[Step] * 3,
        *[Decoding] * 5,
        Finished,
    ]
    assert [(event.index, event.total) for event in events if isinstance(event, Step)] == [(1, 3), (2, 3), (3, 3)]
    again = run(make_request(clip, seed=2, strength=1.0), loaded, tmp_path / "two")
    assert not any(isinstance(event, Compiling) for event in again)


def test_warming_up_finds_the_encoders_programs(loaded, clip):
    keys = [call.program.key for call in calls(loaded.model, make_request("/clip.mp4"))]
    assert keys.count("vae_encode_first") == 1 and keys.count("vae_encode_next") == 4 and keys.count("denoise_step") == 3
    plain = GenerationRequest.from_preset(PRESET, prompt="x")
    assert not any(call.program.key.startswith("vae_encode") for call in calls(loaded.model, plain))
    list(warm_up(loaded.model, make_request("/clip.mp4")))
    assert not list(warm_up(loaded.model, make_request("/clip.mp4", strength=0.9)))


def test_the_less_is_regenerated_the_more_stays(loaded, clip, tmp_path):
    whole = np.stack(list(read_frames(clip)))[4:21].astype(float)
    distances = []
    for strength in (0.2, 0.6, 1.0):
        run(make_request(clip, strength=strength, steps=10), loaded, tmp_path / str(strength))
        distances.append(np.abs(frames_of(tmp_path / str(strength)) - whole).mean())
    assert distances[0] < distances[1] < distances[2]
    assert distances[0] < 0.6 * distances[2]  # measured 12.5, 20.6 and 25.3 levels: the prompt asks for another colour


def test_the_sound_and_the_request_come_along(loaded, clip, tmp_path):
    result = run(make_request(clip), loaded, tmp_path)[-1].result
    assert result.notes == () and result.num_frames == 17
    assert read_clip_facts(result.path).has_sound
    shared = read_request(tmp_path / "video.mp4")
    assert (shared.video, shared.trim, shared.strength) == ("disc.mp4", (0.25, 1.3125), 0.5)


def test_a_sound_that_cannot_be_kept_is_said_and_costs_no_video(loaded, clip, tmp_path, monkeypatch):
    def broken(*_):
        raise ClipError("the sound", "is broken", "leave it out")

    monkeypatch.setattr(decoding, "copy_clip_audio", broken)
    result = run(make_request(clip), loaded, tmp_path)[-1].result
    assert result.notes == ("The video has no audio: the sound is broken",)
    assert len(list(read_frames(result.path))) == 17


def test_the_same_request_makes_the_same_pixels(loaded, clip, tmp_path):
    for name in ("one", "two"):
        run(make_request(clip), loaded, tmp_path / name)
    np.testing.assert_array_equal(*(load_file(tmp_path / name / LATENTS)["latents"] for name in ("one", "two")))
    np.testing.assert_array_equal(frames_of(tmp_path / "one"), frames_of(tmp_path / "two"))


def test_a_denoising_that_was_killed_continues_without_its_clip(loaded, clip, tmp_path, at_every_step):
    """The clip's latents are among the files of the first stage."""
    own = shutil.copy(clip, tmp_path / "own.mp4")
    request, whole, killed = make_request(own, steps=10), tmp_path / "whole", tmp_path / "killed"
    make_with_copies(request, loaded, whole, {killed: lambda event: isinstance(event, Step) and event.index == 3})
    assert (killed / STATE).exists() and load_file(killed / EMBEDDINGS)["clip"].shape[2] == 5
    (tmp_path / "own.mp4").unlink()
    events = run(request, loaded, killed)
    steps = [event.index for event in events if isinstance(event, Step)]
    assert steps == list(range(steps[0], 6)) and 0 < steps[0] < 4 and not any(isinstance(event, Encoding) for event in events)
    np.testing.assert_array_equal(*(load_file(folder / LATENTS)["latents"] for folder in (whole, killed)))


def test_what_was_encoded_holds_for_this_part_at_this_rate_and_any_strength(loaded, clip, tmp_path):
    request = make_request(clip)
    run(request, loaded, tmp_path)
    assert read_conditions(tmp_path, request.with_changes(strength=1.0, seed=9)) is not None
    assert read_conditions(tmp_path, request.with_changes(trim=(0.5, 1.5625))) is None
    assert read_conditions(tmp_path, request.with_changes(fps=8, trim=(0.25, 2.375))) is None
    plain = request.with_changes(video=None, strength=None, trim=None)
    assert read_conditions(tmp_path, plain) is None


def test_the_clips_latents_are_those_of_the_whole_clip_at_once(loaded, clip):
    """Encoding one latent frame at a time equals encoding only the first frames: the encoder looks back, never ahead."""
    short, long = make_request(clip), make_request(clip, trim=(0.25, 0.25 + 33 / 32), fps=32, num_frames=33)
    inputs = [open_inputs(request) for request in (short, long)]
    latents = [
        work.run(loaded.model.encode(loaded.weights, request, given)).full["clip"]
        for request, given in zip((short, long), inputs, strict=True)
    ]
    assert [one.shape[2] for one in latents] == [5, 9] and all(isinstance(one, np.ndarray) for one in latents)
    np.testing.assert_allclose(latents[0][:, :, :1], latents[1][:, :, :1], atol=1e-5)
    described = work.describe(loaded.model.encode(_at_rest(loaded), short, inputs[0]))
    assert described.full["clip"].shape == latents[0].shape


def _at_rest(loaded) -> dict:
    return jax.tree.map(lambda leaf: leaf, {network.part: network.program_weights for network in loaded.model.networks})
