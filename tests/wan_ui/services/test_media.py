import dataclasses

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from backend.errors import Busy
from tests.wan_ui.builders import FakeEngine, a_job
from wan_ui.gateway.access import Access
from wan_ui.gateway.visitors import COOKIE, owner_name
from wan_ui.services.media import find_file_below, media_route, media_url, video_route

MINE, THEIRS = "A" * 43, "B" * 43


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "runs" / "job-1"
    (folder / "previews").mkdir(parents=True)
    (folder / "video.mp4").write_bytes(b"0123456789")
    (folder / "previews" / "step 1.png").write_bytes(b"picture")
    (folder / "request.json").write_text("{}")
    (tmp_path / "runs" / "other.mp4").write_bytes(b"not yours")
    return folder


@pytest.fixture
def site(folder):
    engine = FakeEngine([a_job(folder, owner=owner_name({COOKIE: MINE}))])
    return Starlette(routes=[media_route(engine, Access("key"))])


def get(site, path, token=MINE, **headers):
    return TestClient(site, cookies={COOKIE: token} if token else {}).get(path, headers=headers)


def test_the_owner_gets_video_and_previews(site, folder):
    job = a_job(folder)
    video = get(site, "/" + media_url(job, str(folder / "video.mp4")))
    assert (video.status_code, video.content, video.headers["content-type"]) == (200, b"0123456789", "video/mp4")
    assert "private" in video.headers["cache-control"]
    assert get(site, "/" + media_url(job, "previews/step 1.png")).content == b"picture"


def test_players_can_ask_for_a_part(site):
    part = get(site, "/studio/media/job-1/video.mp4", Range="bytes=2-4")
    assert (part.status_code, part.content) == (206, b"234")


@pytest.mark.parametrize("name", ["poster.webp", "before.mp4"])
def test_what_cannot_be_made_under_load_is_answered_503_and_when_to_ask_again(name, folder):
    class BusySandbox:
        async def run_async(self, call, *who):
            raise Busy("too many pictures and videos are being opened and", "one more must wait", "try again", 42.0)

    engine = FakeEngine([a_job(folder, owner=owner_name({COOKIE: MINE}), video="/clip.mp4", strength=0.5)])
    engine.sandbox = BusySandbox()
    answer = get(Starlette(routes=[media_route(engine, Access("key"))]), f"/studio/media/job-1/{name}")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "42")


@pytest.mark.parametrize("token", [THEIRS, None, "rubbish"])
def test_nobody_else_gets_it_even_with_the_address(site, token):
    assert get(site, "/studio/media/job-1/video.mp4", token).status_code == 404


@pytest.mark.parametrize(
    "name",
    [
        "request.json",
        "previews",
        "",
        "missing.mp4",
        "../other.mp4",
        "%2e%2e/other.mp4",
        "..%2fother.mp4",
        "/etc/passwd",
        "%00.mp4",
    ],
)
def test_nothing_but_pictures_and_videos_of_the_job_is_served(site, name):
    assert get(site, f"/studio/media/job-1/{name}").status_code == 404


def test_a_link_that_leads_out_is_not_followed(folder):
    (folder / "link.mp4").symlink_to(folder.parent / "other.mp4")
    assert find_file_below(folder, "link.mp4") is None
    assert find_file_below(folder, "video.mp4") is not None


def test_an_unknown_job_looks_like_a_foreign_one(site):
    assert get(site, "/studio/media/nothing/video.mp4").text == get(site, "/studio/media/job-1/video.mp4", THEIRS).text


@pytest.fixture
def programs_site(folder):
    """Return a client that is served the videos of an existing job and of a deleted job."""
    deleted = dataclasses.replace(a_job(folder), id="deleted", deleted=1.0)
    return Starlette(routes=[video_route(FakeEngine([a_job(folder), deleted]), Access("key"))])


def test_a_program_fetches_a_video_by_its_address_alone(programs_site):
    video = get(programs_site, f"/studio/video/job-1/{Access('key').ticket('job-1')}/video.mp4", None)
    assert (video.status_code, video.content) == (200, b"0123456789") and "no-store" in video.headers["cache-control"]


@pytest.mark.parametrize("job_id", ["job-1", "deleted", "nothing"])
def test_the_address_cannot_be_guessed_and_ends_with_the_job(programs_site, job_id):
    tickets = ["x", "圆", Access("other key").ticket(job_id), Access("key").ticket("job-2")]
    tickets += [Access("key").ticket(job_id)] * (job_id != "job-1")
    answers = [get(programs_site, f"/studio/video/{job_id}/{ticket}/video.mp4", None) for ticket in tickets]
    assert {(answer.status_code, answer.text) for answer in answers} == {(404, "Not found")}
