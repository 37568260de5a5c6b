"""Clips for tests, encoded by ffmpeg as a camera would."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

import imageio_ffmpeg
import numpy as np

LEVEL, STEP = 16, 4  # frame i of a counting clip has this grey level + i * STEP
MOST_COUNTED = (235 - LEVEL) // STEP


def run_ffmpeg(*arguments: str, given: bytes | None = None) -> None:
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-hide_banner", "-loglevel", "error", "-y", *arguments]
    subprocess.run(command, input=given, check=True, timeout=60)


def counting_clip(
    path: Path, num_frames: int, fps: int, size: tuple[int, int] = (64, 48), *, sound: bool = False, options: Sequence[str] = ()
) -> Path:
    """Write a nearly lossless clip whose frame i is grey, with level LEVEL + i * STEP. `size` is (width, height)."""
    width, height = size
    assert num_frames <= MOST_COUNTED
    frames = np.stack([np.full((height, width, 3), LEVEL + STEP * index, np.uint8) for index in range(num_frames)])
    raw = ["-f", "rawvideo", "-pixel_format", "rgb24", "-video_size", f"{width}x{height}", "-framerate", str(fps), "-i", "-"]
    heard = ["-f", "lavfi", "-i", f"sine=440:d={num_frames / fps}"] if sound else []
    codec = options or (["-c:v", "libx264", "-crf", "4", "-g", "12", "-pix_fmt", "yuv420p"] if path.suffix != ".gif" else [])
    run_ffmpeg(
        *raw, *heard, *codec, *(["-c:a", "aac"] if sound and path.suffix == ".mp4" else []), str(path), given=frames.tobytes()
    )
    return path


def numbers(frames: Sequence[np.ndarray]) -> list[int]:
    """Return the frame numbers of frames of a counting clip."""
    return [round((float(frame.mean()) - LEVEL) / STEP) for frame in frames]


def marked_clip(path: Path, size: tuple[int, int] = (320, 180), num_frames: int = 30, fps: int = 15, *options: str) -> Path:
    """Write a clip that is red in the upper left quarter, green in the upper right and blue below."""
    width, height = size
    frame = np.zeros((height, width, 3), np.uint8)
    frame[: height // 2, : width // 2] = (230, 20, 20)
    frame[: height // 2, width // 2 :] = (20, 200, 20)
    frame[height // 2 :] = (20, 20, 230)
    raw = ["-f", "rawvideo", "-pixel_format", "rgb24", "-video_size", f"{width}x{height}", "-framerate", str(fps), "-i", "-"]
    run_ffmpeg(*raw, "-c:v", "libx264", "-pix_fmt", "yuv420p", *options, str(path), given=frame.tobytes() * num_frames)
    return path


def turned(path: Path, source: Path, degrees: int) -> Path:
    """Copy a clip and add the rotation that a camera held sideways stores."""
    run_ffmpeg("-display_rotation", str(degrees), "-i", str(source), "-c", "copy", str(path))
    return path
