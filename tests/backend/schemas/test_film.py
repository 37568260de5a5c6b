"""Check films. Their shots are cut, start from an image, are finished already, are trimmed, or fade. The tests check the
visible frames and the refusals.
"""

import math

import pytest

from backend.engine.disk import needed_bytes
from backend.errors import RequestError
from backend.schemas.film import Piece, Track, plan_pieces
from backend.schemas.request import GenerationRequest
from backend.schemas.settings import Shot
from backend.schemas.shape import Shape
from backend.schemas.shots import needs_only_cutting, shot_request
from presets import load_preset

MADE = {"video": "/made.mp4", "num_frames": 20}


def asked(*rows, name: str = "wan-tiny", **changes) -> GenerationRequest:
    given = {"shots": [{"prompt": "a fox"} | row for row in rows], "seed": 5, "num_frames": 17} | changes
    return GenerationRequest.from_preset(load_preset(name), **given)


def shot(request: GenerationRequest, index: int) -> GenerationRequest:
    return shot_request(request, index, load_preset(request.preset), "/before")


def seen(request: GenerationRequest) -> list[tuple[int, int, int]]:
    return [(one.first, one.end, one.fade) for one in plan_pieces(request, load_preset(request.preset))]


def test_a_shot_continues_or_starts_from_its_words_or_from_its_own_picture():
    film = asked({}, {}, {"cut": True}, {"image": "/b.png"}, {"image": "/a.png"}, {"image": "/b.png"}, image="/first.png")
    assert film.shot_images == ("/b.png", "/a.png") and [one.image for one in film.shots] == [None, None, None, 0, 1, 0]
    assert [(shot(film, index).task, shot(film, index).image) for index in range(6)] == [
        ("i2v", "/first.png"),
        ("t2v", None),
        ("t2v", None),
        ("i2v", "/b.png"),
        ("i2v", "/a.png"),
        ("i2v", "/b.png"),
    ]
    assert [shot(film, index).extend for index in range(3)] == [None, "after", None]
    assert not any(shot(film, index).shot_images for index in range(6))
    assert seen(film)[:3] == [(0, 17, 0), (5, 17, 0), (0, 17, 0)]


def test_what_is_made_already_is_taken_as_it_is():
    film = asked(MADE | {"trim": (0.5, 1)}, {}, MADE | {"fade": 0.5}, MADE)
    assert film.shot_videos == ("/made.mp4",) and [one.video for one in film.shots] == [0, None, 0, 0]
    assert seen(film) == [(8, 16, 0), (5, 17, 0), (0, 20, 8), (0, 20, 0)] and film.total_frames == 8 + 12 + 12 + 20
    assert not needs_only_cutting(film) and needs_only_cutting(asked(MADE)) and not needs_only_cutting(asked({}))
    assert shot(film, 1).overlap == 5 and shot(film, 1).video == "/before/last.mp4"
    plain = GenerationRequest.from_preset(load_preset("wan-tiny"), shots=[{"video": "/made.mp4"}, {"prompt": "a fox"}])
    assert plain.prompt == "a fox" and plain.shots[0].prompt == ""


def test_a_model_that_starts_from_no_picture_makes_shots_that_are_cut():
    film = asked({}, {"cut": True, "fade": 0.25}, name="wan2.1-t2v-14b-480p", num_frames=81)
    assert film.total_frames == 2 * 81 - 4


def test_it_is_stored_and_comes_back_and_older_studios_read_what_has_nothing_new():
    film = asked(MADE, {"fade": 0.5, "cut": True}, {"image": "/a.png"}, track="/a.wav", track_start=1, track_volume=0.5)
    assert GenerationRequest.from_stored(film.to_json()) == film == film.with_changes()
    assert film.for_sharing()["shot_videos"] == ["made.mp4"] and film.for_sharing()["track"] == "a.wav"
    assert Track.from_request(film) == Track(path="/a.wav", start=1, fade=0, volume=0.5)
    assert asked({}).to_json()["shots"] == [{"prompt": "a fox", "num_frames": None, "seed": None}]
    assert "track_volume" not in asked({}).to_json()


@pytest.mark.parametrize(
    ("rows", "changes", "message"),
    [
        (
            [{}, {"fade": 0.5}],
            {},
            "shot 2 has a fade, but continues from the previous shot; cut before it, or leave the fade out",
        ),
        ([{"fade": 0.5}], {}, "shot 1 has a fade, but no previous shot; leave the fade out"),
        ([{}, {"fade": -1, "cut": True}], {}, "shot 2 has fade=-1 and must have 0 to 2 seconds; 0.5 is usual, 0 is a cut"),
        ([{}, {"fade": math.nan, "cut": True}], {}, "shot 2 has fade=nan and must have 0 to 2 seconds"),
        ([{}, {"fade": 2, "cut": True}], {}, "shot 1 has 17 frames, of which 32 would fade, and must be as long as its fades"),
        (
            [{"trim": (1, 0)}],
            {},
            "shot 1 has trim=1,0 which must be two times of the shot, in seconds, 0 or more, the later time second",
        ),
        (
            [{"trim": (9, 10)}],
            {},
            "shot 1 has a trim that leaves nothing of its 17 frames at 16 fps, and must leave at least one",
        ),
        ([{"trim": "all"}], {}, "shots.0.trim='all' is refused"),
        ([{"video": 5}], {}, "shot 1 has video=5, which must be the path of a file; correct it"),
        ([MADE | {"seed": 1}], {}, "shot 1 has seed together with a finished video; leave one out"),
        ([{}, MADE | {"prompt": "x" * 60_000}], {}, "shot 2 has a prompt of 60000 characters and must have plain text of at"),
        ([MADE | {"num_frames": 0}], {}, "shot 1 has num_frames=0 and must have the length of its video"),
        ([{}, {"cut": True, "image": "/a.png"}], {}, "shot 2 is cut and has image, but can start in only one way; leave one out"),
        (
            [{"image": "/a.png"}],
            {"name": "wan2.1-t2v-14b-480p", "num_frames": 81},
            "shot 1: task=i2v is not supported by wan2.1-t2v-14b",
        ),
        ([{"image": "a.png"}], {}, "shot_images='a.png' must be an absolute path; give the whole path"),
        ([{}], {"track": "/a.wav", "track_start": 2}, "track_start=2 must be within the film's 1.06 seconds; start earlier"),
        ([{}], {"track": "/a.wav", "track_volume": 3}, "track_volume=3 must be between 0 and 2"),
        ([{}], {"track": "/a.wav", "track_fade": -1}, "track_fade=-1 must be between 0 and 30"),
        ([{}], {"track_fade": 1}, "a track's times were given but need track"),
    ],
)
def test_times_that_lie_outside_and_what_does_not_go_together_are_refused_in_one_sentence(rows, changes, message):
    with pytest.raises(RequestError) as refusal:
        asked(*rows, **changes)
    assert str(refusal.value).startswith(message) and "\n" not in str(refusal.value)


def test_without_shots_there_is_no_track():
    with pytest.raises(RequestError, match="track was given but needs shots"):
        GenerationRequest.from_preset(load_preset("wan-tiny"), prompt="a fox", track="/a.wav")


@pytest.mark.parametrize("changes", [{"video": 3}, {"image": -1}, {"trim": [2, 1]}, {"fade": 1e9}])
def test_what_a_link_or_a_file_says_has_bounds_too(changes):
    stored = asked(MADE).to_json()
    with pytest.raises(RequestError, match="shot 1 has"):
        GenerationRequest.from_stored(stored | {"shots": [{"prompt": "x"} | changes]})


def test_the_files_of_a_film_change_no_program():
    with_files = asked(MADE, {"image": "/a.png"}, track="/a.wav")
    assert Shape.from_request(with_files) == Shape.from_request(asked({}, {}))
    assert needed_bytes(with_files) > 0 and with_files.is_from_pictures


def test_a_shot_says_no_more_than_was_set():
    assert Shot(prompt="x", cut=True).model_dump() == {"prompt": "x", "num_frames": None, "seed": None, "cut": True}
    assert Piece(first=3, end=9).num_frames == 6
