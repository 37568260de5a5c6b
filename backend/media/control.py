"""Makes control clips from ordinary ones: lines along edges, or a grey picture of them."""

import numpy as np
from PIL import Image, ImageFilter

from backend.media.video import Frame
from backend.schemas.settings import ControlKind

EDGE = 12.0  # levels of one colour from a pixel to the next: weaker changes are texture or noise, and draw no line
BLUR = 1.0  # pixels


def control_frame(frame: Frame, kind: ControlKind) -> Frame:
    """One frame uint8 [height, width, 3] of a control clip, from one of an ordinary clip."""
    if kind == "as-is":
        return frame
    picture = Image.fromarray(frame)
    one = np.asarray(picture.convert("L")) if kind == "grey" else detect_edges(picture)
    return np.repeat(one[:, :, None], 3, axis=2)


def detect_edges(picture: Image.Image) -> np.ndarray:
    """White lines on black, uint8 [height, width], one pixel wide where the picture changes most across a line.

    A smoothed picture's gradients, in each pixel of the colour that changes most, kept where they are no less than those on both
    sides across the edge (after Canny). So a blue shape is seen on a green that is as light.
    """
    colours = np.asarray(picture.filter(ImageFilter.GaussianBlur(BLUR)), np.float32)
    down, right = np.gradient(colours, axis=(0, 1))
    most = np.hypot(down, right).argmax(axis=2, keepdims=True)
    down, right = (np.take_along_axis(gradient, most, axis=2)[..., 0] for gradient in (down, right))
    strength = np.hypot(down, right)
    around = np.pad(strength, 1)
    height, width = strength.shape

    def beside(row: int, column: int) -> np.ndarray:
        return around[1 + row : 1 + row + height, 1 + column : 1 + column + width]

    turn = np.round(np.arctan2(down, right) / (np.pi / 4)).astype(int) % 4  # of the gradient, in eighths of a circle
    largest = np.select(
        [turn == index for index in range(4)],
        [np.maximum(beside(row, column), beside(-row, -column)) for row, column in ((0, 1), (1, 1), (1, 0), (1, -1))],
    )
    return np.where((strength >= largest) & (strength >= EDGE), 255, 0).astype(np.uint8)
