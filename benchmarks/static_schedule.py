"""Compile for a TPU on a machine without one, and read the schedule that libtpu writes.

A schedule is a list of bundles, which are groups of instructions that start together. Each bundle takes at least one cycle. The
count is for the program's text: a loop's body and both branches of a condition count once. It is a prediction, not a measurement.
This module does not depend on the compiled function.
"""

from __future__ import annotations

import collections
import dataclasses
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

# The smallest slice of each generation that libtpu 0.0.51 describes, by the name in the kernels' tables.
TOPOLOGIES = {"v5e": "v5e:2x2", "v5p": "v5p:2x2x1", "v6e": "v6e:1x1", "v7x": "tpu7x:2x2x1"}
# Variables that libtpu needs on a host without a TPU, and the permission to run beside another process.
HOST = {
    "TPU_SKIP_MDS_QUERY": "1", "TPU_ACCELERATOR_TYPE": "v6e-8", "TPU_WORKER_HOSTNAMES": "localhost", "TPU_WORKER_ID": "0",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class Schedule:
    """The largest Pallas kernel of a compilation. `slots` counts the uses of each unit, such as MATMUL, EUP or VSTORE:SPILL.
    `by_depth` counts the bundles outside all loops, in the grid's loop, in a loop inside this loop, and so on."""

    bundles: int
    by_depth: tuple[int, ...]
    slots: dict[str, int]
    compile_seconds: float


class ScheduleReader:
    """Compiles for one chip of a generation and reads the schedules.

    Create one per process, because libtpu reads its flags when it is loaded.
    """

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="schedule-"))
        dump = f"--xla_jf_dump_to={self._folder} --xla_jf_dump_llo_text=true --xla_jf_emit_annotations=true"
        os.environ.update(HOST | {"LIBTPU_INIT_ARGS": dump})
        jax.config.update("jax_platforms", "cpu")

    def close(self) -> None:
        """Delete the files of libtpu, some hundred megabytes."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def read(
        self,
        chip: str,
        function: Callable,
        arguments: Sequence[jax.ShapeDtypeStruct],
        options: dict[str, str] | None = None,
    ) -> Schedule:
        """Compile `function` for one core of `chip`, with XLA's own `options`. Return its largest Pallas kernel.

        Raises: jax.errors.JaxRuntimeError if the compiler refuses the function; RuntimeError if no kernel was compiled.
        """
        return max(self.read_all(chip, function, arguments, options).values(), key=lambda schedule: schedule.bundles)

    def read_all(
        self,
        chip: str,
        function: Callable,
        arguments: Sequence[jax.ShapeDtypeStruct],
        options: dict[str, str] | None = None,
    ) -> dict[str, Schedule]:
        """Compile as `read` does, and return all Pallas kernels by name. Raises: see `read`."""
        shutil.rmtree(self._folder, ignore_errors=True)
        device = topologies.get_topology_desc(platform="tpu", topology_name=TOPOLOGIES[chip]).devices[0]
        mesh = Mesh(np.array([device]), ("chip",))
        sharding = NamedSharding(mesh, PartitionSpec())
        placed = [jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=sharding) for array in arguments]
        started = time.perf_counter()
        with jax.set_mesh(mesh):
            jax.jit(function).lower(*placed).compile(compiler_options=options)
        compile_seconds = time.perf_counter() - started
        found = {}
        for path in self._folder.rglob("*schedule-analysis_final_bundles.txt"):
            text = path.read_text("utf-8")
            program = re.match(r"\d+-(.*)-\d+-schedule", path.name).group(1)
            if "tpu_custom_call" not in text or program == "TLP":  # TLP is the program that starts the kernels
                continue
            (slots,) = path.parent.glob(f"*-{program}-*final_hlo-static-per-bundle-utilization.txt")
            (listing,) = (path for path in path.parent.glob(f"*-{program}-*-final_bundles.txt") if "schedule" not in path.name)
            found[program] = Schedule(
                bundles=_bundles(text),
                by_depth=_by_depth(listing.read_text("utf-8")),
                slots=_slots(slots),
                compile_seconds=compile_seconds,
            )
        if not found:
            raise RuntimeError("libtpu wrote no kernel's schedule: was it loaded before ScheduleReader() could set its flags?")
        return found


def _bundles(analysis: str) -> int:
    return int(re.search(r"total scheduled bundles:\s*(\d+)", analysis).group(1))


def _by_depth(listing: str) -> tuple[int, ...]:
    """Count bundles by loop depth: the listing has a ">" before a bundle for each loop around it."""
    bundles = re.findall(r"^\s*(?:0x)?[0-9a-f]+ [A-Z ]*: *(>*) *\{", listing, re.MULTILINE)
    counts = collections.Counter(len(marks) for marks in bundles)
    return tuple(counts[depth] for depth in range(max(counts) + 1))


def _slots(path: Path) -> dict[str, int]:
    """Sum the counts of a file with a line of names, a line of capacities, and a line of counts for each bundle."""
    lines = path.read_text("utf-8").splitlines()
    names = next(line for line in lines if line.startswith("MATMUL,")).split(", ")
    start = next(number for number, line in enumerate(lines) if line.startswith("== UTILIZATION")) + 1
    totals = np.sum([[int(count) for count in line.split()] for line in lines[start:] if line.strip()], axis=0)
    return dict(zip(names, totals.tolist(), strict=True))
