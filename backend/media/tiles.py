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
    """A video and the label below it. `fps` is the video's frame rate if it differs from the rate of the combined video."""

    path: Path
    label: str
    fps: int | None = None


def write_side_by_side(
    tiles: Sequence[Tile], requests: Sequence[GenerationRequest], path: Path, sound: Path | None = None, columns: int = 2
) -> int:
    """Write the videos in `columns` columns. Each video plays at its own speed. Shorter videos stay on their last frame. The
    audio comes from the video file `sound`; None gives no audio. Return the number of frames.

    Raises: VideoFileError.
    """
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
        cell = _cell_size(latest, columns)
        captions = captions or [_draw_caption(tile.label, cell[0]) for tile in tiles]
        yield _draw_sheet(latest, captions, cell, columns)


def _repeat_to_rate(frames: Iterator[Frame], own_fps: int, fps: int) -> Iterator[Frame]:
    """Repeat frames of a video with `own_fps` frames per second, so that the result has `fps` frames per second."""
    shown = 0
    for index, frame in enumerate(frames, 1):
        until = max(shown + 1, round(index * fps / own_fps))
        yield from [frame] * (until - shown)
        shown = until


def _cell_size(frames: Sequence[Frame | None], columns: int) -> tuple[int, int]:
    """Return an even width and height into which every video fits. All columns together are at most `LARGEST_SHEET` wide."""
    width = max(frame.shape[1] for frame in frames if frame is not None)
    height = max(frame.shape[0] for frame in frames if frame is not None)
    scale = min(max(1, ceil(SMALLEST_TILE / width)), LARGEST_SHEET / columns / width)
    return 2 * ceil(width * scale / 2), 2 * ceil(height * scale / 2)


def _draw_sheet(frames: Sequence[Frame | None], captions: Sequence[Image.Image], cell: tuple[int, int], columns: int) -> Frame:
    columns = min(columns, len(frames))
    rows = ceil(len(frames) / columns)
    sheet = Image.new("RGB", (columns * cell[0], rows * (cell[1] + LABEL_HEIGHT)), _PAPER)
    for number, (frame, caption) in enumerate(zip(frames, captions, strict=True)):
        left, top = number % columns * cell[0], number // columns * (cell[1] + LABEL_HEIGHT)
        if frame is not None:
            sheet.paste(_fit_frame(frame, cell), (left, top))
        sheet.paste(caption, (left, top + cell[1]))
    return np.asarray(sheet)


def _fit_frame(frame: Frame, cell: tuple[int, int]) -> Image.Image:
    """Fit the frame into the cell, centred and as large as possible."""
    picture = Image.fromarray(frame)
    scale = min(cell[0] / picture.width, cell[1] / picture.height)
    size = (round(picture.width * scale), round(picture.height * scale))
    fitted = Image.new("RGB", cell, _PAPER)
    fitted.paste(picture.resize(size, Image.Resampling.LANCZOS), ((cell[0] - size[0]) // 2, (cell[1] - size[1]) // 2))
    return fitted


def _draw_caption(text: str, width: int) -> Image.Image:
    caption = Image.new("RGB", (width, LABEL_HEIGHT), _PAPER)
    ImageDraw.Draw(caption).text((10, 6), text, fill=_INK, font=ImageFont.load_default(14))
    return caption
