"""Compresses images with H.264, because some models were trained on frames of compressed videos and expect the same artifacts in
first images.

Source: diffusers, `pipelines/ltx2/utils.py`, `apply_image_conditioning_crf`: one frame, preset veryfast, yuv420p.
"""

import numpy as np
from PIL import Image

from backend.errors import ImageError
from backend.media import ffmpeg

SECONDS = 60.0  # time limit for ffmpeg: even a busy machine needs far less for one frame


def compress_image(picture: Image.Image, crf: int) -> Image.Image:
    """Return the RGB image after it was compressed by H.264 at the constant rate factor `crf` (1 to 51).

    If `crf` is 0, return the image unchanged. The image must have an even width and height. Raises: ImageError if ffmpeg fails.
    """
    if crf == 0:
        return picture
    size = f"{picture.width}x{picture.height}"
    raw = ["-f", "rawvideo", "-pix_fmt", "rgb24"]
    encoding = ["-c:v", "libx264", "-preset", "veryfast", "-crf", str(crf), "-pix_fmt", "yuv420p", "-threads", "1"]
    stream = _pipe_through_ffmpeg(
        [*raw, "-s", size, "-r", "1", "-i", "-", *encoding, "-f", "h264", "-"], np.asarray(picture).tobytes()
    )
    pixels = _pipe_through_ffmpeg(["-f", "h264", "-i", "-", "-frames:v", "1", *raw, "-"], stream)
    if len(pixels) != picture.width * picture.height * 3:
        raise ImageError("the first frame could not be compressed", "as the model expects it", "set image_crf to 0")
    return Image.fromarray(np.frombuffer(pixels, np.uint8).reshape(picture.height, picture.width, 3))


def _pipe_through_ffmpeg(arguments: list[str], given: bytes) -> bytes:
    with ffmpeg.running_process(ffmpeg.command(*arguments), stdin=ffmpeg.PIPE) as process, ffmpeg.time_limit(SECONDS, process):
        made, _ = process.communicate(given)
    return made
