"""Converts ordinary clips to control clips: edges or grey frames."""

import numpy as np
from PIL import Image, ImageFilter

from backend.media.video import Frame
from backend.schemas.settings import ControlKind

EDGE = 12.0  # least gradient of a colour channel, in levels (of 255) per pixel, that is drawn; texture and noise have less
BLUR = 1.0  # radius in pixels of the Gaussian blur that removes noise before the edges are detected


def control_frame(frame: Frame, kind: ControlKind) -> Frame:
    """Convert a frame of an ordinary clip to a frame uint8 [height, width, 3] of a control clip. Edges are white lines on black,
    one pixel wide. The gradient of each colour channel of the smoothed image is computed separately. Therefore edges are also
    found between two colours of the same brightness. Each pixel uses the channel with the largest gradient. As in Canny's method,
    a pixel is drawn only if neither of its two neighbours across the edge has a larger gradient."""
    if kind == "as-is":
        return frame
    picture = Image.fromarray(frame)
    if kind == "grey":
        return np.repeat(np.asarray(picture.convert("L"))[:, :, None], 3, axis=2)
    colours = np.asarray(picture.filter(ImageFilter.GaussianBlur(BLUR)), np.float32)
    down, right = np.gradient(colours, axis=(0, 1))
    most = np.hypot(down, right).argmax(axis=2, keepdims=True)
    down, right = (np.take_along_axis(gradient, most, axis=2)[..., 0] for gradient in (down, right))
    strength = np.hypot(down, right)
    around = np.pad(strength, 1)
    height, width = strength.shape
    # The gradient's direction in eighths of a circle, 0 to 3. Opposite directions have the same number.
    turn = np.round(np.arctan2(down, right) / (np.pi / 4)).astype(int) % 4
    neighbours = [
        np.maximum(
            around[1 + row : 1 + row + height, 1 + column : 1 + column + width],
            around[1 - row : 1 - row + height, 1 - column : 1 - column + width],
        )
        for row, column in ((0, 1), (1, 1), (1, 0), (1, -1))
    ]
    largest = np.select([turn == index for index in range(4)], neighbours)
    edges = np.where((strength >= largest) & (strength >= EDGE), 255, 0).astype(np.uint8)
    return np.repeat(edges[:, :, None], 3, axis=2)
