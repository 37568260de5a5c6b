"""Connections of two hosts: encrypted, refused to a machine in the middle, and ended by an invalid greeting."""

import json
import socket
import ssl
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress

import pytest

from backend.multihost.tls import TlsConnection
from backend.multihost.wire import ConnectionLost, Wire, WrongSecret
from backend.workers.messages import Heartbeat, Refused

SECRET = "a secret of sixteen"


@pytest.mark.parametrize("greeting", [{"number": "\ud800"}, {"number": 7}, {}, {"number": "1", "then": {"proof": "\ud800"}}])
def test_a_greeting_that_is_no_text_ends_the_connection(greeting):
    here, there = pair()
    stranger = TlsConnection(there)
    messages = [{key: value for key, value in greeting.items() if key != "then"}, greeting.get("then", {"proof": ""})]

    def greet() -> None:
        stranger.handshake(is_server=False)
        for message in messages:
            body = json.dumps(message | {"sizes": []}).encode()
            stranger.send(len(body).to_bytes(8) + body)

    with there, closing(Wire(here)) as wire, ThreadPoolExecutor() as threads:
        greeting = threads.submit(greet)
        with pytest.raises(ConnectionLost):
            wire.authenticate(SECRET, is_first=True)
        greeting.result()


def test_an_end_that_closes_only_the_encryption_ends_the_connection():
    here, there = pair()
    stranger = TlsConnection(there)
    with there, closing(Wire(here)) as wire, ThreadPoolExecutor() as threads:
        greeting = threads.submit(stranger.handshake, is_server=False)
        proving = threads.submit(wire.authenticate, SECRET, is_first=True)
        greeting.result()
        with suppress(ssl.SSLError):  # the other end's data may have arrived already
            stranger._tls.unwrap()
        there.sendall(stranger._outgoing.read())
        with pytest.raises(ConnectionLost, match="closed"):
            proving.result()


def test_the_network_sees_neither_messages_nor_files():
    prompt, picture, seen = "a red fox in the snow", b"the pixels of a picture" * 100_000, bytearray()

    def forward(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(2**16):
                seen.extend(data)
                target.sendall(data)

    first, first_side = pair()
    member, member_side = pair()
    with first_side, member_side, closing(Wire(first)) as sender, closing(Wire(member)) as receiver:
        for source, target in ((first_side, member_side), (member_side, first_side)):
            threading.Thread(target=forward, args=(source, target), daemon=True).start()
        assert authenticate(sender, receiver) == [None, None]
        assert sender.send(Refused(reason=prompt), [picture, b""])
        assert next_message(receiver) == (Refused(reason=prompt), [picture, b""])
        assert receiver.send(Refused(reason=prompt)) and next_message(sender)[0] == Refused(reason=prompt)
    assert len(seen) > len(picture)
    assert not any(word in seen for word in (prompt.encode(), picture[:23], b"number", b"proof", b"sizes"))


def test_a_machine_in_the_middle_is_refused_although_it_forwards_the_proofs():
    """The machine decrypts each message with the keys of one connection and encrypts it for the other."""
    first, first_side = pair()
    member, member_side = pair()
    with first_side, member_side, closing(Wire(first)) as one, closing(Wire(member)) as other, ThreadPoolExecutor() as threads:
        to_first, to_member = TlsConnection(first_side), TlsConnection(member_side)

        def forward(source: TlsConnection, target: TlsConnection) -> None:
            with suppress(OSError):
                while True:
                    target.send(source.read(1))

        def stand_between() -> None:
            assert to_first.handshake(is_server=False) != to_member.handshake(is_server=True)
            for source, target in ((to_first, to_member), (to_member, to_first)):
                threading.Thread(target=forward, args=(source, target), daemon=True).start()

        middle = threads.submit(stand_between)
        assert [type(error) for error in authenticate(one, other)] == [WrongSecret, WrongSecret]
        middle.result()


def test_threads_send_in_both_directions_at_the_same_time():
    here, there = pair()
    with closing(Wire(here)) as first, closing(Wire(there)) as member, ThreadPoolExecutor(32) as threads:
        assert authenticate(first, member) == [None, None]
        files = [bytes([number]) * 300_000 for number in range(12)]
        sent = [threads.submit(wire.send, Refused(reason="x"), [file]) for file in files for wire in (first, member)]
        received = [threads.submit(lambda wire=wire: [next_message(wire)[1][0] for _ in files]) for wire in (first, member)]
        assert all(one.result() for one in sent) and [sorted(one.result()) for one in received] == [files, files]


def authenticate(first: Wire, member: Wire) -> list[Exception | None]:
    """Authenticate both ends. Return the error of each, None without one."""

    def error_of(call: Callable[[], None]) -> Exception | None:
        try:
            return call()
        except Exception as error:
            return error

    ends = [lambda: first.authenticate(SECRET, is_first=True), lambda: member.authenticate(SECRET, is_first=False)]
    with ThreadPoolExecutor() as threads:
        return list(threads.map(error_of, ends))


def next_message(wire: Wire):
    """Return the next message that is no heartbeat."""
    while True:
        message, files = wire.receive()
        if not isinstance(message, Heartbeat):
            return message, files


def pair() -> tuple[socket.socket, socket.socket]:
    """Return the two ends of a connection on this machine."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        found: list[socket.socket] = []
        waiter = threading.Thread(target=lambda: found.append(server.accept()[0]))
        waiter.start()
        there = socket.create_connection(server.getsockname())
        waiter.join()
    return found[0], there
