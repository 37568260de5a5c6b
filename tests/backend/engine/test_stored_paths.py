"""The paths of files in a job's folder follow the folder. All other paths stay."""

import pytest

from backend.engine.stored_requests import make_absolute, make_relative

REQUEST = {
    "prompt": "/runs/a/ on a wall",
    "image": "/runs/a/image.png",
    "references": ["/runs/a/references-1.png", "/else/b.png"],
}
STORED = {"prompt": "/runs/a/ on a wall", "image": "image.png", "references": ["references-1.png", "/else/b.png"]}
MOVED = {"prompt": "/runs/a/ on a wall", "image": "/new/a/image.png", "references": ["/new/a/references-1.png", "/else/b.png"]}


def finished(path: str, request: dict) -> dict:
    return {"kind": "finished", "result": {"path": path, "request": request}}


def test_own_files_are_stored_relative_and_found_in_the_present_folder():
    assert make_relative(REQUEST, "/runs/a") == STORED and make_absolute(STORED, "/new/a", "a") == MOVED
    event = finished("/runs/a/shots/1/video.mp4", REQUEST)
    assert make_relative(event, "/runs/a") == finished("shots/1/video.mp4", STORED)
    assert make_absolute(make_relative(event, "/runs/a"), "/new/a", "a") == finished("/new/a/shots/1/video.mp4", MOVED)


@pytest.mark.parametrize("before", ["/runs", "/somewhere/else"])
def test_whole_paths_of_an_older_version_follow_too(before):
    old = {"image": f"{before}/a/image.png"}
    assert make_absolute(old, "/new/a", "a") == {"image": "/new/a/image.png"}


def test_what_has_no_paths_stays():
    event = {"kind": "failed", "cause": "/runs/a/", "fix": "", "result": None}
    assert make_relative(event, "/runs/a") == event == make_absolute(event, "/new/a", "a")
