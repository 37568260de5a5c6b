"""Tests of who gets the audio of a video as a WAV file, and of the contents of the file."""

import dataclasses
import tempfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from backend.media.sandbox import SandboxPool
from backend.media.sound import MODEL_SOUND, Sound, replace_audio
from backend.media.video import write_video
from tests.wan_ui.builders import FakeEngine, a_job, a_result
from wan_ui.gateway.access import Access
from wan_ui.gateway.visitors import COOKIE, owner_name
from wan_ui.services.sound import sound_route, sound_url

MINE, THEIRS = "A" * 43, "B" * 43
RATE = 24_000


def a_tone(seconds: float, hertz: float) -> Sound:
    tone = np.sin(2 * np.pi * hertz * np.arange(round(seconds * RATE)) / RATE).astype(np.float32)
    return Sound(samples=0.5 * np.stack([tone, tone]), rate=RATE)


@pytest.fixture
def job(tmp_path):
    """Return a job of 17 frames whose video has a tone of 440 Hz."""
    folder = tmp_path / "runs" / "job-1"
    folder.mkdir(parents=True)
    job = a_job(folder, owner=owner_name({COOKIE: MINE}), num_frames=17)
    frames = (np.full((96, 96, 3), level, np.uint8) for level in range(17))
    write_video(frames, folder / "video.mp4", fps=job.request.fps, request=job.request)
    replace_audio(folder / "video.mp4", a_tone(17 / 16, 440), (96, 96))
    return job


@pytest.fixture
def temporary(tmp_path, monkeypatch) -> Path:
    """Return the folder in which temporary files are created."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    return tmp_path / "temporary"


def get(job, result, token=MINE, path=None):
    sandbox, engine = SandboxPool(), FakeEngine([job])
    engine.sandbox, engine.events = sandbox, SimpleNamespace(result=lambda job_id: result)
    site = Starlette(routes=[sound_route(engine, Access("key"))])
    try:
        return TestClient(site, cookies={COOKIE: token} if token else {}).get(path or "/" + sound_url(job))
    finally:
        sandbox.close()


def heard(answer, folder: Path) -> Sound:
    (folder / "fetched.wav").write_bytes(answer.content)
    return Sound.read(folder / "fetched.wav")


def hertz(sound: Sound) -> float:
    return float(np.abs(np.fft.rfft(sound.samples[0])).argmax()) * sound.rate / sound.samples.shape[1]


def test_the_owner_gets_the_videos_sound_as_long_as_the_video_and_no_file_stays(job, temporary, tmp_path):
    before = sorted(job.folder.iterdir())
    answer = get(job, a_result(job, has_sound=True))
    assert (answer.status_code, answer.headers["content-type"]) == (200, "audio/wav")
    assert "private" in answer.headers["cache-control"] and answer.content[:4] == b"RIFF"
    sound = heard(answer, tmp_path)
    assert sound.samples.shape == (2, round(17 / 16 * RATE)) and hertz(sound) == pytest.approx(440, abs=2)
    assert sorted(job.folder.iterdir()) == before and list(temporary.iterdir()) == []


def test_the_models_own_file_is_taken_while_it_is_there_and_cut_to_a_stopped_video(job, tmp_path):
    a_tone(3.0, 880).write(job.folder / MODEL_SOUND)
    answer = get(job, a_result(job, has_sound=True))
    assert heard(answer, tmp_path).samples.shape == (2, round(17 / 16 * RATE))
    assert hertz(heard(answer, tmp_path)) == pytest.approx(880, abs=2)
    other = dataclasses.replace(a_result(job, has_sound=True), request=job.request.with_changes(seed=8))
    assert hertz(heard(get(job, other), tmp_path)) == pytest.approx(440, abs=2), "made from another request"
    (job.folder / MODEL_SOUND).write_bytes(b"RIFF")
    assert hertz(heard(get(job, a_result(job, has_sound=True)), tmp_path)) == pytest.approx(440, abs=2), "cannot be read"


@pytest.mark.parametrize("token", [THEIRS, None, "rubbish"])
def test_nobody_else_gets_it(job, token):
    answer = get(job, a_result(job, has_sound=True), token)
    assert (answer.status_code, answer.text) == (404, "Not found")


def test_a_silent_video_a_missing_one_and_another_path_look_alike(job, tmp_path):
    assert get(job, a_result(job)).status_code == get(job, None).status_code == 404
    for path in ("/studio/sound/nothing.wav", "/studio/sound/..%2Fjob-1.wav", "/studio/sound/%2Fetc%2Fpasswd.wav"):
        assert get(job, a_result(job, has_sound=True), path=path).status_code == 404
    (job.folder / "video.mp4").unlink()
    assert get(job, a_result(job, has_sound=True)).status_code == 404
