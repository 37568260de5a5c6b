"""Opens untrusted masks: one image for all frames, or a clip. White areas are regenerated."""

from pathlib import Path

import numpy as np
from PIL import Image

from backend.errors import ClipError
from backend.media.clips import read_clip, read_clip_facts
from backend.media.pictures import BROKEN, FORMATS, MAX_PIXELS, crop_to, is_animation, load_checked_image
from backend.schemas.clip import Part

LIGHT = 127  # lighter pixels of a mask count as white
SHAPES = 0.02  # largest relative difference between the aspect ratios of a mask and its clip


def is_single_image(path: str | Path) -> bool:
    """Other files can be clips or unreadable. Only checks whether a second frame exists, because Pillow counts the frames of a
    TIFF in quadratic time."""
    try:
        with Image.open(path, formats=FORMATS) as image:
            return image.width * image.height > MAX_PIXELS or not is_animation(image)
    except (*BROKEN, Image.DecompressionBombError):
        return False


def check_mask_shape(mask: str | Path, clip: str | Path) -> None:
    """Check that the mask has the aspect ratio of its clip. Raises: ClipError."""
    facts = read_clip_facts(clip)
    if is_single_image(mask):
        width, height = load_checked_image(mask).size
    else:
        own = read_clip_facts(mask)
        width, height = own.width, own.height
    if abs((width / height) / (facts.width / facts.height) - 1) > SHAPES:
        what = f"mask {Path(mask).name!r} has {width}x{height} pixels and"
        rule = f"must have the shape of the clip, {facts.width}x{facts.height}"
        raise ClipError(what, rule, "make it from a frame of the clip")


def read_mask(path: str | Path, part: Part) -> np.ndarray:
    """Read bool [F, height, width] in the part's size, True for pixels to regenerate. Raises: ImageError, ClipError."""
    width, height = part.size
    if is_single_image(path):
        picture = crop_to(load_checked_image(path), width, height, part.focus)
        return np.broadcast_to(np.asarray(picture.convert("L")) > LIGHT, (part.num_frames, height, width))
    mask = np.empty((part.num_frames, height, width), bool)
    for index, frame in enumerate(read_clip(path, part)):
        mask[index] = np.asarray(Image.fromarray(frame).convert("L")) > LIGHT
    return mask
