"""Sounds as WAV files and in videos."""

import numpy as np
import pytest

from backend.errors import VideoFileError
from backend.media.sound import FADE_SECONDS, Sound, join_sounds, read_sound, replace_audio, write_sound
from backend.media.video import write_video
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


def test_a_videos_sound_is_written_as_long_as_is_asked_for(video, tmp_path):
    replace_audio(video, noise(1.0), (64, 64))
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


def tone(seconds: float, cycles: float, level: float = 0.5) -> Sound:
    times = np.arange(round(seconds * RATE)) / RATE
    return Sound(samples=np.tile(level * np.sin(2 * np.pi * cycles * times + 1), (2, 1)).astype(np.float32), rate=RATE)


@pytest.mark.parametrize("overlap", [0.0, 1 / 24, 5 / 24, 0.001])
def test_sounds_meet_without_a_click_and_are_as_long_as_they_should_be(overlap):
    shots = [tone(1.0, 200), tone(0.9, 333), tone(1.1, 141)]
    whole = join_sounds(shots, [overlap, overlap]).samples
    assert whole.shape == (2, round((3.0 - 2 * overlap) * RATE))
    steepest = 0.5 * 2 * np.pi * 333 / RATE  # the steepest change of any tone between two samples
    risen = 0.5 * np.pi / 2 / max(1, min(overlap or 1, FADE_SECONDS) * RATE)  # what fading adds
    assert np.abs(np.diff(whole)).max() <= 2 * (steepest + risen)
    assert np.array_equal(whole[:, : round(0.7 * RATE)], shots[0].samples[:, : round(0.7 * RATE)])
    rest = round(0.85 * RATE)  # the part of the last shot after its seam
    assert np.array_equal(whole[:, -rest:], shots[2].samples[:, -rest:])


def test_where_two_sounds_are_heard_they_are_as_loud_as_each():
    rng = np.random.default_rng(0)
    shots = [Sound(samples=rng.normal(0, 0.1, (2, 100_000)).astype(np.float32), rate=100_000) for _ in range(2)]
    seam = join_sounds(shots, [0.05]).samples[:, round((1 - FADE_SECONDS) * 100_000) : 100_000]
    assert seam.std() == pytest.approx(0.1, rel=0.05)  # 4,000 random values


def test_one_sound_alone_stays_as_it_is():
    assert np.array_equal(join_sounds([tone(0.5, 100)], []).samples, tone(0.5, 100).samples)
