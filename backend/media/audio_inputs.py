"""Opens sounds from strangers: files of sound, and the sound of videos. Says what they are, and reads a part of one.

As with clips (`backend.media.clips`), a file's name says nothing about it, and ffmpeg has limits of memory and of time. Only the
wanted part is decoded.
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

FORMATS = "wav, mp3, m4a, ogg, flac, or the sound of a video"
MODEL_RATE = 16_000  # samples a second of what LTX-2's autoencoder of sound hears
CHANNELS = 2
MAX_SECONDS = 3600.0
MAX_RATE = 48_000  # samples a second that are kept; a video's sound has no more
READ_SECONDS = 20.0
COUNT_SECONDS = 60.0
LEAD_SECONDS = 0.5  # that are decoded before the wanted part: a packet of AAC needs the one before it, the first one too
SHORT = 0.5  # seconds that a whole file may lack of what its header says
_SUFFIXES = {"wav": ".wav", "mp3": ".mp3", "ogg": ".ogg", "flac": ".flac", "aac": ".aac", "webm": ".webm"}  # else as mp4
_STREAM = re.compile(r"Audio: .*?, (?P<rate>\d+) Hz, (?P<channels>[^,\n]+)")
_INPUT = re.compile(r"Input #0, ([\w,]+), from")
_ENDLESS = 2**32 - 1  # what a WAV file says that was written before its length was known
_GUESSED = "Estimating duration from bitrate"


@dataclass(frozen=True, kw_only=True)
class SoundFacts:
    """A sound of so many `seconds`, with `rate` samples each; `suffix` of a copy's name, by the content."""

    seconds: float
    rate: int
    suffix: str


def read_sound_facts(path: str | Path) -> SoundFacts:
    """What the sound is. Goes through all of it once, and decodes nothing.

    Raises: SoundError, with a sentence of its own for each reason why a sound cannot be used.
    """
    path = Path(path)
    if not path.is_file():
        raise SoundError(f"sound {path.name!r}", "must be a file, and there is none at that path", "check the path")
    if path.stat().st_size == 0:
        raise SoundError(f"sound {path.name!r}", "must be a sound, and this file is empty", "give another file")
    if _is_truncated_wav(path):
        raise _truncated_error(path)
    report = _run_ffmpeg(["-i", str(path)], READ_SECONDS, path).errors
    header, _, _ = report.partition("Output #0")
    stream, kind, stated = _STREAM.search(header), _INPUT.search(header), ffmpeg.parse_duration(header)
    if kind is None:
        raise _truncated_error(path) if TRUNCATED.search(report) else _no_audio_error(path, f"must be a sound ({FORMATS})")
    if stream is None:
        raise _no_audio_error(
            path, "must have a sound, and this is a video without one" if "Video: " in header else "must have one"
        )
    _check_seconds(stated or 0.0, path)
    seconds = _measure_seconds(path)
    if stated and _GUESSED not in report and seconds < stated - SHORT:
        raise _truncated_error(path)
    suffix = next((ending for name, ending in _SUFFIXES.items() if name in kind[1].split(",")), ".mp4")
    return SoundFacts(seconds=seconds, rate=int(stream["rate"]), suffix=suffix)


def check_sound_part(path: str | Path, part: SoundPart) -> SoundFacts:
    """The sound's facts, if it has a beginning of this part: where it ends sooner, silence follows. Raises: SoundError."""
    facts, name = read_sound_facts(path), Path(path).name
    if part.start >= facts.seconds:
        rule = f"must be within the {facts.seconds:.2f} s of {name!r}"
        raise SoundError(f"sound_start={part.start:g}", rule, "begin earlier")
    return facts


def read_for_model(path: str | Path, part: SoundPart) -> np.ndarray:
    """The part as a model hears it: samples float32 [2, N], `HEARD_RATE` a second. Raises: SoundError."""
    check_sound_part(path, part)
    return _decode_part(Path(path), part, MODEL_RATE).samples


def read_original(path: str | Path, part: SoundPart) -> Sound:
    """The part as it is, in stereo, with 48,000 samples a second at most. Raises: SoundError."""
    facts = check_sound_part(path, part)
    return _decode_part(Path(path), part, min(facts.rate, MAX_RATE))


def read_at_rate(path: str | Path, part: SoundPart, rate: int) -> Sound:
    """The part in stereo, `rate` samples a second, of a sound that has been checked to begin before it. Raises: SoundError."""
    return _decode_part(Path(path), part, rate)


def _decode_part(path: Path, part: SoundPart, rate: int) -> Sound:
    lead = min(part.start, LEAD_SECONDS)
    sought = ["-ss", f"{part.start - lead:.6f}"] if lead < part.start else []
    wanted = [*sought, "-t", f"{lead + part.seconds:.6f}", "-i", str(path), "-ss", f"{lead:.6f}"]
    raw = ["-map", "0:a:0", "-vn", "-ac", str(CHANNELS), "-ar", str(rate), "-f", "f32le", "-"]
    line = ffmpeg.command(*_limit_options(), *wanted, *raw)
    most = (round(part.seconds * rate) + rate) * CHANNELS * 4
    with ffmpeg.running_process(line, errors=subprocess.DEVNULL) as process, ffmpeg.time_limit(COUNT_SECONDS, process):
        found = ffmpeg.output_pipe(process).read(most)
    values = np.frombuffer(found[: len(found) // (4 * CHANNELS) * 4 * CHANNELS], "<f4").reshape(-1, CHANNELS)
    if not len(values):
        raise _truncated_error(path)
    samples = np.nan_to_num(values.T.astype(np.float32), posinf=1, neginf=-1).clip(-1, 1)
    return Sound(samples=samples, rate=rate).part(0, part.seconds)


def _measure_seconds(path: Path) -> float:
    """By going through the file: a header may say anything, or nothing."""
    counting = ["-i", str(path), "-map", "0:a:0", "-c", "copy", "-f", "null", "-progress", "pipe:1", "-"]
    done = _run_ffmpeg(counting, COUNT_SECONDS, path)
    if TRUNCATED.search(done.errors):
        raise _truncated_error(path)
    last = dict(line.partition("=")[::2] for line in done.output.splitlines()).get("out_time_us", "")
    seconds = int(last) / 1e6 if last.strip().isdecimal() else 0.0
    if seconds <= 0:
        raise _no_audio_error(path, "must have a sound, and this one has no samples")
    _check_seconds(seconds, path)
    return seconds


def _check_seconds(seconds: float, path: Path) -> None:
    if seconds > MAX_SECONDS:
        what = f"sound {path.name!r} lasts {seconds / 60:.0f} minutes and"
        raise SoundError(what, f"must last at most {MAX_SECONDS / 60:.0f}", "cut out the part that you want first")


def _run_ffmpeg(arguments: list[str], seconds: float, path: Path) -> ffmpeg.Completed:
    """Runs ffmpeg on a stranger's file, to its end. Raises: SoundError if that takes too long."""
    try:
        return ffmpeg.run_to_end(ffmpeg.verbose_command(*_limit_options(), *arguments), seconds)
    except subprocess.TimeoutExpired:
        what = f"sound {path.name!r} could not be read within {seconds:.0f} s and"
        raise SoundError(what, "must be shorter or simpler", "cut out the part that you want first") from None


def _is_truncated_wav(path: Path) -> bool:
    """Whether this is a WAV file that is shorter than it says, which ffmpeg does not mind."""
    with path.open("rb") as file:
        head = file.read(12)
    if head[:4] != b"RIFF" or head[8:] != b"WAVE":
        return False
    stated = int.from_bytes(head[4:8], "little")
    return stated != _ENDLESS and stated + 8 > path.stat().st_size + 1


def _limit_options() -> list[str]:
    return ffmpeg.limit_options(MAX_PIXELS, ffmpeg.SOUND_DEMUXERS)


def _no_audio_error(path: Path, rule: str) -> SoundError:
    return SoundError(f"sound {path.name!r}", rule, "choose another file")


def _truncated_error(path: Path) -> SoundError:
    what = f"sound {path.name!r} is cut off or damaged and"
    return SoundError(what, "must be a whole file", "copy or download it again")
