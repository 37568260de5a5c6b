"""Invalid greetings end their connection, and nothing else."""

import json
import socket
import threading

import pytest

from backend.multihost.wire import ConnectionLost, Wire


@pytest.mark.parametrize("greeting", [{"number": "\ud800"}, {"number": 7}, {}, {"number": "1", "then": {"proof": "\ud800"}}])
def test_a_greeting_that_is_no_text_ends_the_connection(greeting):
    here, there = pair()
    messages = [{key: value for key, value in greeting.items() if key != "then"}, greeting.get("then", {"proof": ""})]
    for message in messages:
        body = json.dumps(message | {"sizes": []}).encode()
        there.sendall(len(body).to_bytes(8) + body)
    wire = Wire(here)
    with pytest.raises(ConnectionLost):
        wire.authenticate("a secret of sixteen", is_first=True)
    wire.close()
    there.close()


def pair() -> tuple[socket.socket, socket.socket]:
    """Return the two ends of a connection on this machine."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        found: list[socket.socket] = []
        waiter = threading.Thread(target=lambda: found.append(server.accept()[0]))
        waiter.start()
        there = socket.create_connection(server.getsockname())
        waiter.join()
    return found[0], there
