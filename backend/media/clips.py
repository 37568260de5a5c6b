"""Opens untrusted clips: reads their facts, and decodes a part of a clip upright, at a given size and frame rate.

File extensions are ignored. ffmpeg runs within the limits of `backend.media.ffmpeg` and a time limit. Only the requested part is
decoded, from the last intra-coded frame before the part, and only one frame at a time is held in memory.
"""

import functools
import re
import subprocess
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from backend.errors import ClipError
from backend.media import ffmpeg
from backend.media import mp4 as mp4_boxes
from backend.media.video import Frame, Size
from backend.schemas.clip import Part, max_frames_within

FORMATS = {"mp4 or mov": ".mp4", "webm": ".webm", "gif": ".gif"}  # accepted formats, and the file suffixes for copies of clips
# Maximum pixels of a clip's frame: 4K in any shape. ffmpeg holds up to 20 frames in memory, and such a frame takes 15 MB.
MAX_PIXELS = 4096 * 2304
MAX_SECONDS = 3600.0
MIN_SIDE = 16
SCAN_SECONDS = 60.0  # time limit for reading a file's `ClipFacts`
KEPT_FACTS = 64  # number of clips whose facts are cached
# Time limit for reading one frame. ffmpeg may first have to decode 10 s of earlier frames: 600 frames of 4K on one slow core.
FRAME_SECONDS = 60.0
_RAW = ("-fps_mode", "passthrough", "-f", "rawvideo", "-pix_fmt", "rgb24", "-")
# To read thumbnails, a clip is decoded completely (in about 3 s) if all its frames together have at most this many pixels.
_WHOLE_PIXELS = 1_500_000_000
_STREAM = re.compile(r"Video: .*?, (?P<width>\d+)x(?P<height>\d+)(?P<rest>.*)")
_SHAPE = re.compile(r"SAR (\d+):(\d+)")
_RATE = re.compile(r"([\d.]+)(k?) fps")
_TURN = re.compile(r"rotation of (-?[\d.]+) degrees")
_INPUT = re.compile(r"Input #0, ([\w,]+), from")
TRUNCATED = re.compile(r"partial file|ended prematurely|moov atom not found|Truncat")


@dataclass(frozen=True, kw_only=True)
class ClipFacts:
    """Facts of a clip as it is displayed. `width` and `height` are the size of an upright frame with square pixels. `nominal_fps`
    is the usual frame rate, but the durations of frames may differ. `seconds` is the length of the video. `suffix` is the file
    suffix that fits the content. A copy of the file gets a name with this suffix."""

    width: int
    height: int
    nominal_fps: float
    seconds: float
    has_sound: bool
    suffix: str


def read_clip_facts(path: str | Path) -> ClipFacts:
    """Read the clip's facts. Scans the whole file once but decodes only its start. Facts are cached until the file changes.

    Raises: ClipError, with its own message for each reason why a clip cannot be used.
    """
    path = Path(path)
    _check_file(path)
    status = path.stat()
    return _read_facts(path, (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns))


@functools.lru_cache(maxsize=KEPT_FACTS)
def _read_facts(path: Path, marks: tuple[int, ...]) -> ClipFacts:
    """Read the facts of the clip at this path. `marks` (device, inode, size and change times) identify the file's content in the
    cache, so that a changed file is read again."""
    done = _run_ffmpeg(["-i", str(path), "-map", "0:v:0", "-c", "copy", "-f", "null", "-progress", "pipe:1", "-"], path)
    header = done.errors.partition("Output #0")[0]
    stream, kind, stated = _STREAM.search(header), _INPUT.search(header), ffmpeg.parse_duration(header)
    _check_size(ffmpeg.TOO_LARGE.search(header) or stream, path)
    if kind is None:
        raise _unreadable_error(done.errors, path)
    if stream is None:
        raise _no_frames_error(path)
    _check_seconds(stated or 0.0, path)
    seconds = _read_seconds(done, stated, path)
    width, height = _display_size(stream, header)
    rate = _RATE.search(stream["rest"])
    fps = float(rate[1]) * (1000 if rate[2] else 1) if rate else 0.0
    suffix = ".gif" if kind[1] == "gif" else ".webm" if "webm" in kind[1] else ".mp4"
    return ClipFacts(width=width, height=height, nominal_fps=fps, seconds=seconds, has_sound="Audio: " in header, suffix=suffix)


def check_part(path: str | Path, part: Part) -> ClipFacts:
    """Check that the clip contains the part, and return the clip's facts. Raises: ClipError."""
    facts, name = read_clip_facts(path), Path(path).name
    part = part.resolve_start(facts.seconds)
    most = max_frames_within(facts.seconds - part.trim[0], part.fps)
    if most < part.num_frames:
        given = "trim={:g},{:g}".format(*part.trim)
        rule = f"must be within the {facts.seconds:.2f} s of {name!r}"
        raise ClipError(given, rule, f"after {part.start:g} s it has {max(0, most)} frame{'s' * (most != 1)} at {part.fps} fps")
    return facts


def read_clip(path: str | Path, part: Part) -> Generator[Frame]:
    """Decode the part's frames one at a time, each uint8 [height, width, 3] and upright. Frames are cropped to the aspect ratio
    of the part's size, or get black bars if the part `is_letterboxed`.

    Frame i is the clip's frame at or nearest to `start` + i / `fps`. Raises: ClipError if the clip has fewer frames.
    """
    facts, path = check_part(path, part), Path(path)
    part, (width, height) = part.resolve_start(facts.seconds), part.size
    reader, filters = _reader_command(path, part.trim[0]), _part_filters(facts, part)
    command = [*reader, "-map", "0:v:0", "-vf", filters, "-frames:v", str(part.num_frames)]
    bytes_of_frame, count = width * height * 3, 0
    with ffmpeg.running_process([*command, *ffmpeg.THREADS, *_RAW], errors=subprocess.DEVNULL) as process:
        while count < part.num_frames:
            with ffmpeg.time_limit(FRAME_SECONDS, process):
                pixels = ffmpeg.output_pipe(process).read(bytes_of_frame)
            if len(pixels) != bytes_of_frame:
                break
            count += 1
            yield np.frombuffer(pixels, np.uint8).reshape(height, width, 3)
    if count < part.num_frames:
        what = f"clip {path.name!r} ends or breaks after {count} of {part.num_frames} frames and"
        raise ClipError(what, "must be complete there", "choose another part of it, or copy or download it again")


def read_part(path: str | Path, part: Part) -> np.ndarray:
    """Decode all frames of the part, uint8 [F, height, width, 3]. Raises: ClipError."""
    width, height = part.size
    frames = np.empty((part.num_frames, height, width, 3), np.uint8)
    for index, frame in enumerate(read_clip(path, part)):
        frames[index] = frame
    return frames


def read_thumbnails(path: str | Path, facts: ClipFacts, count: int, height: int) -> list[Image.Image]:
    """Divide the clip into `count` equal parts and read a small image, `height` pixels high, from the middle of each part.

    For long clips, each image is the last intra-coded frame before the middle of its part, so that reading takes a few seconds at
    most. Returns fewer images if the clip ends early. Raises: ClipError if no image can be read.
    """
    width = max(1, round(height * facts.width / facts.height))
    scale = f"scale={width}:{height}:flags=area"
    step = facts.seconds / count
    moments = [step * (index + 0.5) for index in range(count)]
    if facts.width * facts.height * max(facts.nominal_fps, 1.0) * facts.seconds <= _WHOLE_PIXELS:
        # The fps filter would drop the last frame, so the tpad filter repeats that frame after the end.
        longer = f"tpad=stop_mode=clone:stop_duration={2 * step:.6f}"
        times = f"{longer},fps=fps={count / facts.seconds:.6f}:start_time={step / 2:.6f},{scale}"
        pictures = _read_thumbnails(Path(path), 0.0, times, count, (width, height))
    else:
        pictures = [
            one for moment in moments for one in _read_thumbnails(Path(path), moment, scale, 1, (width, height), only_keys=True)
        ]
    if not pictures:
        raise _unreadable_error("", Path(path))
    return pictures


def _part_filters(facts: ClipFacts, part: Part) -> str:
    """Return ffmpeg's filters: the frame rate, then scaling with a crop or with black bars. ffmpeg turns frames upright before
    the filters."""
    rate = f"fps=fps={part.fps}:start_time=0:round=near"
    wide, high, cut = _pad_filter(facts, part) if part.is_letterboxed else _crop_filter(facts, part)
    size = f"scale={wide}:{high}:flags=lanczos+accurate_rnd+full_chroma_int,format=rgb24,{cut}"
    # The tpad filter repeats the last frame once: the clip's stated length can be one frame too long, because it is rounded.
    return f"{rate},{size},setsar=1,tpad=stop_mode=clone:stop=1"


def _crop_filter(facts: ClipFacts, part: Part) -> tuple[int, int, str]:
    """Return the width and height of scaled frames that cover the part's size, and the filter that crops these frames."""
    width, height = part.size
    scale = max(width / facts.width, height / facts.height)
    wide, high = max(width, round(facts.width * scale)), max(height, round(facts.height * scale))
    left, top = round((wide - width) * part.focus[0]), round((high - height) * part.focus[1])
    return wide, high, f"crop={width}:{height}:{left}:{top}"


def _pad_filter(facts: ClipFacts, part: Part) -> tuple[int, int, str]:
    """Return the width and height of scaled frames that fit into the part's size, and the filter that adds black bars. The video
    processor of diffusers' Animate 2 pads frames in the same way."""
    width, height = part.size
    is_wide = width * facts.height < facts.width * height
    wide = width if is_wide else max(1, facts.width * height // facts.height)
    high = max(1, facts.height * width // facts.width) if is_wide else height
    return wide, high, f"pad={width}:{height}:{(width - wide) // 2}:{(height - high) // 2}"


def _read_thumbnails(
    path: Path, start: float, filters: str, count: int, size: Size, only_keys: bool = False
) -> list[Image.Image]:
    """Read up to `count` small images from the clip, beginning at the time `start` in seconds."""
    width, height = size
    keys = ["-skip_frame", "nokey"] if only_keys else []
    command = [*_reader_command(path, start, keys), "-map", "0:v:0", "-an", "-vf", filters, "-frames:v", str(count)]
    with ffmpeg.running_process([*command, *ffmpeg.THREADS, *_RAW], errors=subprocess.DEVNULL) as process:
        with ffmpeg.time_limit(FRAME_SECONDS, process):
            pixels = ffmpeg.output_pipe(process).read(width * height * 3 * count)
    whole = len(pixels) // (width * height * 3)
    frames = np.frombuffer(pixels, np.uint8)[: whole * width * height * 3].reshape(whole, height, width, 3)
    return [Image.fromarray(frame) for frame in frames]


def _check_file(path: Path) -> None:
    if not path.is_file():
        raise ClipError(f"clip {path.name!r}", "must be a file, but no file is at that path", "check the path")
    if path.stat().st_size == 0:
        raise ClipError(f"clip {path.name!r}", "must be a video, and this file is empty", "give another file")


def _check_size(size: re.Match | None, path: Path) -> None:
    if size is None:
        return
    width, height = int(size["width"]), int(size["height"])
    if width * height > MAX_PIXELS:
        what, rule = f"clip {path.name!r} has frames of {width}x{height} and", "must have at most 4096x2304, which is 4K"
        raise ClipError(what, rule, "make it smaller: videos need far fewer pixels")
    if min(width, height) < MIN_SIDE:
        what, rule = f"clip {path.name!r} has frames of {width}x{height} and", f"must have at least {MIN_SIDE} on each side"
        raise ClipError(what, rule, "give a larger clip")


def _check_seconds(seconds: float, path: Path) -> None:
    if seconds > MAX_SECONDS:
        what = f"clip {path.name!r} lasts {seconds / 60:.0f} minutes and"
        raise ClipError(what, f"must last at most {MAX_SECONDS / 60:.0f}", "cut out the part that you want first")


def _read_seconds(done: ffmpeg.Completed, stated: float | None, path: Path) -> float:
    """Read the video's length in seconds from a scan of the file, because the `stated` length of the header may be wrong."""
    if TRUNCATED.search(done.errors):
        raise _truncated_error(path)
    progress = dict(line.partition("=")[::2] for line in done.output.splitlines())
    frames, last = progress.get("frame", ""), progress.get("out_time_us", "")
    if done.returncode != 0 or not frames.strip().isdecimal():
        raise _unreadable_error(done.errors, path)
    if int(frames) == 0:
        raise _no_frames_error(path)
    counted = int(last) / 1e6 if last.strip().isdecimal() else 0.0
    # The scan reports the decoding time of the last frame, which is a few frames earlier than its display time. Therefore the
    # header's length is used, unless that length exceeds the scanned length by 0.5 s or more.
    seconds = stated if stated and stated - counted < 0.5 else counted
    if seconds <= 0:
        raise ClipError(
            f"clip {path.name!r} has {int(frames)} frame and", "must have several", "give it as an image under Create instead"
        )
    _check_seconds(seconds, path)
    return seconds


def _display_size(stream: re.Match, header: str) -> Size:
    """Return the width and height of an upright frame with square pixels."""
    width, height = int(stream["width"]), int(stream["height"])
    shape, turn = _SHAPE.search(stream["rest"]), _TURN.search(header)
    if shape and int(shape[1]) and int(shape[2]):
        width = min(max(1, round(width * int(shape[1]) / int(shape[2]))), 4 * width)
    is_turned = turn is not None and round(float(turn[1]) / 90) % 2
    return (height, width) if is_turned else (width, height)


def _reader_command(path: Path, start: float, more: list[str] | None = None) -> list[str]:
    """Return the first arguments of a command that reads the clip from the time `start` on. The frame that is visible at `start`
    may begin earlier, so the filters receive earlier frames too."""
    seeking = ["-noaccurate_seek", "-ss", f"{start:.6f}"]
    return ffmpeg.command(*ffmpeg.limit_options(MAX_PIXELS), *(more or []), *seeking, "-i", str(path))


def _run_ffmpeg(arguments: list[str], path: Path) -> ffmpeg.Completed:
    """Run ffmpeg on an untrusted file and wait until ffmpeg ends. Raises: ClipError after `SCAN_SECONDS`."""
    try:
        return ffmpeg.run_to_end(ffmpeg.verbose_command(*ffmpeg.limit_options(MAX_PIXELS), *arguments), SCAN_SECONDS)
    except subprocess.TimeoutExpired:
        what = f"clip {path.name!r} could not be read within {SCAN_SECONDS:.0f} s and"
        raise ClipError(what, "must be shorter or simpler", "cut out the part that you want first") from None


def _unreadable_error(report: str, path: Path) -> ClipError:
    if TRUNCATED.search(report) and mp4_boxes.is_mp4(path):
        return _truncated_error(path)
    return ClipError(f"clip {path.name!r}", f"must be a video ({', '.join(FORMATS)})", "choose another file")


def _truncated_error(path: Path) -> ClipError:
    what = f"clip {path.name!r} is cut off or damaged and"
    return ClipError(what, "must be a complete file", "copy or download it again")


def _no_frames_error(path: Path) -> ClipError:
    return ClipError(f"clip {path.name!r} has no video in it and", "must have frames", "choose another file")
