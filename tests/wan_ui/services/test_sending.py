"""Tests of who gets a place for a download, and who loses it."""

import asyncio

import pytest

from backend.errors import Busy
from backend.media.sandbox import Requester
from wan_ui.gateway.limits import FILES_SENT
from wan_ui.services.sending import GRACE_SECONDS, LEAST_SECONDS, SLOW_BYTES, Downloads, TooManyDownloads, _DownloadResponse


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def downloads(clock):
    return Downloads(read_clock=clock)


def visitor(number: int) -> Requester:
    return Requester(owner=f"visitor-{number}")


def all_places_taken(downloads: Downloads, clock: Clock) -> list:
    taken = [downloads.start_download(visitor(number), 0) for number in range(FILES_SENT.in_all)]
    for download in taken:
        download.start_time = clock.now
    return taken


def test_a_visitor_and_an_address_have_a_few_places(downloads):
    for _ in range(FILES_SENT.of_visitor):
        downloads.start_download(visitor(1), 0)
    with pytest.raises(TooManyDownloads):
        downloads.start_download(visitor(1), 0)
    for number in range(FILES_SENT.of_address):
        downloads.start_download(Requester(owner=f"other-{number}", address="1.2.3.4"), 0)
    with pytest.raises(TooManyDownloads):
        downloads.start_download(Requester(owner="one more", address="1.2.3.4"), 0)


def test_visitors_without_an_address_do_not_share_places(downloads):
    for number in range(FILES_SENT.in_all):
        downloads.start_download(visitor(number), 0)


def test_a_slow_reader_loses_the_place_to_somebody_else(downloads, clock):
    taken = all_places_taken(downloads, clock)
    clock.now += GRACE_SECONDS + 1
    for download in taken:
        download.sent_bytes = 10**9
    taken[3].sent_bytes = 80_000 * 11
    downloads.start_download(visitor(100), 0)
    assert [download.is_cut for download in taken] == [number == 3 for number in range(len(taken))]


def test_quick_and_new_readers_keep_their_places(downloads, clock):
    taken = all_places_taken(downloads, clock)
    with pytest.raises(Busy):
        downloads.start_download(visitor(100), 0)
    clock.now += GRACE_SECONDS + 1
    for download in taken:
        download.sent_bytes = int(SLOW_BYTES * (GRACE_SECONDS + 2))
    with pytest.raises(Busy):
        downloads.start_download(visitor(100), 0)


def test_files_that_are_still_made_count_for_the_disk(downloads, clock):
    first, second = downloads.start_download(visitor(1), 500), downloads.start_download(visitor(2), 300)
    assert downloads.expected_bytes() == 800
    first.start_time = clock.now
    assert downloads.expected_bytes() == 300
    downloads.end_download(second)
    assert downloads.expected_bytes() == 0


@pytest.mark.parametrize("is_cut_for_others", [True, False])
def test_a_reader_who_is_cut_off_ends_the_response_and_removes_the_file(is_cut_for_others, downloads, clock, tmp_path):
    (tmp_path / "file").write_bytes(bytes(1_000_000))
    removed = []

    async def read_slowly() -> None:
        download, stalls = downloads.start_download(visitor(1), 0), asyncio.Event()
        sent = _DownloadResponse(tmp_path / "file", downloads=downloads, download=download, done=lambda: removed.append(True))

        async def send(message) -> None:
            if message.get("body"):
                stalls.set()
                if is_cut_for_others:
                    await asyncio.Event().wait()
                clock.now += 10 * LEAST_SECONDS

        scope = {"type": "http", "method": "GET", "headers": []}
        answering = asyncio.ensure_future(sent(scope, asyncio.Event().wait, send))
        await stalls.wait()
        if is_cut_for_others:
            download.cut_off()
        await asyncio.wait_for(answering, 30)

    asyncio.run(read_slowly())
    assert removed == [True] and downloads._active == []
