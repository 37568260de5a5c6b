"""Generate videos from a driving video with the real pipeline and the demo model: audio, length, resume, stages, any kind of
clip.
"""

import shutil
from functools import partial

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file

from backend.engine.folder import open_inputs
from backend.errors import ClipError
from backend.media.clips import read_clip_facts
from backend.media.driving_video import settings_from_files, split_into_segments
from backend.media.source import original_frames
from backend.media.video import read_frames
from backend.pipeline import generate as pipeline
from backend.pipeline.decoding import count_stage_flops
from backend.pipeline.load import load
from backend.pipeline.stage_files import EMBEDDINGS, FRAMES, LATENTS, STATE, read_conditions
from backend.pipeline.storyboard import generate_video
from backend.pipeline.warm_up import calls
from backend.schemas.events import Cancelled, Decoding, Finished, Step
from backend.schemas.request import GenerationRequest
from presets import load_preset
from tests.backend.pipeline.kills import assert_same_video, keep_every_state, make_with_copies
from tests.clip_files import counting_clip, marked_clip, turned

PRESET = load_preset("wan-tiny-animate")
SEGMENT, STEPS = PRESET.segment_frames, 3

pytestmark = [pytest.mark.demo_model]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STUDIO_DATA_DIR", str(tmp_path_factory.mktemp("data")))
        yield load(PRESET, None, lambda event: None)


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("files")
    picture = np.zeros((96, 96, 3), np.uint8)
    picture[30:60, 20:50] = (230, 40, 40)
    Image.fromarray(picture).save(folder / "figure.png")
    counting_clip(folder / "clip.mp4", 54, 16, (96, 96), sound=True)
    return {"image": str(folder / "figure.png"), "drive": str(folder / "clip.mp4")}


def a_request(files, **changes) -> GenerationRequest:
    return GenerationRequest.from_preset(PRESET, **{**files, "steps": STEPS, "seed": 1, "num_frames": 40, **changes})


def events_of(request, loaded, folder):
    return pipeline.generate(request, loaded, folder, lambda: False)


KILLED_STEPS = (2, STEPS + 1, 2 * STEPS)
KILLED_FRAMES = (13, 17, 29)


@pytest.fixture(scope="module")
def whole(loaded, files, tmp_path_factory):
    """Return the events and the folder of a finished video of three segments. Next to the folder are copies as kills would have
    left it.
    """
    place = tmp_path_factory.mktemp("whole")
    copies = {place / f"step {step}": partial(is_step, step) for step in KILLED_STEPS}
    copies |= {place / f"frame {frame}": partial(is_frame, frame) for frame in KILLED_FRAMES}
    with pytest.MonkeyPatch.context() as patch:
        keep_every_state(patch)
        return make_with_copies(a_request(files), loaded, place / "video", copies), place / "video"


def is_step(number: int, event) -> bool:
    return isinstance(event, Step) and event.index == number


def is_frame(number: int, event) -> bool:
    return isinstance(event, Decoding) and event.frame == number


def test_a_video_is_as_long_as_asked_and_has_the_clips_sound(whole):
    events, folder = whole
    result = events[-1].result
    assert isinstance(events[-1], Finished) and (result.num_frames, result.has_sound, result.notes) == (40, True, ())
    assert [event.index for event in events if isinstance(event, Step)] == list(range(1, 3 * STEPS + 1))
    facts = read_clip_facts(folder / "video.mp4")
    assert facts.has_sound and facts.seconds == pytest.approx(40 / 16, abs=0.1)
    assert load_file(folder / LATENTS)["latents"].shape[2] == 3 * ((SEGMENT - 1) // 4 + 1)  # without the pictures' latents


def test_a_video_of_one_segment_begins_a_longer_one(loaded, files, whole, tmp_path):
    list(events_of(a_request(files, num_frames=SEGMENT), loaded, tmp_path))
    short, long = (load_file(folder / LATENTS)["latents"] for folder in (tmp_path, whole[1]))
    np.testing.assert_array_equal(long[:, :, : short.shape[2]], short)


@pytest.mark.parametrize("step", KILLED_STEPS)
def test_a_kill_within_a_segment_or_between_two_costs_a_step(loaded, files, whole, tmp_path, at_every_step, step):
    killed = shutil.copytree(whole[1].parent / f"step {step}", tmp_path / "killed")
    assert (killed / STATE).exists() and not (killed / LATENTS).exists()
    steps = [event.index for event in events_of(a_request(files), loaded, killed) if isinstance(event, Step)]
    assert steps[-1] == 3 * STEPS and step - 1 <= steps[0] <= step + 1
    assert_same_video(whole[1], killed)


@pytest.mark.parametrize("frame", KILLED_FRAMES)
def test_a_decoding_that_was_killed_continues_at_its_frame(loaded, files, whole, tmp_path, at_every_step, frame):
    killed = shutil.copytree(whole[1].parent / f"frame {frame}", tmp_path / "killed")
    assert (killed / FRAMES).exists()
    assert isinstance(list(events_of(a_request(files), loaded, killed))[-1], Finished)
    assert_same_video(whole[1], killed)


def test_stop_leaves_what_is_there(loaded, files, tmp_path):
    steps = []
    for event in pipeline.generate(a_request(files), loaded, tmp_path, lambda: len(steps) > STEPS + 1):
        steps.extend([event.index] if isinstance(event, Step) else [])
        last = event
    assert isinstance(last, Cancelled) and last.result.num_frames == 2 * SEGMENT - 1


def test_the_work_that_is_compiled_ahead_is_the_work_that_runs(loaded, files):
    names = [call.program.key for call in calls(loaded.model, a_request(files))]
    counted = {name: names.count(name) for name in names}
    assert counted["clip_keys"] == 3 and counted["denoise_step"] == 3 * STEPS and counted["last_frame"] == 2
    flops, short = (count_stage_flops(loaded, a_request(files, num_frames=frames)) for frames in (40, SEGMENT))
    assert flops["denoise"] == 3 * short["denoise"] and flops["decode"] == 5 * short["decode"]  # two frames are decoded twice


def test_conditions_are_those_of_the_stage_file(loaded, files, whole):
    conditions = read_conditions(whole[1], a_request(files)).select(0).full
    assert (whole[1] / EMBEDDINGS).exists() and conditions["drive"].shape[2] == 15 and conditions["picture"].shape[2] == 1


def test_the_clip_is_seen_whole_upright_and_at_the_videos_rate(files, tmp_path):
    wide = marked_clip(tmp_path / "wide.mp4", (320, 180), 30, 15)
    for clip, rows in ((wide, slice(0, 21)), (turned(tmp_path / "turned.mp4", wide, 90), None)):
        frame = next(original_frames(a_request(files, drive=str(clip), num_frames=17)))
        assert frame.shape == (96, 96, 3)
        bar = frame[rows] if rows else frame[:, :20]
        assert bar.max() < 40 and frame[48, 48].max() > 100  # black bars around the clip


def test_a_clip_that_is_too_short_is_said_to_be(loaded, files, tmp_path):
    clip = counting_clip(tmp_path / "short.mp4", 10, 16, (96, 96))
    with pytest.raises(ClipError, match="must be within the 0.6"):
        list(events_of(a_request(files, drive=str(clip)), loaded, tmp_path / "run"))


def test_shots_are_driven_by_clips_of_their_own(loaded, files, tmp_path):
    longer = counting_clip(tmp_path / "longer.mp4", 40, 16, (96, 96))
    rows = [{"drive": files["drive"], "num_frames": 20}, {"drive": str(longer), "prompt": "x", "num_frames": 9, "cut": True}]
    story = GenerationRequest.from_preset(PRESET, image=files["image"], shots=rows, steps=2, seed=1, num_frames=9)
    folder = tmp_path / "story"
    events = list(generate_video(story, loaded, folder, lambda: False))
    assert isinstance(events[-1], Finished) and events[-1].result.num_frames == 29
    assert events[-1].result.has_sound, "that of the first shot's clip"
    alone = a_request(files, steps=2, num_frames=20, trim=(0, 20 / 16))
    list(events_of(alone, loaded, tmp_path / "alone"))
    first, second = (list(read_frames(folder / "shots" / number / "video.mp4")) for number in ("1", "2"))
    np.testing.assert_array_equal(first, list(read_frames(tmp_path / "alone" / "video.mp4")))
    assert len(second) == 9

    rows[1]["num_frames"] = 50
    with pytest.raises(ClipError, match="must be within the 2.50 s"):
        open_inputs(GenerationRequest.from_preset(PRESET, image=files["image"], shots=rows))


def test_what_a_request_leaves_open_comes_from_its_files(files, tmp_path):
    Image.new("RGB", (30, 60)).save(tmp_path / "tall.png")
    given = {"drive": files["drive"], "image": str(tmp_path / "tall.png")}
    assert settings_from_files(PRESET, given) == {"num_frames": 54, "width": 96, "height": 128}
    assert settings_from_files(PRESET, given | {"trim": (0, 1), "width": 96}) == {}
    assert settings_from_files(load_preset("wan-tiny"), given) == {}


@pytest.mark.parametrize(
    "repeats, count, expected",
    [
        (True, 2, [[0, 1, 2, 3, 4], [4, 5, 6, 6, 5]]),
        (False, 2, [[0, 1, 2, 3, 4], [4, 5, 6, 5, 4]]),
        (False, 3, [[0, 1, 2, 3, 4], [4, 5, 6, 5, 4], [4, 3, 2, 3, 4]]),
    ],
)
def test_after_the_end_the_frames_go_back(repeats, count, expected):
    frames = (np.array(number) for number in range(7))
    assert [segment.tolist() for segment in split_into_segments(frames, count, 5, repeats)] == expected


def test_a_single_frame_fills_a_segment():
    assert next(split_into_segments(iter([np.array(3)]), 1, 4, False)).tolist() == [3, 3, 3, 3]
