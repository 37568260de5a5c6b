"""Combines several videos side by side into one video. Each video has a label. The audio of at most one video is used. The file's
comment has all requests."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from backend.files import replace_file
from backend.media.progress import report_progress
from backend.media.sound import read_sound, replace_audio
from backend.media.video import FORMAT, Frame, read_facts, read_frames, write_frames
from backend.schemas.request import GenerationRequest

LABEL_HEIGHT = 28  # pixels below each video for its label
SMALLEST_TILE = 320  # pixels: narrower videos are enlarged to at least this width, so that labels can be read
LARGEST_SHEET = 3840  # pixels: if the grid of videos would be wider, all its videos are shrunk
_INK, _PAPER = (235, 235, 235), (18, 18, 20)


@dataclass(frozen=True, kw_only=True)
class Tile:
    """`fps` is the video's frame rate if it differs from the rate of the combined video."""

    path: Path
    label: str
    fps: int | None = None


def write_side_by_side(
    tiles: Sequence[Tile], requests: Sequence[GenerationRequest], path: Path, sound: Path | None = None, columns: int = 2
) -> int:
    """Each video plays at its own speed. Shorter videos stay on their last frame. The audio comes from the video file `sound`.
    Return the number of frames. Raises: VideoFileError."""
    comment = json.dumps({"format": FORMAT, "compared": [request.for_sharing() for request in requests]}, ensure_ascii=True)
    fps = max(request.fps for request in requests)
    with replace_file(path) as part:
        expected = max(round(request.total_frames / request.fps * fps) for request in requests)
        count = write_frames(report_progress(_sheet_frames(tiles, fps, columns), expected), part, fps=fps, comment=comment)
        if sound is not None:
            facts = read_facts(part)
            replace_audio(part, read_sound(sound).part(0, count / fps), (facts.width, facts.height))
    return count


def _sheet_frames(tiles: Sequence[Tile], fps: int, columns: int) -> Iterator[Frame]:
    readers = [_repeat_to_rate(read_frames(tile.path), tile.fps or fps, fps) for tile in tiles]
    latest: list[Frame | None] = [None] * len(tiles)
    captions: list[Image.Image] = []
    while True:
        fresh = [next(reader, None) for reader in readers]
        if all(frame is None for frame in fresh):
            return
        latest = [old if frame is None else frame for frame, old in zip(fresh, latest, strict=True)]
        # Every video fits into a cell of this even size. All columns together are at most `LARGEST_SHEET` wide.
        width, height = (max(frame.shape[axis] for frame in latest if frame is not None) for axis in (1, 0))
        scale = min(max(1, ceil(SMALLEST_TILE / width)), LARGEST_SHEET / columns / width)
        cell = 2 * ceil(width * scale / 2), 2 * ceil(height * scale / 2)
        if not captions:
            captions = [Image.new("RGB", (cell[0], LABEL_HEIGHT), _PAPER) for _ in tiles]
            for caption, tile in zip(captions, tiles, strict=True):
                ImageDraw.Draw(caption).text((10, 6), tile.label, fill=_INK, font=ImageFont.load_default(14))
        used = min(columns, len(tiles))
        sheet = Image.new("RGB", (used * cell[0], ceil(len(tiles) / used) * (cell[1] + LABEL_HEIGHT)), _PAPER)
        for number, (frame, caption) in enumerate(zip(latest, captions, strict=True)):
            left, top = number % used * cell[0], number // used * (cell[1] + LABEL_HEIGHT)
            if frame is not None:  # fitted into its cell, centred and as large as possible
                picture = Image.fromarray(frame)
                share = min(cell[0] / picture.width, cell[1] / picture.height)
                size = (round(picture.width * share), round(picture.height * share))
                place = left + (cell[0] - size[0]) // 2, top + (cell[1] - size[1]) // 2
                sheet.paste(picture.resize(size, Image.Resampling.LANCZOS), place)
            sheet.paste(caption, (left, top + cell[1]))
        yield np.asarray(sheet)


def _repeat_to_rate(frames: Iterator[Frame], own_fps: int, fps: int) -> Iterator[Frame]:
    """Repeat frames, so that the result has `fps` frames per second."""
    shown = 0
    for index, frame in enumerate(frames, 1):
        until = max(shown + 1, round(index * fps / own_fps))
        yield from [frame] * (until - shown)
        shown = until
