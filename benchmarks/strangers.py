"""Measure the effect of hostile visitors on the studio: `python -m benchmarks.strangers`.

The benchmark starts the real server with the demo model three times: for attacks on stored data (`benchmarks.strangers_stored`),
for hostile requests, and with a password. It sends the hostile requests one at a time, then fifty of each at once. It also opens
a thousand silent connections and a thousand streams, and sends forged cookies and wrong passwords. It prints one table. Standard
error shows each row as soon as it is measured, with the seconds since the start. The exit code is 1 if a bound is broken.
`--project DIR` measures another checkout of the studio. `--only TEXT` selects hostile requests by name.

Bounds:

- A request takes at most 2 s and 300 MB. For a file that takes longer to open, the sandbox's limits apply.
- While fifty requests of one kind run at once, `/healthz`, the page and another visitor's image take at most 1 s at the 99th
  percentile. The server and its child processes without the workers stay below 700 MB.
- A second round with requests of all kinds increases the server's memory by at most 5 %.
- One address can fill neither the queue nor the disk. Visitors with new cookies leave places in the queue for programs with
  keys.
- Wrong passwords delay the next try of their address, then of all addresses, and are logged.
- Forged projects, exports, stored images and suggestions (`benchmarks.stored_attacks`) do not delay other visitors. Their use of
  disk and memory is bounded.
"""

import argparse
import base64
import os
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import httpx

from benchmarks.attacked_studio import (
    OTHER,
    ROUND_SECONDS,
    SETTLE_SECONDS,
    STRANGER,
    OtherVisitor,
    Server,
    Table,
    add_round,
    measure_round,
    open_requests,
    serving,
    start_other_visitor,
    start_threads,
    track_peak_memory,
)
from benchmarks.hostile_requests import MOST_MB, MOST_SECONDS, Attack, HttpVisitor, attacks, send_body
from benchmarks.strangers_stored import measure_stored
from benchmarks.studio_load import MOST_GROWTH, PROJECT, SLOWEST_ANSWER_SECONDS, resident

AT_ONCE, IDLE, STREAMS, COOKIES, WRONG, INVENTED = 50, 1000, 1000, 200, 10, 50
MOST_IDLE_SECONDS = 30.0
UPLOAD_MB = 59


def peak_of(server: Server, work: Callable[[], Any]) -> tuple[float, int]:
    """Run work. Return its seconds and the server's peak growth in MB."""
    before, began = server.memory(), time.monotonic()
    with track_peak_memory(server) as peak:
        work()
    return time.monotonic() - began, max(peak() - before, 0)


def measure_single(server: Server, folder: Path, table: Table, only: str) -> None:
    """Measure each hostile request alone."""
    for what, attack in attacks(HttpVisitor(server.url), folder).items():
        if only in what:
            seconds, grown = peak_of(server, lambda attack=attack: start_threads([attack.send])[0].join())
            holds = seconds <= attack.seconds and grown <= attack.megabytes
            table.add(what, f"{attack.seconds:g} s, {attack.megabytes} MB", f"{seconds:.2f} s, {grown} MB", holds)


def measure_together(server: Server, folder: Path, table: Table, only: str) -> None:
    """Send each request fifty times at once while another visitor uses the studio.

    Then send two rounds with requests of all kinds, and compare the server's memory after each round.
    """
    all_attacks = attacks(HttpVisitor(server.url, STRANGER, ROUND_SECONDS), folder)
    chosen = {what: attack for what, attack in all_attacks.items() if only in what}
    with start_other_visitor(server) as other_visitor:
        for what, attack in chosen.items():
            _measure_fifty(server, other_visitor, f"{AT_ONCE} times at once: {what}", [attack] * AT_ONCE, table)
        mixed = [list(chosen.values())[number % len(chosen)] for number in range(AT_ONCE)]
        sizes = [_measure_fifty(server, other_visitor, f"{AT_ONCE} of all kinds at once", mixed, table) for _ in range(2)]
    holds = sizes[1] <= sizes[0] * (1 + MOST_GROWTH)
    table.add("memory after the first and the second fifty", f"+{MOST_GROWTH:.0%}", f"{sizes[0]} and {sizes[1]} MB", holds)


def _measure_fifty(server: Server, other_visitor: OtherVisitor, what: str, chosen: list[Attack], table: Table) -> int:
    """Add a row for another visitor's answers while these attacks run. Return the MB of the server afterwards."""
    measure_round(server, other_visitor, what, start_threads([attack.send for attack in chosen]), table)
    time.sleep(SETTLE_SECONDS)
    return resident(server.pid)


def measure_idle(server: Server, table: Table) -> None:
    """Open a thousand connections that send nothing or half a request. Measure the page, and how many the server closes."""
    port = httpx.URL(server.url).port
    opened = [socket.create_connection(("127.0.0.1", port)) for _ in range(IDLE)]
    for one in opened[::2]:
        try:
            one.sendall(b"POST /mcp HTTP/1.1\r\nhost: 127.0.0.1\r\n")
        except OSError:
            pass  # the server closed the connection
    began = time.monotonic()
    httpx.get(server.url, timeout=60)
    seconds = time.monotonic() - began
    table.add(f"page while {IDLE} connections idle", f"{SLOWEST_ANSWER_SECONDS:g} s", f"{seconds:.2f} s", seconds <= 1)
    left = count_open_connections(opened, began)
    table.add(f"idle connections open after {MOST_IDLE_SECONDS:g} s", "0", str(left), left == 0)
    for one in opened:
        one.close()


def count_open_connections(opened: list[socket.socket], began: float) -> int:
    """Return the number of connections that the server has not closed `MOST_IDLE_SECONDS` after `began`."""
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


def measure_log(server: Server, table: Table) -> None:
    """Check the log after all attacks."""
    written = server.log.read_bytes()
    control = [byte for byte in set(written) if byte < 32 and byte not in b"\t\n"]
    size = len(written) // 1000
    table.add(
        "the log after all of these",
        "1,000 KB, no control characters",
        f"{size} KB, {len(control)}",
        size <= 1000 and not control,
    )


def measure_streams(server: Server, table: Table) -> None:
    """Open a thousand endless streams as one visitor."""
    with start_other_visitor(server) as other_visitor, track_peak_memory(server) as peak:
        other_visitor.begin()
        with open_requests(server, "/studio/changes", _cookie(), STREAMS):
            time.sleep(SETTLE_SECONDS)
            add_round(table, f"{STREAMS} streams of one visitor", other_visitor.end(), peak())


def measure_keys(server: Server, project: Path, table: Table) -> None:
    """Send fifty requests with wrong keys while the file of keys is locked.

    Then fill the queue with new visitors, and queue a video with a valid key.
    """
    command = [sys.executable, "app.py", "keys", "create", "program", "--data-dir", str(server.data)]
    made = subprocess.run(command, cwd=project, check=True, capture_output=True, text=True).stdout
    key = next(word for word in made.split() if word.startswith("studio-"))
    with start_other_visitor(server) as other_visitor, track_peak_memory(server) as peak, ExitStack() as held:
        connection = sqlite3.connect(server.data / "keys.sqlite3")
        held.callback(connection.close)
        connection.execute("BEGIN EXCLUSIVE")
        other_visitor.begin()
        asking = start_threads([lambda number=number: _ask_with(server.url, f"studio-{number:x}") for number in range(AT_ONCE)])
        time.sleep(SETTLE_SECONDS)
        seconds = other_visitor.end()
        connection.rollback()
        for thread in asking:
            thread.join()
        add_round(table, f"{AT_ONCE} keys while the file of keys is held", seconds, peak())
    crowd = HttpVisitor(server.url)
    queued = sum(can_queue(crowd) for _ in range(COOKIES // 2))
    wanted = {"model": "wan-tiny", "prompt": "a red circle"}
    with httpx.Client(base_url=server.url, timeout=60, headers={"authorization": f"Bearer {key}"}) as program:
        status = program.post("/v1/videos", json=wanted).status_code
    table.add(f"a key, after {COOKIES // 2} invented visitors queued {queued} videos more", "200", str(status), status == 200)


def _ask_with(url: str, key: str) -> None:
    httpx.get(f"{url}v1/models", headers={"authorization": f"Bearer {key}"}, timeout=30)


def measure_cookies(server: Server, table: Table) -> None:
    """Queue videos with two hundred cookies from one address, then from another address. Upload files with new cookies."""
    crowd = HttpVisitor(server.url, STRANGER)
    accepted = sum(can_queue(crowd) for _ in range(COOKIES))
    unfinished = _count_unfinished_videos(server)
    measured = f"{unfinished}, {accepted - unfinished} finished meanwhile"
    table.add(f"unfinished videos of {COOKIES} cookies of one address", "1 to 41", measured, 0 < unfinished <= 41)
    table.add(
        "another address can still queue", "yes", "yes" if (others := can_queue(HttpVisitor(server.url, OTHER))) else "no", others
    )
    taken = sum(can_upload(server) for _ in range(COOKIES // 4))
    most = 1000 // UPLOAD_MB
    table.add(f"uploads of {UPLOAD_MB} MB taken of {COOKIES // 4}", f"at most {most}", str(taken), taken <= most)


def can_queue(attacker: HttpVisitor) -> bool:
    """Return whether a new cookie of this address can queue a video."""
    attacker.client.cookies.clear()
    attacker.session = f"cookie{time.monotonic_ns():x}"
    attacker.client.get("/")
    answer = attacker.call("submit", {"prompt": "a red circle", "steps": 100})
    return "data-job" in answer.text


def _count_unfinished_videos(server: Server) -> int:
    """Return how many videos are queued or running."""
    with closing(sqlite3.connect(f"file:{server.data / 'jobs.sqlite3'}?mode=ro", uri=True)) as database:
        return database.execute("SELECT COUNT(*) FROM jobs WHERE state IN ('queued', 'running')").fetchone()[0]


def _cookie() -> str:
    return base64.urlsafe_b64encode(os.urandom(32)).decode()[:43]


def can_upload(server: Server) -> bool:
    """Return whether the server accepts an upload from a new cookie. The server refuses uploads before the content is sent."""
    head = f"POST /gradio_api/upload HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {UPLOAD_MB}000000\r\n"
    head += f"x-forwarded-for: 203.0.113.5\r\ncookie: studio_visitor={_cookie()}\r\n"
    head += "content-type: multipart/form-data; boundary=x\r\n\r\n"
    with socket.create_connection(("127.0.0.1", httpx.URL(server.url).port)) as one:
        one.sendall(head.encode())
        one.settimeout(0.4)
        try:
            return b" 429 " not in one.recv(100)
        except TimeoutError:
            return True


def measure_passwords(project: Path, folder: Path, table: Table) -> None:
    """Send wrong passwords from one address and from forged addresses, logouts, and a long body before the login."""
    with serving(project, folder, "--auth", "user:password") as server, httpx.Client(base_url=server.url, timeout=120) as client:
        right, wrong = {"username": "user", "password": "password"}, {"username": "user", "password": "wrong"}
        people = [httpx.Client(base_url=server.url, timeout=120) for _ in range(2)]
        for one in people:
            one.post("/login", data=right)
        people[0].get("/logout", headers={"origin": "http://elsewhere.example"})
        people[0].get("/logout")
        people[0].post("/logout", headers={"origin": server.url.rstrip("/")})
        answers = [one.get("/config").status_code for one in people]
        table.add(
            "who is logged in after one has logged out", "401 and 200", f"{answers[0]} and {answers[1]}", answers == [401, 200]
        )
        answers = [client.post("/login", data=wrong, headers=STRANGER).status_code for _ in range(WRONG)]
        slowed = answers.count(429)
        table.add(f"of {WRONG} wrong passwords, answered with a delay", "at least 5", str(slowed), slowed >= 5)
        logged = server.log.read_text(errors="replace").count("Wrong password from")
        table.add("wrong passwords in the log", f"{WRONG - slowed} or more, not 0", str(logged), logged >= max(WRONG - slowed, 1))
        made_up = [{"x-forwarded-for": f"203.0.114.{number}"} for number in range(INVENTED)]
        tried = sum(client.post("/login", data=wrong, headers=headers).status_code != 429 for headers in made_up)
        table.add(f"of {INVENTED} wrong passwords from as many addresses, let in to try", "at most 30", str(tried), tried <= 30)
        seconds, grown = peak_of(server, lambda: send_body(client, 300_000_000))
        holds = seconds <= MOST_SECONDS and grown <= MOST_MB
        table.add("body of 300 MB before the login", f"{MOST_SECONDS:g} s, {MOST_MB} MB", f"{seconds:.2f} s, {grown} MB", holds)


def measure_requests(project: Path, folder: Path, table: Table, only: str) -> None:
    """Measure hostile requests to an open studio. Without `only`, also measure many connections and visitors."""
    with serving(project, folder) as server:
        measure_single(server, folder, table, only)
        measure_together(server, folder, table, only)
        if not only:
            measure_log(server, table)
            measure_streams(server, table)
            measure_idle(server, table)
            measure_cookies(server, table)
            measure_keys(server, project, table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--project", type=Path, default=PROJECT, metavar="DIR", help="the checkout to measure (this one)")
    parser.add_argument("--only", default="", metavar="TEXT", help="only hostile requests whose names contain this text")
    parser.add_argument("--stored", action="store_true", help="only the attacks on stored data; --only selects some of them")
    arguments, table = parser.parse_args(), Table()
    with tempfile.TemporaryDirectory() as name:
        stored, opened, locked = (Path(name, part) for part in ("stored", "open", "locked"))
        for folder in (stored, opened, locked):
            folder.mkdir()
        if arguments.stored or not arguments.only:
            measure_stored(arguments.project, stored, table, arguments.only)
        if not arguments.stored:
            measure_requests(arguments.project, opened, table, arguments.only)
        if not (arguments.stored or arguments.only):
            measure_passwords(arguments.project, locked, table)
    sys.stdout.write(str(table))
    sys.exit(0 if table.holds else 1)


if __name__ == "__main__":
    main()
