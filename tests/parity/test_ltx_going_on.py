"""A video that extends a clip begins with the clip's last frames and their audio, both clean at timestep 0 in every step.

The reference for the frames is diffusers' `LTX2ConditionPipeline`. No pipeline there accepts audio, so its reference is a plain
loop over diffusers' transformer with a timestep for each token. float32, tiny random checkpoints.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers.pipelines.ltx2 import pipeline_ltx2_condition as condition_module
from PIL import Image
from safetensors.numpy import load_file

from backend.media.sound import MODEL_SOUND, Sound, replace_audio
from backend.media.video import write_frames
from backend.models.model import SOUND, VIDEO
from backend.pipeline import generate as pipeline_module
from backend.pipeline.denoising_loop import draw_initial_noise
from backend.pipeline.inputs import open_inputs
from backend.pipeline.storyboard import generate_video
from backend.pipeline.storyboard_loop import StoryboardFiles
from backend.pipeline.warm_up import calls
from backend.schemas.events import Finished
from backend.schemas.request import GenerationRequest
from tests.gradients import without_gradients
from tests.parity.ltx_runs import (  # noqa: F401
    ALL,
    LATENT_TOLERANCE,
    OFF,
    Tiny,
    arguments_of,
    normalised,
    scheduler_of,
    tiny_ltx,
)
from tests.parity.test_ltx_given import begun_scheduler, encoded_sound, encoded_texts, encoded_video, velocities
from tests.parity.tiny_ltx import KINDS, SIDE, condition_pipeline_of

pytestmark = [pytest.mark.parity, pytest.mark.demo_model]

FPS, OVERLAP, RATE = 24, 9, 22_050
HEARD = 9  # whole latents of audio within nine frames: 9 / 24 s at 25 per second are 9.4
SLOW = pytest.mark.slow


@pytest.fixture(scope="module")
def silent(tmp_path_factory) -> Path:
    """A clip of a slope that brightens and moves."""
    path = tmp_path_factory.mktemp("clips") / "silent.mp4"
    rows, columns = np.mgrid[:SIDE, :SIDE]
    frames = (np.stack([2 * rows + 3 * number, columns + 4 * number, 0 * rows + 5 * number], -1) for number in range(25))
    write_frames((frame.clip(0, 255).astype(np.uint8) for frame in frames), path, fps=FPS, comment="")
    return path


@pytest.fixture(scope="module")
def clip(silent, tmp_path_factory) -> Path:
    """The same with a tone that rises on the left and falls on the right."""
    path = tmp_path_factory.mktemp("clips") / "heard.mp4"
    path.write_bytes(silent.read_bytes())
    replace_audio(path, _tone(25 / FPS), (SIDE, SIDE))
    return path


def going_on(made: Tiny, clip: Path, **changes) -> GenerationRequest:
    return made.request(steps=2, num_frames=17, video=str(clip), extend="after", overlap=OVERLAP, **changes)


CASES = [(KINDS[1], ALL), pytest.param(KINDS[0], OFF, marks=SLOW), pytest.param(KINDS[2], ALL, marks=SLOW)]


@pytest.mark.parametrize("kind, changes", CASES)
def test_the_frames_of_a_clip_begin_the_video_as_in_diffusers(tiny_ltx, silent, kind, changes):  # noqa: F811
    made = tiny_ltx(kind)
    request = going_on(made, silent, keeps_sound=False, **changes)
    noise, latents = draw_initial_noise(request, made.loaded.model), _latents(made, request)
    pipeline = condition_pipeline_of(made.parts | {"scheduler": scheduler_of(made, request)})
    frames = [Image.fromarray(frame) for frame in open_inputs(request)["video"][0]]

    def our_noise(shape: tuple[int, ...], **given) -> torch.Tensor:
        stream = SOUND if shape[1] == noise[SOUND].shape[2] else VIDEO
        own = torch.from_numpy(np.array(noise[stream]))
        return own.transpose(1, 2).flatten(2) if stream == SOUND else own.flatten(2).transpose(1, 2)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(condition_module, "randn_tensor", our_noise)
        condition = condition_module.LTX2VideoCondition(frames=frames, index=0, crf=0)
        expected = normalised(made, *pipeline(conditions=[condition], **arguments_of(made, request)))
    for ours, theirs in zip(latents.values(), expected, strict=True):
        assert np.abs(ours - theirs).max() <= LATENT_TOLERANCE


@pytest.mark.parametrize("kind", [KINDS[0], pytest.param(KINDS[1], marks=SLOW), pytest.param(KINDS[2], marks=SLOW)])
def test_the_sound_of_a_clip_begins_that_of_the_video(tiny_ltx, clip, kind):  # noqa: F811
    made = tiny_ltx(kind)
    request = going_on(made, clip, guidance=(2.0,), sound_guidance=3.0)
    inputs, latents = open_inputs(request), _latents(made, request)
    assert inputs["sound"][0].shape == (2, OVERLAP * 16_000 // FPS)
    first = {VIDEO: encoded_video(made, request), SOUND: encoded_sound(made, inputs["sound"][0], HEARD)}
    for name, expected in _reference(made, request, first).items():
        given = first[name].shape[2]
        assert np.abs(latents[name][:, :, :given] - first[name]).max() <= LATENT_TOLERANCE
        assert np.abs(latents[name][:, :, given:] - expected[:, :, given:]).max() <= LATENT_TOLERANCE


def test_a_silent_clip_leaves_the_sound_to_the_model(tiny_ltx, silent, clip):  # noqa: F811
    """The run uses the program that is compiled ahead, before the clip is opened."""
    made = tiny_ltx(KINDS[0])
    heard, unheard = (_latents(made, going_on(made, given)) for given in (clip, silent))
    without = _latents(made, going_on(made, silent, keeps_sound=False))
    assert np.abs(unheard[SOUND] - without[SOUND]).max() <= LATENT_TOLERANCE
    assert np.abs(unheard[VIDEO] - without[VIDEO]).max() <= LATENT_TOLERANCE
    assert np.abs(heard[SOUND] - without[SOUND])[:, :, HEARD:].max() > 10 * LATENT_TOLERANCE
    steps = [one for one in calls(made.loaded.model, going_on(made, silent)) if one.program.key == "denoise_step"]
    assert steps and all(one.program.has_run(*one.arguments) for one in steps)


def test_each_shot_of_a_storyboard_continues_from_the_sound_before_it(tiny_ltx, tmp_path):  # noqa: F811
    made = tiny_ltx(KINDS[0])
    request = made.request(steps=1, num_frames=33, shots=[dict(prompt="a dog barks"), dict(prompt="it runs")])
    *_, last = generate_video(request, made.loaded, tmp_path, lambda: False)
    assert isinstance(last, Finished) and last.result.has_sound and last.result.num_frames == 2 * 33 - OVERLAP
    story = StoryboardFiles(request, tmp_path)
    known, second = _tone(33 / FPS), story.request_for_shot(1)
    known.write(story.shot_folder(0) / MODEL_SOUND)
    story.mark_finished(0, story.read_result(0))
    assert (second.extend, second.overlap) == ("after", OVERLAP)
    heard = Sound(samples=open_inputs(second)["sound"][0], rate=16_000)
    right, wrong = (known.part((33 - count) / FPS, OVERLAP / FPS) for count in (OVERLAP, OVERLAP + 1))
    errors = [np.square(_left(heard) - _left(one)).mean() for one in (right, wrong)]
    assert errors[0] < 0.01 < 0.1 < errors[1]  # for a tone with a mean square of 0.125; AAC loses far less


def _tone(seconds: float) -> Sound:
    """Return a sound whose tone rises on the left and falls on the right."""
    time = np.arange(round(seconds * RATE)) / RATE
    left, right = np.sin(2 * np.pi * (200 + 300 * time) * time), np.sin(2 * np.pi * (900 - 200 * time) * time)
    return Sound(samples=0.5 * np.stack([left, right]).astype(np.float32), rate=RATE)


def _left(sound: Sound) -> np.ndarray:
    """Return the left channel at a thousand times."""
    own = sound.samples[0]
    return np.interp(np.linspace(0, len(own), 1000), np.arange(len(own)), own)


def _latents(made: Tiny, request: GenerationRequest) -> dict[str, np.ndarray]:
    with tempfile.TemporaryDirectory() as folder:
        *_, last = pipeline_module.generate(request, made.loaded, Path(folder), lambda: False)
        assert isinstance(last, Finished) and last.result.has_sound == request.keeps_sound
        latents = load_file(Path(folder) / "stage2_latents.safetensors")
        return {VIDEO: latents["latents"], SOUND: latents["sound.latents"]}


@without_gradients
def _reference(made: Tiny, request: GenerationRequest, first: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the clean, normalised latents of the two streams, from a plain loop with classifier-free guidance."""
    states = {name: torch.from_numpy(np.array(noise)) for name, noise in draw_initial_noise(request, made.loaded.model).items()}
    scales = {VIDEO: request.guidance[0], SOUND: request.sound_guidance}
    texts, scheduler = encoded_texts(made, request), begun_scheduler(made, request)
    for step, sigma in enumerate(scheduler.sigmas[:-1]):
        for name, given in first.items():
            states[name][:, :, : given.shape[2]] = torch.from_numpy(given)
        levels = dict.fromkeys(states, 1000 * sigma[None])
        tokens = {name: _timesteps(states[name], given.shape[2], levels[name]) for name, given in first.items()}
        made_by = [velocities(made, states, levels, text, request, tokens) for text in texts]
        for name, state in states.items():
            own, other = (state - sigma * one[name] for one in made_by)
            guided = own + (scales[name] - 1) * (own - other)
            states[name] = state + (scheduler.sigmas[step + 1] - sigma) * (state - guided) / sigma
    return {name: state.numpy() for name, state in states.items()}


def _timesteps(state: torch.Tensor, given: int, level: torch.Tensor) -> torch.Tensor:
    """Return one timestep for each token, [1, S]: 0 for the tokens of the first `given` latent frames."""
    each = int(np.prod(state.shape[3:])) if state.ndim == 5 else 1
    tokens = torch.arange(state.shape[2] * each)
    return torch.where(tokens < given * each, torch.zeros(1), level)[None]
