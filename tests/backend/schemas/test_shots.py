"""Check storyboards: the fields of a request with shots, the request of each shot, and refusals."""

import math

import pytest

from backend.engine.disk import needed_bytes
from backend.errors import RequestError
from backend.schemas.request import GenerationRequest
from backend.schemas.settings import Shot
from backend.schemas.shots import MAX_SHOTS, shot_request
from presets import load_preset

ROWS = [
    {"prompt": "a red circle", "seconds": 1},
    {"prompt": "a blue star", "num_frames": 33},
    {"prompt": "a white square", "seed": 9},
]


def asked(rows=ROWS, name: str = "wan-tiny", **changes) -> GenerationRequest:
    return GenerationRequest.from_preset(load_preset(name), shots=rows, **{"seed": 5} | changes)


def shots_of(story: GenerationRequest) -> list[GenerationRequest]:
    preset = load_preset(story.preset)
    return [shot_request(story, index, preset, "/shot") for index in range(len(story.shots))]


def test_shots_have_their_own_prompt_length_and_seed_or_the_storyboards():
    story = asked()
    assert story.prompt == "a red circle" and story.total_frames == 17 + 24 + 12
    first, second, third = shots_of(story)
    assert [(one.prompt, one.num_frames, one.seed) for one in (first, second, third)] == [
        ("a red circle", 17, 5),
        ("a blue star", 33, 6),
        ("a white square", 17, 9),
    ]
    assert [(one.task, one.video, one.extend, one.overlap) for one in (first, second, third)] == [
        ("t2v", None, None, None),
        ("t2v", "/shot/last.mp4", "after", 9),
        ("t2v", "/shot/last.mp4", "after", 5),
    ]
    assert not any(one.shots for one in (first, second, third))
    assert needed_bytes(story) > needed_bytes(first.with_changes(num_frames=49))


@pytest.mark.parametrize(
    ("name", "lengths", "carried"),
    [
        ("wan-tiny", (17, 17, 33, 65), [5, 9, 9]),
        ("wan-tiny", (5, 33, 9), [5, 1]),
        ("wan2.2-ti2v-5b-720p", (121, 121, 49), [17, 9]),
        ("wan2.1-vace-14b-720p", (81, 81, 33, 5), [17, 9, 1]),
        ("hunyuan-tiny", (17, 17), [1]),
        ("ltx-2.3-704p", (121, 121, 33, 17), [17, 9, 1]),
        ("wan2.2-i2v-a14b-720p", (81, 81), [1]),
    ],
)
def test_a_shot_begins_with_as_many_frames_as_its_model_takes_and_about_a_quarter_of_its_own(name, lengths, carried):
    rows = [{"prompt": "x", "num_frames": count} for count in lengths]
    story = asked(rows, name, image="/a.png" if load_preset(name).tasks == ("i2v",) else None)
    later = shots_of(story)[1:]
    assert [one.overlap or 1 for one in later] == carried and story.total_frames == sum(lengths) - sum(carried)
    for one, count in zip(later, carried, strict=True):
        from_clip = count > 1 or "vace" in name
        assert (one.video, one.image) == (("/shot/last.mp4", None) if from_clip else (None, "/shot/last.png"))
        assert one.keeps_pixels is not from_clip  # its colours are corrected


def test_references_are_seen_in_every_shot():
    story = asked(name="wan2.1-vace-1.3b-480p", references=("/hat.png",))
    assert [one.references for one in shots_of(story)] == [("/hat.png",)] * 3


def test_it_is_stored_and_comes_back_and_other_requests_know_nothing_of_it():
    story = asked()
    assert (
        GenerationRequest.from_stored(story.to_json()) == story == story.with_changes()
        and story.with_changes(seed=6).shots == story.shots
    )
    plain = GenerationRequest.from_preset(load_preset("wan-tiny"), prompt="a fox", seed=1)
    assert "shots" not in plain.to_json() and plain.total_frames == plain.num_frames


def test_seconds_are_the_nearest_length_that_the_model_makes():
    lengths = [asked([{"prompt": "x", "seconds": seconds}]).shots[0].num_frames for seconds in (0.3, 1, 1.2, "2", 10)]
    assert lengths == [5, 17, 21, 33, 161]


@pytest.mark.parametrize(
    ("rows", "changes", "message"),
    [
        ([], {}, "shots is empty and must be a list of shots, each with its prompt; give at least one"),
        ("a fox", {}, "shots='a fox' must be a list of shots, each with its prompt; give a list"),
        ([{"prompt": " "}], {"prompt": "x"}, "shot 1 has an empty prompt and must say what the shot shows; give it a prompt"),
        ([{"seed": 1}], {}, "shot 1 has no prompt and must say what the shot shows; give it a prompt"),
        ([{"prompt": "x", "colour": 1}], {}, "shot 1 has 'colour' and may have prompt, num_frames, seconds, seed"),
        (
            [{"prompt": "x", "seconds": 60}],
            {},
            "shot 1 lasts '60' seconds and must last 0.312 to 10.1 seconds for wan-tiny; correct it",
        ),
        ([{"prompt": "x", "seconds": math.nan}], {}, "shot 1 lasts 'nan' seconds and must last"),
        ([{"prompt": "x"}, {"prompt": "y", "num_frames": 18}], {}, "shot 2: num_frames=18 must be 4n+1; nearest: 17 or 21"),
        (
            [{"prompt": "x", "seconds": 1, "num_frames": 17}],
            {},
            "shot 1 has num_frames together with seconds, which means the same",
        ),
        ([{"prompt": "x", "seed": -1}], {}, "shot 1: seed=-1 must be between 0 and 4294967295"),
        ([{"prompt": "x"}] * (MAX_SHOTS + 1), {}, "25 shots were given, and at most 24 can be; leave some out"),
        (ROWS[:2], {"name": "wan2.1-t2v-14b-480p"}, "shots were given, but wan2.1-t2v-14b-480p cannot start from an image"),
        (
            ROWS[:1],
            {"name": "wan2.1-i2v-14b-480p"},
            "task=t2v is not supported by wan2.1-i2v-14b-480p: image to video only; give an image",
        ),
        (
            ROWS,
            {"video": "/a.mp4"},
            "video was given together with shots, but only image is allowed, for the first shot; leave it out",
        ),
        (["x"], {}, "shots.0='x' is refused"),
    ],
)
def test_what_cannot_be_made_is_refused_in_one_sentence(rows, changes, message):
    with pytest.raises(RequestError) as refusal:
        asked(rows, **changes)
    assert str(refusal.value).startswith(message) and "\n" not in str(refusal.value)


def test_stored_ones_have_bounds_too():
    stored = asked().to_json()
    for shots in ([{"prompt": "x", "seed": 1 << 70}], [{"prompt": "x" * 60_000}], [{"prompt": "x", "num_frames": 0}]):
        with pytest.raises(RequestError):
            GenerationRequest.from_stored(stored | {"shots": shots})
    assert GenerationRequest.from_stored(stored | {"shots": [{"prompt": "x"}]}).shots == (Shot(prompt="x"),)
