"""Tests of a storyboard's files: finished shots of jobs that the visitor may see, uploaded images and audio, nothing else."""

import os
import shutil

import pytest
from gradio.utils import get_upload_folder

from backend.engine.engine import Engine
from backend.engine.storyboards import add_finished_job, add_shot, shot_id, split_shot_id
from backend.errors import ClipError, ImageError, RequestError, SoundError, StudioError
from backend.schemas.events import Finished, ShotFinished, VideoResult
from backend.schemas.request import GenerationRequest
from presets import load_preset
from tests.clip_files import counting_clip
from wan_ui.i18n.english import ENGLISH
from wan_ui.services.caller import Caller
from wan_ui.services.shots import resolve_shot_files


def caller(owner: str, is_operator: bool = False) -> Caller:
    return Caller(owner=owner, scope=None if is_operator else owner, is_operator=is_operator, texts=ENGLISH, queue_limits=None)


def asked(*rows, **changes) -> GenerationRequest:
    shots = [{"prompt": "x"} | row for row in rows]
    return GenerationRequest.from_preset(load_preset("wan-tiny"), shots=shots, **{"seed": 1, "num_frames": 17} | changes)


def driven(path) -> GenerationRequest:
    """Return a storyboard of one shot whose driving video is `path`."""
    preset = load_preset("wan-tiny-animate")
    return GenerationRequest.from_preset(preset, image="/a.png", shots=[{"drive": path}], seed=1)


def result(request: GenerationRequest, path) -> VideoResult:
    facts = {"fps": 16, "num_frames": 17, "width": 96, "height": 96, "seconds": {}, "versions": {}}
    return VideoResult(path=str(path), request=request, **facts)


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    """Return an engine whose library has a storyboard of two shots, owned by ann."""
    engine = Engine(tmp_path_factory.mktemp("data"), start_worker=False)
    story = asked({}, {})
    folder = engine.settings.runs_dir / "story"
    folder.mkdir()
    clip = counting_clip(folder / "video.mp4", 17, 16, size=(96, 96))
    add_finished_job(engine._store, "ann", Finished(result(story, clip)), "test")
    for number in (1, 2):
        made = result(asked({}).with_changes(shots=(), prompt="x"), clip)
        add_shot(engine._store, engine.settings.runs_dir, engine.jobs.find("story"), ShotFinished(number, 2, made), "test")
    yield engine
    engine.close()


def test_a_made_shot_is_named_by_its_job_and_has_its_length_and_no_frame_twice(engine):
    wanted = asked({"job": shot_id("story", 1)}, {"job": shot_id("story", 2)}, {"job": "story", "trim": (0, 0.5)})
    own = resolve_shot_files(wanted, engine, caller("ann"))
    folders = [engine.settings.runs_dir / name for name in (shot_id("story", 1), shot_id("story", 2), "story")]
    assert own.shot_videos == tuple(str(folder / "video.mp4") for folder in folders)
    assert [(one.num_frames, one.trim) for one in own.shots] == [(17, None), (17, (5 / 16, 17 / 16)), (17, (0, 0.5))]
    assert resolve_shot_files(own, engine, caller("ann")) == own, "a job that is made again names its own files"
    assert resolve_shot_files(wanted, engine, caller("operator", is_operator=True)) == own
    assert split_shot_id(shot_id("story", 12)) == ("story", 12) and split_shot_id("story") == ("story", 0)


@pytest.mark.parametrize("job", [shot_id("story", 1), "none", "../story", "", "x" * 5000, "story\0"])
def test_nobody_elses_shot_and_nothing_that_is_no_job_is_taken(engine, job):
    with pytest.raises(RequestError) as refusal:
        resolve_shot_files(asked({"job": job}), engine, caller("bob"))
    assert str(refusal.value).endswith("of a shot must be one of your videos; check its id")


@pytest.mark.parametrize("path", ["/etc/hostname", "OTHERS", "RUNS/../jobs.sqlite3", "/", "/" + "x" * 5000, "/a\0b"])
def test_no_other_file_of_this_machine_is_taken(engine, path):
    runs = engine.settings.runs_dir
    path = path.replace("OTHERS", str(runs / "story" / "video.mp4")).replace("RUNS", str(runs))
    for error, wanted in (
        (ClipError, asked({"video": path})),
        (ClipError, driven(path)),
        (ImageError, asked({"image": path})),
        (SoundError, asked({}, track=path)),
    ):
        with pytest.raises(error) as refusal:
            resolve_shot_files(wanted, engine, caller("bob"))
        assert "must be an uploaded file" in str(refusal.value) and path not in str(refusal.value)


def test_an_upload_is_taken_and_checked_when_it_is_queued(engine, tmp_path):
    folder = os.path.join(get_upload_folder(), "a" * 8)
    os.makedirs(folder, exist_ok=True)
    try:
        path = shutil.copy(__file__, os.path.join(folder, "music.wav"))
        wanted = asked({}, track=path)
        assert resolve_shot_files(wanted, engine, caller("bob")).track == os.path.realpath(path)
        with pytest.raises(
            StudioError, match=r"audio 'music.wav' must be an audio file \(wav, mp3, m4a, ogg, flac, or a video with"
        ):
            engine.submit(wanted, owner="bob")
    finally:
        shutil.rmtree(folder)
