"""Measure how well one studio's queue keeps many workers busy: `python -m benchmarks.worker_pool --json FILE`.

The studio, engine and store are real. The workers only sleep and write files: each video takes `--seconds`, in `STEPS` steps with
a preview each, and leaves a file. A hundred visitors request `--jobs` videos. At most `IN_LINE` are queued at a time, which is
the studio's own limit. `--pages` visitors have an open page in another process, which is loaded again and follows its jobs as in
`benchmarks.studio_load`.

For each number of workers the benchmark reports the videos a minute from the first start to the last end. It also reports which
share of linear scaling from one worker this is, and the seconds of pages. Checks: the share is at least 0.95 up to 8 workers and
0.9 beyond. 99 of 100 pages arrive within a second. Every video is finished once, with its file. The exit code is 1 if a check
fails.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from urllib.request import HTTPCookieProcessor, build_opener

from backend.schemas import events
from backend.schemas.events import Decoding, Encoding, Finished, Step, VideoResult
from backend.schemas.request import GenerationRequest
from backend.schemas.shape import Shape
from backend.schemas.worker import Device, WorkerFacts, WorkerStatus
from backend.worker_pool.transports import TRANSPORTS
from backend.workers.messages import Facts, Heartbeat, JobEvent, Message, Run, Status, decode_message, encode_message
from benchmarks.studio_load import Measured, Visitor, start, tick_of, wait_until_ready, watch_page
from presets import load_preset

WORKERS = (1, 2, 4, 8, 32)
VISITORS, PAGES = 100, 20
IN_LINE = 100  # queued videos, the studio's own limit
AT_ONCE = 16  # visitors who submit at the same moment
STEPS = 8
PREVIEW, VIDEO = b"\xff\xd8" + bytes(4_000), b"\0\0\0\x18ftypmp42" + bytes(200_000)
LEAST_SHARE, LEAST_SHARE_OF_MANY, MANY = 0.95, 0.9, 8
SLOWEST_PAGE_SECONDS = 1.0  # 99th percentile
PROMPT = "a red circle moving right on a black background"


class SleepingTransport:
    """A worker without a model: a thread that sleeps and writes where a real worker computes."""

    pid = None
    seconds = 1.0

    def __init__(self, plan, log, on_message, on_exit):
        self._on_message, self._on_exit, self._model = on_message, on_exit, plan.model
        self._is_over, self._given = threading.Event(), threading.Event()
        self._job: Run | None = None
        threading.Thread(target=self._work, name="sleeping-worker", daemon=True).start()

    def send(self, message: Message) -> None:
        """Start the job of a `Run` message. Other messages have no effect."""
        if isinstance(message, Run):
            self._job = message
            self._given.set()

    def kill(self) -> None:
        """End the worker's thread."""
        self._is_over.set()
        self._given.set()

    def stop(self) -> None:
        """End the worker's thread."""
        self.kill()

    def _work(self) -> None:
        preset = load_preset("wan-tiny")
        shape = Shape.from_request(GenerationRequest.from_preset(preset, prompt=PROMPT, seed=0, steps=STEPS))
        facts = WorkerFacts(devices=(Device(name="Bed", kind="bed"),), model=preset.model_source, warm=frozenset({shape}))
        self._on_message(Facts(facts=facts))
        self._rest()
        while True:
            if not self._given.wait(1.0):
                self._on_message(Heartbeat())
                continue
            self._given.clear()
            if self._is_over.is_set():
                return self._on_exit(0)
            assert self._job is not None, "it was given before the event was set"
            self._make(self._job)
            self._rest()

    def _make(self, job: Run) -> None:
        """Simulate a job that takes `seconds` seconds in total.

        Sleep for less than this time, because writing files and sending events are part of it.
        """
        self._on_message(Status(status=WorkerStatus(state="busy", detail="Sleeping")))
        request, folder = job.request, job.folder
        (folder / "previews").mkdir(exist_ok=True)
        began, job_id = time.monotonic(), job.job_id
        self._tell(job_id, Encoding())
        for step in range(1, STEPS + 1):
            self._is_over.wait(max(0.0, began + self.seconds * step / STEPS - time.monotonic()))
            name = f"previews/step-{step:03d}.jpg"
            (folder / name).write_bytes(PREVIEW)
            left = self.seconds * (STEPS - step) / STEPS
            self._tell(job_id, Step(step, STEPS, self.seconds / STEPS, left, name))
        self._tell(job_id, Decoding(request.num_frames, request.num_frames))
        (folder / "video.mp4").write_bytes(VIDEO)
        self._tell(job_id, Finished(self._result(request, folder)))

    def _result(self, request: GenerationRequest, folder: Path) -> VideoResult:
        return VideoResult(
            path=str(folder / "video.mp4"),
            fps=request.fps,
            num_frames=request.num_frames,
            width=request.width,
            height=request.height,
            seconds={"denoise": self.seconds, "total": self.seconds},
            request=request,
            versions={},
        )

    def _tell(self, job_id: str, event: events.Event) -> None:
        self._on_message(decode_message(json.loads(json.dumps(encode_message(JobEvent(job_id=job_id, event=event))))))

    def _rest(self) -> None:
        self._on_message(Status(status=WorkerStatus(state="ready", detail="Ready")))


def serve(arguments: argparse.Namespace) -> None:
    """Run the studio on sleeping workers and generate the visitors' videos. Write the measurements, then wait."""
    from backend.engine.engine import Engine
    from backend.shares import Share
    from wan_ui.gradio_fixes import import_gradio
    from wan_ui.malloc_arenas import use_one_malloc_arena

    use_one_malloc_arena()
    import_gradio()
    from wan_ui.serve import serve as serve_page
    from wan_ui.studio import build_page

    TRANSPORTS["sleeping"], SleepingTransport.seconds = SleepingTransport, arguments.seconds
    engine = Engine(arguments.folder / "data", transport="sleeping", shares=[Share()] * arguments.workers[0])
    blocks = build_page(engine)
    serve_page(blocks, engine, host="127.0.0.1", port=arguments.port, share=False, auth=None)
    try:
        while not (arguments.folder / "go").exists():
            time.sleep(0.1)
        figures = make_all(engine, arguments)
        (arguments.folder / "figures.json").write_text(json.dumps(figures))
        blocks.block_thread()
    finally:
        engine.close()


def make_all(engine, arguments: argparse.Namespace) -> dict:
    """Queue the visitors' videos within the limit of the queue, wait for all, and return the results."""
    from wan_ui.gateway.visitors import COOKIE, owner_name

    owners = [owner_name({COOKIE: token}) for token in tokens()]
    preset, submitting, queue_places = load_preset("wan-tiny"), [], threading.Semaphore(arguments.in_line)

    def submit(number: int):
        queue_places.acquire()
        began = time.monotonic()
        request = GenerationRequest.from_preset(preset, prompt=PROMPT, seed=number, steps=STEPS)
        job = engine.submit(request, owners[number % VISITORS])
        submitting.append(time.monotonic() - began)
        return job

    threading.Thread(target=release_queue_places, args=(engine, queue_places, arguments), daemon=True).start()
    with ThreadPoolExecutor(AT_ONCE) as people:
        jobs = list(people.map(submit, range(arguments.jobs)))
    for job in jobs:
        while not engine.jobs.find(job.id).has_ended:
            time.sleep(0.05)
    ended = [engine.jobs.find(job.id) for job in jobs]
    seconds = max(job.ended for job in ended) - min(job.started for job in ended)
    finals = [[event for _, event in engine.event_log.follow(job.id) if event.is_final] for job in jobs]
    is_whole = [len(one) == 1 and isinstance(one[0], Finished) and Path(one[0].result.path).is_file() for one in finals]
    began = sorted((job.started, job.ended) for job in ended)
    return {
        "workers": arguments.workers[0],
        "videos": len(jobs),
        "lost": is_whole.count(False),
        "seconds": round(seconds, 2),
        "videos_a_minute": round(60 * len(jobs) / seconds, 1),
        "seconds_of_a_job": round(median(end - start for start, end in began), 3),
        "seconds_to_submit": round(median(submitting), 4),
    }


def release_queue_places(engine, queue_places: threading.Semaphore, arguments: argparse.Namespace) -> None:
    """Let a visitor submit a video for each job that has started."""
    num_started = 0
    while num_started < arguments.jobs:
        counts = engine.library.counts()
        now = sum(counts.values()) - counts.get("queued", 0)
        for _ in range(now - num_started):
            queue_places.release()
        num_started = max(num_started, now)
        time.sleep(0.02)


def tokens() -> list[str]:
    """Return the visitors' cookies, the same in both processes."""
    return [f"{number:043d}" for number in range(VISITORS)]


def measure(workers: int, arguments: argparse.Namespace, folder: Path) -> dict:
    """Measure a server with this number of workers and its open pages."""
    options = ["--serve", "--folder", str(folder), "--workers", str(workers)]
    options += ["--jobs", str(arguments.jobs), "--seconds", str(arguments.seconds), "--in-line", str(arguments.in_line)]
    server, url = start(lambda port: ["-m", "benchmarks.worker_pool", *options, "--port", str(port)], folder)
    try:
        wait_until_ready(url)
        tick, measured, is_over = tick_of(url), Measured(), threading.Event()
        people = [visitor(url, measured, token) for token in tokens()[: arguments.pages]]
        watching = [threading.Thread(target=watch_page, args=(person, tick, is_over)) for person in people]
        for thread in watching:
            thread.start()
            time.sleep(0.1)
        before = processor_seconds(server)
        (folder / "go").touch()
        while not (folder / "figures.json").exists():
            if server.poll() is not None:
                raise RuntimeError((folder / "server.log").read_text()[-2000:])
            time.sleep(0.2)
        processor = processor_seconds(server) - before
        is_over.set()
        for thread in watching:
            thread.join()
    finally:
        server.terminate()
        server.wait(30)
    figures = json.loads((folder / "figures.json").read_text())
    return figures | pages_of(measured) | {"server_cores": round(processor / figures["seconds"], 2)}


def visitor(url: str, measured: Measured, token: str) -> Visitor:
    """Return a visitor with an existing cookie."""
    person = Visitor(url, measured)
    opener = build_opener(HTTPCookieProcessor(person.jar))
    opener.addheaders = [("Cookie", f"studio_visitor={token}")]
    person.open = opener.open
    return person


def pages_of(measured: Measured) -> dict:
    """Return the pages' seconds and failures."""
    figures: dict = {"page_failures": measured.failures[:3]}
    for kind in ("page", "tick"):
        answers = sorted(measured.answers[kind]) or [0.0]
        figures[f"{kind}s"] = len(measured.answers[kind])
        figures[f"{kind}_99_percent_seconds"] = round(answers[int(0.99 * (len(answers) - 1))], 3)
    return figures


def processor_seconds(server: subprocess.Popen) -> float:
    """Return the processor seconds of the server."""
    fields = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def with_shares(rows: list[dict]) -> list[dict]:
    """Return each row with its share of linear scaling, and whether it passes."""
    one = next((row["videos_a_minute"] for row in rows if row["workers"] == 1), None)
    for row in rows:
        least = LEAST_SHARE if row["workers"] <= MANY else LEAST_SHARE_OF_MANY
        row["share_of_linear"] = round(row["videos_a_minute"] / (one * row["workers"]), 3) if one else None
        row["passes"] = (
            row["lost"] == 0
            and not row["page_failures"]
            and row["page_99_percent_seconds"] < SLOWEST_PAGE_SECONDS
            and (row["share_of_linear"] or 1.0) >= least
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--workers", type=lambda text: [int(part) for part in text.split(",")], default=list(WORKERS))
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=1.0, help="seconds of a video (%(default)s)")
    parser.add_argument("--in-line", type=int, default=IN_LINE, help="queued videos at a time (%(default)s)")
    parser.add_argument("--pages", type=int, default=PAGES, help="open pages (%(default)s)")
    parser.add_argument("--json", type=Path, help="write the figures to this file; rows of other numbers of workers stay")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        return serve(arguments)
    rows = json.loads(arguments.json.read_text()) if arguments.json and arguments.json.exists() else []
    for workers in arguments.workers:
        with tempfile.TemporaryDirectory() as folder:
            row = measure(workers, arguments, Path(folder)) | {"seconds_a_video": arguments.seconds}
        rows = with_shares(sorted([*(one for one in rows if one["workers"] != workers), row], key=lambda one: one["workers"]))
        sys.stderr.write(f"{row}\n")
        if arguments.json:
            arguments.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    names = (
        "workers",
        "videos_a_minute",
        "share_of_linear",
        "page_99_percent_seconds",
        "tick_99_percent_seconds",
        "lost",
        "passes",
    )
    sys.stdout.write("| " + " | ".join(names) + " |\n|" + "---|" * len(names) + "\n")
    sys.stdout.write("".join("| " + " | ".join(str(row[name]) for name in names) + " |\n" for row in rows))
    sys.exit(0 if all(row["passes"] for row in rows) else 1)


if __name__ == "__main__":
    main()
