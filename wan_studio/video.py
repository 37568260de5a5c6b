"""A finished video on this machine."""

import base64
import io
import shutil
import subprocess
import wave
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from wan_studio.errors import StudioError

if TYPE_CHECKING:
    import numpy as np

MOST_SHOWN_BYTES = 50_000_000  # a notebook stores what its cells display


@dataclass(frozen=True, kw_only=True)
class Audio:
    """The audio of a video: `samples` float32 [channels, samples] in [-1, 1], with `sample_rate` samples per second."""

    samples: "np.ndarray"
    sample_rate: int


@dataclass(frozen=True, kw_only=True)
class Video:
    """A finished video. In a notebook, it displays itself as a player.

    `path` is the mp4 file on this machine, which also contains the request. Functions that take a path also take a video.
    `request` has all settings of the video by name, with file names for its inputs. `seconds` is the time by stage. `notes` are
    sentences about how the video was generated.
    """

    path: Path
    job_id: str
    width: int
    height: int
    num_frames: int
    fps: int
    seed: int
    seconds: Mapping[str, float]
    has_sound: bool
    notes: Sequence[str]
    request: Mapping[str, Any]

    @classmethod
    def from_json(cls, facts: Mapping[str, Any], path: Path) -> Self:
        """Read the facts of the server about the video at `path`. Facts that only newer servers know are ignored."""
        names = {field.name for field in fields(cls)} - {"path"}
        return cls(path=path, **{name: facts[name] for name in names})

    def __fspath__(self) -> str:
        return str(self.path)

    @property
    def frames(self) -> "np.ndarray":
        """All frames, uint8 [frames, height, width, 3] in RGB, decoded again at each access. Needs numpy and ffmpeg."""
        import numpy as np

        pixels = np.frombuffer(self._decode("-f", "rawvideo", "-pix_fmt", "rgb24"), np.uint8)
        return pixels.reshape(-1, self.height, self.width, 3)

    @property
    def audio(self) -> Audio | None:
        """The audio, None for a silent video, decoded again at each access. Needs numpy and ffmpeg."""
        if not self.has_sound:
            return None
        import numpy as np

        with wave.open(io.BytesIO(self._decode("-f", "wav", "-c:a", "pcm_s16le")), "rb") as file:
            channels, rate = file.getnchannels(), file.getframerate()
            values = np.frombuffer(file.readframes(file.getnframes()), "<i2")
        return Audio(samples=values.reshape(-1, channels).T.astype(np.float32) / 32768, sample_rate=rate)

    def _decode(self, *options: str) -> bytes:
        command = [_find_ffmpeg(), "-v", "error", "-i", str(self.path), *options, "-"]
        return subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True).stdout

    def _repr_html_(self) -> str:
        caption = escape(f"{self.path} · {self.width}x{self.height}, {self.num_frames} frames, seed {self.seed}")
        if self.path.stat().st_size > MOST_SHOWN_BYTES:
            return f"<p>{caption}<br>Not shown, because it has more than {MOST_SHOWN_BYTES // 1_000_000} MB: open the file.</p>"
        data = base64.b64encode(self.path.read_bytes()).decode()
        return f'<video controls loop src="data:video/mp4;base64,{data}"></video><p>{caption}</p>'


def _find_ffmpeg() -> str:
    """Return the program of imageio-ffmpeg, or else the ffmpeg on the PATH. Raises: StudioError."""
    try:
        import imageio_ffmpeg
    except ImportError:
        program = shutil.which("ffmpeg")
        if program is None:
            raise StudioError("This Python has no ffmpeg to decode the video: `pip install imageio-ffmpeg`") from None
        return program
    return imageio_ffmpeg.get_ffmpeg_exe()
