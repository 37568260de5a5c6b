"""Opens untrusted clips: reads their facts, and decodes a part of a clip upright, at a given size and frame rate. File extensions
are ignored. ffmpeg runs within the limits of `backend.media.ffmpeg` and a time limit. Only the requested part is decoded, from
the last intra-coded frame before the part, and only one frame at a time is held in memory."""

import functools
import re
import subprocess
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image

from backend.errors import ClipError, SoundError
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
InputKind = Literal["clip", "audio"]
_ERRORS: dict[InputKind, type[ClipError | SoundError]] = {"clip": ClipError, "audio": SoundError}
TRUNCATED = re.compile(r"partial file|ended prematurely|moov atom not found|Truncat")


@dataclass(frozen=True, kw_only=True)
class ClipFacts:
    """Facts of a clip as it is displayed: the size of an upright frame with square pixels, and the usual frame rate, though the
    durations of frames may differ. Copies of the file get the `suffix`, which fits its content."""

    width: int
    height: int
    nominal_fps: float
    seconds: float
    has_sound: bool
    suffix: str


def read_clip_facts(path: str | Path) -> ClipFacts:
    """Scan the whole file once, but decode only its start. Facts are cached until the file changes. Raises: ClipError, with its
    own message for each reason why a clip cannot be used."""
    path = Path(path)
    check_file(path, "clip", "a video")
    status = path.stat()
    return _read_facts(path, (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns))


@functools.lru_cache(maxsize=KEPT_FACTS)
def _read_facts(path: Path, marks: tuple[int, ...]) -> ClipFacts:
    """`marks` (device, inode, size and change times) identify the file's content in the cache, so that a changed file is read
    again."""
    done = scan_file(path, "clip", "0:v:0", ffmpeg.DEMUXERS)
    header = done.stderr.partition("Output #0")[0]
    stream, kind, stated = _STREAM.search(header), _INPUT.search(header), ffmpeg.parse_duration(header)
    if size := ffmpeg.TOO_LARGE.search(header) or stream:
        width, height = int(size["width"]), int(size["height"])
        what = f"clip {path.name!r} has frames of {width}x{height} and"
        if width * height > MAX_PIXELS:
            rule = "must have at most 4096x2304, which is 4K"
            raise ClipError(what, rule, "make it smaller: videos need far fewer pixels")
        if min(width, height) < MIN_SIDE:
            raise ClipError(what, f"must have at least {MIN_SIDE} on each side", "give a larger clip")
    if kind is None:
        raise _unreadable_error(done.stderr, path)
    if stream is None:
        raise ClipError(f"clip {path.name!r} has no video in it and", "must have frames", "choose another file")
    check_seconds(stated or 0.0, path, "clip")
    seconds = _read_seconds(done, stated, path)
    # A displayed frame is upright and has square pixels.
    width, height = int(stream["width"]), int(stream["height"])
    shape, turn = _SHAPE.search(stream["rest"]), _TURN.search(header)
    if shape and int(shape[1]) and int(shape[2]):
        width = min(max(1, round(width * int(shape[1]) / int(shape[2]))), 4 * width)
    if turn is not None and round(float(turn[1]) / 90) % 2:
        width, height = height, width
    rate = _RATE.search(stream["rest"])
    fps = float(rate[1]) * (1000 if rate[2] else 1) if rate else 0.0
    suffix = ".gif" if kind[1] == "gif" else ".webm" if "webm" in kind[1] else ".mp4"
    return ClipFacts(width=width, height=height, nominal_fps=fps, seconds=seconds, has_sound="Audio: " in header, suffix=suffix)


def check_part(path: str | Path, part: Part) -> ClipFacts:
    """Check that the clip contains the part. Raises: ClipError."""
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
    of the part's size, or get black bars if the part `is_letterboxed`. Frame i is the clip's frame at or nearest to `start` + i /
    `fps`. Raises: ClipError if the clip has fewer frames."""
    facts, path = check_part(path, part), Path(path)
    part, (width, height) = part.resolve_start(facts.seconds), part.size
    # ffmpeg turns frames upright before the filters.
    if part.is_letterboxed:  # as the video processor of diffusers' Animate 2 does
        is_wide = width * facts.height < facts.width * height
        wide = width if is_wide else max(1, facts.width * height // facts.height)
        high = max(1, facts.height * width // facts.width) if is_wide else height
        cut = f"pad={width}:{height}:{(width - wide) // 2}:{(height - high) // 2}"
    else:
        scale = max(width / facts.width, height / facts.height)
        wide, high = max(width, round(facts.width * scale)), max(height, round(facts.height * scale))
        left, top = round((wide - width) * part.focus[0]), round((high - height) * part.focus[1])
        cut = f"crop={width}:{height}:{left}:{top}"
    rate = f"fps=fps={part.fps}:start_time=0:round=near"
    size = f"scale={wide}:{high}:flags=lanczos+accurate_rnd+full_chroma_int,format=rgb24,{cut}"
    # The tpad filter repeats the last frame once: the clip's stated length can be one frame too long, because it is rounded.
    filters = f"{rate},{size},setsar=1,tpad=stop_mode=clone:stop=1"
    command = [*_reader_command(path, part.trim[0]), "-map", "0:v:0", "-vf", filters, "-frames:v", str(part.num_frames)]
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
    """Divide the clip into `count` equal parts and read a small image, `height` pixels high, from the middle of each part. For
    long clips, each image is the last intra-coded frame before the middle of its part, so that reading takes a few seconds at
    most. Returns fewer images if the clip ends early. Raises: ClipError if no image can be read."""
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


def _read_thumbnails(
    path: Path, start: float, filters: str, count: int, size: Size, only_keys: bool = False
) -> list[Image.Image]:
    """Read up to `count` small images, from the time `start` in seconds."""
    width, height = size
    keys = ["-skip_frame", "nokey"] if only_keys else []
    command = [*_reader_command(path, start, keys), "-map", "0:v:0", "-an", "-vf", filters, "-frames:v", str(count)]
    with ffmpeg.running_process([*command, *ffmpeg.THREADS, *_RAW], errors=subprocess.DEVNULL) as process:
        with ffmpeg.time_limit(FRAME_SECONDS, process):
            pixels = ffmpeg.output_pipe(process).read(width * height * 3 * count)
    whole = len(pixels) // (width * height * 3)
    frames = np.frombuffer(pixels, np.uint8)[: whole * width * height * 3].reshape(whole, height, width, 3)
    return [Image.fromarray(frame) for frame in frames]


def _read_seconds(done: subprocess.CompletedProcess[str], stated: float | None, path: Path) -> float:
    """Read the length from a scan of the file, because the length that the header states may be wrong."""
    if TRUNCATED.search(done.stderr):
        raise truncated_error(path, "clip")
    progress = dict(line.partition("=")[::2] for line in done.stdout.splitlines())
    frames, last = progress.get("frame", ""), progress.get("out_time_us", "")
    if done.returncode != 0 or not frames.strip().isdecimal():
        raise _unreadable_error(done.stderr, path)
    if int(frames) == 0:
        raise ClipError(f"clip {path.name!r} has no video in it and", "must have frames", "choose another file")
    counted = int(last) / 1e6 if last.strip().isdecimal() else 0.0
    # The scan reports the decoding time of the last frame, which is a few frames earlier than its display time. Therefore the
    # header's length is used, unless that length exceeds the scanned length by 0.5 s or more.
    seconds = stated if stated and stated - counted < 0.5 else counted
    if seconds <= 0:
        what = f"clip {path.name!r} has {int(frames)} frame and"
        raise ClipError(what, "must have several", "give it as an image under Create instead")
    check_seconds(seconds, path, "clip")
    return seconds


def _reader_command(path: Path, start: float, more: list[str] | None = None) -> list[str]:
    """The frame that is visible at `start` may begin earlier, so the filters receive earlier frames too."""
    seeking = ["-noaccurate_seek", "-ss", f"{start:.6f}"]
    return ffmpeg.command(*ffmpeg.limit_options(MAX_PIXELS), *(more or []), *seeking, "-i", str(path))


def _unreadable_error(report: str, path: Path) -> ClipError | SoundError:
    if TRUNCATED.search(report) and mp4_boxes.is_mp4(path):
        return truncated_error(path, "clip")
    return ClipError(f"clip {path.name!r}", f"must be a video ({', '.join(FORMATS)})", "choose another file")


def check_file(path: Path, kind: InputKind, content: str) -> None:
    """`content` is what the file must be, for the error. Raises: ClipError, SoundError."""
    if not path.is_file():
        raise _ERRORS[kind](f"{kind} {path.name!r}", "must be a file, but no file is at that path", "check the path")
    if path.stat().st_size == 0:
        raise _ERRORS[kind](f"{kind} {path.name!r}", f"must be {content}, and this file is empty", "give another file")


def check_seconds(seconds: float, path: Path, kind: InputKind) -> None:
    """Check the length of the file. Raises: ClipError, SoundError."""
    if seconds > MAX_SECONDS:
        what = f"{kind} {path.name!r} lasts {seconds / 60:.0f} minutes and"
        raise _ERRORS[kind](what, f"must last at most {MAX_SECONDS / 60:.0f}", "cut out the part that you want first")


def scan_file(path: Path, kind: InputKind, stream: str, demuxers: str) -> subprocess.CompletedProcess[str]:
    """Let ffmpeg read one stream of an untrusted file without decoding it. Raises: ClipError or SoundError after
    `SCAN_SECONDS`."""
    copying = ["-i", str(path), "-map", stream, "-c", "copy", "-f", "null", "-progress", "pipe:1", "-"]
    try:
        line = ffmpeg.command(*ffmpeg.limit_options(MAX_PIXELS, demuxers), *copying, is_verbose=True)
        return ffmpeg.run_to_end(line, SCAN_SECONDS)
    except subprocess.TimeoutExpired:
        what = f"{kind} {path.name!r} could not be read within {SCAN_SECONDS:.0f} s and"
        raise _ERRORS[kind](what, "must be shorter or simpler", "cut out the part that you want first") from None


def truncated_error(path: Path, kind: InputKind) -> ClipError | SoundError:
    what = f"{kind} {path.name!r} is cut off or damaged and"
    return _ERRORS[kind](what, "must be a complete file", "copy or download it again")
