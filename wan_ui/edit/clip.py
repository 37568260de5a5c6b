"""A clip as the edit view's script knows it: where it is, what it is, and its thumbnails. Keeps nothing."""

import base64
import io
from pathlib import Path
from typing import Any

from PIL import Image

from backend.media.clips import read_clip_facts, thumbnails
from wan_ui.edit.html import THUMBNAIL_HEIGHT, THUMBNAILS


def described(path: Path) -> dict[str, Any]:
    """Plain values; the thumbnails are one picture inside them, as a data address. Decodes. Raises: ClipError."""
    facts = read_clip_facts(path)
    pictures = thumbnails(path, facts, THUMBNAILS, THUMBNAIL_HEIGHT)
    return {
        "path": str(path),
        "name": path.name,
        "seconds": round(facts.seconds, 3),
        "width": facts.width,
        "height": facts.height,
        "fps": round(facts.fps, 2),
        "has_sound": facts.has_sound,
        "thumbnails": _in_a_row(pictures),
    }


def _in_a_row(pictures: list[Image.Image]) -> str:
    """Side by side in one JPEG; where some are missing at the end, the last one again."""
    pictures = [*pictures, *[pictures[-1]] * (THUMBNAILS - len(pictures))]
    width, height = pictures[0].size
    row = Image.new("RGB", (width * len(pictures), height))
    for number, picture in enumerate(pictures):
        row.paste(picture, (number * width, 0))
    buffer = io.BytesIO()
    row.save(buffer, "JPEG", quality=80)
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}"
