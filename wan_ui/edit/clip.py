"""Read facts about uploaded clips, masks and images for the edit view's script. Clips also get thumbnails.

These functions open untrusted files, so they run in the sandbox. They import no Gradio and return plain values.
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

THUMBNAILS, THUMBNAIL_HEIGHT = 12, 72  # number of thumbnails in the timeline; pixels, twice the displayed height
_PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff")
_CLIP_ENDINGS = (".mp4", ".m4v", ".mov", ".webm", ".gif")


def read_clip_for_page(path: Path) -> dict[str, Any]:
    """Return the facts of a clip as plain values. The thumbnails are one JPEG, as a data URL. Raises: ClipError."""
    facts = read_clip_facts(path)
    pictures = read_thumbnails(path, facts, THUMBNAILS, THUMBNAIL_HEIGHT)
    pictures = [*pictures, *[pictures[-1]] * (THUMBNAILS - len(pictures))]  # repeat the last thumbnail if some are missing
    width, height = pictures[0].size
    row, buffer = Image.new("RGB", (width * len(pictures), height)), io.BytesIO()
    for number, picture in enumerate(pictures):
        row.paste(picture, (number * width, 0))
    row.save(buffer, "JPEG", quality=80)
    return {
        "name": path.name,
        "seconds": round(facts.seconds, 3),
        "width": facts.width,
        "height": facts.height,
        "fps": round(facts.nominal_fps, 2),
        "has_sound": facts.has_sound,
        "thumbnails": f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}",
    }


def read_uploaded_clip(path: Path) -> dict[str, Any]:
    """Read an uploaded clip (see `read_clip_for_page`).

    Delete a file that is not a clip, unless it has the extension of an image: the file may be in use as an image.

    Raises: ClipError.
    """
    try:
        return read_clip_for_page(path)
    except ClipError:
        if path.suffix.lower() not in _PICTURES:
            path.unlink(missing_ok=True)
        raise


def read_mask_facts(mask: Path, clip: Path) -> dict[str, Any]:
    """Return the facts of an uploaded mask, and delete an unusable mask. Raises: ClipError, ImageError."""
    is_one = is_single_image(mask)
    try:
        _ = load_checked_image(mask) if is_one else read_clip_facts(mask)
    except (ClipError, ImageError):
        mask.unlink(missing_ok=True)
        raise
    check_mask_shape(mask, clip)
    return {"name": mask.name, "is_picture": is_one}


def read_image_facts(path: Path) -> dict[str, Any]:
    """Return the facts of an uploaded image.

    Delete a file that is not an image, unless it has the extension of a clip: the file may be in use as a clip.

    Raises: ImageError.
    """
    try:
        width, height = load_checked_image(path).size
    except ImageError:
        if path.suffix.lower() not in _CLIP_ENDINGS:
            path.unlink(missing_ok=True)
        raise
    return {"name": path.name, "width": width, "height": height}


def check_painted_mask(request: GenerationRequest) -> None:
    """Check that a painted mask has the size of the clip's frames, and that it is not empty. Raises: ClipError."""
    if request.mask is None or request.video is None or not is_single_image(request.mask):
        return
    mask, facts = load_checked_image(request.mask), read_clip_facts(request.video)
    if mask.size != (facts.width, facts.height):
        what = f"the mask has {mask.width}x{mask.height} pixels and"
        raise ClipError(what, f"must have as many as the clip's frames, {facts.width}x{facts.height}", "paint it again")
    _, lightest = cast(tuple[int, int], mask.convert("L").getextrema())  # a grey image has one channel
    if lightest <= LIGHT:
        raise ClipError("the mask is black everywhere,", "so nothing would be regenerated", "paint the areas to regenerate")
