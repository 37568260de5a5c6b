"""Kill the nodes of a Ray cluster while they generate videos: `python -m benchmarks.cluster --json FILE`.

The benchmark starts real Ray on this machine: a head, and `--nodes` TPU slices of `--hosts` raylets each, which pretend to be
hosts (the worker's devices are the CPU). The real engine generates `--jobs` videos of the demo model there. Every
`--kill-seconds` the last host of a running worker is killed, and another slice is added some seconds later, before the next kill.
The worker of a video that has lost two workers is not killed, because a third loss would end the video (docs/scale.md).

Checks: every video is finished once and complete in the studio's folder. Repeated steps take at most `MOST_SECONDS_AGAIN` per
lost worker. This needs `requirements-cluster.txt`. It prints a table. The exit code is 1 if a check fails.
"""

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from backend.engine.engine import Engine
from backend.engine.job import Job
from backend.schemas.events import Finished, Interrupted, ShotStarted, Step
from backend.schemas.request import GenerationRequest
from presets import load_preset

CHIPS = 4
BACK_SECONDS = 4.0  # from the kill of a slice until another slice is added
MOST_LOSSES = 2  # lost workers per video
MOST_SECONDS_AGAIN = 3.0  # seconds of repeated steps per loss: the state is stored every 2 s and transferred within 1 s
PROMPT = "a red circle moving right on a black background"


@dataclass
class Slices:
    """The simulated slices. Each host is a raylet with its agents."""

    cluster: Any  # `ray.cluster_utils.Cluster`
    hosts: int
    count: int = 0
    nodes: dict[str, list] = field(default_factory=dict)  # by the worker's name, which contains the first node's id

    def add(self) -> str:
        """Add a slice and return the name of its worker."""
        self.count += 1
        kind = f"v6e-{CHIPS * self.hosts}"
        told = {"TPU_ACCELERATOR_TYPE": kind, "TPU_TOPOLOGY": f"{2 * self.hosts}x2", "TPU_NAME": f"s{self.count}"}
        nodes = []
        for index in range(self.hosts):
            head = {f"TPU-{kind}-head": 1} if index == 0 else {}
            with _environment(told | {"TPU_WORKER_ID": str(index)}):
                nodes.append(self.cluster.add_node(num_cpus=1, resources={"TPU": CHIPS, **head}))
        self.nodes[name := f"node-{nodes[0].node_id[:8]}"] = nodes
        return name

    def kill(self, name: str) -> None:
        """Kill the raylet of the slice's last host without warning, then end its other processes."""
        last = self.nodes[name].pop()
        last.all_processes["raylet"][0].process.kill()
        self.cluster.remove_node(last, allow_graceful=False)

    def clear(self, name: str) -> None:
        """Remove the other hosts of a slice that has lost a host."""
        for node in self.nodes.pop(name):
            self.cluster.remove_node(node, allow_graceful=False)


@contextmanager
def _environment(told: dict[str, str]):
    """Set environment variables for processes that are started within the block."""
    before = dict(os.environ)
    os.environ.update(told)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=40)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--hosts", type=int, default=1, help="hosts of each slice (%(default)s)")
    parser.add_argument("--kill-seconds", type=float, default=20.0, help="seconds between two kills (%(default)s)")
    parser.add_argument("--steps", type=int, default=40, help="steps of each video (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the kills (%(default)s)")
    parser.add_argument("--shots", type=int, default=1, help="shots of each video; more than 1 make a storyboard (%(default)s)")
    parser.add_argument("--pipeline", help="replacement of the pipeline, for tests")
    parser.add_argument("--prompt", default=PROMPT)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="cluster-", dir="/tmp"))  # Ray's sockets need a short path
    try:
        figures = run(arguments, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    sys.stdout.write("".join(f"{name:34} {value}\n" for name, value in figures.items()))
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    sys.exit(1 if figures["violations"] else 0)


def run(arguments: argparse.Namespace, folder: Path) -> dict:
    """Start the cluster and the studio, kill slices, and return the figures."""
    (folder / "ray").mkdir()
    os.environ["RAY_TMPDIR"] = str(folder)  # Ray creates its own folder there
    from ray.cluster_utils import Cluster

    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ.setdefault("STUDIO_CACHE_DIR", str(folder / "programs"))  # the slices share a disk here and compile once
    os.environ["STUDIO_DATA_DIR"] = str(folder / "nodes")
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    slices = Slices(cluster, arguments.hosts)
    for _ in range(arguments.nodes):
        slices.add()
    engine = Engine(folder / "studio", cluster=cluster.address, pipeline=arguments.pipeline)
    try:
        wait_until(lambda: ready(engine) == arguments.nodes, 300)
        return break_and_measure(engine, slices, arguments)
    finally:
        engine.close()
        cluster.shutdown()


def break_and_measure(engine: Engine, slices: Slices, arguments: argparse.Namespace) -> dict:
    """Generate the videos while slices are killed and added."""
    began = time.monotonic()
    preset, values = load_preset("wan-tiny"), {"prompt": arguments.prompt, "steps": arguments.steps}
    if arguments.shots > 1:
        values["shots"] = [{"prompt": arguments.prompt}] * arguments.shots
    jobs = [engine.submit(GenerationRequest.from_preset(preset, seed=seed, **values)) for seed in range(arguments.jobs)]
    breaker = Breaker(engine, slices, arguments.kill_seconds, random.Random(arguments.seed))
    breaker.run_until(lambda: all(engine.jobs.find(job.id).has_ended for job in jobs), 300 + 60 * arguments.jobs)
    seconds = time.monotonic() - began
    judged = [judge(engine, job, arguments.steps, arguments.shots) for job in jobs]
    losses = [one["losses"] for one in judged]
    return {
        "jobs": len(jobs),
        "seconds": round(seconds, 1),
        "raylets_killed": breaker.kills,
        "jobs_interrupted": sum(count > 0 for count in losses),
        "most_losses_of_a_job": max(losses),
        "steps_made": sum(one["steps"] for one in judged),
        "steps_made_again": sum(one["again"] for one in judged),
        "seconds_of_them_at_most": round(max(one["seconds_again"] for one in judged), 1),
        "loss_noticed_seconds": [round(value, 1) for value in breaker.notice_seconds],
        "new_slice_ready_seconds": [round(value, 1) for value in breaker.start_seconds],
        "violations": [*(problem for one in judged for problem in one["problems"])],
    }


class Breaker:
    """Kills the slice of a running worker and adds another slice, repeatedly.

    `notice_seconds` has the seconds from each kill until the worker was removed. `start_seconds` has the seconds from the start
    of each new slice until the engine listed its worker.
    """

    def __init__(self, engine: Engine, slices: Slices, every: float, chance: random.Random):
        self._engine, self._slices, self._every, self._chance = engine, slices, every, chance
        self.kills, self.notice_seconds, self.start_seconds = 0, [], []

    def run_until(self, is_over: Callable[[], bool], seconds: float) -> None:
        """Kill and add slices until `is_over` is true. Raises: TimeoutError after `seconds`."""
        until = time.monotonic() + seconds
        next_kill = time.monotonic() + self._every
        while not is_over():
            if time.monotonic() > until:
                raise TimeoutError(f"the videos were not finished within {seconds:.0f} s")
            time.sleep(0.1)
            if time.monotonic() >= next_kill:
                self._break()
                next_kill = max(next_kill + self._every, time.monotonic())

    def _break(self) -> None:
        busy = [
            one.name for one in self._engine.pool.workers() if one.job_id is not None and self._losses(one.job_id) < MOST_LOSSES
        ]
        if not busy:
            return
        name, moment = self._chance.choice(busy), time.monotonic()
        self._slices.kill(name)
        self.kills += 1
        wait_until(lambda: name not in names(self._engine), 180)
        self.notice_seconds.append(time.monotonic() - moment)
        self._slices.clear(name)
        time.sleep(BACK_SECONDS)
        moment, new = time.monotonic(), self._slices.add()
        wait_until(lambda: new in names(self._engine), 180)
        self.start_seconds.append(time.monotonic() - moment)

    def _losses(self, job_id: str) -> int:
        return sum(event.by == "loss" for event in self._engine.events.interruptions(job_id))


def judge(engine: Engine, job: Job, total: int, shots: int) -> dict:
    """Return the figures of a job and its violations. `total` is the number of steps per shot."""
    events = [event for _, event in engine.event_log.follow(job.id)]
    again, seconds_again, made, done, goes_on, shot = 0, 0.0, 0, set(), False, 1
    for event in events:
        goes_on = goes_on or isinstance(event, Interrupted)
        shot = event.index if isinstance(event, ShotStarted) else shot
        if isinstance(event, Step):
            step = shot, event.index
            if not goes_on or step not in done:  # a resumed job first reports its last finished step again
                made += 1
                again += step in done
                seconds_again += event.seconds * (step in done)
            goes_on = False
            done.add(step)
    losses = sum(isinstance(event, Interrupted) and event.by == "loss" for event in events)
    final = [event for event in events if event.is_final]
    problems = []
    if len(final) != 1 or not isinstance(final[0], Finished):
        problems.append(f"{job.id}: ended with {[event.kind for event in final]}, {getattr(final[-1], 'cause', '')}")
    elif Path(final[0].result.path).read_bytes()[4:8] != b"ftyp" or Path(final[0].result.path).parent != job.folder:
        problems.append(f"{job.id}: its video is not whole")
    wanted = {(shot, step) for shot in range(1, shots + 1) for step in range(1, total + 1)}
    if done != wanted:
        problems.append(f"{job.id}: steps {sorted(wanted - done)} of shots were never made")
    if losses > MOST_LOSSES:
        problems.append(f"{job.id}: lost {losses} times")
    if seconds_again > MOST_SECONDS_AGAIN * max(losses, 1):
        problems.append(f"{job.id}: {seconds_again:.1f} s of its steps were made again")
    return {"losses": losses, "steps": made, "again": again, "seconds_again": seconds_again, "problems": problems}


def names(engine: Engine) -> list[str]:
    """Return the names of the workers."""
    return [worker.name for worker in engine.pool.workers()]


def ready(engine: Engine) -> int:
    """Return the number of ready workers."""
    return sum(worker.status.state == "ready" for worker in engine.pool.workers())


def wait_until(is_true: Callable[[], bool], seconds: float) -> None:
    """Wait until the condition is true. Raises: TimeoutError after `seconds`."""
    until = time.monotonic() + seconds
    while not is_true():
        if time.monotonic() > until:
            raise TimeoutError(f"waited {seconds:.0f} s in vain")
        time.sleep(0.1)


if __name__ == "__main__":
    main()
