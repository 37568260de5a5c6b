"""Measures what strangers can take from the studio: `python -m benchmarks.strangers`.

Starts the real server with the demo model, twice: open, and with a password. Sends it hostile requests one at a time, fifty at
once, a thousand idle connections, two hundred cookies from one address and ten wrong passwords, and prints a table. Exit code 1
if a bound is broken. `--project DIR` measures another checkout of the studio.

Bounds: one request takes at most 300 MB and 2 s of the server and of what it starts; while fifty of them run at once a page and
its tick take no longer than `benchmarks.studio_load` allows; memory after a second round of them is what it was after the first;
one address fills neither the queue nor the disk; ten wrong passwords within a minute slow an address down and are logged.
"""

import argparse
import base64
import io
import json
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import imageio_ffmpeg
from PIL import Image

from benchmarks.studio_load import MOST_GROWTH, PROJECT, SLOWEST_ANSWER_SECONDS, resident, tick_of, wait_until_ready

MOST_MB, MOST_SECONDS = 300, 2.0
AT_ONCE, IDLE, COOKIES, WRONG = 50, 1000, 200, 10
MOST_IDLE_SECONDS = 30.0
STRANGER, OTHER = {"x-forwarded-for": "203.0.113.5"}, {"x-forwarded-for": "203.0.113.6"}
UPLOAD_MB = 59
SETTLE_SECONDS = 3.0


@dataclass
class Table:
    """The rows of the report, and whether all bounds held."""

    rows: list[tuple[str, str, str, bool]] = field(default_factory=list)

    def add(self, what: str, bound: str, measured: str, holds: bool) -> None:
        """One row; also shown at once, so that a long run can be watched."""
        self.rows.append((what, bound, measured, holds))
        sys.stderr.write(f"{what}: {measured}{'' if holds else '  BROKEN'}\n")

    @property
    def holds(self) -> bool:
        return all(row[-1] for row in self.rows)

    def __str__(self) -> str:
        lines = [
            f"| {what} | {bound} | {measured} | {'yes' if holds else '**no**'} |" for what, bound, measured, holds in self.rows
        ]
        return "\n".join(["| what | bound | measured | holds |", "|---|---|---|---|", *lines]) + "\n"


@dataclass(frozen=True)
class Server:
    """A running studio."""

    url: str
    pid: int
    log: Path

    def memory(self) -> int:
        """Resident MB of the server and of everything that it has started."""
        return sum(resident(pid) for pid in _family(self.pid))


@contextmanager
def serving(project: Path, folder: Path, *more: str) -> Iterator[Server]:
    """The studio of this checkout on a free port, when it is ready."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = folder / "server.log"
    command = [sys.executable, "app.py", "serve", "--port", str(port), "--data-dir", str(folder / "data"), *more]
    with log.open("wb") as file:
        process = subprocess.Popen(command, cwd=project, stdout=file, stderr=file)
    try:
        url = f"http://127.0.0.1:{port}/"
        wait_until_ready(url)
        yield Server(url, process.pid, log)
    finally:
        process.terminate()
        process.wait(30)


class Stranger:
    """A visitor who calls the page's handlers over HTTP, with an address and a cookie of their own."""

    def __init__(self, server: Server, headers: dict[str, str] | None = None):
        self.client = httpx.Client(base_url=server.url, headers=headers or {}, timeout=120)
        self.client.get("/")
        self.config = self.client.get("/config").json()
        self.session = f"stranger{id(self):x}"
        self._props = {component["id"]: component["props"] for component in self.config["components"]}

    def call(self, handler: str, given: dict[str, Any], event: Any = None, query: str = "") -> httpx.Response:
        """The answer of a handler, named as in the studio's code; components are named by element id."""
        function = next(one for one in self.config["dependencies"] if one["api_name"] == handler)
        props = [self._props[component] for component in function["inputs"]]
        data = [given.get(each.get("elem_id"), each.get("value")) for each in props]
        message = {"data": data, "fn_index": function["id"], "session_hash": self.session, "event_data": event}
        return self.client.post(f"/gradio_api/run/predict{query}", json=message)

    def upload(self, name: str, content: bytes) -> str:
        """The server's path of an upload."""
        return self.client.post("/gradio_api/upload", files={"files": (name, content)}).json()[0]


Attack = Callable[[], Any]


def attacks(stranger: Stranger, folder: Path) -> dict[str, Attack]:
    """The hostile requests by what they do. Their files are uploaded here, before anything is measured."""
    thin = stranger.upload("thin.png", _picture(32_000, 16))
    large = stranger.upload("large.png", _picture(7000, 7000))
    video = stranger.upload("video.mp4", _video(folder, 16_200))
    boxes = stranger.upload("boxes.mp4", _boxes(8_000_000))
    nested, post = "[" * 100_000, stranger.client.post
    links = {"guidance": {"guidance": []}, "steps": {"steps": 10**30}, "size": {"width": 10**9}}
    call = {"name": "generate_video", "arguments": {"prompt": "x", "preset": "wan2.1-t2v-14b-720p"}}
    missing = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
    return {
        "bars around a picture of 32000x16": lambda: stranger.call("pad", _with(thin)),
        "preview of a picture of 49 MP": lambda: stranger.call("show_picture", _with(large)),
        "video with a frame of 16200x16200": lambda: stranger.call("drop", {}, {"what": "drop", "value": video}),
        "video of 8 MB of empty boxes": lambda: stranger.call("drop", {}, {"what": "drop", "value": boxes}),
        "search for 50 MB of text": lambda: stranger.call("search", {"library-search": "x" * 50_000_000}),
        "body of 300 MB": lambda: _body(stranger.client, 300_000_000),
        "recording of 38 MB": lambda: post("/gradio_api/process_recording", files={"file": ("a.mp4", b"x" * 38_000_000)}),
        "upload under another name, 38 MB": lambda: post("/gradio_api/upload", files={"other": ("a", b"x" * 38_000_000)}),
        "deep link of the session": lambda: stranger.client.get(f"/gradio_api/deep_link?session_hash={stranger.session}"),
        "JSON of 100,000 brackets": lambda: (post("/mcp", content=nested), post("/gradio_api/run/predict", content=nested)),
        "a preset that is not here": lambda: post("/mcp", json=missing),
        **{f"link with an impossible {name}": _linked(stranger, changes) for name, changes in links.items()},
    }


def _with(path: str) -> dict[str, Any]:
    return {"input-image": {"path": path}, "resolution": "96x96"}


def _linked(stranger: Stranger, changes: dict[str, Any]) -> Attack:
    data = {"preset": "wan-tiny", "task": "t2v", "prompt": "x", "width": 96, "height": 96, "num_frames": 17, "fps": 16}
    data |= {"steps": 20, "guidance": [1.0], "flow_shift": 3, "seed": 1} | changes
    code = base64.urlsafe_b64encode(json.dumps(data).encode()).decode().rstrip("=")
    return lambda: stranger.call("open", {}, query=f"?settings={code}")


def _picture(width: int, height: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (width, height), "red").save(buffer, "PNG")
    return buffer.getvalue()


def _video(folder: Path, side: int) -> bytes:
    source = ["-f", "lavfi", "-i", f"color=red:s={side}x{side}:r=1:d=1", "-frames:v", "1", "-c:v", "png"]
    comment = {"format": 1, "request": {"preset": "wan-tiny", "task": "i2v", "prompt": "x", "width": 96, "height": 96}}
    comment["request"] |= {"num_frames": 17, "fps": 16, "steps": 20, "guidance": [1.0], "flow_shift": 3, "seed": 1, "image": "a"}
    tag = ["-metadata", f"comment={json.dumps(comment)}", str(folder / "large.mp4")]
    subprocess.run([imageio_ffmpeg.get_ffmpeg_exe(), "-y", "-loglevel", "error", *source, *tag], check=True)
    return (folder / "large.mp4").read_bytes()


def _boxes(size: int) -> bytes:
    return struct.pack(">I4sI4s", 16, b"ftyp", 0, b"isom") + struct.pack(">I4s", 8, b"moov") * (size // 8)


def _body(client: httpx.Client, size: int) -> None:
    """Sends a long body, and takes being cut off for an answer."""

    def pieces() -> Iterator[bytes]:
        yield b'{"data":["'
        for _ in range(size // 1_000_000):
            yield b"a" * 1_000_000
        yield b'"]}'

    try:
        client.post("/gradio_api/queue/join", content=pieces(), headers={"content-type": "application/json"})
    except httpx.HTTPError:
        pass


def _family(pid: int) -> list[int]:
    """A process and all that it has started."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        threads = [path.joinpath("children").read_text().split() for path in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        return [pid]
    found = {int(child) for child in children} | {int(child) for thread in threads for child in thread}
    return [pid, *(one for child in found for one in _family(child))]


def peak_of(server: Server, work: Callable[[], Any]) -> tuple[float, int]:
    """The seconds of some work, and by how many MB the server grew while it ran, at most."""
    before, peak, is_over = server.memory(), 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not is_over.wait(0.02):
            peak = max(peak, server.memory())

    watcher = threading.Thread(target=watch)
    watcher.start()
    began = time.monotonic()
    try:
        work()
    finally:
        seconds = time.monotonic() - began
        is_over.set()
        watcher.join()
    return seconds, max(peak - before, 0)


def measure_single(server: Server, folder: Path, table: Table) -> None:
    """Each hostile request by itself."""
    for what, attack in attacks(Stranger(server), folder).items():
        seconds, grown = peak_of(server, lambda attack=attack: _try(attack))
        holds = seconds <= MOST_SECONDS and grown <= MOST_MB
        table.add(what, f"{MOST_SECONDS:g} s, {MOST_MB} MB", f"{seconds:.2f} s, {grown} MB", holds)


def measure_together(server: Server, folder: Path, table: Table) -> None:
    """Fifty at once, while somebody else has the page open; and again, to see whether memory stays."""
    found = attacks(Stranger(server, STRANGER), folder)
    slowest, first = _round(server, found)
    again, second = _round(server, found)
    for kind in slowest:
        seconds = max(slowest[kind], again[kind])
        what = f"slowest {kind} while {AT_ONCE} hostile requests run"
        table.add(what, f"{SLOWEST_ANSWER_SECONDS:g} s", f"{seconds:.2f} s", seconds <= SLOWEST_ANSWER_SECONDS)
    holds = second <= first * (1 + MOST_GROWTH)
    table.add("memory after the first and the second fifty", f"+{MOST_GROWTH:.0%}", f"{first} and {second} MB", holds)


def _round(server: Server, found: dict[str, Attack]) -> tuple[dict[str, float], int]:
    """The slowest answers to the page while all attacks run, and the MB of the server when they are over."""
    chosen = [list(found.values())[number % len(found)] for number in range(AT_ONCE)]
    running = [threading.Thread(target=_try, args=(attack,)) for attack in chosen]
    slowest, tick = {"page": 0.0, "tick": 0.0}, tick_of(server.url)
    with httpx.Client(base_url=server.url, headers=OTHER, timeout=120) as person:
        for thread in running:
            thread.start()
        while any(thread.is_alive() for thread in running):
            for kind, ask in (
                ("page", lambda: person.get("/")),
                ("tick", lambda: person.post("/gradio_api/run/predict", json=tick | {"session_hash": "person"})),
            ):
                began = time.monotonic()
                ask()
                slowest[kind] = max(slowest[kind], time.monotonic() - began)
            time.sleep(0.2)
    time.sleep(SETTLE_SECONDS)
    return slowest, resident(server.pid)


def _try(attack: Attack) -> None:
    try:
        attack()
    except httpx.HTTPError:
        pass  # cut off: the server's answer to it


def measure_idle(server: Server, table: Table) -> None:
    """A thousand connections that say nothing or half a request."""
    port = httpx.URL(server.url).port
    opened = [socket.create_connection(("127.0.0.1", port)) for _ in range(IDLE)]
    for one in opened[::2]:
        try:
            one.sendall(b"POST /mcp HTTP/1.1\r\nhost: 127.0.0.1\r\n")
        except OSError:
            pass  # it has been ended
    began = time.monotonic()
    httpx.get(server.url, timeout=60)
    seconds = time.monotonic() - began
    table.add(f"page while {IDLE} connections idle", f"{SLOWEST_ANSWER_SECONDS:g} s", f"{seconds:.2f} s", seconds <= 1)
    left = _left(opened, began)
    table.add(f"idle connections open after {MOST_IDLE_SECONDS:g} s", "0", str(left), left == 0)
    for one in opened:
        one.close()


def _left(opened: list[socket.socket], began: float) -> int:
    """How many the server has not ended in time."""
    waiting = set(opened)
    while waiting and time.monotonic() < began + MOST_IDLE_SECONDS:
        waiting = {one for one in waiting if not _is_ended(one)}
        time.sleep(0.5)
    return len(waiting)


def _is_ended(one: socket.socket) -> bool:
    one.setblocking(False)
    try:
        return one.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def measure_cookies(server: Server, table: Table) -> None:
    """Two hundred cookies from one address queue and upload, and then somebody else."""
    crowd = Stranger(server, STRANGER)
    queued = sum(_queues(crowd) for _ in range(COOKIES))
    table.add(f"videos in line of {COOKIES} cookies of one address", "at most 41", str(queued), queued <= 41)
    table.add("another address can still queue", "yes", "yes" if (others := _queues(Stranger(server, OTHER))) else "no", others)
    taken = sum(_uploads(server) for _ in range(COOKIES // 4))
    most = 1000 // UPLOAD_MB
    table.add(f"uploads of {UPLOAD_MB} MB taken of {COOKIES // 4}", f"at most {most}", str(taken), taken <= most)


def _queues(stranger: Stranger) -> bool:
    """Whether a new cookie of this address gets a place in line."""
    stranger.client.cookies.clear()
    stranger.session = f"cookie{time.monotonic_ns():x}"
    stranger.client.get("/")
    answer = stranger.call("submit", {"prompt": "a red circle", "steps": 100})
    return "data-job" in answer.text


def _uploads(server: Server) -> bool:
    """Whether an upload from a new cookie is let in: one that is not is refused before its content comes."""
    head = f"POST /gradio_api/upload HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {UPLOAD_MB}000000\r\n"
    cookie = base64.urlsafe_b64encode(struct.pack(">d", time.time()) * 4).decode()[:43]
    head += f"x-forwarded-for: 203.0.113.5\r\ncookie: studio_visitor={cookie}\r\n"
    head += "content-type: multipart/form-data; boundary=x\r\n\r\n"
    with socket.create_connection(("127.0.0.1", httpx.URL(server.url).port)) as one:
        one.sendall(head.encode())
        one.settimeout(0.4)
        try:
            return b" 429 " not in one.recv(100)
        except TimeoutError:
            return True


def measure_passwords(project: Path, folder: Path, table: Table) -> None:
    """Ten wrong passwords, and a long body before the login."""
    with serving(project, folder, "--auth", "user:password") as server, httpx.Client(base_url=server.url, timeout=120) as client:
        wrong = {"username": "user", "password": "wrong"}
        answers = [client.post("/login", data=wrong, headers=STRANGER).status_code for _ in range(WRONG)]
        slowed = answers.count(429)
        table.add(f"of {WRONG} wrong passwords, told to wait", "at least 5", str(slowed), slowed >= 5)
        logged = server.log.read_text(errors="replace").count("wrong password")
        table.add("wrong passwords in the log", f"{WRONG - slowed} or more, not 0", str(logged), logged >= max(WRONG - slowed, 1))
        seconds, grown = peak_of(server, lambda: _body(client, 300_000_000))
        holds = seconds <= MOST_SECONDS and grown <= MOST_MB
        table.add("body of 300 MB before the login", f"{MOST_SECONDS:g} s, {MOST_MB} MB", f"{seconds:.2f} s, {grown} MB", holds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--project", type=Path, default=PROJECT, metavar="DIR", help="the checkout to measure (this one)")
    project, table = parser.parse_args().project, Table()
    with tempfile.TemporaryDirectory() as name:
        opened, locked = Path(name, "open"), Path(name, "locked")
        opened.mkdir(), locked.mkdir()
        with serving(project, opened) as server:
            measure_single(server, opened, table)
            measure_together(server, opened, table)
            measure_idle(server, table)
            measure_cookies(server, table)
        measure_passwords(project, locked, table)
    sys.stdout.write(str(table))
    sys.exit(0 if table.holds else 1)


if __name__ == "__main__":
    main()
