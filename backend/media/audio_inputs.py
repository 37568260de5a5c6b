"""Opens untrusted audio files and the audio of untrusted videos: reads their facts and decodes a part. File extensions are
ignored. ffmpeg has limits of memory and time. Only the requested part is decoded."""

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from backend.errors import SoundError
from backend.media import ffmpeg
from backend.media.clips import MAX_PIXELS, SCAN_SECONDS, TRUNCATED, check_file, check_seconds, scan_file, truncated_error
from backend.media.sound import Sound
from backend.schemas.sound import SoundPart

FORMATS = "wav, mp3, m4a, ogg, flac, or a video with audio"
MODEL_RATE = 16_000  # samples per second that LTX-2's audio autoencoder expects
CHANNELS = 2
MAX_RATE = 48_000  # samples per second; audio with a higher rate is converted to this rate
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
    """Facts of an audio file. `rate` is in samples per second. Copies of the file get the `suffix`, which fits its content."""

    seconds: float
    rate: int
    suffix: str


def read_sound_facts(path: str | Path) -> SoundFacts:
    """Scan the whole file once without decoding. Raises: SoundError, with its own message for each reason why the audio cannot be
    used."""
    path = Path(path)
    check_file(path, "audio", "an audio file")
    with path.open("rb") as file:
        head = file.read(12)
    num_bytes = int.from_bytes(head[4:8], "little")
    is_wav = head[:4] == b"RIFF" and head[8:] == b"WAVE"
    # ffmpeg does not report a WAV file that is shorter than its header states.
    if is_wav and num_bytes != _ENDLESS and num_bytes + 8 > path.stat().st_size + 1:
        raise truncated_error(path, "audio")
    done = scan_file(path, "audio", "0:a:0", ffmpeg.SOUND_DEMUXERS)
    header, _, _ = done.stderr.partition("Output #0")
    stream, kind, stated = _STREAM.search(header), _INPUT.search(header), ffmpeg.parse_duration(header)
    is_truncated = TRUNCATED.search(done.stderr) is not None
    if kind is None:
        raise truncated_error(path, "audio") if is_truncated else _no_audio_error(path, f"must be an audio file ({FORMATS})")
    if stream is None:
        raise _no_audio_error(path, "must have audio, but is a silent video" if "Video: " in header else "must have audio")
    check_seconds(stated or 0.0, path, "audio")
    if is_truncated:
        raise truncated_error(path, "audio")
    # The header's length may be wrong or missing, so the scan's length counts.
    last = dict(line.partition("=")[::2] for line in done.stdout.splitlines()).get("out_time_us", "")
    seconds = int(last) / 1e6 if last.strip().isdecimal() else 0.0
    if seconds <= 0:
        raise _no_audio_error(path, "must have audio, but has no samples")
    check_seconds(seconds, path, "audio")
    if stated and _GUESSED not in done.stderr and seconds < stated - SHORT:
        raise truncated_error(path, "audio")
    suffix = next((ending for name, ending in _SUFFIXES.items() if name in kind[1].split(",")), ".mp4")
    return SoundFacts(seconds=seconds, rate=int(stream["rate"]), suffix=suffix)


def check_sound_part(path: str | Path, part: SoundPart) -> SoundFacts:
    """Check that the part starts within the audio file. If the file ends before the part ends, the rest of the part is silent.
    Raises: SoundError."""
    facts = read_sound_facts(path)
    if part.start >= facts.seconds:
        rule = f"must be within the {facts.seconds:.2f} s of {Path(path).name!r}"
        raise SoundError(f"sound_start={part.start:g}", rule, "start earlier")
    return facts


def read_for_model(path: str | Path, part: SoundPart) -> np.ndarray:
    """Decode this part to samples float32 [2, N] at `MODEL_RATE`. Raises: SoundError."""
    check_sound_part(path, part)
    return read_at_rate(path, part, MODEL_RATE).samples


def read_original(path: str | Path, part: SoundPart) -> Sound:
    """Decode the part in stereo at the file's sample rate, but at most at `MAX_RATE`. Raises: SoundError."""
    facts = check_sound_part(path, part)
    return read_at_rate(path, part, min(facts.rate, MAX_RATE))


def read_at_rate(path: str | Path, part: SoundPart, rate: int) -> Sound:
    """Decode the part in stereo at `rate`. The caller has checked that the part starts within the file. Raises: SoundError."""
    lead = min(part.start, LEAD_SECONDS)
    sought = ["-ss", f"{part.start - lead:.6f}"] if lead < part.start else []
    wanted = [*sought, "-t", f"{lead + part.seconds:.6f}", "-i", str(path), "-ss", f"{lead:.6f}"]
    raw = ["-map", "0:a:0", "-vn", "-ac", str(CHANNELS), "-ar", str(rate), "-f", "f32le", "-"]
    line = ffmpeg.command(*ffmpeg.limit_options(MAX_PIXELS, ffmpeg.SOUND_DEMUXERS), *wanted, *raw)
    most = (round(part.seconds * rate) + rate) * CHANNELS * 4
    with ffmpeg.running_process(line, errors=subprocess.DEVNULL) as process, ffmpeg.time_limit(SCAN_SECONDS, process):
        found = ffmpeg.output_pipe(process).read(most)
    values = np.frombuffer(found[: len(found) // (4 * CHANNELS) * 4 * CHANNELS], "<f4").reshape(-1, CHANNELS)
    if not len(values):
        raise truncated_error(Path(path), "audio")
    samples = np.nan_to_num(values.T.astype(np.float32), posinf=1, neginf=-1).clip(-1, 1)
    return Sound(samples=samples, rate=rate).part(0, part.seconds)


def _no_audio_error(path: Path, rule: str) -> SoundError:
    return SoundError(f"audio {path.name!r}", rule, "choose another file")
