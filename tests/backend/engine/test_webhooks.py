"""Check who may name which webhook, where a report goes, its signature, and that it survives errors and restarts.

A real server receives the reports.
"""

import ipaddress
import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Empty, Queue

import openai
import pytest

from backend.engine import webhooks
from backend.engine.engine import Engine
from backend.engine.job import Job, new_job_id
from backend.engine.keys import Key, Keys
from backend.engine.store import Store
from backend.engine.webhooks import FILE, Webhooks
from backend.errors import RequestError
from backend.schemas.events import Cancelled, Failed
from tests.backend.conftest import FAKE, all_events, request

HOST = "127.0.0.1"
SECONDS = 60.0  # the longest wait of a test; a test that waits so long fails


class Receiver(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.reports.put((self.path, dict(self.headers), body))
        status = self.server.statuses.pop(0) if self.server.statuses else 200
        self.send_response(status)
        if status == 302:
            self.send_header("location", "/moved")
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        """Log nothing."""


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    """Receives reports. `statuses` are its next answers; afterwards it answers 200."""
    with ThreadingHTTPServer((HOST, 0), Receiver) as server:
        server.reports, server.statuses = Queue(), []
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def url(server) -> str:
    return f"http://{HOST}:{server.server_port}/hook?token=pa55word"


@pytest.fixture
def store(tmp_path) -> Iterator[Store]:
    store = Store(tmp_path / "jobs.sqlite3")
    yield store
    store.close()


@pytest.fixture
def key(tmp_path) -> Key:
    return Keys(tmp_path).create("shop")[0]


@pytest.fixture
def sender(store, tmp_path, key) -> Iterator[Callable[..., Webhooks]]:
    """Return a function that creates `Webhooks` for hosts, started unless the test says otherwise."""
    made = []

    def make(*hosts: str, is_started: bool = True) -> Webhooks:
        made.append(Webhooks(hosts, store.jobs, Keys(tmp_path), tmp_path / "runs"))
        if is_started:
            made[-1].start()
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def fast(monkeypatch) -> None:
    monkeypatch.setattr(webhooks, "RETRY_SECONDS", (0.01,) * 4)


def queued(store: Store, tmp_path: Path, owner: str) -> Job:
    folder = tmp_path / "runs" / new_job_id()
    folder.mkdir(parents=True)
    job = Job.create(request(prompt="a secret prompt"), owner, folder)
    store.jobs.add(job, "engine")
    return job


def end(store: Store, sender: Webhooks, job: Job, event: Failed | Cancelled) -> None:
    store.events.append(job.id, event)
    sender.notify_end(job.id, event)


def wait_until(is_true: Callable[[], bool]) -> None:
    until = time.monotonic() + SECONDS
    while not is_true():
        assert time.monotonic() < until
        time.sleep(0.01)


def verify(body: bytes, headers: dict[str, str], secret: str) -> None:
    with openai.OpenAI(api_key="unused") as client:
        client.webhooks.verify_signature(body, headers, secret=secret)


def test_the_official_client_accepts_the_signature_of_a_finished_videos_report(tmp_path, server, url):
    engine = Engine(tmp_path, pipeline=FAKE, webhooks=(HOST,))
    try:
        key, _ = Keys(tmp_path).create("shop")
        job = engine.submit(request(prompt="a secret prompt"), key.owner)
        engine.webhooks.add(job, engine.webhooks.check(url, key.owner))
        all_events(engine, job.id)
        path, headers, body = server.reports.get(timeout=SECONDS)
        assert path == "/hook?token=pa55word" and b"secret" not in body
        told = json.loads(body)
        assert (told["object"], told["type"]) == ("event", "video.completed")
        assert told["data"] == {"id": job.id, "status": "completed"} and told["id"] == headers["webhook-id"] == f"evt_{job.id}"
        verify(body, headers, key.webhook_secret)
        other, _ = Keys(tmp_path).create("other")
        for secret, sent in ((other.webhook_secret, body), (key.webhook_secret, body + b" ")):
            with pytest.raises(openai.InvalidWebhookSignatureError):
                verify(sent, headers, secret)
        wait_until(lambda: not (job.folder / FILE).exists())
    finally:
        engine.close()
    assert server.reports.empty()


@pytest.mark.parametrize(
    ("event", "code"), [(Cancelled(), "cancelled"), (Failed(cause="/srv/x is broken", fix="y"), "generation_failed")]
)
def test_a_video_that_failed_or_was_stopped_is_reported_without_its_reason(
    store, tmp_path, key, server, url, sender, event, code
):
    own, job = sender(HOST), queued(store, tmp_path, key.owner)
    own.add(job, url)
    end(store, own, job, event)
    _, _, body = server.reports.get(timeout=SECONDS)
    told = json.loads(body)
    assert told["type"] == "video.failed" and told["data"] == {"id": job.id, "status": "failed", "error": {"code": code}}


def test_a_webhook_of_a_job_that_has_ended_already_is_delivered(store, tmp_path, key, server, url, sender):
    own, job = sender(HOST), queued(store, tmp_path, key.owner)
    end(store, own, job, Cancelled())
    own.add(job, url)
    assert server.reports.get(timeout=SECONDS)


@pytest.mark.usefixtures("fast")
def test_a_failed_delivery_is_repeated_with_the_same_id(store, tmp_path, key, server, url, sender):
    own, job = sender(HOST), queued(store, tmp_path, key.owner)
    server.statuses += [500, 302, 404]
    own.add(job, url)
    end(store, own, job, Cancelled())
    reports = [server.reports.get(timeout=SECONDS) for _ in range(4)]
    assert {(path, headers["webhook-id"], body) for path, headers, body in reports} == {
        ("/hook?token=pa55word", f"evt_{job.id}", reports[0][2])  # the redirect was not followed
    }
    wait_until(lambda: not (job.folder / FILE).exists())
    with pytest.raises(Empty):
        server.reports.get(timeout=0.1)


@pytest.mark.usefixtures("fast")
def test_attempts_end_and_the_log_has_no_address(store, tmp_path, key, server, url, sender, caplog):
    own, job = sender(HOST), queued(store, tmp_path, key.owner)
    server.statuses += [503] * 20
    own.add(job, url)
    with caplog.at_level(logging.WARNING):
        end(store, own, job, Cancelled())
        wait_until(lambda: not (job.folder / FILE).exists())
        wait_until(lambda: "could not be delivered: status 503" in caplog.text)
    assert server.reports.qsize() == 1 + len(webhooks.RETRY_SECONDS)
    assert job.id in caplog.text and "pa55word" not in caplog.text and str(server.server_port) not in caplog.text


def test_what_a_server_left_is_delivered_after_a_restart(store, tmp_path, key, server, url, sender):
    stopped = sender(HOST, is_started=False)
    ended, waiting, old = (queued(store, tmp_path, key.owner) for _ in range(3))
    for job in (ended, waiting, old):
        stopped.add(job, url)
    for job in (ended, old):
        end(store, stopped, job, Cancelled())
    two_days_ago = time.time() - 2 * 24 * 3600
    store.tables.execute("UPDATE jobs SET ended = ? WHERE id = ?", (two_days_ago, old.id))
    stopped.close()
    started = sender(HOST)
    assert json.loads(server.reports.get(timeout=SECONDS)[2])["data"]["id"] == ended.id
    end(store, started, waiting, Cancelled())
    assert json.loads(server.reports.get(timeout=SECONDS)[2])["data"]["id"] == waiting.id
    with pytest.raises(Empty):
        server.reports.get(timeout=0.1)


def test_a_server_without_the_option_delivers_nothing(store, tmp_path, key, server, url, sender):
    sender(HOST, is_started=False).add(queued(store, tmp_path, key.owner), url)
    off = sender()
    for job in store.jobs.list_jobs():
        end(store, off, job, Cancelled())
    with pytest.raises(Empty):
        server.reports.get(timeout=0.1)


@pytest.mark.parametrize("is_revoked", [True, False])
def test_a_revoked_key_and_a_deleted_video_are_not_reported(store, tmp_path, key, server, url, sender, is_revoked):
    job = queued(store, tmp_path, key.owner)
    stopped = sender(HOST, is_started=False)
    stopped.add(job, url)
    store.events.append(job.id, Cancelled())
    if is_revoked:
        Keys(tmp_path).revoke(key.name)
    else:
        store.library.delete(job.id)
    sender(HOST)
    wait_until(lambda: not (job.folder / FILE).exists())
    assert server.reports.empty()


@pytest.mark.parametrize(
    "wrong",
    [
        *("https://elsewhere.example/x", "http://public.example/x", "https://public.example:8443/x", "ftp://named.example/x"),
        *("https://user:password@named.example/x", "https://named.example:port/x", "https://named.example@elsewhere.example/x"),
        *("named.example/x", "https:///x", "https://[::1/x", "https://named.example/a b", "https://named.example/\r\nx: y"),
        *(
            "https://n\u00e4med.example/",
            "https://named.example/" + "x" * 2000,
            "",
            5,
            ["https://named.example/"],
            "//named.example",
        ),
    ],
)
def test_an_address_must_be_on_an_allowed_host(sender, key, wrong):
    allowed = sender("named.example", is_started=False)
    assert allowed.check("http://named.example:8080/x?y=z", key.owner) and allowed.check("https://NAMED.example", key.owner)
    with pytest.raises(RequestError, match="^webhook_url"):
        allowed.check(wrong, key.owner)
    every = sender("named.example", "*", is_started=False)
    assert every.check("https://elsewhere.example/x", key.owner)
    if wrong != "https://elsewhere.example/x":
        with pytest.raises(RequestError, match="^webhook_url") as refused:
            every.check(wrong, key.owner)
        assert "named.example" not in str(refused.value)  # the operator's list is not for programs


def test_only_a_program_with_a_key_may_name_one_and_only_if_the_operator_allows_it(sender, key):
    for hosts, owner, words in (
        ((), key.owner, "is not offered"),
        (("h",), "visitor-1", "needs a"),
        (("h",), "operator", "needs a"),
    ):
        with pytest.raises(RequestError, match=words):
            sender(*hosts, is_started=False).check("https://h/x", owner)


@pytest.mark.parametrize(
    "private",
    [
        *("127.0.0.1", "10.1.2.3", "192.168.0.1", "172.16.0.1", "100.64.0.1", "0.0.0.0", "169.254.169.254", "224.0.0.1"),
        *("::1", "::", "fe80::1", "fc00::1", "fd00:ec2::254", "::ffff:10.0.0.1", "64:ff9b::a00:1", "2002:a00:1::", "ff02::1"),
    ],
)
def test_a_host_that_is_not_named_must_have_only_public_addresses(monkeypatch, private):
    def resolve(host: str, port: int, **_: object) -> list[tuple]:
        return [(0, 0, 0, "", (one, port)) for one in ("93.184.215.14", private)]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with pytest.raises(ValueError, match="not allowed"):
        webhooks._resolve("public.example", 443, is_named=False)
    is_link_local = (ipaddress.ip_address(private)).is_link_local
    if is_link_local:
        with pytest.raises(ValueError, match="not allowed"):
            webhooks._resolve("named.example", 443, is_named=True)
    else:
        assert webhooks._resolve("named.example", 443, is_named=True) == "93.184.215.14"


@pytest.mark.usefixtures("fast")
def test_a_name_that_leads_into_the_servers_network_is_never_connected(monkeypatch, store, tmp_path, key, server, sender, caplog):
    """The name is resolved once for each attempt, and the connection goes to the checked address."""
    own, job = sender("*"), queued(store, tmp_path, key.owner)
    asked = []

    def resolve(host: str, port: int, **_: object) -> list[tuple]:
        asked.append(host)
        return [(0, 0, 0, "", (HOST, port))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr(socket, "create_connection", lambda *_, **__: pytest.fail("it connected"))
    with caplog.at_level(logging.WARNING):
        own.add(job, own.check("https://rebound.example/x", key.owner))
        end(store, own, job, Cancelled())
        wait_until(lambda: "could not be delivered: ValueError" in caplog.text)
    assert asked == ["rebound.example"] * 5 and server.reports.empty()


def test_the_connection_goes_to_the_address_that_was_checked(monkeypatch):
    connected = []
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, port, **_: [(0, 0, 0, "", ("93.184.215.14", port))])

    def connect(address: tuple[str, int], timeout: float) -> None:
        connected.append((address, timeout))
        raise OSError

    monkeypatch.setattr(socket, "create_connection", connect)
    with pytest.raises(OSError):
        webhooks._post(webhooks.urlsplit("https://public.example/x"), frozenset(), b"", {})
    assert connected == [(("93.184.215.14", 443), webhooks._TIMEOUT_SECONDS)]


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 "])
def test_a_host_that_answers_endlessly_is_cut_off(monkeypatch, answer):
    """The host keeps the connection open, or sends its status byte by byte."""
    monkeypatch.setattr(webhooks, "_TIMEOUT_SECONDS", 0.5)
    ended = threading.Event()

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.sendall(answer)
            while answer and not ended.wait(0.05):
                try:
                    connection.sendall(b"x")
                except OSError:
                    return
            ended.wait(SECONDS)

    with socket.create_server((HOST, 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        address = webhooks.urlsplit(f"http://{HOST}:{listener.getsockname()[1]}/")
        try:
            with pytest.raises((OSError, webhooks.http.client.HTTPException)):
                webhooks._post(address, frozenset({HOST}), b"{}", {})
        finally:
            ended.set()
            thread.join()


def test_a_key_does_not_show_its_secret(key):
    assert key.webhook_secret.startswith("whsec_") and key.webhook_secret not in repr(key)
    assert replace(key, name="other").webhook_secret == key.webhook_secret
