"""Run a worker process (`python -m backend.workers.main`), until the pipe to the engine closes."""

import argparse
import faulthandler
import functools
import io
import logging
import os
import signal
import sys
from pathlib import Path
from typing import cast

from backend.imports import hide_unused_libraries
from backend.schemas.settings import find_preset
from backend.schemas.worker import AXES, HostPlace
from backend.settings import leave_out_idle_libtpu, own_cores
from backend.workers.loop import Worker
from backend.workers.messages import Begin, Channel
from backend.workers.multihost_sync import MultihostSync
from backend.workers.pipeline import import_ahead, import_pipeline

POLITENESS = 10  # increase of the nice value; without it, loading and compiling on two cores delay the page for seconds


def open_channel() -> Channel:
    """Return the channel on standard input and output. Redirect standard output, so that libraries print to the log."""
    incoming, outgoing = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    cast(io.TextIOWrapper, sys.stdout).reconfigure(line_buffering=True)
    return Channel(incoming, outgoing)


def main() -> None:
    hide_unused_libraries()
    parser = argparse.ArgumentParser(prog="backend.workers.main", description="Started by the engine, not by hand.")
    parser.add_argument("--preset", required=True, help="the preset to load first")
    parser.add_argument("--model", help="a checkpoint in place of the presets' own")
    parser.add_argument("--pipeline", help="a module with load, warm_up and generate; for tests")
    parser.add_argument("--warm-up", action="store_true", help="compile the preset's own shapes ahead")
    parser.add_argument("--standby", action="store_true", help="import everything, then wait for the preset to load")
    parser.add_argument("--executables", type=Path, help="a folder of precompiled programs")
    parser.add_argument("--profile", type=Path, help="a folder for traces")
    parser.add_argument("--profile-steps", default="3-5", help="the steps to trace")
    parser.add_argument("--resident-chips-gb", type=float, help="the most device memory for cached models")
    parser.add_argument("--resident-host-gb", type=float, help="the most host memory for cached models")
    parser.add_argument("--hosts", type=int, help="the number of hosts of a multihost worker")
    parser.add_argument("--host-index", type=int, default=0, help="the number of this host, from 0")
    parser.add_argument("--coordinator", help="the address to which all hosts connect, HOST:PORT")
    parser.add_argument("--bind", help="the address at which the first host listens")
    for axis in AXES:
        parser.add_argument(f"--{axis}", type=int, help="size of this axis of the mesh")
    arguments = parser.parse_args()
    if cores := own_cores():
        os.sched_setaffinity(0, cores)  # before XLA and torch count the cores and start as many threads
    channel = open_channel()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    if arguments.pipeline is None:  # a worker of a test keeps its priority, because other tests would leave it too little time
        os.nice(POLITENESS)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    mesh = {axis: getattr(arguments, axis) for axis in AXES}
    profile = None
    if arguments.profile is not None:
        leave_out_idle_libtpu()
        profile = arguments.profile, arguments.profile_steps
    place, sync = None, None
    if arguments.hosts is not None:
        index, coordinator = arguments.host_index, arguments.coordinator
        place = HostPlace(index=index, count=arguments.hosts, coordinator=coordinator, bind=arguments.bind)
        sync = MultihostSync(index, channel)
    kept = arguments.resident_chips_gb, arguments.resident_host_gb
    options = {"mesh": mesh, "executables": arguments.executables, "resident_gb": kept}
    make = functools.partial(import_pipeline, arguments.pipeline, profile, place, **options)
    preset, warms_up = arguments.preset, arguments.warm_up
    if arguments.standby:
        import_ahead(arguments.pipeline)
        begin = next(channel.receive(), None)
        if not isinstance(begin, Begin):
            return
        preset, warms_up = begin.preset, begin.warm_up
    worker = Worker(channel, make, arguments.model, sync=sync)
    worker.run(find_preset(preset), warms_up)


if __name__ == "__main__":
    main()
