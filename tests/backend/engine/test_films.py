"""The engine itself cuts a storyboard of finished shots: no worker is needed, and the film is in the library."""

import pytest

from backend.engine.job import Selection
from backend.errors import ClipError, RequestError, SoundError
from backend.media.video import read_frames, read_request
from backend.schemas.events import Finished
from backend.schemas.request import GenerationRequest
from presets import load_preset
from tests.clip_files import counting_clip, numbers, run_ffmpeg


@pytest.fixture
def idle(make_engine):
    """An engine without a worker."""
    return make_engine(start_worker=False)


@pytest.fixture
def clip(tmp_path):
    return str(counting_clip(tmp_path / "made.mp4", 20, 16, size=(96, 96)))


def cut(clip: str, **changes) -> GenerationRequest:
    rows = [{"video": clip, "num_frames": 20, "trim": (0.5, 1)}, {"video": clip, "num_frames": 20, "trim": (0, 0.25)}]
    return GenerationRequest.from_preset(load_preset("wan-tiny"), **{"shots": rows, "seed": 1} | changes)


def test_a_film_is_cut_at_once_without_a_worker(idle, clip, tmp_path):
    run_ffmpeg("-f", "lavfi", "-i", "sine=440:d=3", str(tmp_path / "music.wav"))
    job = idle.submit(cut(clip, track=str(tmp_path / "music.wav"), track_volume=0.5), owner="ann")
    [(_, event)] = list(idle.event_log.follow(job.id))
    assert isinstance(event, Finished) and event.result.has_sound and event.result.num_frames == 12
    assert job.state == "finished" and [one.id for one in idle.library.videos(Selection(owner="ann"))] == [job.id]
    assert numbers(list(read_frames(job.folder / "video.mp4"))) == [*range(8, 16), *range(4)]
    assert {path.name for path in job.folder.iterdir()} == {"request.json", "shot_videos-1.mp4", "track.wav", "video.mp4"}
    assert job.request.shot_videos == (str(job.folder / "shot_videos-1.mp4"),), "a copy: the shot may be deleted"
    assert read_request(job.folder / "video.mp4").track == "track.wav"


def test_the_checkpoint_need_not_be_here(idle, clip):
    rows = [{"video": clip, "num_frames": 20, "trim": (0, 0.25)}]
    preset = load_preset("wan2.2-ti2v-5b-720p")
    job = idle.submit(GenerationRequest.from_preset(preset, shots=rows, seed=1), owner="ann")
    assert job.state == "finished" and not idle.has_weights(preset)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"shots": [{"video": "CLIP", "num_frames": 33}]}, ClipError, "shot 1 shows 33 frames, but its video has 20"),
        ({"shots": [{"video": "SOUND", "num_frames": 5}]}, ClipError, "clip 'music.wav' must be a video"),
        ({"track": "CLIP"}, SoundError, "audio 'made.mp4' must have audio, but is a silent video"),
        ({"shots": [{"prompt": "x", "image": "SOUND"}]}, RequestError, "image 'music.wav'"),
    ],
)
def test_a_strangers_file_that_is_none_is_refused_and_leaves_nothing(idle, clip, tmp_path, changes, error, message):
    run_ffmpeg("-f", "lavfi", "-i", "sine=440:d=1", str(tmp_path / "music.wav"))
    places = {"CLIP": clip, "SOUND": str(tmp_path / "music.wav")}
    named = {name: [{key: places.get(word, word) for key, word in row.items()} for row in value] if name == "shots"
             else places[value] for name, value in changes.items()}  # fmt: skip
    with pytest.raises(error) as refusal:
        idle.submit(cut(clip, **named))
    assert message in str(refusal.value) and "\n" not in str(refusal.value)
    assert list((idle.settings.runs_dir).iterdir()) == [] and idle.jobs.list_jobs() == []
