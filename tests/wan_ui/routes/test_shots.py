"""Tests of storyboards through the HTTP routes: what programs may refer to, who sees the finished shots, what is refused."""

import json
import time

import httpx
import pytest

from tests.clip_files import run_ffmpeg
from tests.wan_ui.visitor import Visitor

ANN, BOB = "studio_visitor=" + "a" * 43, "studio_visitor=" + "b" * 43


@pytest.fixture(scope="module")
def studio(own_studio):
    return own_studio


def asked(url: str, cookie: str, *shots: dict, **settings) -> httpx.Response:
    body = {"model": "wan-tiny", "prompt": "x", "shots": list(shots), "steps": 2, **settings}
    return httpx.post(f"{url}v1/videos", json=body, headers={"cookie": cookie}, timeout=60)


def finished(url: str, cookie: str, *shots: dict, **settings) -> dict:
    video = asked(url, cookie, *shots, **settings).json()
    while video["status"] in ("queued", "in_progress"):
        time.sleep(0.1)
        video = httpx.get(f"{url}v1/videos/{video['id']}", headers={"cookie": cookie}).json()
    assert video["status"] == "completed", video
    return video


def told(url: str, cookie: str, job: str) -> httpx.Response:
    return httpx.get(f"{url}studio/shots/{job}", headers={"cookie": cookie})


@pytest.fixture(scope="module")
def story(url) -> str:
    """Return the job id of a finished storyboard that Ann owns."""
    return finished(url, ANN, {"prompt": "a red square", "num_frames": 17}, {"prompt": "a blue one", "num_frames": 17})["id"]


def test_its_owner_is_told_which_shots_are_made_and_nobody_else(url, story):
    answer = told(url, ANN, story).json()
    assert answer["has_ended"] and [shot["number"] for shot in answer["shots"]] == [1, 2]
    assert [(shot["job"], shot["frames"], shot["fps"], shot["first"], shot["goes_on"]) for shot in answer["shots"]] == [
        (f"{story}-shot-1", 17, 16, 0, False),
        (f"{story}-shot-2", 17, 16, 5, True),
    ]
    for shot in answer["shots"]:
        for address in (shot["video"], shot["poster"]):
            assert httpx.get(url + address, headers={"cookie": ANN}).status_code == 200
            assert httpx.get(url + address, headers={"cookie": BOB}).status_code == 404
    for cookie, job in ((BOB, story), (ANN, "none"), (ANN, f"{story}-shot-1")):
        assert (told(url, cookie, job).status_code, told(url, cookie, job).text) == (404, "Not found")


def test_made_shots_are_cut_at_once_and_the_film_says_what_it_is_made_of(url, story):
    shots = ({"job": f"{story}-shot-2"}, {"job": f"{story}-shot-1", "trim": [0, 0.5], "cut": True, "fade": 0.25})
    film = asked(url, ANN, *shots).json()
    assert film["status"] == "completed", "no worker was asked"
    assert film["seconds"] == f"{(12 + 8 - 4 - 1) / 16:.3f}".rstrip("0")
    parts = told(url, ANN, film["id"]).json()["shots"]
    assert [(part["job"], part["given"]) for part in parts] == [(f"{film['id']}/1", True), (f"{film['id']}/2", True)]
    for part in parts:
        assert httpx.get(url + part["poster"], headers={"cookie": ANN}).headers["content-type"] == "image/webp"
    again = asked(url, ANN, {"job": f"{film['id']}/2"}).json()
    assert again["status"] == "completed" and again["seconds"] == "1", "all of the video, of which the film shows a part"
    assert asked(url, ANN, {"job": f"{film['id']}/3"}).status_code == 400


@pytest.mark.parametrize(
    ("shot", "settings", "words"),
    [
        ({"job": "STORY-shot-1"}, {}, "of a shot must be one of your videos; check its id"),
        ({"video": "/etc/hostname"}, {}, "clip must be an uploaded file"),
        ({"prompt": "x", "image": "/etc/hostname"}, {}, "image must be an uploaded file"),
        ({"prompt": "x", "trim": [0, 1e300]}, {"fps": 8}, ""),
        ({"prompt": "x", "trim": [5, 6]}, {}, "shot 1 has a trim that leaves nothing"),
        ({"prompt": "x", "fade": "long"}, {}, "shots.0.fade"),
        ({"prompt": "x", "cut": {"a": 1}}, {}, "shots.0.cut"),
        (
            {"prompt": "x", "colour": 1},
            {},
            "shot 1 has 'colour' and may have prompt, num_frames, seconds, seed, cut, fade, trim,",
        ),
        ({"prompt": "x"}, {"track_volume": 1.5}, "a track's times were given but need track"),
        ({"prompt": "x"}, {"track": "/etc/hostname"}, "track must hold the sound itself"),
        ({"prompt": "x"}, {"shot_videos": ["/etc/hostname"]}, "shot_videos is not known"),
    ],
)
def test_what_a_stranger_may_not_name_and_times_outside_are_refused_in_one_sentence(url, story, shot, settings, words):
    shot = json.loads(json.dumps(shot).replace("STORY", story))
    answer = asked(url, BOB, shot, **settings)
    if not words:  # such a time is only the end
        assert answer.status_code == 200
        return
    message = answer.json()["error"]["message"]
    assert answer.status_code == 400 and words.lower() in message.lower() and "\n" not in message and "/runs" not in message


def test_a_table_of_shots_and_a_sound_from_a_stranger_are_answered_beside_the_film(url, tmp_path):
    visitor = Visitor(url, cookie=BOB)
    (tmp_path / "text.wav").write_text("no sound")
    run_ffmpeg("-f", "lavfi", "-i", "sine=440:d=1", str(tmp_path / "good.wav"))
    sent = visitor.upload(tmp_path / "text.wav")
    for text, words in (
        (json.dumps({"shots": [{"prompt": "x"}], "track": sent}), "must be an audio file"),
        (json.dumps({"shots": [{"prompt": "x"}], "track": "/etc/hostname"}), "must be an uploaded file"),
        (
            json.dumps({"shots": [{"prompt": "x"}], "track": visitor.upload(tmp_path / "good.wav"), "track_start": 99}),
            "must be within",
        ),
        (json.dumps({"shots": [{"prompt": "x"}] * 25}), "at most 24 can be"),
        (json.dumps({"shots": "all"}), "must be a list of shots"),
        ("[" * 5000, "must be a timeline"),
    ):
        assert words in str(visitor.call("submit", {"shots": text})), text
