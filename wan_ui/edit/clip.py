"""What visitors bring to the edit view, as its script knows it: a clip with its thumbnails, a mask, a picture.

Opens strangers' files, so it runs in the sandbox and imports no Gradio. Results are plain values.
"""

import base64
import io
from pathlib import Path
from typing import Any, cast

from PIL import Image

from backend.errors import ClipError, ImageError
from backend.media.clips import read_clip_facts, read_thumbnails
from backend.media.masks import LIGHT, check_mask_shape, is_single_image
from backend.media.pictures import load_checked_image
from backend.schemas.request import GenerationRequest

THUMBNAILS, THUMBNAIL_HEIGHT = 12, 72  # of the timeline; pixels, twice what is shown
_PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff")
_CLIP_ENDINGS = (".mp4", ".m4v", ".mov", ".webm", ".gif")


def read_clip_for_page(path: Path) -> dict[str, Any]:
    """Plain values; the thumbnails are one picture inside them, as a data address. Decodes. Raises: ClipError."""
    facts = read_clip_facts(path)
    pictures = read_thumbnails(path, facts, THUMBNAILS, THUMBNAIL_HEIGHT)
    return {
        "name": path.name,
        "seconds": round(facts.seconds, 3),
        "width": facts.width,
        "height": facts.height,
        "fps": round(facts.fps, 2),
        "has_sound": facts.has_sound,
        "thumbnails": _join_thumbnails(pictures),
    }


def read_uploaded_clip(path: Path) -> dict[str, Any]:
    """As `described`; an upload that is no clip is of no use and is removed, unless it is a picture. Raises: ClipError."""
    try:
        return read_clip_for_page(path)
    except ClipError:
        if path.suffix.lower() not in _PICTURES:
            path.unlink(missing_ok=True)
        raise


def read_mask_facts(mask: Path, clip: Path) -> dict[str, Any]:
    """What a mask from a visitor is, for the view's script. One that nobody can use is removed. Raises: ClipError, ImageError."""
    is_one = is_single_image(mask)
    try:
        _ = load_checked_image(mask) if is_one else read_clip_facts(mask)
    except (ClipError, ImageError):
        mask.unlink(missing_ok=True)
        raise
    check_mask_shape(mask, clip)
    return {"name": mask.name, "is_picture": is_one}


def read_image_facts(path: Path) -> dict[str, Any]:
    """What a picture from a visitor is, for the view's script. Raises: ImageError for a file that is none; it is removed, unless
    it may be a clip."""
    try:
        width, height = load_checked_image(path).size
    except ImageError:
        if path.suffix.lower() not in _CLIP_ENDINGS:
            path.unlink(missing_ok=True)
        raise
    return {"name": path.name, "width": width, "height": height}


def check_painted_mask(request: GenerationRequest) -> None:
    """Raises: ClipError if a picture that is painted over the clip has not the size of its frames, or nothing is painted."""
    if request.mask is None or request.video is None or not is_single_image(request.mask):
        return
    mask, facts = load_checked_image(request.mask), read_clip_facts(request.video)
    if mask.size != (facts.width, facts.height):
        what = f"the mask has {mask.width}x{mask.height} pixels and"
        raise ClipError(what, f"must have as many as the clip's frames, {facts.width}x{facts.height}", "paint it again")
    _, lightest = cast(tuple[int, int], mask.convert("L").getextrema())  # of the one channel
    if lightest <= LIGHT:
        raise ClipError("the mask is black all over,", "so nothing would be made anew", "paint what should be")


def _join_thumbnails(pictures: list[Image.Image]) -> str:
    """Side by side in one JPEG; where some are missing at the end, the last one again."""
    pictures = [*pictures, *[pictures[-1]] * (THUMBNAILS - len(pictures))]
    width, height = pictures[0].size
    row = Image.new("RGB", (width * len(pictures), height))
    for number, picture in enumerate(pictures):
        row.paste(picture, (number * width, 0))
    buffer = io.BytesIO()
    row.save(buffer, "JPEG", quality=80)
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}"
