"""A storyboard with the demo model: its seams, its shots, stopping, and resuming after a kill. The second shot begins with five
frames of the first, the third shot with one frame of the second.
"""

import shutil

import numpy as np
import pytest
from PIL import Image

from backend.media.sound import read_sound
from backend.media.video import read_frames, read_request
from backend.pipeline.storyboard import generate_video
from backend.schemas.events import Cancelled, Finished, ShotFinished, ShotStarted, Step
from backend.schemas.request import GenerationRequest
from presets import load_preset
from tests.clip_files import run_ffmpeg

pytestmark = [pytest.mark.parity, pytest.mark.demo_model]
ROWS = [
    {"prompt": "a red circle moving right on a black background", "num_frames": 9},
    {"prompt": "a red circle moving down on a black background", "num_frames": 17},
    {"prompt": "a red circle growing on a black background", "num_frames": 9},
]
CODEC = 3.0  # the mean loss of a frame in the mp4, in levels of 0..255


def story(**changes) -> GenerationRequest:
    return GenerationRequest.from_preset(load_preset("wan-tiny"), **{"shots": ROWS, "seed": 1, "steps": 3} | changes)


def frames_of(path) -> np.ndarray:
    return np.stack(list(read_frames(path))).astype(np.int32)


@pytest.fixture(scope="module")
def whole(loaded, tmp_path_factory):
    """The folder of an uninterrupted storyboard, and its events."""
    folder = tmp_path_factory.mktemp("story")
    return folder, list(generate_video(story(), loaded, folder, lambda: False))


def test_no_frame_is_doubled_and_none_is_missing(whole):
    folder, events = whole
    result = events[-1].result
    video, shots = (
        frames_of(folder / "video.mp4"),
        [frames_of(folder / "shots" / str(number) / "video.mp4") for number in (1, 2, 3)],
    )
    assert [len(shot) for shot in shots] == [9, 17, 9] and len(video) == result.num_frames == 9 + 12 + 8
    expected = np.concatenate([shots[0], shots[1][5:], shots[2][1:]])
    assert np.abs(video - expected).mean(axis=(1, 2, 3)).max() <= CODEC
    for number, shot in enumerate(shots[1:], 1):
        last = np.asarray(Image.open(folder / "shots" / str(number) / "last.png").convert("RGB"), np.int32)
        clip = frames_of(folder / "shots" / str(number) / "last.mp4")
        # exactly its last frames, except for the mp4's loss
        assert np.abs(shots[number - 1][-len(clip) :] - clip).mean() <= CODEC
        np.testing.assert_array_equal(clip[-1], last)
        carried = 5 if number == 1 else 1
        # the next shot begins with these frames, which are dropped
        assert np.abs(shot[:carried] - clip[-carried:]).mean() <= 2 * CODEC
    assert read_request(folder / "video.mp4").shots == story().shots


def test_events_say_which_shot_is_made_and_name_files_of_the_folder(whole):
    folder, events = whole
    told = [(event.index, event.total) for event in events if isinstance(event, ShotStarted)]
    made = [event for event in events if isinstance(event, ShotFinished)]
    assert told == [(event.index, event.total) for event in made] == [(1, 3), (2, 3), (3, 3)]
    assert [event.result.request.prompt for event in made] == [row["prompt"] for row in ROWS]
    assert [event.preview.split("/")[:2] for event in events if isinstance(event, Step)][::3] == [
        ["shots", f"{n}"] for n in (1, 2, 3)
    ]
    assert isinstance(events[-1], Finished) and events[-1].result.request == story()
    assert not list(folder.rglob("*.safetensors")) and not list(folder.rglob("*.npy"))


@pytest.mark.parametrize("moment", ["in the second shot", "between two shots"])
def test_a_process_that_continues_after_a_kill_begins_with_the_shot_that_it_had_reached(loaded, whole, tmp_path, moment):
    killed = tmp_path / "killed"
    is_there = {
        "in the second shot": lambda event: isinstance(event, Step) and "shots/2" in event.preview,
        "between two shots": lambda event: isinstance(event, ShotFinished) and event.index == 1,
    }[moment]
    for event in generate_video(story(), loaded, tmp_path / "first", lambda: False):
        if is_there(event):
            shutil.copytree(tmp_path / "first", killed)  # as a kill leaves it
            break
    events = list(generate_video(story(), loaded, killed, lambda: False))
    assert [event.index for event in events if isinstance(event, ShotStarted)] == [2, 3]
    # shot 1 too: its end may be unreported at the kill
    assert [event.index for event in events if isinstance(event, ShotFinished)] == [1, 2, 3]
    np.testing.assert_array_equal(frames_of(killed / "video.mp4"), frames_of(whole[0] / "video.mp4"))


def test_stop_keeps_what_there_is(loaded, tmp_path):
    seen = []
    for event in generate_video(story(), loaded, tmp_path, lambda: any("shots/2" in (one.preview or "") for one in seen)):
        if isinstance(event, Step):
            seen.append(event)
    assert isinstance(event, Cancelled) and event.result.num_frames == 9 + 12 == len(frames_of(tmp_path / "video.mp4"))
    first = list(generate_video(story(), loaded, tmp_path / "none", lambda: True))
    assert first[-1] == Cancelled(None)


def test_another_shot_regenerates_the_shots_after_it(loaded, whole, tmp_path):
    shutil.copytree(whole[0], tmp_path / "again")
    changed = story(shots=[ROWS[0], ROWS[1] | {"seed": 77}, ROWS[2]])
    events = list(generate_video(changed, loaded, tmp_path / "again", lambda: False))
    assert [event.index for event in events if isinstance(event, ShotStarted)] == [2, 3]
    files = [
        [(folder / "shots" / str(n) / "video.mp4").read_bytes() for n in (1, 2, 3)] for folder in (whole[0], tmp_path / "again")
    ]
    assert [before == after for before, after in zip(*files, strict=True)] == [True, False, False]
    assert len(frames_of(tmp_path / "again" / "video.mp4")) == 29


def test_a_film_of_a_made_shot_one_that_continues_from_it_and_one_that_fades_in(loaded, whole, tmp_path):
    folder, _ = whole
    made = {"video": str(folder / "shots" / "2" / "video.mp4"), "num_frames": 17, "trim": (0.25, 0.75)}
    rows = [made, ROWS[2] | {"num_frames": 17}, ROWS[0] | {"cut": True, "fade": 0.125}]
    track = tmp_path / "music.wav"
    run_ffmpeg("-f", "lavfi", "-i", "sine=440:d=1", str(track))
    film = story(shots=rows, track=str(track), track_start=0.5)
    events = list(generate_video(film, loaded, tmp_path / "film", lambda: False))
    assert [event.index for event in events if isinstance(event, ShotFinished)] == [2, 3], "the first is in the library already"
    result, video = events[-1].result, frames_of(tmp_path / "film" / "video.mp4")
    assert len(video) == result.num_frames == 8 + 12 + 9 - 2 and result.has_sound
    source = frames_of(folder / "shots" / "2" / "video.mp4")
    second, third = (frames_of(tmp_path / "film" / "shots" / number / "video.mp4") for number in ("2", "3"))
    assert np.abs(video[:8] - source[4:12]).mean() <= CODEC
    assert np.abs(second[:5] - source[7:12]).mean() <= 2 * CODEC, "it continues from the last shown frames"
    assert np.abs(video[8:18] - second[5:15]).mean() <= CODEC and np.abs(video[20:] - third[2:]).mean() <= CODEC
    assert np.abs(video[18] - (2 * second[15] + third[0]) / 3).mean() <= CODEC
    sound = read_sound(tmp_path / "film" / "video.mp4")
    half = sound.rate // 2
    assert np.abs(sound.samples[:, : half - 2000]).max() < 1e-3 < 0.05 < np.abs(sound.samples[:, half + 2000 : 2 * half]).max()
    again = list(generate_video(film, loaded, tmp_path / "film", lambda: False))
    assert not any(isinstance(event, ShotStarted) for event in again)
