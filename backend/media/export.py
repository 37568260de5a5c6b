"""Exports a video to another format: webm, gif, animated webp, or a zip of PNG frames."""

import io
import math
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from backend.errors import RequestError, VideoFileError
from backend.files import replace_file
from backend.media import ffmpeg
from backend.media.progress import progress_range, report_progress
from backend.media.video import MAX_PIXELS, VideoFacts, read_facts, read_frames
from backend.schemas.formats import Format

LEAST_SIDE = 32  # pixels: a gif or webp whose shorter side is this small is not made smaller to reach `max_bytes`
_MARGIN = 0.95  # the size of the next attempt is chosen so that its file has about this share of `max_bytes`
_VP9 = tuple("-c:v libvpx-vp9 -crf 30 -b:v 0 -row-mt 1 -deadline good -cpu-used 4 -pix_fmt yuv420p".split())
_OPUS = ("-c:a", "libopus", "-b:a", "128k")
_WEBP = ("-an", "-c:v", "libwebp_anim", "-quality", "80", "-loop", "0")
_DITHER = "paletteuse=dither=bayer:bayer_scale=4:diff_mode=rectangle"


@dataclass(frozen=True, kw_only=True)
class ExportLimits:
    """None is no limit. All limits except `max_bytes` apply to gif and webp only."""

    max_bytes: int | None = None
    longest_side: int | None = None
    max_seconds: float | None = None
    max_fps: float | None = None


NO_LIMITS = ExportLimits()


def write_export(video: Path, form: Format, path: Path, limits: ExportLimits = NO_LIMITS) -> dict[str, object]:
    """Export one of our videos with its comment. Return the format, the size in pixels and the number of bytes. A gif or webp
    gets smaller and smaller sizes until it is within the limits. Raises: RequestError if the export exceeds `max_bytes` at every
    size, or if the video is longer than `max_seconds`. VideoFileError if the video cannot be read or the export cannot be
    written."""
    first = next(read_frames(video), None)
    if first is None:
        raise VideoFileError("the video", "has no frames", "choose another")
    height, width = first.shape[:2]
    facts = read_facts(video)
    with replace_file(path) as part:
        if form == "png":
            _write_frames(video, part, facts, limits.max_bytes)
        elif form == "webm":
            streams = ["-map", "0:v:0", "-map", "0:a:0?", "-map_metadata", "0"]
            _run_ffmpeg(["-i", str(video), *streams, *_VP9, *_OPUS, "-f", "webm", str(part)], facts.seconds)
        else:
            width, height = _write_within(video, form, part, (width, height), facts, limits)
        return {"format": form, "width": width, "height": height, "num_bytes": part.stat().st_size}


def _write_within(
    video: Path, form: Format, part: Path, size: tuple[int, int], facts: VideoFacts, limits: ExportLimits
) -> tuple[int, int]:
    """Return the size at which the gif or webp is within the limits."""
    if limits.max_seconds is not None and facts.seconds > limits.max_seconds:
        what, rule = f"this video lasts {facts.seconds:.1f} s and", f"a {form} may last at most {limits.max_seconds:g} s"
        raise RequestError(what, rule, "choose webm, or cut it shorter")
    rate = f"fps={limits.max_fps:g}," if limits.max_fps is not None and facts.fps > limits.max_fps else ""
    share = min(1.0, (limits.longest_side or math.inf) / max(size))
    one_stream = ["-i", str(video), "-map", "0:v:0", "-vf"]
    attempt = 0
    while True:
        sides = max(1, round(size[0] * share)), max(1, round(size[1] * share))
        scale = rate + ("null" if sides == size else f"scale={sides[0]}:{sides[1]}:flags=lanczos")
        # The number of attempts is unknown, so each attempt advances the progress by half of the remaining distance to 1.
        with progress_range(1 - 0.5**attempt, 1 - 0.5 ** (attempt + 1)):
            if form == "webp":
                _run_ffmpeg([*one_stream, scale, *_WEBP, "-f", "webp", str(part)], facts.seconds)
            else:  # two passes, because a single pass would hold all frames in memory until the palette is ready
                with tempfile.TemporaryDirectory() as folder:
                    palette = str(Path(folder) / "palette.png")
                    _run_ffmpeg([*one_stream, f"{scale},palettegen=stats_mode=diff", "-update", "1", palette])
                    graph = f"[0:v:0]{scale}[small];[small][1:v]{_DITHER}"
                    gif = ["-i", palette, "-lavfi", graph, "-an", "-loop", "0", "-f", "gif", str(part)]
                    _run_ffmpeg(["-i", str(video), *gif], facts.seconds)
        attempt += 1
        made = part.stat().st_size
        if limits.max_bytes is None or made <= limits.max_bytes:
            return sides
        if min(sides) <= LEAST_SIDE:
            rule = f"does not fit in {limits.max_bytes / 1e6:g} MB, even at {sides[0]}x{sides[1]} pixels"
            raise RequestError(f"this video as {form}", rule, "allow more, or choose webm")
        least = LEAST_SIDE / min(size)
        share = max(least, share * min(0.9, math.sqrt(_MARGIN * limits.max_bytes / made)))


def _write_frames(video: Path, part: Path, facts: VideoFacts, max_bytes: int | None) -> None:
    """Write a zip with `frame-0001.png` and so on, without compressing the images again."""
    with zipfile.ZipFile(part, "w", zipfile.ZIP_STORED) as archive:
        frames, written = report_progress(read_frames(video), round(facts.seconds * facts.fps)), 0
        for number, frame in enumerate(frames, 1):
            picture = io.BytesIO()
            Image.fromarray(frame).save(picture, format="PNG", compress_level=3)
            archive.writestr(f"frame-{number:04d}.png", picture.getvalue())
            written += picture.tell()
            if max_bytes is not None and written > max_bytes:
                rule = f"take more than {max_bytes / 1e6:,.0f} MB"
                raise RequestError("this video's frames as PNG images", rule, "choose webm, or a shorter or smaller video")


def _run_ffmpeg(arguments: Sequence[str], video_seconds: float = 0.0) -> None:
    """Run ffmpeg with `ffmpeg.limit_options` for each input. The caller limits the time."""
    limits, line = ffmpeg.limit_options(MAX_PIXELS, f"{ffmpeg.DEMUXERS},image2,png_pipe"), []
    for word in arguments:
        line += [*limits, word] if word == "-i" else [word]
    ffmpeg.write_file(
        ffmpeg.command("-y", *line), "the file could not be written:", "choose another format", video_seconds=video_seconds
    )
