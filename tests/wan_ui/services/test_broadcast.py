"""Tests of broadcasts: one thread reads, and every follower gets all kept items, or only the news since its last read."""

import asyncio
import queue
import threading

from tests.backend.conftest import wait_for
from wan_ui.services.broadcast import Broadcast, Follower


def feed_of(*, keeps_items: bool) -> tuple[Broadcast[int], queue.Queue]:
    """Return a broadcast, and the queue of batches that it reads. None ends the broadcast."""
    batches = queue.Queue()
    return Broadcast(lambda: iter(batches.get, None), "test-feed", keeps_items=keeps_items), batches


def readers() -> int:
    return sum(thread.name == "test-feed" for thread in threading.enumerate())


async def read(follower: Follower[int], count: int) -> list[int]:
    """Return the next `count` items. They can arrive in any number of batches."""
    seen = []
    while len(seen) < count:
        seen += await follower.next_items(5)
    return seen


def test_who_comes_late_gets_what_was_kept_and_all_see_the_end():
    feed, batches = feed_of(keeps_items=True)

    async def look() -> None:
        with feed.subscribe() as early:
            batches.put((1, 2))
            assert await read(early, 2) == [1, 2] and await early.next_items(0.01) == [] and not early.has_ended
            with feed.subscribe() as late:
                assert await read(late, 2) == [1, 2]
                batches.put((3,)), batches.put(None)
                for one in (early, late):
                    seen = await one.next_items(5)
                    while not one.has_ended:
                        seen += await one.next_items(5)
                    assert seen == [3]

    asyncio.run(look())
    assert feed.has_ended


def test_what_is_not_kept_is_news_once_until_it_is_taken_and_ends_with_the_last_follower():
    feed, batches = feed_of(keeps_items=False)

    async def look(first: int) -> None:
        with feed.subscribe(first) as follower:
            assert await follower.next_items(5) == [first]
            batches.put((1,)), batches.put((2,)), batches.put((3,)), batches.put(())
            await asyncio.to_thread(wait_for, batches.empty)  # a batch is read only after the earlier batches were delivered
            assert await follower.next_items(5) == [1] and await follower.next_items(0.01) == [] and not follower.has_ended
            assert readers() == 1

    asyncio.run(look(0))
    batches.put(())
    wait_for(lambda: readers() == 0)
    asyncio.run(look(7))
    batches.put(None)
    wait_for(lambda: readers() == 0)


def test_what_cannot_be_read_on_ends_and_can_be_followed_again(caplog):
    def broken():
        yield (1,)
        raise OSError("gone")

    feed = Broadcast(broken, "test-feed", keeps_items=False)

    async def look() -> None:
        with feed.subscribe() as follower:
            while not follower.has_ended:
                await follower.next_items(5)

    asyncio.run(look()), asyncio.run(look())
    assert "gone" in caplog.text
