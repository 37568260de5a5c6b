"""Check untrusted clips: the requested part, upright, at the given size and rate, and one sentence for unusable files."""

import json
import os
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest

from backend.errors import ClipError, VideoFileError
from backend.media import clips
from backend.media.clips import read_clip, read_clip_facts, read_part, read_thumbnails
from backend.media.sound import copy_clip_audio
from backend.media.video import read_facts, read_frames, read_request, write_video
from backend.schemas.clip import Part
from backend.schemas.request import GenerationRequest
from backend.settings import PROJECT_FOLDER
from presets import load_preset
from tests.clip_files import counting_clip, marked_clip, numbers, run_ffmpeg, turned
from tests.clock import is_within

LOSSLESS = ["-c:v", "libx264", "-qp", "0", "-g", "12", "-pix_fmt", "yuv420p"]
WEBM = ["-c:v", "libvpx", "-b:v", "4M", "-g", "12", "-pix_fmt", "yuv420p"]


def part(start: float = 0.0, num_frames: int = 9, fps: int = 16, size=(64, 48), **more) -> Part:
    return Part(start=start, num_frames=num_frames, fps=fps, size=size, **more)


def refusal(path, wanted: Part | None = None) -> str:
    """The one sentence."""
    with pytest.raises(ClipError) as caught:
        read_clip_facts(path) if wanted is None else list(read_clip(path, wanted))
    told = str(caught.value)
    assert "\n" not in told and len(told) < 250 and str(path.parent) not in told
    return told


@pytest.mark.parametrize(("name", "options"), [("a.mp4", LOSSLESS), ("a.mov", LOSSLESS), ("a.webm", WEBM), ("a.gif", ())])
def test_every_format_gives_the_frames_that_it_holds(tmp_path, name, options):
    path = counting_clip(tmp_path / name, 20, 10, options=options)
    facts = read_clip_facts(path)
    assert (facts.width, facts.height, facts.nominal_fps) == (64, 48, 10) and facts.seconds == pytest.approx(2.0, abs=0.11)
    assert facts.suffix == {"a.mov": ".mp4"}.get(name, path.suffix) and not facts.has_sound
    assert numbers(list(read_clip(path, part(fps=10)))) == list(range(9))
    assert numbers(list(read_clip(path, part(start=0.5, fps=10)))) == list(range(5, 14))


def test_a_clip_is_gone_through_once_until_its_file_is_another(tmp_path, monkeypatch):
    path, runs, run = counting_clip(tmp_path / "a.mp4", 20, 10, options=LOSSLESS), [], clips.scan_file
    monkeypatch.setattr(clips, "scan_file", lambda *arguments: runs.append(arguments) or run(*arguments))
    assert [read_clip_facts(path).seconds for _ in range(3)] == [2.0] * 3 and len(runs) == 1
    read_part(path, part(fps=10)), read_part(str(path), part(fps=10))
    assert len(runs) == 1
    os.replace(counting_clip(tmp_path / "b.mp4", 30, 10, options=LOSSLESS), path)
    assert read_clip_facts(path).seconds == 3.0
    path.write_bytes(b"no clip")
    assert refusal(path) and refusal(path) and len(runs) == 4  # refused files are read again
    path.unlink()
    assert "no file is at that path" in refusal(path)


def test_the_rate_is_brought_to_the_videos_and_the_speed_stays(tmp_path):
    path = counting_clip(tmp_path / "a.mp4", 48, 24, options=LOSSLESS)
    at_12 = numbers(read_part(path, part(num_frames=13, fps=12)))
    assert at_12 == [2 * index for index in range(13)]
    at_48 = numbers(read_part(path, part(start=0.5, num_frames=9, fps=48)))
    assert [abs(number - (12 + index / 2)) <= 0.5 for index, number in enumerate(at_48)] == [True] * 9
    assert numbers(read_part(path, part(num_frames=29, fps=16)))[-1] == round(28 / 16 * 24)


def test_a_part_between_two_frames_begins_with_what_is_shown_there(tmp_path):
    """A slow gif shows each frame for a long time, so that the frame before `start` counts."""
    path = counting_clip(tmp_path / "slow.gif", 8, 2)
    assert numbers(read_part(path, part(start=1.2, num_frames=5, fps=10))) == [2, 2, 2, 3, 3]


def test_a_varying_rate_keeps_its_times(tmp_path):
    """Ten frames in the first second, then two a second."""
    path = counting_clip(tmp_path / "a.mp4", 14, 10, options=LOSSLESS)
    varying, times = tmp_path / "varying.mp4", "setpts='if(lt(N,10),N/10,1+(N-10)/2)/TB'"
    run_ffmpeg("-i", str(path), "-vf", times, "-fps_mode", "vfr", *LOSSLESS, str(varying))
    seen = numbers(read_part(varying, part(num_frames=21, fps=8)))
    moments = [index / 8 for index in range(21)]
    expected = [10 * moment if moment < 0.9 else 10 + (moment - 1) * 2 for moment in moments]
    assert all(abs(number - wanted) <= 0.75 for number, wanted in zip(seen, expected, strict=True)), (seen, expected)


@pytest.mark.parametrize("degrees", [0, 90, 180, 270])
def test_a_clip_is_turned_upright(tmp_path, degrees):
    path = turned(tmp_path / "turned.mp4", marked_clip(tmp_path / "flat.mp4", (320, 192)), degrees)
    facts = read_clip_facts(path)
    assert (facts.width, facts.height) == ((192, 320) if degrees % 180 else (320, 192))
    frame = next(read_clip(path, part(size=(facts.width, facts.height), fps=15))).astype(int)
    corner = frame[8, 8] if degrees == 0 else {90: frame[-8, 8], 180: frame[-8, -8], 270: frame[8, -8]}[degrees]
    assert corner[0] > 180 and corner[1] < 80, "the red corner has gone round, against the clock"


def test_pixels_that_are_not_square_are_seen_as_they_are_meant(tmp_path):
    path = marked_clip(tmp_path / "wide.mp4", (96, 96), 30, 15, "-vf", "setsar=2/1")
    facts = read_clip_facts(path)
    assert (facts.width, facts.height) == (192, 96)
    frame = next(read_clip(path, part(size=(96, 96), fps=15)))
    red = frame[..., 0] > 150
    assert red[:48].mean() == pytest.approx(0.5, abs=0.05), "its middle, not squeezed"


@pytest.mark.parametrize(("focus", "reds", "greens"), [((0.0, 0.5), 0.9, 0.0), ((1.0, 0.5), 0.0, 0.9), ((0.5, 0.5), 0.5, 0.5)])
def test_the_crop_keeps_what_the_focus_says(tmp_path, focus, reds, greens):
    path = marked_clip(tmp_path / "a.mp4", (320, 160))
    frame = next(read_clip(path, part(size=(80, 160), fps=15, focus=focus))).astype(int)
    upper = frame[:76]
    assert (upper[..., 0] > 150).mean() >= reds - 0.06 and (upper[..., 1] > 120).mean() >= greens - 0.06


def test_the_name_says_nothing(tmp_path):
    path = counting_clip(tmp_path / "a.webm", 20, 10, options=WEBM)
    wrong = shutil.copy(path, tmp_path / "a.mp4")
    facts = read_clip_facts(wrong)
    assert facts.suffix == ".webm" and len(list(read_clip(wrong, part(fps=10)))) == 9


def test_a_file_without_a_stated_length_is_counted(tmp_path):
    """Browsers record webm files without a length."""
    path = counting_clip(tmp_path / "a.webm", 20, 10, options=[*WEBM, "-live", "1"])
    assert read_clip_facts(path).seconds == pytest.approx(1.9, abs=0.11)


@pytest.fixture
def bad(tmp_path):
    """A factory of each kind of file that is not a clip, by name."""

    def cut(name: str, *options: str, share: float = 0.6):
        whole = counting_clip(tmp_path / f"whole-{name}", 40, 10, options=options)
        path = tmp_path / name
        path.write_bytes(whole.read_bytes()[: int(whole.stat().st_size * share)])
        return path

    def text(name: str, words: str):
        (tmp_path / name).write_text(words)
        return tmp_path / name

    def make(kind: str):
        target = counting_clip(tmp_path / "target.mp4", 20, 10)
        match kind:
            case "cut mp4":
                return cut("cut.mp4", *LOSSLESS, "-movflags", "+faststart")
            case "cut before its index":
                return cut("cut.mp4", *LOSSLESS)
            case "cut webm":
                return cut("cut.webm", *WEBM)
            case "no frames":
                path = tmp_path / "none.mp4"
                run_ffmpeg("-f", "lavfi", "-i", "sine=440:d=1", str(path))
                return path
            case "empty":
                return text("empty.mp4", "")
            case "text":
                return text("notes.mp4", "a red circle " * 50)
            case "concat":
                return text("list.mp4", f"ffconcat version 1.0\nfile {target}\n")
            case "playlist":
                return text("list.m3u8", f"#EXTM3U\n#EXT-X-TARGETDURATION:5\n#EXTINF:5,\nfile://{target}\n#EXT-X-ENDLIST\n")
            case "sdp":
                return text("a.sdp", "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nm=video 5004 RTP/AVP 96\n")
            case "picture":
                run_ffmpeg("-i", str(target), "-frames:v", "1", str(tmp_path / "picture.png"))
                return tmp_path / "picture.png"
            case "missing":
                return tmp_path / "missing.mp4"
            case "small":
                return counting_clip(tmp_path / "small.gif", 20, 10, (12, 40))
        raise AssertionError(kind)

    return make


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("cut mp4", "is cut off or damaged and must be a complete file; copy or download it again"),
        ("cut before its index", "is cut off or damaged"),
        ("cut webm", "is cut off or damaged"),
        ("no frames", "has no video in it and must have frames"),
        ("empty", "this file is empty"),
        ("text", "must be a video (mp4 or mov, webm, gif); choose another file"),
        ("concat", "must be a video"),
        ("playlist", "must be a video"),
        ("sdp", "must be a video"),
        ("picture", "must be a video"),
        ("missing", "no file is at that path"),
        ("small", "frames of 12x40 and must have at least 16 on each side"),
    ],
)
def test_what_is_no_clip_gets_one_sentence_and_leaves_nothing(tmp_path, bad, kind, words):
    path = bad(kind)
    before = sorted(os.listdir(tmp_path))
    assert words in refusal(path)
    assert sorted(os.listdir(tmp_path)) == before


@pytest.mark.bench
def test_8k_and_two_hours_are_refused_at_once(tmp_path):
    large = tmp_path / "large.mp4"
    run_ffmpeg("-f", "lavfi", "-i", "color=s=7680x4320:r=1:d=1", "-c:v", "libx264", "-preset", "ultrafast", str(large))
    assert "frames of 7680x4320 and must have at most 4096x2304, which is 4K" in refusal(large)
    long = tmp_path / "long.mp4"
    still = ["-f", "lavfi", "-i", "color=s=32x32:r=1:d=7200"]
    run_ffmpeg(*still, "-c:v", "libx264", "-preset", "ultrafast", str(long))
    began = time.monotonic()
    assert "lasts 120 minutes and must last at most 60; cut out the part that you want first" in refusal(long)
    assert is_within(time.monotonic() - began, 5)


def test_a_part_that_the_clip_does_not_have_is_refused_with_what_it_has(tmp_path):
    path = counting_clip(tmp_path / "a.mp4", 32, 16)
    told = refusal(path, part(start=1.0, num_frames=17))
    assert told == "trim=1,2.0625 must be within the 2.00 s of 'a.mp4'; after 1 s it has 16 frames at 16 fps"
    assert len(list(read_clip(path, part(start=0.9375, num_frames=17)))) == 17
    assert "it has 0 frames" in refusal(path, part(start=100.0))


def test_a_clip_whose_pictures_break_off_inside_is_told(tmp_path):
    """All packets of the clip are present, but they contain only zeros."""
    path = counting_clip(tmp_path / "a.mp4", 40, 10, options=["-c:v", "libx264", "-g", "40", "-pix_fmt", "yuv420p"])
    data = bytearray(path.read_bytes())
    start = data.index(b"mdat") + 4
    for place in range(start, len(data) - 4000 if len(data) > 8000 else start + (len(data) - start) // 2):
        data[place] = 0
    path.write_bytes(data)
    with pytest.raises(ClipError):
        assert len(read_part(path, part(num_frames=33, fps=10))) == 0


def test_thumbnails_are_of_equal_parts(tmp_path, monkeypatch):
    path = counting_clip(tmp_path / "a.mp4", 48, 12, options=LOSSLESS)
    facts = read_clip_facts(path)
    pictures = read_thumbnails(path, facts, 12, 24)
    assert [picture.size for picture in pictures] == [(32, 24)] * 12
    assert numbers([np.asarray(picture) for picture in pictures]) == pytest.approx([4 * index + 2 for index in range(12)], abs=1)
    monkeypatch.setattr(clips, "_WHOLE_PIXELS", 0)
    keys = numbers([np.asarray(picture) for picture in read_thumbnails(path, facts, 4, 24)])
    assert keys == pytest.approx([0, 12, 24, 36], abs=1), "the key frames before"


def test_the_sound_of_the_part_comes_along_and_the_request_stays(tmp_path):
    clip = counting_clip(tmp_path / "clip.mp4", 48, 16, sound=True)
    request = GenerationRequest.from_preset(
        load_preset("wan-tiny"), prompt="x", seed=1, video=str(clip), trim=(0.5, 1.5625), strength=0.5
    )
    video = tmp_path / "video.mp4"
    write_video(read_clip(clip, Part.from_request(request)), video, fps=16, request=request)
    before = list(read_frames(video))
    copy_clip_audio(video, clip, 0.5, 17 / 16, (96, 96))
    assert read_clip_facts(video).has_sound and read_facts(video).seconds == pytest.approx(17 / 16, abs=0.03)
    assert read_request(video).for_sharing() == request.for_sharing()
    assert (read_request(video).video, read_request(video).trim, read_request(video).strength) == ("clip.mp4", (0.5, 1.5625), 0.5)
    for one, other in zip(before, read_frames(video), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_sound_that_cannot_be_had_leaves_the_video_as_it_was(tmp_path):
    clip = counting_clip(tmp_path / "silent.mp4", 32, 16)
    video = counting_clip(tmp_path / "video.mp4", 16, 16)
    kept = video.read_bytes()
    with pytest.raises(VideoFileError, match="the clip's sound could not be kept"):
        copy_clip_audio(video, clip, 0.0, 1.0, (64, 48))
    assert video.read_bytes() == kept and not list(tmp_path.glob(".*.part"))


def test_a_file_that_keeps_ffmpeg_busy_is_given_up(tmp_path, monkeypatch):
    path = counting_clip(tmp_path / "a.mp4", 20, 10)
    monkeypatch.setattr(clips, "SCAN_SECONDS", 0.0)
    assert "could not be read within 0 s" in refusal(path)


def test_no_process_is_left_when_a_reader_stops_early(tmp_path):
    reader = read_clip(counting_clip(tmp_path / "a.mp4", 40, 10), part(fps=10, num_frames=33))
    next(reader)
    reader.close()
    children = subprocess.run(["ps", "--ppid", str(os.getpid()), "-o", "comm="], capture_output=True, text=True).stdout
    assert "ffmpeg" not in children


MEASURED = """
import json, resource, sys
from backend.schemas.clip import Part
from backend.media.clips import read_clip, read_clip_facts, read_thumbnails
from tests.clock import is_within
path = sys.argv[1]
facts = read_clip_facts(path)
for _ in read_clip(path, Part(start=facts.seconds * 0.8, num_frames=81, fps=16, size=(832, 480))):
    pass
read_thumbnails(path, facts, 12, 72)
print(json.dumps({"kilobytes": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, "seconds": facts.seconds}))
"""


@pytest.mark.slow
def test_ten_minutes_of_4k_trimmed_to_five_seconds_cost_little_memory(tmp_path):
    path, piece = tmp_path / "long.mp4", tmp_path / "piece.mp4"
    moving = ["-f", "lavfi", "-i", "testsrc2=s=3840x2160:r=24:d=5"]
    run_ffmpeg(*moving, "-c:v", "libx264", "-preset", "ultrafast", "-pix_fmt", "yuv420p", str(piece))
    run_ffmpeg("-stream_loop", "119", "-i", str(piece), "-c", "copy", str(path))
    done = subprocess.run([sys.executable, "-c", MEASURED, str(path)], cwd=PROJECT_FOLDER, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(done.stdout)
    assert told["seconds"] == pytest.approx(600, abs=1)
    assert told["kilobytes"] < 500_000  # the limit for the largest ffmpeg
