"""Starts ffmpeg, for our files and, within limits, for untrusted files. No other module starts it. An untrusted file cannot refer
to other files or addresses. It is read by a few demuxers and decoders only, in two threads and 1 GiB of memory. A frame with more
pixels than the caller allows is never decoded, not even to read the size or length of a clip. The caller sets the time limit."""

import re
import resource
import subprocess
import tempfile
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import IO

import imageio_ffmpeg

from backend.errors import VideoFileError
from backend.media.progress import report_share

MEMORY_BYTES = 2**30  # limit of the memory that ffmpeg maps. It includes ffmpeg's own 130 MB and the stacks of its threads
THREADS = ("-threads", "2")
TOO_LARGE = re.compile(r"Picture size (?P<width>\d+)x(?P<height>\d+) exceeds specified max pixel count")
_DURATION = re.compile(r"Duration: (\d+):(\d+):([\d.]+)")
DEMUXERS = "mov,mp4,matroska,webm,gif"
SOUND_DEMUXERS = "mov,mp4,matroska,webm,wav,mp3,ogg,flac,aac"
_DECODERS = (
    "h264,hevc,libdav1d,av1,libaom-av1,vp8,vp9,libvpx,libvpx-vp9,mpeg4,mpeg2video,mjpeg,prores,dnxhd,gif,png,ffv1,qtrle,rawvideo,"
    "aac,mp3,mp3float,opus,libopus,vorbis,flac,alac,ac3,eac3,"
    "pcm_s16le,pcm_s16be,pcm_s24le,pcm_s24be,pcm_s32le,pcm_f32le,pcm_f64le,pcm_u8"
)


def command(*arguments: str, is_verbose: bool = False) -> list[str]:
    """Return an ffmpeg command line that does not read the keyboard. If `is_verbose`, ffmpeg describes its input and output
    files."""
    level = ["-nostats"] if is_verbose else ["-loglevel", "error"]
    return [imageio_ffmpeg.get_ffmpeg_exe(), "-hide_banner", *level, "-nostdin", *arguments]


def limit_options(max_pixels: int, demuxers: str = DEMUXERS) -> list[str]:
    """These options must precede the `-i` of each untrusted file."""
    safe = ["-protocol_whitelist", "file", "-format_whitelist", demuxers, "-codec_whitelist", _DECODERS]
    return [*safe, "-max_pixels", str(max_pixels), *THREADS]


@contextmanager
def running_process(
    line: Sequence[str],
    *,
    stdin: int = subprocess.DEVNULL,
    stdout: int = subprocess.PIPE,
    errors: IO[bytes] | int = subprocess.PIPE,
    is_limited: bool = True,
) -> Generator[subprocess.Popen]:
    """Start ffmpeg, and kill it at the end of the block if it still runs. `is_limited` limits ffmpeg's memory, and must be true
    if ffmpeg reads untrusted files."""
    process = subprocess.Popen(line, stdin=stdin, stdout=stdout, stderr=errors)
    try:
        if is_limited:
            try:
                resource.prlimit(process.pid, resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
            except (OSError, ValueError):
                pass  # the process has ended already, or its limit is already lower
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        for pipe in filter(None, (process.stdin, process.stdout, process.stderr)):
            try:
                pipe.close()
            except BrokenPipeError:
                pass  # buffered data cannot be written, because the process has ended


def output_pipe(process: subprocess.Popen[bytes]) -> IO[bytes]:
    assert process.stdout is not None, "the process was started without a pipe"
    return process.stdout


def run_to_end(line: Sequence[str], seconds: float, *, is_limited: bool = True) -> subprocess.CompletedProcess[str]:
    """Run ffmpeg and wait until it ends. Raises: subprocess.TimeoutExpired after `seconds` seconds, when ffmpeg is killed."""
    with running_process(line, is_limited=is_limited) as process:
        output, errors = (data.decode(errors="replace") for data in process.communicate(timeout=seconds))
    return subprocess.CompletedProcess(line, process.returncode, output, errors)


def write_file(
    line: Sequence[str], failure: str, fix: str, seconds: float = threading.TIMEOUT_MAX, *, video_seconds: float = 0.0
) -> None:
    """Run ffmpeg to write a file. If `video_seconds` is the length of the video, the progress is reported to
    `backend.media.progress`. Raises: VideoFileError with `failure` and `fix` if ffmpeg fails or takes longer than `seconds`."""
    line = [line[0], "-progress", "pipe:1", *line[1:]]
    try:
        with tempfile.TemporaryFile() as log, running_process(line, errors=log) as process, time_limit(seconds, process):
            for word in process.stdout or ():
                name, _, value = word.partition(b"=")
                if name == b"out_time_us" and video_seconds and value.strip().isdigit():
                    report_share(int(value) / 1e6 / video_seconds)
            process.wait()
            log.seek(0)
            errors = log.read().decode(errors="replace")
    except OSError as error:
        raise VideoFileError(failure, str(error), "check the disk") from error
    if process.returncode != 0:
        raise VideoFileError(failure, last_line(errors), fix)


def last_line(log: str) -> str:
    return (log.strip().splitlines() or ["ffmpeg gave no reason"])[-1]


def parse_duration(report: str) -> float | None:
    """Return the length in seconds from ffmpeg's description of a file, None if it states no length."""
    match = _DURATION.search(report)
    return sum(float(part) * 60**place for place, part in enumerate(reversed(match.groups()))) if match else None


@contextmanager
def time_limit(seconds: float, process: subprocess.Popen) -> Generator[None]:
    """Kill the process after `seconds`. Code in the block that waits for the process then continues."""
    timer = threading.Timer(seconds, process.kill)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
