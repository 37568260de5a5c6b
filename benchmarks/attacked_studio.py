"""A studio under attack and another visitor who uses it: the shared parts of `benchmarks.strangers`."""

import multiprocessing
import socket
import sys
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import httpx

from benchmarks.hostile_requests import HttpVisitor, red_picture, with_picture
from benchmarks.studio_load import SLOWEST_ANSWER_SECONDS, resident, start, wait_until_ready

MOST_SERVER_MB = 700  # memory of the server and its child processes, except the workers
KINDS = ("/healthz", "page", "picture")  # requests of the other visitor during an attack
STRANGER, OTHER = {"x-forwarded-for": "203.0.113.5"}, {"x-forwarded-for": "203.0.113.6"}
ROUND_SECONDS = 10.0  # length of a round; then attackers who still wait disconnect
SETTLE_SECONDS = 2.0


@dataclass
class Table:
    """The rows of the report. Records whether all bounds held."""

    rows: list[tuple[str, str, str, bool]] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)

    def add(self, what: str, bound: str, measured: str, holds: bool) -> None:
        """Add a row and print it at once, to show the progress of a long run."""
        self.rows.append((what, bound, measured, holds))
        seconds = time.monotonic() - self.began
        sys.stderr.write(f"{seconds:4.0f} s  {what}: {measured}{'' if holds else '  BROKEN'}\n")

    @property
    def holds(self) -> bool:
        return all(row[-1] for row in self.rows)

    def __str__(self) -> str:
        lines = [
            f"| {what} | {bound} | {measured} | {'yes' if holds else '**no**'} |" for what, bound, measured, holds in self.rows
        ]
        seconds = f"\n{time.monotonic() - self.began:.0f} s in all.\n"
        return "\n".join(["| what | bound | measured | holds |", "|---|---|---|---|", *lines]) + "\n" + seconds


@dataclass(frozen=True)
class Server:
    """A running studio."""

    url: str
    pid: int
    log: Path

    data: Path

    def memory(self) -> int:
        """Return the resident MB of the server and its child processes, without the workers, which hold the models."""
        return sum(resident(pid) for pid in processes_of(self.pid) if pid == self.pid or not is_worker(pid))


@contextmanager
def serving(project: Path, folder: Path, *more: str) -> Generator[Server]:
    """Start the studio of this checkout on a free port and wait until it is ready."""
    words = ["app.py", "serve", "--data-dir", str(folder / "data"), *more]
    process, url = start(lambda port: [*words, "--port", str(port)], folder, project)
    try:
        wait_until_ready(url)
        yield Server(url, process.pid, folder / "server.log", folder / "data")
    finally:
        process.terminate()
        process.wait(30)


def processes_of(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        threads = [path.joinpath("children").read_text().split() for path in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        return [pid]
    found = {int(child) for child in children} | {int(child) for thread in threads for child in thread}
    return [pid, *(one for child in found for one in processes_of(child))]


def is_worker(pid: int) -> bool:
    try:
        return b"backend.workers" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return True


@contextmanager
def track_peak_memory(server: Server) -> Generator[Callable[[], int]]:
    """Yield a function that returns the peak MB of the server since the start of the block."""
    peak, is_over = server.memory(), threading.Event()

    def watch() -> None:
        nonlocal peak
        while not is_over.wait(0.02):
            peak = max(peak, server.memory())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield lambda: peak
    finally:
        is_over.set()
        watcher.join()


def start_threads(works: Sequence[Callable[[], Any]]) -> list[threading.Thread]:
    """Start each function in a thread. A request that is cut off or times out ends its thread without an error."""

    def run(work: Callable[[], Any]) -> None:
        with suppress(httpx.HTTPError):
            work()

    threads = [threading.Thread(target=run, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    return threads


@contextmanager
def open_requests(server: Server, path: str, cookie: str, count: int) -> Generator[None]:
    """Hold `count` GET requests of one visitor open without reading the answers."""
    head = f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncookie: studio_visitor={cookie}\r\n\r\n"
    with ExitStack() as opened:
        for _ in range(count):
            connection = opened.enter_context(socket.create_connection(("127.0.0.1", httpx.URL(server.url).port)))
            with suppress(OSError):  # the server closed the connection
                connection.sendall(head.encode())
        yield


def measure_round(
    server: Server,
    other_visitor: "OtherVisitor",
    what: str,
    threads: Sequence[threading.Thread],
    table: Table,
    most_seconds: float | None = None,
) -> None:
    """Measure the other visitor's answers until the threads end, at most for `most_seconds`, and add a row."""
    until = time.monotonic() + (most_seconds or threading.TIMEOUT_MAX)
    with track_peak_memory(server) as peak:
        other_visitor.begin()
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))
        add_round(table, what, other_visitor.end(), peak())


def add_round(table: Table, what: str, seconds: dict[str, list[float]], peak: int) -> None:
    slowest = {kind: _percentile(seconds[kind]) for kind in KINDS}
    shown = ", ".join(f"{kind} {slowest[kind]:.2f} s" for kind in KINDS)
    holds = max(slowest.values()) <= SLOWEST_ANSWER_SECONDS and peak <= MOST_SERVER_MB
    table.add(what, f"{SLOWEST_ANSWER_SECONDS:g} s, {MOST_SERVER_MB} MB", f"{shown}, {peak} MB", holds)


def _percentile(seconds: list[float]) -> float:
    """Return the 99th percentile, infinite if an answer was wrong."""
    return sorted(seconds)[int(0.99 * (len(seconds) - 1))]


@dataclass(frozen=True)
class OtherVisitor:
    """Another visitor in a separate process. Uses the studio between `begin` and `end` and records the seconds of each answer."""

    pipe: Connection

    def begin(self) -> None:
        """Start recording."""
        self.pipe.send("begin")

    def end(self) -> dict[str, list[float]]:
        """Stop recording. Return the seconds of each answer by kind, infinite for a wrong answer."""
        self.pipe.send("end")
        return self.pipe.recv()


@contextmanager
def start_other_visitor(server: Server) -> Generator[OtherVisitor]:
    """Start another visitor of the server."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_use, args=(server.url, theirs), daemon=True)
    process.start()
    ours.recv()  # wait until the visitor has opened the page
    try:
        yield OtherVisitor(ours)
    finally:
        process.terminate()
        process.join()


def _use(url: str, pipe: Connection) -> None:
    """Use the studio as the other visitor."""
    visitor = HttpVisitor(url, OTHER)
    picture = visitor.upload("mine.png", red_picture(1280, 720))
    ask = {
        "/healthz": lambda: visitor.client.get("/healthz").status_code == 200,
        "page": lambda: visitor.client.get("/").status_code == 200,
        "picture": lambda: "data:image/jpeg" in visitor.call("show_new_image", with_picture(picture)).text,
    }
    pipe.send("ready")
    while pipe.recv() == "begin":
        seconds: dict[str, list[float]] = {kind: [] for kind in KINDS}
        while not pipe.poll(0.05) or not all(seconds.values()):
            for kind in KINDS:
                seconds[kind].append(seconds_of(ask[kind]))
        pipe.recv()
        pipe.send(seconds)


def seconds_of(ask: Callable[[], bool]) -> float:
    began = time.monotonic()
    try:
        is_right = ask()
        return time.monotonic() - began if is_right else float("inf")
    except httpx.HTTPError:
        return float("inf")
