"""Audio in memory, as WAV files, and in our own videos."""

import tempfile
import wave
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np

from backend.files import replace_file
from backend.media import ffmpeg
from backend.media import mp4 as mp4_boxes
from backend.media.clips import MAX_PIXELS

MODEL_SOUND = "stage3_sound.wav"  # file in a job's folder with the video's audio before AAC encoding
FADE_SECONDS = 0.02  # default length of the cross-fade that hides the join of two audio parts
SOUND_SECONDS = 120.0  # time limit for adding or reading a video's audio: even a busy machine needs far less
_AAC = ("-c:a", "aac", "-b:a", "192k")
_LOUDEST = 32767
_FIX = "add it with an editor"


@dataclass(frozen=True, kw_only=True)
class Sound:
    """Audio `samples` float32 [channels, N] in [-1, 1], `rate` samples per second."""

    samples: np.ndarray
    rate: int

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a 16-bit WAV file. Raises: OSError, wave.Error, EOFError."""
        with wave.open(str(path), "rb") as file:
            values = np.frombuffer(file.readframes(file.getnframes()), "<i2").reshape(-1, file.getnchannels())
            return cls(samples=values.T.astype(np.float32) / _LOUDEST, rate=file.getframerate())

    def write(self, path: Path) -> None:
        """Write a 16-bit WAV file, complete or not at all. Samples outside [-1, 1] are clipped. Raises: OSError."""
        values = np.round(np.clip(self.samples.T, -1, 1) * _LOUDEST).astype("<i2")
        with replace_file(path) as part, wave.open(str(part), "wb") as file:
            file.setparams((values.shape[1], 2, self.rate, len(values), "NONE", ""))
            file.writeframes(values.tobytes())

    def part(self, start: float, seconds: float) -> Self:
        """Return `seconds` of audio from the time `start` on, with silence after the end."""
        first, count = round(start * self.rate), round(seconds * self.rate)
        kept = self.samples[:, first : first + count]
        return type(self)(samples=np.pad(kept, ((0, 0), (0, count - kept.shape[1]))), rate=self.rate)


def join_sounds(sounds: Sequence[Sound], overlaps: Sequence[float], fades: Sequence[float] | None = None) -> Sound:
    """Join audio of one rate without clicks. Each part after the first starts `overlaps[i]` seconds before the previous part's
    end. In the overlap, the parts cross-fade with equal power during at most `fades[i]` seconds (default `FADE_SECONDS`) before
    the previous part's end. Without an overlap, the previous part fades out and the next part fades in. The length of the result
    is the sum of all lengths minus the overlaps, exact to a sample."""
    fades = [FADE_SECONDS] * len(overlaps) if fades is None else fades
    channels = max(sound.samples.shape[0] for sound in sounds)
    sounds = [replace(one, samples=np.broadcast_to(one.samples, (channels, one.samples.shape[1]))) for one in sounds]
    rate, made, seconds = sounds[0].rate, sounds[0].samples, sounds[0].samples.shape[1] / sounds[0].rate
    for sound, overlap, most in zip(sounds[1:], overlaps, fades, strict=True):
        seconds += sound.samples.shape[1] / rate - overlap
        left_out = max(0, made.shape[1] + sound.samples.shape[1] - round(seconds * rate))
        fade = min(round(most * rate), left_out or made.shape[1], sound.samples.shape[1])
        rising = np.sin(np.linspace(0, np.pi / 2, fade, dtype=np.float32))
        before, after = made.copy(), sound.samples.copy()
        before[:, before.shape[1] - fade :] *= rising[::-1]
        if left_out:
            after[:, left_out - fade : left_out] *= rising
            before[:, before.shape[1] - fade :] += after[:, left_out - fade : left_out]
        else:
            after[:, :fade] *= rising
        made = np.concatenate([before, after[:, left_out:]], axis=1)
    return Sound(samples=made, rate=rate)


def read_sound(path: Path) -> Sound:
    """Read the audio of one of our videos. Raises: VideoFileError if it is silent or cannot be read."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "sound.wav"
        _decode(path, out)
        return Sound.read(out)


def write_sound(video: Path, seconds: float, exact: Path | None, path: Path) -> None:
    """Write the first `seconds` of the audio of one of our videos as a 16-bit WAV file, from the WAV file `exact` if that can be
    read. Leaves no other file in the folder. Raises: VideoFileError, OSError."""
    try:
        sound = Sound.read(exact) if exact else None
    except (OSError, wave.Error, EOFError):
        sound = None
    if sound is None:
        _decode(video, path)
        sound = Sound.read(path)
    sound.part(0, seconds).write(path)


def replace_audio(video: Path, sound: Sound, size: tuple[int, int]) -> None:
    """Put audio into one of our videos of this `size`, (width, height). Frames and comment stay. Raises: VideoFileError."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "sound.wav"
        sound.write(file)
        _mux(video, ["-i", str(file)], _AAC, size, "the sound could not be put into the video:")


def copy_clip_audio(video: Path, clip: str | Path, start: float, seconds: float, size: tuple[int, int]) -> None:
    """Copy `seconds` of the clip's audio, from `start` on, into one of our videos. If the clip's audio ends sooner, the video's
    audio ends there too. Raises: VideoFileError; the video is then unchanged."""
    source = [*ffmpeg.limit_options(MAX_PIXELS), "-ss", f"{start:.6f}", "-t", f"{seconds:.6f}", "-i", str(clip)]
    _mux(video, source, (*_AAC, "-ac", "2"), size, "the clip's sound could not be kept:")


def _decode(video: Path, path: Path) -> None:
    line = ffmpeg.command("-y", "-i", str(video), "-map", "0:a:0", "-c:a", "pcm_s16le", "-f", "wav", str(path))
    ffmpeg.write_file(line, "the sound could not be read:", _FIX, SOUND_SECONDS)


def _mux(video: Path, source: Sequence[str], encoding: Sequence[str], size: tuple[int, int], failure: str) -> None:
    copied = ["-map", "0:v:0", "-map", "1:a:0", "-map_metadata", "0", "-c:v", "copy", *encoding, "-movflags", "+faststart"]
    with replace_file(video) as part:
        line = ffmpeg.command("-y", "-i", str(video), *source, *copied, "-f", "mp4", str(part))
        ffmpeg.write_file(line, failure, _FIX, SOUND_SECONDS)
        if size[0] % 2 or size[1] % 2:
            mp4_boxes.set_shown_size(part, *size)
