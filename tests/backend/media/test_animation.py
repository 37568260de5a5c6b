"""Check the moving preview: the first frame's pixels set the colours of all frames, and parts without motion stay sharp."""

import numpy as np
from PIL import Image

from backend.media.animation import estimate_colours, preview_frames, write_animation


def scene(frames: int = 5, side: int = 12, channels: int = 8) -> tuple[np.ndarray, np.ndarray]:
    """Return colours [F, h, w, 3] of a red square that moves over green, and latents [C, F, h, w] that are linear in the
    colours.
    """
    colours = np.full((frames, side, side, 3), (20.0, 160.0, 40.0))
    for index in range(frames):
        colours[index, 4:8, index : index + 4] = (220.0, 30.0, 30.0)
    mixing = np.random.default_rng(0).normal(size=(channels, 3)) / 60
    return colours, np.einsum("cd,fhwd->cfhw", mixing, colours - 90).astype(np.float32)


def enlarged(colours: np.ndarray) -> np.ndarray:
    return np.kron(colours[0], np.ones((8, 8, 1))).astype(np.uint8)


def test_colours_that_are_linear_in_the_latents_are_found_again():
    colours, latents = scene()
    found = estimate_colours(latents, enlarged(colours))
    assert np.abs(found - colours).max() < 12  # the ridge regression pulls towards the mean


def test_what_moves_is_seen_moving_and_what_stands_still_stays_sharp():
    colours, latents = scene()
    first = enlarged(colours)
    first[70:90, 2:6] = (255, 255, 255)  # detail finer than a latent
    frames = preview_frames(latents, first)
    assert frames.shape == (5, 96, 96, 3)
    assert frames[0, 48, 12, 0] > 180 and frames[4, 48, 12, 0] < 90 and frames[4, 48, 52, 0] > 180
    assert np.abs(frames[4, 72:88, 3:5].astype(int) - first[72:88, 3:5]).max() < 40


def test_more_channels_than_latents_do_no_harm():
    latents = np.random.default_rng(1).normal(size=(48, 3, 2, 2)).astype(np.float32)
    frames = preview_frames(latents, np.full((32, 32, 3), 128, np.uint8))
    assert np.isfinite(frames).all() and np.abs(frames[0].astype(int) - 128).max() <= 1


def test_it_is_written_as_an_animation_that_browsers_play(tmp_path):
    colours, latents = scene()
    write_animation(latents, enlarged(colours), tmp_path / "step.webp", fps=4)
    with Image.open(tmp_path / "step.webp") as picture:
        picture.load()
        assert (picture.n_frames, picture.size, picture.info["duration"], picture.info["loop"]) == (5, (96, 96), 250, 0)
    assert [path.name for path in tmp_path.iterdir()] == ["step.webp"]


def test_large_frames_are_made_smaller():
    latents = np.zeros((16, 2, 60, 104), np.float32)
    assert preview_frames(latents, np.zeros((480, 832, 3), np.uint8)).shape == (2, 240, 416, 3)
