"""Check the editing of a film: the order of frames, fades, the audio, and refusals. No model is loaded."""

from pathlib import Path

import numpy as np
import pytest

from backend.errors import ClipError, RequestError, SoundError
from backend.media.film import Film, cross_fade, write_film
from backend.media.sound import read_sound
from backend.media.video import read_facts, read_frames
from backend.schemas.film import Piece, Track
from tests.clip_files import counting_clip, numbers, run_ffmpeg

FPS = 16


def tone(path: Path, seconds: float, hertz: int = 1000) -> Path:
    run_ffmpeg("-f", "lavfi", "-i", f"sine={hertz}:d={seconds}", str(path))
    return path


@pytest.fixture(scope="module")
def clips(tmp_path_factory) -> list[Path]:
    """A clip with audio, and a larger and slower clip without."""
    folder = tmp_path_factory.mktemp("clips")
    return [
        counting_clip(folder / "one.mp4", 32, FPS, sound=True),
        counting_clip(folder / "two.mp4", 16, FPS // 2, size=(128, 96)),
    ]


def film(clips, *pieces: Piece, order=(0, 1), **changes) -> Film:
    given = {"clips": tuple(clips[place] for place in order), "pieces": pieces, "fps": FPS, "size": (64, 48)}
    return Film(**given | changes)


def loudness(sound, start: float, end: float) -> float:
    """Return the root mean square between two times."""
    return float(np.sqrt((sound.samples[:, round(start * sound.rate) : round(end * sound.rate)] ** 2).mean()))


def test_pieces_follow_each_other_in_the_films_size_and_rate(clips, tmp_path):
    pieces = Piece(first=4, end=10), Piece(first=0, end=8), Piece(first=20, end=23)
    made = write_film(film(clips, *pieces, order=(0, 1, 0)), tmp_path / "film.mp4", "{}")
    assert numbers(list(read_frames(tmp_path / "film.mp4"))) == [4, 5, 6, 7, 8, 9, 0, 0, 1, 1, 2, 2, 3, 3, 20, 21, 22]
    facts = read_facts(tmp_path / "film.mp4")
    assert (facts.width, facts.height, facts.fps) == (64, 48, FPS) and (made["num_frames"], made["has_sound"]) == (17, True)


def test_a_fade_mixes_more_and_more_of_the_new_and_shortens_the_film():
    def parts(*levels):
        return [[np.full((2, 2, 3), level, np.uint8)] * 6 for level in levels]

    levels = [int(frame[0, 0, 0]) for frame in cross_fade(parts(0, 100, 0), [0, 3, 1])]
    assert levels == [0, 0, 0, 25, 50, 75, 100, 100, 50, 0, 0, 0, 0, 0]
    assert [int(frame[0, 0, 0]) for frame in cross_fade(parts(7), [0])] == [7] * 6


def test_a_silent_piece_is_silent_and_the_track_lies_where_it_should(clips, tmp_path):
    pieces = Piece(first=0, end=16), Piece(first=0, end=16)
    write_film(film(clips, *pieces), tmp_path / "own.mp4", "{}")
    own = read_sound(tmp_path / "own.mp4")
    assert loudness(own, 0.2, 0.8) > 0.05 > 100 * loudness(own, 1.2, 1.9)
    track = Track(path=str(tone(tmp_path / "long.wav", 9)), start=1.5, volume=0.5)
    write_film(film(clips, *pieces, track=track, is_heard=False), tmp_path / "track.mp4", "{}")
    heard = read_sound(tmp_path / "track.mp4")
    assert loudness(heard, 0, 1.4) < 1e-3 and heard.samples.shape[1] / heard.rate == pytest.approx(2, abs=0.05)
    quiet = loudness(heard, 1.6, 1.9)
    write_film(film(clips, *pieces, track=Track(path=track.path, start=1.5), is_heard=False), tmp_path / "loud.mp4", "{}")
    assert loudness(read_sound(tmp_path / "loud.mp4"), 1.6, 1.9) == pytest.approx(2 * quiet, rel=0.02)  # AAC


def test_a_track_comes_and_goes_and_both_together_are_never_cut(clips, tmp_path):
    track = Track(path=str(tone(tmp_path / "short.wav", 1.5)), fade=0.5, volume=2)
    write_film(film(clips, Piece(first=0, end=32), order=(0,), track=track, is_heard=False), tmp_path / "film.mp4", "{}")
    heard = read_sound(tmp_path / "film.mp4")
    steps = [loudness(heard, start, start + 0.1) for start in (0, 0.2, 0.4, 0.7)]
    assert steps == sorted(steps) and steps[0] < 0.2 * steps[3] and loudness(heard, 1.4, 1.5) < 0.2 * steps[3]
    assert loudness(heard, 1.6, 1.9) < 1e-3
    loud = tmp_path / "loud.wav"
    run_ffmpeg("-f", "lavfi", "-i", "sine=300:d=2", "-af", "volume=17dB", str(loud))
    write_film(
        film(clips, Piece(first=0, end=32), order=(0,), track=Track(path=str(loud), volume=2)), tmp_path / "both.mp4", "{}"
    )
    assert np.abs(read_sound(tmp_path / "both.mp4").samples).max() <= 1.05  # AAC rings a little


def test_where_frames_come_again_one_sound_goes_into_the_other(clips, tmp_path):
    pieces = Piece(first=0, end=16), Piece(first=5, end=16, lead=5)
    write_film(film(clips, *pieces, order=(0, 0)), tmp_path / "film.mp4", "{}")
    heard, seam = read_sound(tmp_path / "film.mp4"), 1.0
    assert numbers(list(read_frames(tmp_path / "film.mp4"))) == [*range(16), *range(5, 16)]
    assert loudness(heard, seam - 0.02, seam) > 0.5 * loudness(heard, 0.4, 0.6)  # a hard cut would be silent there


@pytest.mark.parametrize(
    ("pieces", "changes", "error", "message"),
    [
        (
            (Piece(first=0, end=40), Piece(first=0, end=8)),
            {},
            ClipError,
            "shot 1 shows 40 frames, but its video has 32: 2.00 s",
        ),
        ((Piece(first=0, end=8, fade=2), Piece(first=0, end=8)), {}, RequestError, "shot 1 has a fade, but no previous shot"),
        (
            (Piece(first=8, end=8), Piece(first=0, end=8)),
            {},
            RequestError,
            "shot 1 has a trim that leaves nothing of its 8 frames",
        ),
        (
            (Piece(first=0, end=8), Piece(first=0, end=8)),
            {"fps": 0.001},
            RequestError,
            "a film of 16000 seconds must last at most 300",
        ),
        (
            (Piece(first=0, end=8),) * 2,
            {"track": Track(path="/a.wav", start=2)},
            RequestError,
            "track_start=2 must be within the",
        ),
        ((Piece(first=0, end=8),) * 2, {"track": Track(path="/none.wav")}, SoundError, "audio 'none.wav' must be a file"),
    ],
)
def test_what_is_not_there_is_refused_and_nothing_is_written(clips, tmp_path, pieces, changes, error, message):
    with pytest.raises(error) as refusal:
        write_film(film(clips, *pieces, **changes), tmp_path / "film.mp4", "{}")
    assert str(refusal.value).startswith(message) and list(tmp_path.iterdir()) == []
