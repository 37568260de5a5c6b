"""Exports as webm, gif, webp and PNG frames can be opened by other programs, and stay within their size limits."""

import io
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from app import main
from backend.errors import RequestError, VideoFileError
from backend.media.clips import read_clip_facts
from backend.media.export import ExportLimits, write_export
from backend.media.sound import replace_audio
from backend.media.video import read_frames, write_video
from tests.backend.conftest import request
from tests.wan_ui.services.test_sound import a_tone

SIZE, COUNT, FPS = (96, 64), 17, 16


def moving(number: int) -> np.ndarray:
    """A picture with a white square that moves right."""
    frame = np.full((SIZE[1], SIZE[0], 3), (20, 40, 90), np.uint8)
    frame[20:40, 4 * number : 4 * number + 20] = 250
    return frame


@pytest.fixture
def video(tmp_path) -> Path:
    path = tmp_path / "video.mp4"
    write_video(map(moving, range(COUNT)), path, fps=FPS, request=request(num_frames=COUNT))
    return path


@pytest.mark.parametrize("form", ["gif", "webp"])
def test_an_animation_has_the_frames_the_time_and_the_pictures_of_the_video(form, video, tmp_path):
    path = tmp_path / f"out.{form}"
    made = write_export(video, form, path)
    assert made == {"format": form, "width": 96, "height": 64, "num_bytes": path.stat().st_size}
    with Image.open(path) as opened:
        assert opened.size == SIZE and opened.n_frames == COUNT and opened.info.get("loop") == 0
        spent = []
        for number in range(COUNT):
            opened.seek(number)
            opened.load()
            spent.append(opened.info["duration"])
            shown = np.asarray(opened.convert("RGB")).astype(int)
            assert np.abs(shown - moving(number)).mean() < 12
    assert sum(spent) == pytest.approx(1000 * COUNT / FPS, abs=30)


def test_a_webm_has_the_sound_too(video, tmp_path):
    replace_audio(video, a_tone(COUNT / FPS, 440), SIZE)
    write_export(video, "webm", tmp_path / "out.webm")
    facts = read_clip_facts(tmp_path / "out.webm")
    assert (facts.width, facts.height, facts.has_sound) == (*SIZE, True) and facts.seconds == pytest.approx(COUNT / FPS, abs=0.1)
    frames = list(read_frames(tmp_path / "out.webm"))
    assert len(frames) == COUNT and np.abs(frames[9].astype(int) - moving(9)).mean() < 6
    assert (tmp_path / "out.webm").read_bytes()[:4] == b"\x1aE\xdf\xa3"


def test_frames_are_the_videos_own_to_the_last_bit(video, tmp_path):
    write_export(video, "png", tmp_path / "out.zip")
    with zipfile.ZipFile(tmp_path / "out.zip") as archive:
        assert archive.testzip() is None
        assert archive.namelist() == [f"frame-{number:04d}.png" for number in range(1, COUNT + 1)]
        pictures = [np.asarray(Image.open(io.BytesIO(archive.read(name)))) for name in archive.namelist()]
    np.testing.assert_array_equal(pictures, list(read_frames(video)))


@pytest.mark.parametrize("form", ["gif", "webp"])
def test_one_that_is_too_large_becomes_smaller_pictures_of_the_same_shape_and_length(form, tmp_path):
    video, path, rng = tmp_path / "video.mp4", tmp_path / f"out.{form}", np.random.default_rng(1)
    noise = (rng.integers(0, 255, (SIZE[1], SIZE[0], 3), np.uint8) for _ in range(COUNT))
    write_video(noise, video, fps=FPS, request=request(num_frames=COUNT))
    whole = write_export(video, form, path)["num_bytes"]
    made = write_export(video, form, path, ExportLimits(max_bytes=int(0.8 * whole)))
    assert path.stat().st_size == made["num_bytes"] <= 0.8 * whole and made["width"] < 96
    assert made["width"] / made["height"] == pytest.approx(1.5, abs=0.03)
    with Image.open(path) as opened:
        assert opened.n_frames == COUNT and opened.size == (made["width"], made["height"])


def test_one_that_fits_in_no_size_is_refused_and_leaves_no_file(video, tmp_path):
    with pytest.raises(RequestError, match="does not fit in 0.001 MB, even at 48x32 pixels; allow more, or choose webm"):
        write_export(video, "gif", tmp_path / "out.gif", ExportLimits(max_bytes=1000))
    assert not (tmp_path / "out.gif").exists()


def test_a_file_that_is_no_video_is_refused(tmp_path):
    (tmp_path / "video.mp4").write_bytes(b"nothing")
    with pytest.raises(VideoFileError):
        write_export(tmp_path / "video.mp4", "gif", tmp_path / "out.gif")
    assert [path.name for path in tmp_path.iterdir()] == ["video.mp4"]


def test_the_command_says_what_it_wrote(video, tmp_path, capsys):
    assert main(["export", str(video), "--format", "webp", "--output", str(tmp_path / "a.webp"), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said == {"path": str(tmp_path / "a.webp"), "format": "webp", "width": 96, "height": 64,
                    "num_bytes": (tmp_path / "a.webp").stat().st_size}  # fmt: skip
    assert main(["export", str(video), "--format", "png"]) == 0 and (tmp_path / "video.zip").is_file()


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["nothing.mp4", "--format", "gif"], 2, "must be an existing video"),
        (
            ["VIDEO", "--format", "png", "--max-mb", "3"],
            2,
            "--max-mb was given for png, but it limits only gif and webp; leave it out",
        ),
        (["VIDEO", "--format", "gif", "--output", "VIDEO"], 2, "must be another file"),
        (["VIDEO", "--format", "gif", "--output", "/no/such/folder/a.gif"], 2, "in an existing folder"),
        (["VIDEO", "--format", "avi"], 2, "invalid choice"),
    ],
)
def test_a_wrong_command_is_refused_in_one_sentence(words, code, said, video, capsys):
    try:
        found = main(["export", *(str(video) if word == "VIDEO" else word for word in words)])
    except SystemExit as end:
        found = end.code
    assert found == code and said in capsys.readouterr().err
