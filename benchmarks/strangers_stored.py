"""Measures attacks on what the studio stores, for `benchmarks.strangers`."""

import socket
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import httpx

from benchmarks.attacked_studio import (
    OTHER,
    ROUND_SECONDS,
    SETTLE_SECONDS,
    STRANGER,
    Asks,
    Server,
    Table,
    add_round,
    is_worker,
    person,
    processes_of,
    seconds_of,
    serving,
    watched,
)
from benchmarks.hostile_requests import Stranger
from benchmarks.stored_attacks import (
    LARGE_SIZES,
    REQUEST,
    ask_for_suggestion,
    at_once,
    bring_in,
    disk_bytes,
    exports,
    heavy_project,
    make_and_delete,
    noise,
    noisy_video,
    offer_characters,
    press,
    project,
    queue_forged,
    seconds_to_make,
    tiny_video,
)
from benchmarks.studio_load import resident

READERS, PICTURES = 10, 6
MOST_CLIP_SECONDS = 5.0  # a clip or a poster of another while long work runs
MOST_VIDEO_SECONDS = 120.0  # a short video of another
RESTART_SECONDS, MOST_WORKER_MB = 40.0, 3000
STORED = ("exports", "forged", "pictures", "suggestions", "restart")


def _measured_while(server: Server, asks: Asks, what: str, threads: list[threading.Thread], table: Table) -> None:
    """Adds a row for another visitor's answers while these threads run, for at most the time of a round."""
    with watched(server) as peak:
        asks.begin()
        until = time.monotonic() + ROUND_SECONDS
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))
        add_round(table, what, asks.end(), peak())


def measure_exports(server: Server, folder: Path, table: Table) -> None:
    """A visitor exports a long video in all formats at once, with stalled readers; another opens a clip and a poster."""
    stranger, other = Stranger(server.url, STRANGER, 600), Stranger(server.url, OTHER)
    (job_id,) = bring_in(stranger, project(noisy_video(folder, 18), [REQUEST]))
    (own,) = bring_in(other, project(tiny_video(folder), [REQUEST]))
    clip, before = other.upload("clip.mp4", tiny_video(folder)), disk_bytes(server.data)
    with person(server) as asks:
        threads = at_once(exports(stranger, job_id))
        time.sleep(SETTLE_SECONDS)
        for what, ask in {
            "a clip of another": lambda: other.client.post("/studio/edit/clip", json={"clip": clip}).json().get("width") == 96,
            "a poster of another": lambda: other.client.get(f"/studio/media/{own}/poster.webp").status_code == 200,
        }.items():
            seconds = seconds_of(ask)
            table.add(
                f"{what} while a video is exported", f"{MOST_CLIP_SECONDS:g} s", f"{seconds:.2f} s", seconds <= MOST_CLIP_SECONDS
            )
        _measured_while(server, asks, "five exports of a video of 18 s, 1080p", threads, table)
    for thread in threads:
        thread.join(600)
    port, cookie = httpx.URL(server.url).port, stranger.client.cookies["studio_visitor"]
    head = f"GET /studio/export/{job_id}/png HTTP/1.1\r\nhost: 127.0.0.1\r\ncookie: studio_visitor={cookie}\r\n\r\n"
    with ExitStack() as opened:
        for _ in range(READERS):
            one = opened.enter_context(socket.create_connection(("127.0.0.1", port)))
            one.sendall(head.encode())
        most, until = 0, time.monotonic() + ROUND_SECONDS
        while time.monotonic() < until:
            most = max(most, disk_bytes(server.data) - before)
            time.sleep(0.5)
    megabytes = most // 1_000_000
    table.add(f"disk while {READERS} readers of exports stall", "1,000 MB", f"{megabytes} MB", megabytes <= 1000)


def measure_forged(server: Server, folder: Path, table: Table) -> None:
    """Forged projects and "Same again"; then somebody else's video, and pages beside heavy requests."""
    stranger = Stranger(server.url, STRANGER)
    queue_forged(stranger, tiny_video(folder))
    seconds = seconds_to_make(Stranger(server.url, OTHER), MOST_VIDEO_SECONDS)
    table.add(
        "another's video after forged projects", f"{MOST_VIDEO_SECONDS:g} s", f"{seconds:.1f} s", seconds <= MOST_VIDEO_SECONDS
    )
    bring_in(stranger, heavy_project(tiny_video(folder)))
    port, cookie = httpx.URL(server.url).port, stranger.client.cookies["studio_visitor"]
    head = f"GET /studio/changes HTTP/1.1\r\nhost: 127.0.0.1\r\ncookie: studio_visitor={cookie}\r\n\r\n"
    with person(server) as asks, ExitStack() as opened:
        for _ in range(20):
            opened.enter_context(socket.create_connection(("127.0.0.1", port))).sendall(head.encode())
        works = [lambda: press(stranger, "project", "create", job="x")] * 5
        _measured_while(server, asks, "20 streams beside 30 videos of 20,000 cues", at_once(works), table)


def measure_pictures(server: Server, table: Table) -> None:
    """Pictures that grow on the disk, and characters that are asked for again and again."""
    stranger, picture = Stranger(server.url, STRANGER), noise(1500, 1000, "JPEG")
    before = disk_bytes(server.data)
    for _ in range(PICTURES):
        make_and_delete(stranger, picture)
    left, sent = (disk_bytes(server.data) - before) / 1e6, PICTURES * len(picture) / 1e6
    table.add(
        f"disk after {PICTURES} deleted videos of pictures, {sent:.1f} MB",
        f"{3 * sent:.1f} MB",
        f"{left:.1f} MB",
        left <= 3 * sent,
    )
    if not offer_characters(stranger, MOST_VIDEO_SECONDS):
        table.add("characters are offered again", "yes", "no", False)
        return
    with person(server) as asks:
        threads = at_once([lambda: stranger.client.get("/studio/figures")] * 40)
        _measured_while(server, asks, "40 times the characters of a project, 60 MB", threads, table)


def measure_suggestions(project_folder: Path, folder: Path, table: Table) -> None:
    """A prompt helper that answers with a word that repeats."""
    helper = f"{sys.executable} -c \"print('a c ' * 300)\""
    with serving(project_folder, folder, "--rewriter", helper) as server, person(server) as asks:
        strangers = [Stranger(server.url, {"x-forwarded-for": f"203.0.113.{number}"}) for number in range(10, 14)]
        threads = at_once([lambda one=one: ask_for_suggestion(one) for one in strangers])
        _measured_while(server, asks, "four suggestions of words that repeat", threads, table)


def measure_restart(project_folder: Path, folder: Path, table: Table) -> None:
    """Imported videos of sizes that nobody can make, and a restart."""
    with serving(project_folder, folder) as server:
        bring_in(Stranger(server.url), project(tiny_video(folder), [REQUEST | size for size in LARGE_SIZES]))
    with serving(project_folder, folder) as server:
        most, until = 0, time.monotonic() + RESTART_SECONDS
        while time.monotonic() < until:
            most = max(most, *(resident(pid) for pid in processes_of(server.pid) if is_worker(pid)), 0)
            time.sleep(0.5)
    table.add(f"a worker, {RESTART_SECONDS:g} s after a restart", f"{MOST_WORKER_MB:,} MB", f"{most} MB", most <= MOST_WORKER_MB)


def measure_stored(project_folder: Path, root: Path, table: Table, only: str) -> None:
    """Attacks on what is stored, each on a server of its own."""
    for name in (name for name in STORED if only in name):
        folder = root / name
        folder.mkdir()
        if name == "suggestions":
            measure_suggestions(project_folder, folder, table)
        elif name == "restart":
            measure_restart(project_folder, folder, table)
        else:
            with serving(project_folder, folder) as server:
                if name == "exports":
                    measure_exports(server, folder, table)
                elif name == "forged":
                    measure_forged(server, folder, table)
                else:
                    measure_pictures(server, table)
