"""Check smoothing to a higher rate: the duration, the audio, cuts, and the settings in the file."""

import json
from pathlib import Path

import numpy as np
import pytest

from app import main
from backend.errors import RequestError
from backend.media.clips import read_clip_facts
from backend.media.mp4 import read_comment
from backend.media.smooth import write_smooth
from backend.media.sound import replace_audio
from backend.media.video import read_frames, read_request, write_video
from tests.backend.conftest import request
from tests.wan_ui.services.test_sound import a_tone

SIZE, COUNT, FPS = (128, 96), 16, 16


def moving(number: int) -> np.ndarray:
    """A white square that moves right by four pixels a frame, on noise that stays; from frame 8 on another scene."""
    rng = np.random.default_rng(1 + (number >= 8))
    frame = rng.integers(40, 90, (SIZE[1], SIZE[0], 3)).astype(np.uint8)
    frame = frame if number < 8 else 255 - frame
    frame[40:60, 8 + 4 * number : 28 + 4 * number] = 250 if number < 8 else 0
    return frame


@pytest.fixture
def video(tmp_path) -> Path:
    path = tmp_path / "video.mp4"
    write_video(map(moving, range(COUNT)), path, fps=FPS, request=request(num_frames=17))
    replace_audio(path, a_tone(COUNT / FPS, 440), SIZE)
    return path


def test_it_is_as_long_with_its_sound_and_says_so_beside_its_settings(video, tmp_path):
    made = write_smooth(video, 60, tmp_path / "out.mp4")
    assert made == {"width": 128, "height": 96, "fps": 60, "num_frames": 60}
    facts = read_clip_facts(tmp_path / "out.mp4")
    assert (facts.width, facts.height, facts.nominal_fps, facts.has_sound) == (*SIZE, 60, True)
    assert facts.seconds == pytest.approx(1.0, abs=0.02) and len(list(read_frames(tmp_path / "out.mp4"))) == 60
    assert read_request(tmp_path / "out.mp4") == read_request(video)
    assert json.loads(read_comment(tmp_path / "out.mp4"))["smoothed"] == 60


def test_frames_between_show_the_motion_between_and_a_cut_stays_a_cut(video, tmp_path):
    write_smooth(video, 32, tmp_path / "out.mp4")
    frames = np.stack(list(read_frames(tmp_path / "out.mp4"))).astype(int)
    lefts = [int(np.argmax(frame[50, :, 0] > 170)) for frame in frames[:14]]
    assert lefts == sorted(lefts) and lefts[3] - lefts[2] <= 3, "half a step of four pixels"
    scenes = frames[:, 4:30].mean((1, 2, 3))  # dark before the cut, bright after it
    assert not ((scenes > 90) & (scenes < 160)).any(), "no frame mixes both"


@pytest.mark.parametrize("fps", [16, 8, 121])
def test_a_rate_that_is_no_gain_is_refused(fps, video, tmp_path):
    with pytest.raises(RequestError, match=f"fps={fps} must be above the video's own 16 and at most 120"):
        write_smooth(video, fps, tmp_path / "out.mp4")
    assert not (tmp_path / "out.mp4").exists()


def test_the_command_writes_beside_the_video(video, capsys):
    assert main(["smooth", str(video), "--fps", "24", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["path"].endswith("video-24fps.mp4") and Path(said["path"]).is_file() and said["num_frames"] == 24
    assert main(["smooth", str(video), "--fps", "10"]) == 2 and main(["smooth", "nothing.mp4", "--fps", "30"]) == 2
