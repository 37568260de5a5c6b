"""Measure attacks on stored data, for `benchmarks.strangers`."""

import sys
import time
from pathlib import Path

from benchmarks.attacked_studio import (
    OTHER,
    ROUND_SECONDS,
    SETTLE_SECONDS,
    STRANGER,
    Server,
    Table,
    is_worker,
    measure_round,
    open_requests,
    processes_of,
    seconds_of,
    serving,
    start_other_visitor,
    start_threads,
)
from benchmarks.hostile_requests import HttpVisitor
from benchmarks.stored_attacks import (
    HEAVY_VIDEOS,
    LARGE_SIZES,
    REQUEST,
    ask_for_suggestion,
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
    stop_tasks,
    tiny_video,
)
from benchmarks.studio_load import resident

READERS, PICTURES = 10, 6
MOST_CLIP_SECONDS = 5.0  # another visitor's clip or poster while long work runs
MOST_STOP_SECONDS = 10.0  # until stopped exports have ended
MOST_VIDEO_SECONDS = 120.0  # another visitor's short video
RESTART_SECONDS, MOST_WORKER_MB = 40.0, 3000
STORED = ("suggestions", "exports", "forged", "pictures", "restart")
FORGER, PAINTER = {"x-forwarded-for": "203.0.113.7"}, {"x-forwarded-for": "203.0.113.8"}  # each address has separate budgets


def measure_exports(server: Server, folder: Path, table: Table) -> None:
    """Export a long video in all formats at once, with stalled readers, while another visitor opens a clip and a poster."""
    attacker, other = HttpVisitor(server.url, STRANGER, 600), HttpVisitor(server.url, OTHER)
    (job_id,) = bring_in(attacker, project(noisy_video(folder, 18), [REQUEST]))
    (own,) = bring_in(other, project(tiny_video(folder), [REQUEST]))
    clip, before = other.upload("clip.mp4", tiny_video(folder)), disk_bytes(server.data)
    with start_other_visitor(server) as other_visitor:
        threads = start_threads(exports(attacker, job_id))
        time.sleep(SETTLE_SECONDS)
        for what, ask in {
            "a clip of another": lambda: other.client.post("/studio/edit/clip", json={"clip": clip}).json().get("width") == 96,
            "a poster of another": lambda: other.client.get(f"/studio/media/{own}/poster.webp").status_code == 200,
        }.items():
            seconds = seconds_of(ask)
            table.add(
                f"{what} while a video is exported", f"{MOST_CLIP_SECONDS:g} s", f"{seconds:.2f} s", seconds <= MOST_CLIP_SECONDS
            )
        measure_round(server, other_visitor, "five exports of a video of 18 s, 1080p", threads, table, ROUND_SECONDS)
    began = time.monotonic()
    is_over = stop_tasks(attacker, 3 * MOST_STOP_SECONDS)
    seconds = time.monotonic() - began
    shown = f"{seconds:.1f} s" if is_over else "not ended"
    table.add("stopped exports end", f"{MOST_STOP_SECONDS:g} s", shown, is_over and seconds <= MOST_STOP_SECONDS)
    with open_requests(server, f"/studio/export/{job_id}/png", attacker.client.cookies["studio_visitor"], READERS):
        most, until = 0, time.monotonic() + ROUND_SECONDS
        while time.monotonic() < until:
            most = max(most, disk_bytes(server.data) - before)
            time.sleep(0.5)
    megabytes = most // 1_000_000
    table.add(f"disk while {READERS} readers of exports stall", "1,000 MB", f"{megabytes} MB", megabytes <= 1000)


def measure_forged(server: Server, folder: Path, table: Table) -> None:
    """Import forged projects and press "Same again". Then measure another visitor's video, and pages during heavy requests."""
    attacker = HttpVisitor(server.url, FORGER)
    queue_forged(attacker, tiny_video(folder))
    seconds = seconds_to_make(HttpVisitor(server.url, OTHER), MOST_VIDEO_SECONDS)
    table.add(
        "another's video after forged projects", f"{MOST_VIDEO_SECONDS:g} s", f"{seconds:.1f} s", seconds <= MOST_VIDEO_SECONDS
    )
    count = len(bring_in(attacker, heavy_project(tiny_video(folder))))
    table.add("videos of many cues are imported", f"{HEAVY_VIDEOS} or more", str(count), count >= HEAVY_VIDEOS)
    streams = open_requests(server, "/studio/changes", attacker.client.cookies["studio_visitor"], 20)
    with start_other_visitor(server) as other_visitor, streams:
        threads = start_threads([lambda: press(attacker, "project", "create", job="x")] * 5)
        measure_round(server, other_visitor, "20 streams beside 30 videos of many cues", threads, table, ROUND_SECONDS)


def measure_pictures(server: Server, table: Table) -> None:
    """Queue and delete videos of images that could take more space on the disk, and request characters repeatedly."""
    attacker, picture = HttpVisitor(server.url, PAINTER), noise(1500, 1000, "JPEG")
    before = disk_bytes(server.data)
    for _ in range(PICTURES):
        make_and_delete(attacker, picture)
    left, sent = (disk_bytes(server.data) - before) / 1e6, PICTURES * len(picture) / 1e6
    table.add(
        f"disk after {PICTURES} deleted videos of pictures, {sent:.1f} MB",
        f"{3 * sent:.1f} MB",
        f"{left:.1f} MB",
        left <= 3 * sent,
    )
    if not offer_characters(attacker, MOST_VIDEO_SECONDS):
        table.add("characters are offered again", "yes", "no", False)
        return
    with start_other_visitor(server) as other_visitor:
        threads = start_threads([lambda: attacker.client.get("/studio/figures")] * 40)
        measure_round(server, other_visitor, "40 times the characters of a project, 60 MB", threads, table, ROUND_SECONDS)


def measure_suggestions(server: Server, table: Table) -> None:
    """Measure another visitor's answers while a prompt rewriter returns suggestions with repeated words."""
    strangers = [HttpVisitor(server.url, {"x-forwarded-for": f"203.0.113.{number}"}) for number in range(10, 14)]
    with start_other_visitor(server) as other_visitor:
        threads = start_threads([lambda one=one: ask_for_suggestion(one) for one in strangers])
        measure_round(server, other_visitor, "four suggestions of words that repeat", threads, table, ROUND_SECONDS)


def measure_restart(server: Server, table: Table) -> None:
    """Measure the memory of the workers after a restart."""
    most, until = 0, time.monotonic() + RESTART_SECONDS
    while time.monotonic() < until:
        most = max(most, *(resident(pid) for pid in processes_of(server.pid) if is_worker(pid)), 0)
        time.sleep(0.5)
    table.add(f"a worker, {RESTART_SECONDS:g} s after a restart", f"{MOST_WORKER_MB:,} MB", f"{most} MB", most <= MOST_WORKER_MB)


def measure_stored(project_folder: Path, folder: Path, table: Table, only: str) -> None:
    """Attack the stored data of a server, then restart it with imported videos of sizes that no preset allows."""
    chosen = [name for name in STORED if only in name]
    if not chosen:
        return
    with serving(project_folder, folder, "--rewriter", f"{sys.executable} -c \"print('a c ' * 300)\"") as server:
        if "suggestions" in chosen:
            measure_suggestions(server, table)
        if "exports" in chosen:
            measure_exports(server, folder, table)
        if "forged" in chosen:
            measure_forged(server, folder, table)
        if "pictures" in chosen:
            measure_pictures(server, table)
        if "restart" in chosen:
            bring_in(HttpVisitor(server.url, FORGER), project(tiny_video(folder), [REQUEST | size for size in LARGE_SIZES]))
    if "restart" in chosen:
        with serving(project_folder, folder) as server:
            measure_restart(server, table)
