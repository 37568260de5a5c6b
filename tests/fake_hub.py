"""A Hugging Face Hub on this machine that offers one folder. It answers the requests of huggingface_hub, including byte ranges.

As the real Hub does, it redirects requests for large files to a storage on another host, with an address that expires soon.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import re
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote, unquote

COMMIT = "c" * 40
REPOSITORY = "tests/tiny"
STORAGE = "/storage/"


@dataclass(frozen=True)
class Sent:
    """A sent part of a file: `num_bytes` of the file `name`, from byte `start` on."""

    name: str
    start: int
    num_bytes: int


class FakeHub:
    """A stand-in for the Hub, with faults that tests switch on.

    Attributes:
        stop_after: bytes of a file after which the connection breaks.
        stalls: the connection stays open instead.
        trickles: then one byte follows every 0.2 s instead.
        ignores_ranges: every answer is the whole file.
        flips: the last byte of an answer is wrong.
        chunk_seconds: delay before each MiB.
        log: the parts of files that were sent.
        tokens_at_storage: authorizations that the storage received. It must not receive tokens.
    """

    def __init__(self, folder: Path, repository: str = REPOSITORY) -> None:
        self.folder, self.commit, self.url, self.log = folder, COMMIT, "", []
        self.repository = repository
        self.chunk_seconds, self.trickles = 0.0, False
        self.stop_after, self.stalls, self.ignores_ranges, self.flips = None, False, False, False
        self.tokens_at_storage: set[str | None] = set()
        self.signatures: dict[str, str] = {}

    @property
    def sent(self) -> int:
        """Total number of sent bytes of files."""
        return sum(sent.num_bytes for sent in self.log)

    def entries(self) -> list[dict]:
        files = sorted(path for path in self.folder.rglob("*") if path.is_file())
        return [self._entry(path) for path in files]

    def _entry(self, path: Path) -> dict:
        size = path.stat().st_size
        entry = {"type": "file", "path": str(path.relative_to(self.folder)), "size": size, "oid": git_hash(path)}
        if path.suffix == ".safetensors":
            entry["lfs"] = {"oid": content_hash(path), "size": size, "pointerSize": 100}
        return entry


def git_hash(path: Path) -> str:
    return _hashes(path, path.stat().st_mtime_ns)[0]


def content_hash(path: Path) -> str:
    return _hashes(path, path.stat().st_mtime_ns)[1]


@functools.lru_cache
def _hashes(path: Path, changed: int) -> tuple[str, str]:
    """Return the git hash and the SHA-256 of a file. They are cached until the file changes, because each answer needs a hash."""
    data = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest(), hashlib.sha256(data).hexdigest()


@contextmanager
def serving(folder: Path, repository: str = REPOSITORY) -> Iterator[FakeHub]:
    """Run a hub with one repository."""
    hub = FakeHub(folder, repository)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *arguments: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self._answer(is_head=True)

        def do_GET(self) -> None:
            self._answer(is_head=False)

        def _answer(self, is_head: bool) -> None:
            path = unquote(self.path.partition("?")[0])
            if found := re.fullmatch(rf"/{hub.repository}/resolve/[^/]+/(.*)", path):
                if found[1].endswith(".safetensors") and (hub.folder / found[1]).is_file():
                    self._send_to_storage(found[1])
                else:
                    self._file(hub.folder / found[1], is_head)
            elif path.startswith(STORAGE):
                self._from_storage(path.removeprefix(STORAGE), is_head)
            elif path.startswith(f"/api/models/{hub.repository}/tree/"):
                self._json(hub.entries())
            elif path.startswith(f"/api/models/{hub.repository}"):
                siblings = [{"rfilename": entry["path"]} for entry in hub.entries()]
                self._json({"id": hub.repository, "sha": hub.commit, "siblings": siblings})
            else:
                self._missing("RepoNotFound")

        def _json(self, value: object) -> None:
            data = json.dumps(value).encode()
            self._headers(200, len(data))
            self.wfile.write(data)

        def _missing(self, code: str) -> None:
            self.send_response(404)
            self.send_header("X-Error-Code", code)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def _headers(self, status: int, length: int, **more: str) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(length))
            self.send_header("X-Repo-Commit", hub.commit)
            for name, value in more.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()

        def _send_to_storage(self, name: str) -> None:
            path = hub.folder / name
            hub.signatures[name] = secrets.token_hex(4)
            where = f"http://localhost:{server.server_port}{STORAGE}{quote(name)}?signature={hub.signatures[name]}"
            linked = {"X_Linked_Etag": f'"{content_hash(path)}"', "X_Linked_Size": str(path.stat().st_size)}
            self._headers(302, 0, Location=where, **linked)

        def _from_storage(self, name: str, is_head: bool) -> None:
            hub.tokens_at_storage.add(self.headers.get("Authorization"))
            if self.path.endswith(f"signature={hub.signatures.get(name)}"):
                self._file(hub.folder / name, is_head)
            else:
                self._headers(403, 0)

        def _file(self, path: Path, is_head: bool) -> None:
            if not path.is_file():
                self._missing("EntryNotFound")
                return
            data = path.read_bytes()
            tag = content_hash(path) if path.suffix == ".safetensors" else git_hash(path)
            start = 0
            if (asked := self.headers.get("Range")) and not hub.ignores_ranges:
                start = int(re.match(r"bytes=(\d+)-", asked)[1])
            ranges = {"Content_Range": f"bytes {start}-{len(data) - 1}/{len(data)}"} if start else {}
            self._headers(206 if start else 200, len(data) - start, ETag=f'"{tag}"', Accept_Ranges="bytes", **ranges)
            if is_head:
                return
            body = data[start:]
            stops = hub.stop_after is not None and len(body) > hub.stop_after
            body = body[: hub.stop_after] if stops else body
            body = body[:-1] + bytes([body[-1] ^ 1]) if hub.flips else body
            hub.log.append(Sent(str(path.relative_to(hub.folder)), start, len(body)))
            with contextlib.suppress(OSError):  # the client was killed
                for first in range(0, len(body), 2**20) if hub.chunk_seconds else ():
                    time.sleep(hub.chunk_seconds)
                    self.wfile.write(body[first : first + 2**20])
                if not hub.chunk_seconds:
                    self.wfile.write(body)
                rest = iter(data[start + len(body) :])
                while stops and hub.trickles:
                    self.wfile.write(bytes([next(rest)]))
                    time.sleep(0.2)
                if stops and hub.stalls:
                    self.rfile.read(1)
            self.close_connection = stops

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
