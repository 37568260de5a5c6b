"""Report the end of videos to webhooks: addresses that programs name in their requests, on hosts that the operator allows.

A report has the form of OpenAI's webhook events and is signed with a secret of the program's key (standardwebhooks.com,
specification 1.0.0). Each webhook is a file in its job's folder until it is delivered, so it survives a restart. A report can
arrive twice, with the same `webhook-id`.

Programs must not reach the server's own network through webhooks. Therefore an address is refused unless its host is public or
named by the operator, and the connection goes to the checked IP address. Redirects are not followed.
"""

import base64
import hashlib
import hmac
import http.client
import ipaddress
import json
import logging
import socket
import ssl
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from backend.engine.job import Job
from backend.engine.jobs import Jobs
from backend.engine.keys import Keys, has_key
from backend.errors import RequestError, StudioError
from backend.files import replace_file
from backend.schemas.events import Event

FILE = "webhook.json"
ANY_HOST = "*"
RETRY_SECONDS = (10.0, 60.0, 600.0, 3600.0)  # the waits before the second and each later attempt
LONGEST_URL = 2000  # characters
_THREADS = 4  # so that one program's slow address does not delay the others
_TIMEOUT_SECONDS = 10.0  # for a whole attempt after the host's name is resolved
_OLDEST_SECONDS = 24 * 3600.0  # older webhooks are not delivered after a restart
_NAT64 = ipaddress.ip_network("64:ff9b::/96")

logger = logging.getLogger(__name__)


class Webhooks:
    """Delivers the webhooks of one data folder. `hosts` are the allowed hosts; `ANY_HOST` allows all public hosts."""

    def __init__(self, hosts: Sequence[str], jobs: Jobs, keys: Keys, runs: Path) -> None:
        self._hosts, self._jobs, self._keys, self._runs = frozenset(hosts), jobs, keys, runs
        self._due: dict[str, float] = {}  # monotonic time of the next attempt, by id of each ended job with a webhook
        self._changed, self._is_closed = threading.Condition(), False

    def start(self) -> None:
        """Schedule the webhooks that an earlier server stored, and start the threads. Do nothing if no host is allowed."""
        if self._hosts:
            for file in self._runs.glob(f"*/{FILE}"):
                self._schedule_ended(file.parent.name)
            for number in range(_THREADS):
                threading.Thread(target=self._work, name=f"webhooks-{number}", daemon=True).start()

    def check(self, url: object, owner: str) -> str:
        """Return the address if this owner of jobs may use it. Raises: RequestError."""
        given = "webhook_url"
        if not self._hosts:
            raise RequestError(given, "is not offered by this server", "leave it out, or ask the operator for --webhooks")
        if not has_key(owner):
            raise RequestError(given, "needs a program's key", "leave it out, or ask the operator for a key")
        rule = "must be the address of an allowed host: https://HOST/PATH, without user and password"
        try:
            if not (isinstance(url, str) and len(url) <= LONGEST_URL and url.isascii() and url.isprintable() and " " not in url):
                raise ValueError
            parts = urlsplit(url)
            is_named, port = parts.hostname in self._hosts, parts.port or (443 if parts.scheme == "https" else 80)
        except ValueError:
            raise RequestError(given, rule, "correct it") from None
        is_public = ANY_HOST in self._hosts and parts.scheme == "https" and port == 443
        if not parts.hostname or "@" in parts.netloc or parts.scheme not in ("http", "https") or not (is_named or is_public):
            raise RequestError(given, rule, "correct it, or ask the operator to allow the host")
        return url

    def add(self, job: Job, url: str) -> None:
        """Store the webhook of a new job. Raises: OSError."""
        with replace_file(job.folder / FILE) as new:
            new.write_text(json.dumps({"url": url, "failures": 0}), encoding="utf-8")
        self._schedule_ended(job.id)  # the job may have ended already

    def notify_end(self, job_id: str, event: Event) -> None:
        """Deliver the job's webhook, if it has one and the event is final."""
        if event.is_final and (self._runs / job_id / FILE).is_file():
            self._schedule(job_id, 0.0)

    def close(self) -> None:
        """Stop after the attempts in progress. Undelivered webhooks stay stored for the next server."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _schedule_ended(self, job_id: str) -> None:
        with suppress(StudioError):  # the job does not exist
            job = self._jobs.find(job_id)
            if job.ended is not None and time.time() - job.ended < _OLDEST_SECONDS:
                self._schedule(job_id, 0.0)

    def _schedule(self, job_id: str, seconds: float) -> None:
        with self._changed:
            self._due[job_id] = time.monotonic() + seconds
            self._changed.notify()

    def _work(self) -> None:
        while True:
            with self._changed:
                if self._is_closed:
                    return
                job_id = min(self._due, key=self._due.__getitem__, default=None)
                wait = self._due[job_id] - time.monotonic() if job_id is not None else None
                if job_id is None or (wait is not None and wait > 0):
                    self._changed.wait(wait)
                    continue
                del self._due[job_id]
            try:
                self._deliver(job_id)
            except Exception as error:  # the thread must continue; the text of the error could contain the address
                if not self._is_closed:  # a closed engine has closed its store; the next server delivers the webhook
                    logger.warning("The webhook of job %s was dropped: %s", job_id, type(error).__name__)

    def _deliver(self, job_id: str) -> None:
        """Make one attempt. Remove the webhook, or schedule the next attempt."""
        job, file = self._jobs.find(job_id), self._runs / job_id / FILE
        stored = json.loads(file.read_text("utf-8"))
        key = self._keys.find_by_owner(job.owner)
        if key is None or job.deleted is not None:  # the key was revoked, or the video was deleted
            file.unlink(missing_ok=True)
            return
        event_id, sent = f"evt_{job.id}", str(int(time.time()))
        # The form of OpenAI's webhook events.
        data: dict[str, object] = {"id": job.id, "status": "completed" if job.state == "finished" else "failed"}
        if job.state != "finished":
            data["error"] = {"code": "cancelled" if job.state == "cancelled" else "generation_failed"}
        about = {"id": event_id, "object": "event", "created_at": int(job.ended or 0), "type": f"video.{data['status']}"}
        body = json.dumps(about | {"data": data}).encode()
        # Source: standardwebhooks.com, specification 1.0.0, "Signature scheme".
        secret = base64.b64decode(key.webhook_secret.removeprefix("whsec_"))
        signature = base64.b64encode(hmac.digest(secret, f"{event_id}.{sent}.".encode() + body, hashlib.sha256)).decode()
        headers = {"webhook-id": event_id, "webhook-timestamp": sent, "webhook-signature": f"v1,{signature}"}
        headers["content-type"] = "application/json"
        try:
            url = self.check(stored["url"], job.owner)  # the operator may have changed the allowed hosts
            status = _post(urlsplit(url), self._hosts, body, headers)
            outcome = f"status {status}"
        except (OSError, http.client.HTTPException, ValueError, StudioError) as error:
            status, outcome = 0, type(error).__name__
        failures = stored["failures"] + 1
        if 200 <= status < 300 or failures > len(RETRY_SECONDS):
            if not 200 <= status < 300:
                logger.warning("The webhook of job %s could not be delivered: %s", job.id, outcome)
            file.unlink(missing_ok=True)
            return
        with replace_file(file) as new:
            new.write_text(json.dumps({"url": stored["url"], "failures": failures}), encoding="utf-8")
        self._schedule(job.id, RETRY_SECONDS[failures - 1])


def _post(url: SplitResult, hosts: frozenset[str], body: bytes, headers: dict[str, str]) -> int:
    """Send the body and return the status of the answer. Raises: OSError, HTTPException, ValueError for a refused host."""
    host, is_encrypted = url.hostname or "", url.scheme == "https"
    port = url.port or (443 if is_encrypted else 80)
    address = _resolve(host, port, is_named=host in hosts)
    with socket.create_connection((address, port), timeout=_TIMEOUT_SECONDS) as plain, plain.dup() as control:
        # A socket's timeout applies to each read and write. Without the timer, a slow host could block the thread for hours.
        timer = threading.Timer(_TIMEOUT_SECONDS, _shut_down, (control,))
        timer.start()
        try:
            kind = http.client.HTTPSConnection if is_encrypted else http.client.HTTPConnection
            connection = kind(host, port, timeout=_TIMEOUT_SECONDS)
            connection.sock = ssl.create_default_context().wrap_socket(plain, server_hostname=host) if is_encrypted else plain
            try:
                target = (url.path or "/") + (f"?{url.query}" if url.query else "")
                connection.request("POST", target, body, headers)
                return connection.getresponse().status
            finally:
                connection.close()
        finally:
            timer.cancel()


def _shut_down(control: socket.socket) -> None:
    with suppress(OSError):  # the other side has closed the connection
        control.shutdown(socket.SHUT_RDWR)


def _resolve(host: str, port: int, *, is_named: bool) -> str:
    """Return an IP address of the host, which must have only allowed addresses. Raises: OSError, ValueError."""
    found = [str(place[4][0]) for place in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    if not all(_may_connect(ipaddress.ip_address(text.partition("%")[0]), is_named=is_named) for text in found):
        raise ValueError("the host has an address that is not allowed")
    return found[0]


def _may_connect(address: ipaddress.IPv4Address | ipaddress.IPv6Address, *, is_named: bool) -> bool:
    """Link-local addresses are refused, because cloud providers serve a machine's credentials there."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return _may_connect(address.ipv4_mapped, is_named=is_named)
        if not is_named and (address in _NAT64 or address.sixtofour is not None or address.teredo is not None):
            return False  # the IPv6 address contains an IPv4 address, which can be private
    return not address.is_link_local and (is_named or (address.is_global and not address.is_multicast))
