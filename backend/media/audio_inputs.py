"""Opens untrusted audio files and the audio of untrusted videos: reads their facts and decodes a part.

File extensions are ignored. ffmpeg has limits of memory and time. Only the requested part is decoded.
"""

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from backend.errors import SoundError
from backend.media import ffmpeg
from backend.media.clips import MAX_PIXELS, TRUNCATED
from backend.media.sound import Sound
from backend.schemas.sound import SoundPart

FORMATS = "wav, mp3, m4a, ogg, flac, or a video with audio"
MODEL_RATE = 16_000  # samples per second that LTX-2's audio autoencoder expects
CHANNELS = 2
MAX_SECONDS = 3600.0
MAX_RATE = 48_000  # samples per second; audio with a higher rate is converted to this rate
SCAN_SECONDS = 60.0  # time limit for reading a whole file
# ffmpeg decodes this much audio before the requested part and drops it, because each AAC packet needs the previous packet.
LEAD_SECONDS = 0.5
# A file that is shorter than its header states is refused as incomplete only if the difference exceeds this many seconds.
SHORT = 0.5
# File suffixes by ffmpeg's name of the format. Files of all other formats get the suffix ".mp4".
_SUFFIXES = {"wav": ".wav", "mp3": ".mp3", "ogg": ".ogg", "flac": ".flac", "aac": ".aac", "webm": ".webm"}
_STREAM = re.compile(r"Audio: .*?, (?P<rate>\d+) Hz, (?P<channels>[^,\n]+)")
_INPUT = re.compile(r"Input #0, ([\w,]+), from")
_ENDLESS = 2**32 - 1  # a WAV header states this length if a program wrote the header before it knew the length
_GUESSED = "Estimating duration from bitrate"


@dataclass(frozen=True, kw_only=True)
class SoundFacts:
    """Facts of an audio file: its length in `seconds`, its sample `rate`, and the `suffix` that fits its content. A copy of the
    file gets a name with this suffix."""

    seconds: float
    rate: int
    suffix: str


def read_sound_facts(path: str | Path) -> SoundFacts:
    """Read the audio file's facts. Scans the whole file once without decoding.

    Raises: SoundError, with its own message for each reason why the audio cannot be used.
    """
    path = Path(path)
    if not path.is_file():
        raise SoundError(f"audio {path.name!r}", "must be a file, but no file is at that path", "check the path")
    if path.stat().st_size == 0:
        raise SoundError(f"audio {path.name!r}", "must be an audio file, and this file is empty", "give another file")
    if _is_truncated_wav(path):
        raise _truncated_error(path)
    done = _run_ffmpeg(["-i", str(path), "-map", "0:a:0", "-c", "copy", "-f", "null", "-progress", "pipe:1", "-"], path)
    header, _, _ = done.errors.partition("Output #0")
    stream, kind, stated = _STREAM.search(header), _INPUT.search(header), ffmpeg.parse_duration(header)
    if kind is None:
        raise (
            _truncated_error(path)
            if TRUNCATED.search(done.errors)
            else _no_audio_error(path, f"must be an audio file ({FORMATS})")
        )
    if stream is None:
        raise _no_audio_error(path, "must have audio, but is a silent video" if "Video: " in header else "must have audio")
    _check_seconds(stated or 0.0, path)
    seconds = _read_seconds(done, path)
    if stated and _GUESSED not in done.errors and seconds < stated - SHORT:
        raise _truncated_error(path)
    suffix = next((ending for name, ending in _SUFFIXES.items() if name in kind[1].split(",")), ".mp4")
    return SoundFacts(seconds=seconds, rate=int(stream["rate"]), suffix=suffix)


def check_sound_part(path: str | Path, part: SoundPart) -> SoundFacts:
    """Check that the part starts within the audio file, and return the file's facts. Raises: SoundError.

    If the file ends before the part ends, the rest of the part is silent.
    """
    facts, name = read_sound_facts(path), Path(path).name
    if part.start >= facts.seconds:
        rule = f"must be within the {facts.seconds:.2f} s of {name!r}"
        raise SoundError(f"sound_start={part.start:g}", rule, "start earlier")
    return facts


def read_for_model(path: str | Path, part: SoundPart) -> np.ndarray:
    """Decode this part of an audio file to a model's input: samples float32 [2, N] at `MODEL_RATE`. Raises: SoundError."""
    check_sound_part(path, part)
    return _decode_part(Path(path), part, MODEL_RATE).samples


def read_original(path: str | Path, part: SoundPart) -> Sound:
    """Decode the part in stereo at the file's sample rate, but at most at 48,000 samples per second. Raises: SoundError."""
    facts = check_sound_part(path, part)
    return _decode_part(Path(path), part, min(facts.rate, MAX_RATE))


def read_at_rate(path: str | Path, part: SoundPart, rate: int) -> Sound:
    """Decode the part in stereo at `rate`. The caller has checked that the part starts within the file. Raises: SoundError."""
    return _decode_part(Path(path), part, rate)


def _decode_part(path: Path, part: SoundPart, rate: int) -> Sound:
    lead = min(part.start, LEAD_SECONDS)
    sought = ["-ss", f"{part.start - lead:.6f}"] if lead < part.start else []
    wanted = [*sought, "-t", f"{lead + part.seconds:.6f}", "-i", str(path), "-ss", f"{lead:.6f}"]
    raw = ["-map", "0:a:0", "-vn", "-ac", str(CHANNELS), "-ar", str(rate), "-f", "f32le", "-"]
    line = ffmpeg.command(*_limit_options(), *wanted, *raw)
    most = (round(part.seconds * rate) + rate) * CHANNELS * 4
    with ffmpeg.running_process(line, errors=subprocess.DEVNULL) as process, ffmpeg.time_limit(SCAN_SECONDS, process):
        found = ffmpeg.output_pipe(process).read(most)
    values = np.frombuffer(found[: len(found) // (4 * CHANNELS) * 4 * CHANNELS], "<f4").reshape(-1, CHANNELS)
    if not len(values):
        raise _truncated_error(path)
    samples = np.nan_to_num(values.T.astype(np.float32), posinf=1, neginf=-1).clip(-1, 1)
    return Sound(samples=samples, rate=rate).part(0, part.seconds)


def _read_seconds(done: ffmpeg.Completed, path: Path) -> float:
    """Read the length in seconds from a scan of the file, because the header's length may be wrong or missing."""
    if TRUNCATED.search(done.errors):
        raise _truncated_error(path)
    last = dict(line.partition("=")[::2] for line in done.output.splitlines()).get("out_time_us", "")
    seconds = int(last) / 1e6 if last.strip().isdecimal() else 0.0
    if seconds <= 0:
        raise _no_audio_error(path, "must have audio, but has no samples")
    _check_seconds(seconds, path)
    return seconds


def _check_seconds(seconds: float, path: Path) -> None:
    if seconds > MAX_SECONDS:
        what = f"audio {path.name!r} lasts {seconds / 60:.0f} minutes and"
        raise SoundError(what, f"must last at most {MAX_SECONDS / 60:.0f}", "cut out the part that you want first")


def _run_ffmpeg(arguments: list[str], path: Path) -> ffmpeg.Completed:
    """Run ffmpeg on an untrusted file and wait until ffmpeg ends. Raises: SoundError after `SCAN_SECONDS`."""
    try:
        return ffmpeg.run_to_end(ffmpeg.verbose_command(*_limit_options(), *arguments), SCAN_SECONDS)
    except subprocess.TimeoutExpired:
        what = f"audio {path.name!r} could not be read within {SCAN_SECONDS:.0f} s and"
        raise SoundError(what, "must be shorter or simpler", "cut out the part that you want first") from None


def _is_truncated_wav(path: Path) -> bool:
    """Return whether this is a WAV file shorter than its header states. ffmpeg does not report that."""
    with path.open("rb") as file:
        head = file.read(12)
    if head[:4] != b"RIFF" or head[8:] != b"WAVE":
        return False
    stated = int.from_bytes(head[4:8], "little")
    return stated != _ENDLESS and stated + 8 > path.stat().st_size + 1


def _limit_options() -> list[str]:
    return ffmpeg.limit_options(MAX_PIXELS, ffmpeg.SOUND_DEMUXERS)


def _no_audio_error(path: Path, rule: str) -> SoundError:
    return SoundError(f"audio {path.name!r}", rule, "choose another file")


def _truncated_error(path: Path) -> SoundError:
    what = f"audio {path.name!r} is cut off or damaged and"
    return SoundError(what, "must be a complete file", "copy or download it again")
