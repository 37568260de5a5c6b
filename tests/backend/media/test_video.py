"""Video files are complete, exact and contain their request, or are not written."""

import contextlib
import json
import struct
import subprocess
from pathlib import Path
from types import SimpleNamespace

import imageio_ffmpeg
import numpy
import pytest
from PIL import Image

from backend.errors import NoRequestInVideo, VideoFileError
from backend.files import is_disk_full
from backend.media import mp4 as mp4_boxes
from backend.media import video as video_file
from backend.media.clips import read_part
from backend.media.image_inputs import write_frame
from backend.media.video import (
    extract_frame,
    read_facts,
    read_frames,
    read_request,
    write_exact_frames,
    write_frames,
    write_video,
)
from backend.schemas.clip import Part
from backend.schemas.request import GenerationRequest
from presets import load_preset

REQUEST = GenerationRequest.from_preset(load_preset("wan-tiny"), prompt="a red circle", seed=1)


def moving(width: int = 64, height: int = 48, num_frames: int = 9):
    """Yield frames of a bright bar that moves over a smooth background, uint8."""
    ground = numpy.linspace(20, 120, width * height).reshape(height, width, 1)
    for index in range(num_frames):
        frame = numpy.broadcast_to(ground, (height, width, 3)).astype(numpy.uint8)
        frame[:, index * width // num_frames :][:, :4] = (220, 60, 30)
        yield frame


def top_level_boxes(path) -> list[bytes]:
    with path.open("rb") as file:
        return [box.kind for box in mp4_boxes._read_boxes(file, 0, path.stat().st_size)]


@pytest.mark.parametrize("fps", [1, 8, 16, 24, 30, 60])
def test_facts_are_exact(tmp_path, fps):
    path = tmp_path / "v.mp4"
    assert write_video(moving(num_frames=33), path, fps=fps, request=REQUEST) == 33
    facts = read_facts(path)
    assert (facts.width, facts.height, facts.fps) == (64, 48, fps)
    assert (facts.codec, facts.pixel_format) == ("h264", "yuv420p")
    assert facts.seconds == pytest.approx(33 / fps, abs=0.02)
    assert len(list(read_frames(path))) == 33


@pytest.mark.parametrize(("width", "height"), [(128, 128), (127, 128), (128, 97), (127, 97), (90, 50), (17, 33), (2, 2), (1, 1)])
def test_any_size_keeps_its_size(tmp_path, width, height):
    path = tmp_path / "v.mp4"
    write_video(moving(width, height), path, fps=16, request=REQUEST)
    assert (read_facts(path).width, read_facts(path).height) == (width, height)
    assert [frame.shape for frame in read_frames(path)] == [(height, width, 3)] * 9


def test_the_pixels_are_close(tmp_path):
    path = tmp_path / "v.mp4"
    still = list(moving(127, 95, 1)) * 5  # the bar is at the left: no chroma edge elsewhere
    write_video(still, path, fps=16, request=REQUEST)
    for got in read_frames(path):
        error = numpy.abs(got[:, 8:].astype(int) - still[0][:, 8:].astype(int))
        assert error.mean() < 1.5 and error.max() < 16  # 8-bit yuv and crf 16: about 1 level; seen: 0.7 and 6


@pytest.mark.parametrize(("width", "height"), [(64, 48), (37, 29)])
def test_exact_frames_come_back_to_the_bit(tmp_path, width, height):
    frames = numpy.random.default_rng(3).integers(0, 256, (7, height, width, 3), numpy.uint8)
    write_exact_frames(frames, tmp_path / "exact.mp4", fps=12)
    numpy.testing.assert_array_equal(numpy.stack(list(read_frames(tmp_path / "exact.mp4"))), frames)
    part = Part(start=None, num_frames=5, fps=12, size=(width, height))
    numpy.testing.assert_array_equal(read_part(tmp_path / "exact.mp4", part), frames[2:])


def test_the_index_comes_first(tmp_path):
    path = tmp_path / "v.mp4"
    write_video(moving(), path, fps=16, request=REQUEST)
    kinds = top_level_boxes(path)
    assert kinds[0] == b"ftyp" and kinds.index(b"moov") < kinds.index(b"mdat")


@pytest.mark.parametrize(
    "prompt",
    [
        'a "red" circle',
        "it's = ; # \\ %d $HOME",
        "line\nbreak\tand\r\n",
        "圆 \U0001f534 é \u202e",
        "x" * 4096,
        "\U0001f534" * 4096,
    ],
)
def test_the_request_survives(tmp_path, prompt):
    path = tmp_path / "v.mp4"
    request = REQUEST.with_changes(prompt=prompt, negative_prompt=load_preset("wan2.1-t2v-14b-480p").negative_prompt)
    write_video(moving(), path, fps=16, request=request)
    assert read_request(path) == request


def test_folders_do_not_travel_with_the_video(tmp_path):
    path = tmp_path / "v.mp4"
    write_video(moving(), path, fps=16, request=REQUEST.with_changes(task="i2v", image="/home/somebody/cat.png"))
    assert read_request(path).image == "cat.png"
    assert b"somebody" not in path.read_bytes()


def foreign_video(path, *options: str) -> None:
    subprocess.run(
        [
            imageio_ffmpeg.get_ffmpeg_exe(),
            "-loglevel",
            "error",
            "-f",
            "lavfi",
            "-i",
            "testsrc=d=0.2:s=32x32",
            *options,
            str(path),
        ],
        check=True,
    )


def test_the_request_survives_in_a_copy_with_tags_of_any_name(tmp_path):
    """ComfyUI copies videos in this way, and adds its workflow."""
    write_video(moving(), tmp_path / "v.mp4", fps=16, request=REQUEST)
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-loglevel", "error", "-i", str(tmp_path / "v.mp4"), "-c", "copy"]
    for index, tags in enumerate((["-metadata", "comments=none", "-metadata", "workflow={}"], ["-metadata", "comment="])):
        subprocess.run([*command, *tags, "-movflags", "use_metadata_tags", str(tmp_path / f"copy{index}.mp4")], check=True)
    assert read_request(tmp_path / "copy0.mp4") == REQUEST
    with pytest.raises(NoRequestInVideo):
        read_request(tmp_path / "copy1.mp4")


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("-metadata", "comment=hello"),
        ("-metadata", 'comment={"request": {"a": 1}}'),
        ("-metadata", "comment=[]"),
        ("-metadata", "title=x"),
    ],
)
def test_somebody_elses_video_is_told_apart(tmp_path, options):
    foreign_video(tmp_path / "v.mp4", *options)
    with pytest.raises(NoRequestInVideo, match="'v.mp4' contains no request"):
        read_request(tmp_path / "v.mp4")


@pytest.mark.parametrize("content", [b"", b"words", b"\x89PNG\r\n\x1a\n", struct.pack(">I4s", 8, b"moov")])
def test_what_is_no_video_is_told_apart(tmp_path, content):
    (tmp_path / "v.mp4").write_bytes(content)
    with pytest.raises(VideoFileError, match="'v.mp4' must be an mp4 video"):
        read_request(tmp_path / "v.mp4")
    with pytest.raises(VideoFileError, match="must be a video that can be played"):
        read_facts(tmp_path / "v.mp4")
    with pytest.raises(VideoFileError):
        read_request(tmp_path / "none.mp4")


def test_a_cut_or_spoilt_file_never_crashes_the_reader(tmp_path):
    whole = tmp_path / "v.mp4"
    write_video(moving(), whole, fps=16, request=REQUEST)
    data, random = whole.read_bytes(), numpy.random.default_rng(0)
    for _ in range(60):
        spoilt = bytearray(data[: random.integers(8, len(data))])
        for place in random.integers(8, len(spoilt), 20):
            spoilt[place] = random.integers(0, 256)
        (tmp_path / "s.mp4").write_bytes(spoilt)
        try:
            read_request(tmp_path / "s.mp4")
        except VideoFileError:
            pass


def test_frames_are_taken_one_at_a_time(tmp_path):
    alive = []

    def counted():
        for frame in moving(num_frames=50):
            alive.append(1)
            yield frame
            alive.pop()

    write_video(counted(), tmp_path / "v.mp4", fps=16, request=REQUEST)
    assert alive == []


def test_a_failure_leaves_nothing(tmp_path):
    def broken():
        yield from moving(num_frames=3)
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        write_video(broken(), tmp_path / "v.mp4", fps=16, request=REQUEST)
    assert list(tmp_path.iterdir()) == []


def test_a_failure_keeps_the_video_that_was_there(tmp_path):
    path = tmp_path / "v.mp4"
    write_video(moving(), path, fps=16, request=REQUEST)
    before = path.read_bytes()
    with pytest.raises(VideoFileError, match="a frame is float64"):
        write_video([*moving(num_frames=2), numpy.zeros((48, 64, 3))], path, fps=16, request=REQUEST)
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def test_a_folder_that_is_not_there_is_an_explained_failure(tmp_path):
    with pytest.raises(VideoFileError, match="could not be encoded: .*No such file"):
        write_video(moving(), tmp_path / "no" / "v.mp4", fps=16, request=REQUEST)


def test_frames_must_agree(tmp_path):
    with pytest.raises(VideoFileError, match="like the first"):
        write_video([*moving(64, 48, 1), *moving(32, 48, 1)], tmp_path / "v.mp4", fps=16, request=REQUEST)
    with pytest.raises(VideoFileError, match="has no frame"):
        write_video([], tmp_path / "v.mp4", fps=16, request=REQUEST)


def test_a_single_frame_can_be_had(tmp_path):
    path = tmp_path / "v.mp4"
    write_video(moving(64, 48, 9), path, fps=16, request=REQUEST)
    frames = list(read_frames(path))
    assert extract_frame(path, 3).tobytes() == frames[3].tobytes()
    assert extract_frame(path, -1).tobytes() == frames[8].tobytes()
    with pytest.raises(VideoFileError, match="frame 9 of 'v.mp4' must be one of its 9 frames"):
        extract_frame(path, 9)


@pytest.mark.parametrize("codec", ["png", "libx264"])  # ffmpeg does not learn a png's size before it decodes one
def test_frames_that_are_too_large_are_refused_in_words_and_never_decoded(tmp_path, monkeypatch, codec):
    foreign_video(tmp_path / "v.mp4", "-c:v", codec)
    monkeypatch.setattr(video_file, "MAX_PIXELS", 1000)
    with pytest.raises(VideoFileError, match="has frames of 32x32 and must have at most 1,000 pixels a frame"):
        read_facts(tmp_path / "v.mp4")
    with pytest.raises(VideoFileError):
        extract_frame(tmp_path / "v.mp4")


def test_a_frame_can_be_read_smaller_and_is_never_made_larger(tmp_path):
    write_video(moving(), tmp_path / "v.mp4", fps=16, request=REQUEST)
    assert extract_frame(tmp_path / "v.mp4", 0, (32, 32)).size == (32, 24)
    assert extract_frame(tmp_path / "v.mp4", -1, (999, 999)).size == (64, 48)


def test_a_frame_for_a_generation_has_at_most_4096_pixels_on_a_side(tmp_path):
    path, image = tmp_path / "wide.mp4", tmp_path / "frame.png"
    write_frames(moving(4800, 48, num_frames=2), path, fps=1, comment="")
    write_frame(path, -1, image)
    with Image.open(image) as frame:
        assert frame.size == (4096, 41)


def test_a_frame_is_found_from_either_end(tmp_path):
    write_video(moving(), tmp_path / "v.mp4", fps=16, request=REQUEST)
    frames = [frame.tobytes() for frame in read_frames(tmp_path / "v.mp4")]
    for index in (0, 4, 8, -1, -2, -9):
        assert extract_frame(tmp_path / "v.mp4", index).tobytes() == frames[index]
    for index in (9, -10):
        with pytest.raises(VideoFileError, match="must be one of its 9 frames"):
            extract_frame(tmp_path / "v.mp4", index)


@pytest.fixture
def hanging(tmp_path, monkeypatch) -> None:
    """A fake ffmpeg that reads nothing and never ends."""
    program = tmp_path / "ffmpeg"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setattr(imageio_ffmpeg, "get_ffmpeg_exe", lambda: str(program))
    monkeypatch.setattr(video_file, "READ_SECONDS", 0.3)
    monkeypatch.setattr(video_file, "ENCODE_SECONDS", 0.3)


@pytest.mark.parametrize("read", [read_facts, extract_frame, lambda path: list(read_frames(path))])
def test_a_reader_that_hangs_is_ended(tmp_path, hanging, read):
    with pytest.raises(VideoFileError):
        read(tmp_path / "v.mp4")


@pytest.mark.parametrize("num_frames", [2, 60])  # less and more than the capacity of a pipe
def test_an_encoder_that_hangs_is_ended(tmp_path, hanging, num_frames):
    with pytest.raises(VideoFileError, match="could not be encoded"):
        write_video(moving(num_frames=num_frames), tmp_path / "v.mp4", fps=16, request=REQUEST)
    assert not list(tmp_path.glob("*.mp4*"))


def test_a_full_disk_is_named_wherever_ffmpeg_says_it(monkeypatch):
    """ffmpeg's last line is about packets if the disk has no space for the header."""
    monkeypatch.setattr(video_file, "replace_file", lambda path: contextlib.nullcontext(path))
    with pytest.raises(VideoFileError) as raised:
        write_video(moving(), Path("/dev/full"), fps=16, request=REQUEST)
    assert is_disk_full(raised.value)


def test_a_comment_may_be_longer_than_a_command_line_and_hold_any_sign(tmp_path):
    comment = json.dumps({"prompt": "=;#\\ \n\t" + "\U0001f600" * 30_000}, ensure_ascii=True)
    write_frames(moving(), tmp_path / "long.mp4", fps=16, comment=comment)
    assert len(comment) > 300_000 and mp4_boxes.read_comment(tmp_path / "long.mp4") == comment


def test_a_file_of_empty_boxes_is_left_soon(tmp_path):
    (tmp_path / "boxes.mp4").write_bytes(
        struct.pack(">I4sI4s", 16, b"ftyp", 0, b"isom") + struct.pack(">I4s", 8, b"moov") * 1_000_000
    )
    with (tmp_path / "boxes.mp4").open("rb") as file:
        reads = []
        file_read = file.read
        counted = SimpleNamespace(seek=file.seek, read=lambda size: reads.append(size) or file_read(size))
        assert list(mp4_boxes.find_boxes(counted, (b"moov", b"udta"))) == []
    assert len(reads) <= 2 * mp4_boxes.MOST_BOXES
