"""Generate videos while faults happen: `python -m benchmarks.faults --json FILE`.

The benchmark runs the real server with the demo model, and visitors with different cookies. Every two seconds one fault happens,
drawn from a seed. The worker or the server is killed, stopped or asked to end. The disk is filled and freed. Pages are closed.
Jobs are cancelled, moved and edited. At the end every job must have ended once, with its files, in a state that its visitor's
actions allow. No other visitor may have seen the job. No process and no temporary file may be left. The latents of a sample must
equal the latents of undisturbed jobs bit for bit.

The disk is a separate file system in memory if this process may mount one (Linux, root). Otherwise the disk is never filled.
"""

import argparse
import json
import os
import random
import re
import secrets
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from http.client import HTTPException
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from backend.errors import StudioError
from backend.media.video import read_facts
from backend.schemas.request import GenerationRequest

PROJECT = Path(__file__).resolve().parents[1]
FAULT_SECONDS = 2.0
DISK_MEGABYTES = 1500  # the studio refuses requests below 1 GB of free space
FULL_SECONDS = 3.0
STOP_SECONDS = 10.0  # from the signal until the server has ended
GONE = OSError, HTTPException  # errors that a visitor gets when the server ends, also during an answer
SPOILED = 0.6
PROMPTS = (
    "a red circle moving right on a black background",
    "a small cyan star drifts to the left over a navy background",
    "a magenta square moving down and to the right on a grey background",
)
TAG = re.compile(r"visitor \d+ video \d+")


@dataclass
class RequestedVideo:
    """A video that a visitor requests. `tag` is part of the prompt and identifies the video's jobs."""

    tag: str
    prompt: str
    is_cancelled: bool = False


@dataclass
class Findings:
    """The violations, and the number of times that each fault happened."""

    faults: Counter = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    recoveries: list[float] = field(default_factory=list)  # seconds from a server's end until it answers again

    def violated(self, sentence: str) -> None:
        """Record a violation."""
        self.violations.append(sentence)


class Studio:
    """The server on one port and one data folder, restarted after each end."""

    def __init__(self, folder: Path):
        self.folder, self.lock = folder, threading.Lock()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen | None = None

    def start(self) -> None:
        """Start the server and wait until it answers. Raises: RuntimeError."""
        command = [sys.executable, "app.py", "serve", "--port", str(self.port), "--data-dir", str(self.folder)]
        with (self.folder.parent / "server.log").open("ab") as log:
            self.process = subprocess.Popen(command, cwd=PROJECT, stdout=log, stderr=log)
        until = time.monotonic() + 120
        while time.monotonic() < until:
            try:
                urllib.request.urlopen(f"{self.url}/healthz", timeout=5).close()
                return
            except urllib.error.HTTPError:
                return  # the server answers, although with an error
            except OSError:
                time.sleep(0.2)
                if self.process.poll() is not None:
                    raise RuntimeError(f"the server ended with {self.process.returncode}; see {log.name}") from None
        raise RuntimeError("the server does not answer")

    def end(self, number: int) -> float:
        """Send the signal, wait until the server has ended, and return the seconds."""
        began = time.monotonic()
        assert self.process is not None, "it was started"
        self.process.send_signal(number)
        self.process.wait(60)
        return time.monotonic() - began

    def worker(self) -> int | None:
        """Return the worker's process id, None without a worker."""
        assert self.process is not None, "it was started"
        try:
            children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        except OSError:
            return None
        return int(children[0]) if children else None

    def rows(self) -> list[sqlite3.Row]:
        """Read all jobs from the store, without the server."""
        with closing(sqlite3.connect(f"file:{self.folder / 'jobs.sqlite3'}?mode=ro", uri=True, timeout=10)) as database:
            database.row_factory = sqlite3.Row
            return database.execute("SELECT * FROM jobs").fetchall()


class Visitor:
    """A visitor with a cookie, a page, and requested videos."""

    def __init__(self, number: int, studio: Studio, findings: Findings):
        self.number, self.studio, self.findings = number, studio, findings
        self.jar = CookieJar()
        self.open = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(self.jar)).open
        self.session, self.page, self.config = "", None, None
        self.requested: list[RequestedVideo] = []
        self.lock = threading.Lock()
        self.form = threading.Lock()  # while a job is edited in the form, Generate saves that job instead of queueing a new one

    def visit(self) -> None:
        """Load the page, and open the connection that tells the server that the page is open."""
        self.open(f"{self.studio.url}/", timeout=30).close()
        if self.config is None:
            self.config = json.loads(self.open(f"{self.studio.url}/config", timeout=30).read())
        self.session = secrets.token_hex(6)
        self.page = self.open(f"{self.studio.url}/gradio_api/heartbeat/{self.session}", timeout=3600)

    def close(self) -> None:
        """Close the page and its connection."""
        if self.page is not None:
            self.page.close()
            self.page = None

    def call(self, is_wanted: Callable[[dict], bool], given: dict[str, Any], event: Any = None) -> Any:
        """Call a handler and return its answer. Raises: OSError if the server is down or refuses."""
        assert self.config is not None, "a page is open"
        function = next(one for one in self.config["dependencies"] if is_wanted(one))
        props = {component["id"]: component["props"] for component in self.config["components"]}
        data = [given.get(props[one].get("elem_id"), props[one].get("value")) for one in function["inputs"]]
        message = {"data": data, "fn_index": function["id"], "session_hash": self.session or "none", "event_data": event}
        request = urllib.request.Request(
            f"{self.studio.url}/gradio_api/run/predict", json.dumps(message).encode(), {"content-type": "application/json"}
        )
        with self.open(request, timeout=60) as answer:
            content = answer.read()
        foreign = {tag for tag in TAG.findall(content.decode()) if not tag.startswith(f"visitor {self.number} ")}
        if foreign:
            self.findings.violated(f"visitor {self.number} was shown {sorted(foreign)}")
        return json.loads(content)

    def act(self, group: str, what: str, job_id: str, value: str = "") -> Any:
        """Press a button of a job."""
        return self.call(
            lambda one: any(name == f"act_{group}" for _, name in one["targets"]),
            {},
            {"what": what, "job": job_id, "value": value},
        )

    def submit(self, prompt: str, steps: int) -> Any:
        """Press Generate with this prompt."""
        return self.call(lambda one: one["api_name"] == "submit", {"prompt": prompt, "steps": steps})

    def tick(self) -> Any:
        """Send the page's own periodic request."""
        return self.call(lambda one: any(name == "act_tick" for _, name in one["targets"]), {})

    def rows_of(self, wanted: RequestedVideo) -> list[sqlite3.Row]:
        """Return the jobs of a requested video."""
        return [row for row in self.studio.rows() if wanted.tag in row["request"]]

    def request_videos(self, count: int, draw: random.Random) -> None:
        """Queue videos one by one. After an error, check whether the video was queued before the next try, as a person does."""
        for number in range(count):
            tag = f"visitor {self.number} video {number} "
            wanted = RequestedVideo(tag=tag, prompt=f"{draw.choice(PROMPTS)}, {tag}")
            with self.lock:
                self.requested.append(wanted)
            while not self.rows_of(wanted):
                try:
                    if self.page is None:
                        self.visit()
                    with self.form:
                        self.submit(wanted.prompt, draw.choice((10, 20, 40)))
                except GONE:
                    self.close()
                time.sleep(0.5)
            time.sleep(draw.uniform(0.2, 2.0))

    def keep_page_open(self, is_over: threading.Event) -> None:
        """Keep a page open, update it, and press Resume for jobs that wait for the visitor."""
        while not is_over.wait(1.5):
            try:
                if self.page is None:
                    self.visit()
                self.tick()
                for row in self.studio.rows():
                    if row["held"] and f"visitor {self.number} " in row["request"]:
                        self.act("queue", "go_on", row["id"])
            except (*GONE, sqlite3.Error):
                self.close()


class Faults:
    """The faults by name. A fault does nothing if it finds no target."""

    def __init__(self, studio: Studio, visitors: list[Visitor], findings: Findings, draw: random.Random, has_disk: bool):
        self.studio, self.visitors, self.findings, self.draw = studio, visitors, findings, draw
        self.kinds: dict[str, Callable[[], None]] = {
            "worker killed": lambda: self._signal(signal.SIGKILL),
            "worker stopped": lambda: self._signal(signal.SIGSTOP),
            "server killed": lambda: self._restart(signal.SIGKILL),
            "server asked to end": lambda: self._restart(signal.SIGTERM),
            "page closed": lambda: draw.choice(visitors).close(),
            "job cancelled": self._cancel,
            "job moved": lambda: self._press("queue", "up"),
            "job edited": self._edit,
        }
        if has_disk:
            self.kinds["disk full"] = self._fill

    def run(self, is_over: threading.Event) -> None:
        """Cause one fault every `FAULT_SECONDS`."""
        while not is_over.wait(FAULT_SECONDS):
            name = self.draw.choice(list(self.kinds))
            try:
                self.kinds[name]()
                self.findings.faults[name] += 1
            except (*GONE, sqlite3.Error):
                pass  # the fault's target had already ended

    def _signal(self, number: int) -> None:
        if (pid := self.studio.worker()) is not None:
            os.kill(pid, number)

    def _restart(self, number: int) -> None:
        seconds = self.studio.end(number)
        if number == signal.SIGTERM and seconds > STOP_SECONDS:
            self.findings.violated(f"the server took {seconds:.1f} s to end")
        began = time.monotonic()
        self.studio.start()
        self.findings.recoveries.append(time.monotonic() - began)

    def _fill(self) -> None:
        path = self.studio.folder / "filler"
        try:
            with path.open("wb") as file:
                while True:
                    file.write(b"\0" * 2**20)
        except OSError:
            time.sleep(FULL_SECONDS)
        finally:
            path.unlink(missing_ok=True)

    def _some_job(self) -> tuple[Visitor, RequestedVideo, sqlite3.Row] | None:
        visitor = self.draw.choice(self.visitors)
        with visitor.lock:
            all_wanted = list(visitor.requested)
        pairs = [
            (wanted, row) for wanted in all_wanted for row in visitor.rows_of(wanted) if row["state"] in ("queued", "running")
        ]
        return (visitor, *self.draw.choice(pairs)) if pairs and visitor.page is not None else None

    def _press(self, group: str, what: str) -> None:
        if chosen := self._some_job():
            visitor, _, row = chosen
            visitor.act(group, what, row["id"])

    def _cancel(self) -> None:
        if chosen := self._some_job():
            visitor, wanted, row = chosen
            wanted.is_cancelled = True  # set even if the answer is lost: then the job may be cancelled or not
            visitor.act("queue", "cancel", row["id"])

    def _edit(self) -> None:
        if (chosen := self._some_job()) and chosen[2]["state"] == "queued":
            visitor, wanted, row = chosen
            with visitor.form:
                visitor.act("fill", "edit", row["id"])
                visitor.submit(wanted.prompt, 15)


@contextmanager
def own_disk(parent: Path) -> Generator[tuple[Path, bool]]:
    """Yield a folder, and True if the folder is on a separate small file system. This needs the right to mount one."""
    folder = parent / "data"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_MEGABYTES}m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    try:
        yield folder, mounted.returncode == 0
    finally:
        if mounted.returncode == 0:
            subprocess.run(["umount", "--lazy", str(folder)], check=False)


def run(visitors: int, jobs: int, seed: int, seconds: float, parent: Path, spoiled: float = SPOILED) -> dict[str, Any]:
    """Run the benchmark in a folder, for at most `seconds`, and return the figures.

    Faults happen only in the first part of this time: `spoiled` is its share.
    """
    findings, began, count = Findings(), time.monotonic(), visitors * (jobs // visitors)
    with own_disk(parent) as (folder, has_disk):
        studio = Studio(folder)
        studio.start()
        try:
            people = [Visitor(number, studio, findings) for number in range(visitors)]
            faults = Faults(studio, people, findings, random.Random(seed), has_disk)
            generate_during_faults(studio, people, faults, count, random.Random(seed), began + spoiled * seconds, began + seconds)
            ended = time.monotonic() - began
            check_jobs(studio, people, findings)
            compared = check_latents(studio, people, findings, random.Random(seed))
            studio.end(signal.SIGTERM)
            check_leftovers(studio, findings)
        finally:
            if studio.process is not None:
                studio.process.kill()
                studio.process.wait()
        states, interruptions = Counter(row["state"] for row in studio.rows()), count_interruptions(studio)
    return {
        "seed": seed,
        "visitors": visitors,
        "jobs": count,
        "seconds": round(ended, 1),
        "faults": dict(sorted(findings.faults.items())),
        "states": dict(states),
        "interruptions": interruptions,
        "latents_compared": compared,
        "slowest_restart_seconds": round(max(findings.recoveries, default=0.0), 1),
        "violations": findings.violations,
    }


def generate_during_faults(
    studio: Studio, people: list[Visitor], faults: Faults, count: int, draw: random.Random, spoiled: float, until: float
) -> None:
    """Let the visitors generate videos during the faults, which end at the monotonic time `spoiled` or with the last video."""
    no_more_faults, is_over = threading.Event(), threading.Event()
    each = count // len(people)
    requesting = [
        threading.Thread(target=one.request_videos, args=(each, random.Random(draw.random())), daemon=True) for one in people
    ]
    watching = [threading.Thread(target=one.keep_page_open, args=(is_over,), daemon=True) for one in people]
    fault_thread = threading.Thread(target=faults.run, args=(no_more_faults,), daemon=True)
    for thread in (*requesting, *watching, fault_thread):
        thread.start()
    wait_for_the_end(studio, count, spoiled)
    no_more_faults.set()
    fault_thread.join()
    wait_for_the_end(studio, count, until)
    is_over.set()
    for thread in (*requesting, *watching):
        thread.join(30)


def wait_for_the_end(studio: Studio, count: int, until: float) -> None:
    """Wait until `count` jobs have ended, or until the monotonic time `until`."""
    while time.monotonic() < until:
        try:
            states = [row["state"] for row in studio.rows()]
            if len(states) >= count and not {"queued", "running"} & set(states):
                return
        except sqlite3.Error:
            pass
        time.sleep(0.5)


def check_jobs(studio: Studio, people: list[Visitor], findings: Findings) -> None:
    """Check that each requested video has one job, which is finished and has its files, or was cancelled by its visitor."""
    rows = studio.rows()
    for person in people:
        for wanted in person.requested:
            own = [row for row in rows if wanted.tag in row["request"]]
            if len(own) != 1:
                findings.violated(f"{wanted.tag}: {len(own)} jobs")
                continue
            state, allowed = own[0]["state"], ("finished", "cancelled") if wanted.is_cancelled else ("finished",)
            if state not in allowed:
                findings.violated(f"{wanted.tag}: {state}, {last_event(studio, own[0]['id'])}")
            if state == "finished":
                check_video(Path(own[0]["folder"]), wanted, findings)


def check_video(folder: Path, wanted: RequestedVideo, findings: Findings) -> None:
    """Check that the video of a finished job exists and is complete."""
    try:
        facts = read_facts(folder / "video.mp4")
        if facts.width <= 0:
            findings.violated(f"{wanted.tag}: no picture in its video")
    except (StudioError, OSError) as error:
        findings.violated(f"{wanted.tag}: {error}")


def last_event(studio: Studio, job_id: str) -> str:
    """Return the first 300 characters of a job's newest stored event, as JSON."""
    with closing(sqlite3.connect(f"file:{studio.folder / 'jobs.sqlite3'}?mode=ro", uri=True)) as database:
        rows = database.execute("SELECT event FROM events WHERE job_id = ? ORDER BY sequence DESC LIMIT 1", (job_id,))
        return next((event for (event,) in rows), "")[:300]


def count_interruptions(studio: Studio) -> dict[str, int]:
    """Count the stored interruptions by their cause (`Interrupted.by`)."""
    sql = (
        "SELECT json_extract(event, '$.by'), COUNT(*) FROM events WHERE json_extract(event, '$.kind') = 'interrupted' GROUP BY 1"
    )
    with closing(sqlite3.connect(f"file:{studio.folder / 'jobs.sqlite3'}?mode=ro", uri=True)) as database:
        return dict(database.execute(sql).fetchall())


def check_latents(studio: Studio, people: list[Visitor], findings: Findings, draw: random.Random) -> int:
    """Generate a sample of the videos again without faults and compare the latents. Return the number of compared videos."""
    tags = [wanted.tag for person in people for wanted in person.requested]
    finished = [row for row in studio.rows() if row["state"] == "finished" and any(tag in row["request"] for tag in tags)]
    sample = draw.sample(finished, min(20, len(finished)))
    if not sample:
        return 0
    from backend.pipeline.generate import generate
    from backend.pipeline.load import load
    from presets import load_preset

    requests = [GenerationRequest.from_stored(json.loads(row["request"])) for row in sample]
    loaded = load(load_preset(requests[0].preset), None, lambda event: None)
    for row, request in zip(sample, requests, strict=True):
        with tempfile.TemporaryDirectory() as folder:
            for _ in generate(request, loaded, Path(folder), lambda: False):
                pass
            undisturbed = load_file(Path(folder) / "stage2_latents.safetensors")["latents"]
        disturbed = load_file(Path(row["folder"]) / "stage2_latents.safetensors")["latents"]
        if not np.array_equal(undisturbed, disturbed):
            findings.violated(f"{row['id']}: its latents differ by {np.abs(undisturbed - disturbed).max()}")
    return len(sample)


def check_leftovers(studio: Studio, findings: Findings) -> None:
    """Check that no process of the studio runs, and that its folder has no half-written file."""
    time.sleep(2)
    marker = f"STUDIO_DATA_DIR={studio.folder}".encode()
    for environment in Path("/proc").glob("[0-9]*/environ"):
        try:
            if marker in environment.read_bytes():
                findings.violated(f"process {environment.parent.name} is left")
        except OSError:
            continue
    for part in studio.folder.rglob("*.part"):
        findings.violated(f"{part} is left")


def main() -> None:
    """Run the benchmark and print the figures. The exit code is 1 after a violation."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--visitors", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3600.0, help="limit of the whole run in seconds")
    parser.add_argument("--spoiled", type=float, default=SPOILED, help="share of the seconds in which faults happen")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        given = arguments.visitors, arguments.jobs, arguments.seed, arguments.seconds
        figures = run(*given, Path(folder), arguments.spoiled)
        if figures["violations"]:
            sys.stderr.write((Path(folder) / "server.log").read_text(errors="replace")[-20000:])
    sys.stdout.write(json.dumps(figures, indent=2) + "\n")
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    sys.exit(1 if figures["violations"] else 0)


if __name__ == "__main__":
    main()
