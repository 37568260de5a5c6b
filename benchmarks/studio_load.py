"""Measure the studio with twenty visitors: `python -m benchmarks.studio_load --json FILE`.

The benchmark starts the real server with the demo model. Each visitor has a cookie and queues three videos through the API. With
`--minutes M` the visitors queue videos for M minutes, three at a time. Each visitor has an open page, which is loaded again every
few seconds. As in a browser, the page is notified of changes and then requests the open view, at most every 1.5 seconds.

Checks:

- All videos finish and are mp4 files.
- 99 of 100 notifications and pages arrive within half a second, and no answer takes over a second.
- From the second tenth of the videos to the last, neither the memory of a process nor its open files grow by more than the
  tolerance. In the first tenth the pages are still being filled.

`--idle N` measures N open pages of an idle studio instead: the share of a core that they use, with and without notifications.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.cookiejar import CookieJar
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from typing import Any

import gradio_client

PROJECT = Path(__file__).resolve().parents[1]
PROMPTS = (
    "a red circle moving right on a black background",
    "a small cyan star drifts to the left over a navy background",
    "a magenta square moving down and to the right on a grey background",
)
IN_LINE = 3  # queued videos of each visitor
ARRIVAL_SECONDS = 0.5  # between two visitors: all have arrived and queued their videos before the tenth video is finished
TICK_SECONDS, RELOAD_SECONDS = 1.5, 6.0
SLOWEST_ANSWER_SECONDS = 1.0
SLOWEST_SHOWN_SECONDS = 0.5  # 99th percentile of pages and notifications
MOST_OF_A_CORE = 0.05  # for 200 idle pages, beyond Gradio's own part
MOST_GROWTH = 0.05  # share of the value after a tenth of the videos; buffers of SQLite and the allocator grow by less


@dataclass
class Measured:
    """The measurements of all visitors."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    answers: dict[str, list[float]] = field(default_factory=lambda: {"page": [], "tick": [], "told": []})
    finished: int = 0
    failures: list[str] = field(default_factory=list)
    wanted: int = 0
    sizes: dict[int, dict[str, int]] = field(default_factory=dict)  # `sizes_of` by the number of finished videos


class Visitor:
    """A visitor whose requests are like a browser's requests."""

    def __init__(self, url: str, measured: Measured):
        self.url, self.measured = url, measured
        self.jar = CookieJar()
        self.open = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(self.jar)).open
        self.session = f"load{id(self):x}"
        self.count: int | None = None  # number of the last change that the page was notified of

    def timed(self, kind: str, request: str | urllib.request.Request) -> bytes:
        """Send a request, record its seconds under `kind`, and return the answer."""
        began = time.monotonic()
        with self.open(request, timeout=60) as answer:
            content = answer.read()
        with self.measured.lock:
            self.measured.answers[kind].append(time.monotonic() - began)
        return content

    def listen(self, is_over: threading.Event) -> None:
        """Read the stream of a page, and record the delay of each notification."""
        with self.open(f"{self.url}studio/changes", timeout=60) as stream:
            for line in stream:
                if is_over.is_set():
                    return
                if line.startswith(b"data: ") and (news := json.loads(line[6:])):
                    delay, self.count = time.time() - news["since"], news["count"]
                    with self.measured.lock:
                        self.measured.answers["told"].append(delay)

    def watch(self, tick: dict, is_over: threading.Event) -> None:
        """Act as an open page: load it from time to time, and request its view after each notification."""
        loaded, drawn = 0.0, None
        threading.Thread(target=self.listen, args=(is_over,), daemon=True).start()
        while not is_over.wait(TICK_SECONDS):
            if time.monotonic() - loaded > RELOAD_SECONDS:
                self.timed("page", self.url)
                loaded = time.monotonic()
            if self.count == drawn:
                continue
            drawn = self.count
            body = json.dumps(tick | {"session_hash": self.session}).encode()
            headers = {"Content-Type": "application/json"}
            self.timed("tick", urllib.request.Request(f"{self.url}gradio_api/run/predict", body, headers))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--visitors", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=3, help="videos of each visitor")
    parser.add_argument("--minutes", type=float, help="generate videos for this time instead of a fixed number")
    parser.add_argument("--idle", type=int, default=0, help="measure this number of pages of an idle studio instead")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        tempfile.tempdir = folder  # Gradio's client leaves an empty folder there for each download
        if arguments.idle:
            figures = idle(arguments.idle, Path(folder))
        else:
            figures = run(arguments.visitors, arguments.jobs, arguments.minutes, Path(folder))
    sys.stdout.write("".join(f"{name:34} {value}\n" for name, value in figures.items()))
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    sys.exit(0 if figures["passes"] else 1)


def run(visitors: int, jobs: int, minutes: float | None, folder: Path) -> dict:
    """Start the server and all visitors. Return the figures."""
    server, url = start_server(folder)
    try:
        wait_until_ready(url)
        measured, is_over = Measured(), threading.Event()
        began = time.monotonic()
        tick = tick_of(url)
        people = [Visitor(url, measured) for _ in range(visitors)]
        watching = [threading.Thread(target=watch_page, args=(person, tick, is_over)) for person in people]
        until = began + 60 * minutes if minutes else None
        making = [threading.Thread(target=make, args=(person, jobs, until, server.pid)) for person in people]
        for person, *pair in zip(people, watching, making, strict=True):
            person.timed("page", url)  # the page sets the cookie, so that the stream and the videos belong to the same visitor
            for thread in pair:
                thread.start()
            time.sleep(ARRIVAL_SECONDS)
        for thread in making:
            thread.join()
        seconds = time.monotonic() - began
        is_over.set()
        for thread in watching:
            thread.join()
        return figures_of(measured, seconds)
    finally:
        server.terminate()
        server.wait(20)


def idle(pages: int, folder: Path) -> dict:
    """Measure the share of a core that the server uses while pages are open and nothing happens."""
    server, url = start_server(folder)
    try:
        wait_until_ready(url)
        time.sleep(5)
        shares = {"alone": core_share(server.pid)}
        people = [Visitor(url, Measured()) for _ in range(pages)]
        open_pages = [person.open(f"{url}gradio_api/heartbeat/{person.session}", timeout=3600) for person in people]
        time.sleep(5)
        shares["gradio_pages"] = core_share(server.pid)
        open_pages += [person.open(f"{url}studio/changes", timeout=3600) for person in people]
        time.sleep(5)
        shares["told_pages"] = core_share(server.pid)
        for page in open_pages:
            page.close()
    finally:
        server.terminate()
        server.wait(20)
    beyond = shares["told_pages"] - shares["gradio_pages"]
    return {"pages": pages, **{name: round(share, 4) for name, share in shares.items()}, "passes": beyond <= MOST_OF_A_CORE}


def core_share(pid: int, seconds: float = 20.0) -> float:
    """Return the share of a core that a process uses."""

    def processor_seconds() -> float:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    before = processor_seconds()
    time.sleep(seconds)
    return (processor_seconds() - before) / seconds


def watch_page(person: Visitor, tick: dict, is_over: threading.Event) -> None:
    """Keep a page open and record failures."""
    try:
        person.watch(tick, is_over)
    except OSError as error:
        with person.measured.lock:
            person.measured.failures.append(f"page: {error}")


def make(person: Visitor, jobs: int, until: float | None, pid: int) -> None:
    """Generate `jobs` videos, or videos until the time `until`, at most `IN_LINE` at the same time."""
    cookies = {cookie.name: cookie.value for cookie in person.jar}
    given: dict[str, Any] = {"verbose": False, "download_files": tempfile.gettempdir(), "httpx_kwargs": {"cookies": cookies}}
    client = gradio_client.Client(person.url, **given)
    prompts = cycle(PROMPTS) if until else islice(cycle(PROMPTS), jobs)
    lock = threading.Lock()

    def go_on() -> None:
        while until is None or time.monotonic() < until:
            with lock:
                prompt = next(prompts, None)
            if prompt is None:
                return
            make_one(person, client, prompt, pid)

    with ThreadPoolExecutor(IN_LINE) as pool:
        for _ in range(IN_LINE):
            pool.submit(go_on)


def make_one(person: Visitor, client: gradio_client.Client, prompt: str, pid: int) -> None:
    """Queue a video and wait for it."""
    with person.measured.lock:
        person.measured.wanted += 1
    try:
        video, _ = client.submit(prompt, api_name="/generate").result()
        is_video = Path(video).read_bytes()[4:8] == b"ftyp"
        count_video(person.measured, pid, None if is_video else f"{video} is no mp4")
    except Exception as error:  # any error of the server is a failure of this run
        count_video(person.measured, pid, str(error))


def count_video(measured: Measured, pid: int, failure: str | None) -> None:
    """Count a finished video or a failure. Measure the processes after every ten finished videos."""
    with measured.lock:
        if failure:
            measured.failures.append(failure)
            return
        measured.finished += 1
        if measured.finished % 10 == 0:
            measured.sizes[measured.finished] = sizes_of(pid)


def sizes_of(pid: int) -> dict[str, int]:
    """Return the resident MB and open files of the server and its worker."""
    workers = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return {
        "server_mb": resident(pid),
        "worker_mb": sum(map(resident, workers)),
        "server_files": open_files(pid),
        "worker_files": sum(map(open_files, workers)),
    }


def resident(pid: int) -> int:
    """Return the resident memory of a process in MB, 0 if it has just ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) // 1024 for line in lines if line.startswith("VmRSS")), 0)


def open_files(pid: int) -> int:
    """Return the number of open files, pipes and connections of a process, 0 if it has just ended."""
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return 0


def start_server(folder: Path) -> tuple[subprocess.Popen, str]:
    """Start the real server on a free port."""
    return start(lambda port: ["app.py", "serve", "--port", str(port), "--data-dir", str(folder)], folder)


def start(words_of: Callable[[int], list[str]], folder: Path, project: Path = PROJECT) -> tuple[subprocess.Popen, str]:
    """Start a Python server on a free port and return the process and its address.

    `words_of` returns the command line for a port. The log is in `folder`.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with (folder / "server.log").open("wb") as log:
        server = subprocess.Popen([sys.executable, *words_of(port)], cwd=project, stdout=log, stderr=log)
    return server, f"http://127.0.0.1:{port}/"


def wait_until_ready(url: str) -> None:
    """Wait until the model is loaded and compiled."""
    until = time.monotonic() + 300
    while time.monotonic() < until:
        try:
            with urllib.request.urlopen(f"{url}healthz", timeout=5) as answer:
                if json.load(answer)["worker"] == "ready":
                    return
        except OSError:
            pass
        time.sleep(0.5)
    raise RuntimeError("the studio did not become ready within five minutes")


def tick_of(url: str) -> dict:
    """Return the request of a page's timer: the event's number, and the initial values of its inputs."""
    with urllib.request.urlopen(f"{url}config") as answer:
        config = json.load(answer)
    kinds = {component["id"]: component["type"] for component in config["components"]}
    event = next(one for one in config["dependencies"] if any(name == "act_tick" for _, name in one["targets"]))
    first = {"textbox": "", "dropdown": "", "checkbox": False, "state": None}
    return {"fn_index": event["id"], "data": [first[kinds[component]] for component in event["inputs"]]}


def typical(looks: list[dict[str, int]]) -> dict[str, float]:
    """Return the median of each value, because a single measurement can include a file that is open for a moment."""
    return {name: median(look[name] for look in looks) for name in looks[0]} if looks else {}


def figures_of(measured: Measured, seconds: float) -> dict:
    """Return the figures and whether they pass."""
    figures: dict = {"videos_wanted": measured.wanted, "videos_finished": measured.finished, "seconds": round(seconds, 1)}
    for kind, answers in measured.answers.items():
        ordered = sorted(answers)
        figures |= {
            f"{kind}_answers": len(ordered),
            f"{kind}_median_seconds": round(ordered[len(ordered) // 2], 3),
            f"{kind}_99_percent_seconds": round(ordered[int(0.99 * (len(ordered) - 1))], 3),
            f"{kind}_slowest_seconds": round(ordered[-1], 3),
        }
    looks = [measured.sizes[number] for number in sorted(measured.sizes)]
    tenth = max(1, len(looks) // 10)
    early, late = typical(looks[tenth : 2 * tenth]), typical(looks[-tenth:])
    for name in early:
        figures[f"{name}_in_the_second_and_the_last_tenth"] = [early[name], late[name]]
        figures[f"{name}_in_tenths"] = [looks[len(looks) * tenth // 10][name] for tenth in range(10)]
    slowest = max(figures["page_slowest_seconds"], figures["tick_slowest_seconds"])
    shown = max(figures["page_99_percent_seconds"], figures["told_99_percent_seconds"])
    has_grown = any(late[name] > early[name] * (1 + MOST_GROWTH) for name in early) if early else True
    figures["failures"] = measured.failures[:5]
    figures["passes"] = (
        measured.finished == measured.wanted
        and not measured.failures
        and slowest < SLOWEST_ANSWER_SECONDS
        and shown <= SLOWEST_SHOWN_SECONDS
        and not has_grown
    )
    return figures


if __name__ == "__main__":
    main()
