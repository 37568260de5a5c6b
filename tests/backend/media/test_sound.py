"""Sounds as WAV files and in videos."""

import numpy as np
import pytest

from backend.errors import VideoFileError
from backend.media.sound import MODEL_SOUND, Sound, put_sound, read_sound, write_sound
from backend.media.video import write_video
from backend.pipeline.stage_files import SOUND
from tests.backend.conftest import request

RATE = 8000


@pytest.fixture
def video(tmp_path):
    """A second without sound."""
    path = tmp_path / "video.mp4"
    write_video((np.full((64, 64, 3), level, np.uint8) for level in range(16)), path, fps=16, request=request())
    return path


def noise(seconds: float) -> Sound:
    samples = np.random.default_rng(1).uniform(-0.5, 0.5, (2, round(seconds * RATE)))
    return Sound(samples=samples.astype(np.float32), rate=RATE)


def test_the_models_own_file_has_the_name_that_the_pipeline_gives_it():
    assert MODEL_SOUND == SOUND


def test_a_videos_sound_is_written_as_long_as_is_asked_for(video, tmp_path):
    put_sound(video, noise(1.0), (64, 64))
    out = tmp_path / "out" / "sound.wav"
    out.parent.mkdir()
    for seconds in (1.0, 0.5, 1.25):
        write_sound(video, seconds, None, out)
        assert Sound.read(out).samples.shape == (2, round(seconds * RATE))
    assert [path.name for path in out.parent.iterdir()] == ["sound.wav"]
    np.testing.assert_allclose(Sound.read(out).samples[:, :RATE], read_sound(video).samples[:, :RATE], atol=1 / 32767)


def test_the_models_own_file_comes_before_the_videos(video, tmp_path):
    noise(1.5).write(tmp_path / "exact.wav")
    write_sound(video, 1.0, tmp_path / "exact.wav", tmp_path / "out.wav")
    np.testing.assert_allclose(Sound.read(tmp_path / "out.wav").samples, noise(1.5).samples[:, :RATE], atol=1 / 32767)


def test_a_silent_video_has_none(video, tmp_path):
    with pytest.raises(VideoFileError, match="the sound could not be read"):
        write_sound(video, 1.0, tmp_path / "nothing.wav", tmp_path / "out.wav")
