"""Writes mp4 files that contain the request of the video as a comment, and reads frames and requests back."""

import json
import re
import subprocess
import tempfile
from collections import deque
from collections.abc import Generator, Iterable, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

import numpy as np
from PIL import Image

from backend.errors import NoRequestInVideo, VideoFileError
from backend.files import is_disk_full, replace_file
from backend.media import ffmpeg
from backend.media import mp4 as mp4_boxes
from backend.schemas.request import GenerationRequest

QUALITY = 16  # libx264's constant rate factor; values up to 18 cause a loss that is hard to see
FORMAT = 1  # version of the JSON in a file's comment
CODING = (
    *("-c:v", "libx264", "-preset", "medium", "-crf", str(QUALITY), "-pix_fmt", "yuv420p"),
    *("-colorspace", "bt709", "-color_primaries", "bt709", "-color_trc", "bt709", "-color_range", "tv"),
    *("-movflags", "+faststart"),
)
"""ffmpeg's options for our videos: H.264 in BT.709 colours."""
# Time limit for reading a file's header, and for reading each frame. A frame of 49 million pixels takes 1 to 2 s (measured on 2
# cores).
READ_SECONDS = 20.0
ENCODE_SECONDS = 300.0  # time limit for encoding one frame, and for finishing the file: even a busy machine needs far less
_EXACT = ("-c:v", "libx264rgb", "-preset", "veryfast", "-qp", "0", "-f", "mp4")

Frame = np.ndarray
Size = tuple[int, int]
_STREAM = re.compile(  # such as "Video: h264 (High) (avc1 / 0x31), yuv420p(tv, bt709), 127x97 [SAR 1:1], 16 fps,"
    r"Video: (?P<codec>\w+).*?, (?P<pixels>\w+)(?:\([^)]*\))?, (?P<width>\d+)x(?P<height>\d+).*?, (?P<fps>[\d.]+) fps"
)
# Larger frames are refused. The limit is 8K in any shape: such a frame takes 210 MB with 16 bits, and 110 MB as 8-bit RGB.
MAX_PIXELS = 8192 * 4320
_UNPLAYABLE = ("must be a video that can be played", "give another file")
_SPECIAL = re.compile(r"[=;#\\\n]")


@dataclass(frozen=True, kw_only=True)
class VideoFacts:
    width: int
    height: int
    fps: float
    seconds: float
    codec: str
    pixel_format: str


def write_video(frames: Iterable[Frame], path: Path, *, fps: int, request: GenerationRequest) -> int:
    """Encode frames, each uint8 [height, width, 3], as H.264 (yuv420p). Return the number of frames. Frames are taken one at a
    time. The file appears at `path` complete or not at all. yuv420p stores even sizes only. For odd sizes the last row or column
    is encoded twice. The file states the true size, so that players show the frame without the addition. Raises:
    VideoFileError."""
    return write_frames(frames, path, fps=fps, comment=request_comment(request))


def write_frames(frames: Iterable[Frame], path: Path, *, fps: int, comment: str) -> int:
    """Encode frames like `write_video`, with any ASCII text as the file's comment."""
    frames = iter(frames)
    first = next(frames, None)
    if first is None:
        raise VideoFileError("the video has no frame and", "needs at least one", "this is a bug: please report it")
    shape = first.shape
    height, width = _check_frame(first, shape).shape[:2]
    border = ((0, height % 2), (0, width % 2), (0, 0))
    padded = (np.pad(_check_frame(frame, shape), border, mode="edge") for frame in chain([first], frames))
    with replace_file(path) as part:
        with temporary_tags_file(comment) as tags:
            # Colours are tagged as BT.709, because players guess the colour standard of files without this tag.
            kept = ["-i", str(tags), "-map", "0:v", "-map_metadata", "1", "-an"]
            scaled = ["-vf", "scale=out_color_matrix=bt709:out_range=tv:flags=accurate_rnd"]
            source = _raw_input_options(width + width % 2, height + height % 2, fps)
            count = _run_encoder([*source, *kept, *scaled, *CODING, "-f", "mp4", str(part)], padded)
        if width % 2 or height % 2:
            mp4_boxes.set_shown_size(part, width, height)
    return count


def write_exact_frames(frames: Sequence[Frame], path: Path, *, fps: int) -> None:
    """Encode frames, each uint8 [height, width, 3], as lossless H.264, for clips that a later shot extends. Few players can play
    such files. A failure leaves an incomplete file. Raises: VideoFileError."""
    height, width = frames[0].shape[:2]
    _run_encoder([*_raw_input_options(width, height, fps), *_EXACT, str(path)], map(np.ascontiguousarray, frames))


def copy_with_request(source: Path, path: Path, request: GenerationRequest) -> None:
    """Copy one of our videos without encoding it again. The file appears at `path` complete or not at all. Raises:
    VideoFileError."""
    with replace_file(path) as part, temporary_tags_file(request_comment(request)) as tags:
        copying = ["-map", "0:v", "-map_metadata", "1", "-c", "copy", "-movflags", "+faststart", "-f", "mp4", str(part)]
        try:
            command = ffmpeg.command("-y", "-i", str(source), "-i", str(tags), *copying)
            done = ffmpeg.run_to_end(command, ENCODE_SECONDS, is_limited=False)
        except subprocess.TimeoutExpired:
            raise VideoFileError("the video could not be copied", "in time", "check the disk") from None
        if done.returncode != 0:
            raise VideoFileError("the video could not be copied:", _failure_reason(done.stderr), "check the space on the disk")
        if request.width % 2 or request.height % 2:
            mp4_boxes.set_shown_size(part, request.width, request.height)


def read_request(path: Path) -> GenerationRequest:
    """Read the request that generated one of our videos, with file names instead of paths as inputs. Raises: VideoFileError if
    the file is no mp4, NoRequestInVideo if it contains no request."""
    path = Path(path)
    if not path.is_file() or not mp4_boxes.is_mp4(path):
        raise VideoFileError(f"{path.name!r}", "must be an mp4 video", "give a video that was generated here")
    try:
        data = json.loads(mp4_boxes.read_comment(path) or "")
        return GenerationRequest.from_stored(data["request"])
    except Exception as error:  # the file's comment can be any text, so parsing can fail in any way
        what, rule = f"{path.name!r} contains no request and", "must have been generated here and not edited since"
        raise NoRequestInVideo(what, rule, "set the prompt and the sizes by hand") from error


def read_stored_request(path: Path) -> dict[str, object]:
    return read_request(path).to_json()


def read_facts(path: Path) -> VideoFacts:
    """Read the file's facts. Raises: VideoFileError, also for frames of more than `MAX_PIXELS`."""
    command = ffmpeg.command(*ffmpeg.limit_options(MAX_PIXELS), "-i", str(path), is_verbose=True)
    try:
        report = ffmpeg.run_to_end(command, READ_SECONDS).stderr
    except subprocess.TimeoutExpired:
        raise VideoFileError(f"{Path(path).name!r}", *_UNPLAYABLE) from None
    stream, seconds = _STREAM.search(report), ffmpeg.parse_duration(report)
    size = ffmpeg.TOO_LARGE.search(report) or stream
    if size is not None and int(size["width"]) * int(size["height"]) > MAX_PIXELS:
        what = f"{Path(path).name!r} has frames of {size['width']}x{size['height']} and"
        raise VideoFileError(what, f"must have at most {MAX_PIXELS:,} pixels a frame", "make it smaller")
    if stream is None or seconds is None:
        raise VideoFileError(f"{Path(path).name!r}", *_UNPLAYABLE)
    return VideoFacts(
        width=int(stream["width"]),
        height=int(stream["height"]),
        fps=float(stream["fps"]),
        codec=stream["codec"],
        pixel_format=stream["pixels"],
        seconds=seconds,
    )


def read_frames(path: Path, within: Size | None = None) -> Generator[Frame]:
    """Decode the frames one at a time, each uint8 [height, width, 3]. Frames are shrunk to fit `within` (width, height). Raises:
    VideoFileError, also for frames of more than `MAX_PIXELS`."""
    scale = "scale=w='min({},iw)':h='min({},ih)':force_original_aspect_ratio=decrease"
    smaller = ["-vf", scale.format(*within)] if within else []
    as_ppm = ["-fps_mode", "passthrough", "-f", "image2pipe", "-c:v", "ppm", "-pix_fmt", "rgb24", "-"]
    limits = ffmpeg.limit_options(MAX_PIXELS)
    command = ffmpeg.command(*limits, "-i", str(path), "-map", "0:v:0", *smaller, *as_ppm, is_verbose=True)
    with ffmpeg.running_process(command, errors=subprocess.DEVNULL) as process:
        output = ffmpeg.output_pipe(process)
        while True:
            with ffmpeg.time_limit(READ_SECONDS, process):
                if output.readline() != b"P6\n":
                    break
                width, height = (int(word) for word in output.readline().split())
                output.readline()  # skip the PPM header's last line, the largest pixel value (255)
                pixels = output.read(width * height * 3)
            if len(pixels) != width * height * 3:
                break
            yield np.frombuffer(pixels, np.uint8).reshape(height, width, 3)
        with ffmpeg.time_limit(READ_SECONDS, process):
            process.wait()
        if process.returncode != 0:
            raise VideoFileError(f"{Path(path).name!r}", *_UNPLAYABLE)


def extract_frame(path: Path, index: int = 0, within: Size | None = None) -> Image.Image:
    """Return frame `index` as RGB, counted from the end if negative, shrunk to fit `within`. Raises: VideoFileError."""
    count, kept = 0, deque(maxlen=max(1, -index))
    with closing(read_frames(path, within)) as frames:  # ffmpeg ends, and frees its copies of a large frame, before PIL copies it
        for frame in frames if index < 0 else islice(frames, index + 1):
            count += 1
            kept.append(frame)
    if not -count <= index < count:
        what = f"frame {index} of {Path(path).name!r}"
        raise VideoFileError(what, f"must be one of its {count} frames", "choose another frame")
    return Image.fromarray(kept[0])


def request_comment(request: GenerationRequest) -> str:
    """Return ASCII JSON, which neither the command line nor players can damage."""
    return json.dumps({"format": FORMAT, "request": request.for_sharing()}, ensure_ascii=True)


def _run_encoder(command: list[str], frames: Iterable[Frame]) -> int:
    count = 0
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL}
    with ExitStack() as opened:
        log = opened.enter_context(tempfile.TemporaryFile())
        process = opened.enter_context(ffmpeg.running_process(command, errors=log, is_limited=False, **pipes))
        assert process.stdin is not None, "the process was started with a pipe"
        try:
            for frame in frames:
                with ffmpeg.time_limit(ENCODE_SECONDS, process):
                    process.stdin.write(frame.tobytes())
                count += 1
            process.stdin.close()
        except BrokenPipeError:
            pass  # ffmpeg has ended; the caller reads the reason from its exit code and log
        with ffmpeg.time_limit(ENCODE_SECONDS, process):
            process.wait()
        if process.returncode != 0:
            log.seek(0)
            reason = _failure_reason(log.read().decode(errors="replace"))
            raise VideoFileError("the video could not be encoded:", reason, "check the space on the disk")
    return count


@contextmanager
def temporary_tags_file(comment: str) -> Generator[Path]:
    """An argument of a command has at most 128 KB. Source: ffmpeg.org/ffmpeg-formats.html, "Metadata": the characters in
    `_SPECIAL` need a backslash."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as file:
        escaped = _SPECIAL.sub(lambda found: "\\" + found[0], comment)
        file.write(f";FFMETADATA1\ncomment={escaped}\n")
        file.flush()
        yield Path(file.name)


def _raw_input_options(width: int, height: int, fps: int) -> list[str]:
    """ffmpeg reads the frames from standard input."""
    source = ["-f", "rawvideo", "-pixel_format", "rgb24", "-video_size", f"{width}x{height}", "-framerate", str(fps), "-i", "-"]
    return ffmpeg.command("-y", *source)


def _check_frame(frame: Frame, shape: tuple[int, ...]) -> Frame:
    if frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3 or frame.shape != shape:
        rule = f"must be uint8 [height, width, 3] like the first, {list(shape)}"
        raise VideoFileError(f"a frame is {frame.dtype} {list(frame.shape)} and", rule, "this is a bug: please report it")
    return frame


def _failure_reason(log: str) -> str:
    """The line about a full disk comes first, else the last line."""
    return next((line for line in log.strip().splitlines() if is_disk_full(OSError(line))), ffmpeg.last_line(log))
