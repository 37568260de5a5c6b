"""Later shots get the colours of the first shot."""

import numpy as np

from backend.media.color_matching import MOST_DRIFT, Look, grade_frames

BACKGROUND, SHAPE = np.array([40.0, 90.0, 140.0]), np.array([220.0, 60.0, 30.0])


def shot(frames: int = 24, background=BACKGROUND) -> np.ndarray:
    """A square that moves on a plain background."""
    made = np.tile(np.asarray(background, np.float64), (frames, 48, 48, 1))
    for index in range(frames):
        made[index, 16:30, 4 + index : 18 + index] = SHAPE
    return made


def as_bytes(values: np.ndarray) -> np.ndarray:
    return np.round(values).clip(0, 255).astype(np.uint8)


def test_a_shot_that_comes_out_lighter_and_flatter_and_wanders_gets_the_colours_of_the_first():
    first = as_bytes(shot())
    wander = np.linspace(0, 6, 24)[:, None, None, None]
    drifted = as_bytes(shot() * 0.92 + 9 + wander)
    graded = grade_frames(drifted, first[0], Look.from_frames(first))
    before, after = (np.abs(np.median(frames, axis=(1, 2)) - BACKGROUND).max() for frames in (drifted, graded))
    assert before > 8 and after <= 2
    # the shape too: the spread equals the spread of the frame before
    assert np.abs(graded[0].astype(int) - first[0]).max() <= 2
    assert np.abs(np.diff(np.median(graded, axis=(1, 2)), axis=0)).max() <= 1  # no flicker


def test_a_shot_that_begins_with_several_frames_of_the_one_before_has_its_colours_from_the_last_of_them_on():
    first = as_bytes(shot())
    drifted = as_bytes(shot() * 0.92 + 9)
    drifted[:4] = as_bytes(shot() * 0.5)[:4]  # the frames before that frame count for nothing
    graded = grade_frames(drifted, first[4], Look.from_frames(first), 4)
    assert np.abs(graded[4].astype(int) - first[4]).max() <= 2
    assert np.abs(np.median(graded[4:], axis=(1, 2)) - BACKGROUND).max() <= 2


def test_a_frame_of_two_colours_of_as_many_pixels_is_graded_too():
    frames = np.zeros((4, 8, 8, 3), np.uint8)
    frames[:, :, 4:] = 255
    assert np.array_equal(grade_frames(frames, frames[0], Look.from_frames(frames)), frames)


def test_less_than_a_level_is_told():
    noise = np.random.default_rng(1).choice([8, 9], (6, 32, 32, 3), p=[0.4, 0.6]).astype(np.uint8)
    graded = grade_frames(noise, np.full((32, 32, 3), 8, np.uint8), Look(median=(8.0, 8.0, 8.0)))
    assert abs(graded.mean() - 8.0) < 0.45 < noise.mean() - 8.0


def test_six_shots_one_after_the_other_stay_within_two_of_255():
    look, frames = Look.from_frames(as_bytes(shot())), as_bytes(shot())
    for number in range(5):
        worse = as_bytes(shot(background=np.median(frames[-1], axis=(0, 1))) * 0.97 + 3 + number % 2)
        frames = grade_frames(worse, as_bytes(shot(background=np.median(frames[-1], axis=(0, 1))))[0], look)
        assert np.abs(np.median(frames[8:], axis=(1, 2)) - BACKGROUND).max() <= 2


def test_what_the_shot_shows_is_left_as_it_is():
    """A scene of another brightness does not count as drift."""
    first, other = as_bytes(shot()), as_bytes(shot(background=BACKGROUND + 3 * MOST_DRIFT))
    np.testing.assert_array_equal(grade_frames(other, other[0], Look.from_frames(first)), other)


def test_a_look_is_kept_in_a_file(tmp_path):
    look = Look.from_frames(as_bytes(shot()))
    look.write(tmp_path / "look.json")
    assert Look.read(tmp_path / "look.json") == look and look.median == tuple(BACKGROUND)
