"""Messages from many threads arrive whole, and half a message is ignored."""

import os
import threading

import pytest

from backend.workers.messages import Channel, Exiting


@pytest.fixture
def ends():
    """Return two connected channels."""
    (a_in, b_out), (b_in, a_out) = os.pipe(), os.pipe()
    pair = [
        Channel(os.fdopen(incoming, "rb"), os.fdopen(outgoing, "wb")) for incoming, outgoing in ((a_in, a_out), (b_in, b_out))
    ]
    yield pair
    for end in pair:
        end.close()


def test_any_text_arrives_as_it_was_sent(ends):
    message = Exiting(reason="line\nbreak 圆 \U0001f534 \u2028 \"'\\ \0")
    assert ends[0].send(message)
    ends[0].close()
    assert list(ends[1].receive()) == [message]


def test_threads_do_not_cut_into_each_other(ends):
    def send(number: int) -> None:
        for _ in range(50):
            ends[0].send(Exiting(reason=f"{number} " + "x" * 500))

    threads = [threading.Thread(target=send, args=(number,)) for number in range(4)]
    received = []
    reader = threading.Thread(target=lambda: received.extend(ends[1].receive()))
    for thread in (*threads, reader):
        thread.start()
    for thread in threads:
        thread.join()
    ends[0].close()
    reader.join(60)
    assert len(received) == 200


def test_half_a_message_is_none(ends):
    ends[0].send(Exiting(reason="a"))
    os.write(ends[0]._outgoing.fileno(), b'{"b": ')
    ends[0].close()
    assert list(ends[1].receive()) == [Exiting(reason="a")]


def test_nobody_listens(ends):
    ends[1].close()
    assert not ends[0].send(Exiting(reason="a"))
    ends[0].close()
    assert not ends[0].send(Exiting(reason="a"))
