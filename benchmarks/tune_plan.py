"""Compile a preset's step with several meshes and numbers of copied matrices, and store the compiler's counts.

    python -m benchmarks.tune_plan --preset wan2.2-t2v-a14b-720p --topology tpu7x:2x2x1 [--copies 0 4 8] [--mesh 2,4,1 ...]

This needs libtpu and no TPU. A candidate for a model of 14 billion parameters takes one to three minutes on two cores. The
results are stored in backend/models/plans.json, where the studio reads its mesh and its number of copied matrices. Stored
candidates are compiled again only with --again. Without --copies the plan in use and its neighbours are compiled, until no
neighbour is faster.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys

from backend.runtime.program import Compilation
from backend.settings import tpu_compiler_environment

if __name__ == "__main__":
    os.environ.update(tpu_compiler_environment())  # libtpu reads these variables when jax is imported

from backend.chips import chip_of
from backend.models import find_family
from backend.models.plans import Subject, TriedPlan, TunedPlan, describe_subject, read_table, write_table
from backend.pipeline.load import describe_model
from backend.runtime.devices import described_devices
from backend.runtime.mesh import Layout, MeshPlan
from backend.schemas.request import GenerationRequest, example_request
from backend.schemas.settings import find_preset
from backend.tpu_analysis.report import STEP, Inspector, Slice, report


def print_progress(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


class Search:
    """The compiled plans of a preset on a slice."""

    def __init__(self, request: GenerationRequest, topology: str, *, again: bool) -> None:
        self._request, self._topology, self._again = request, topology, again
        self._devices, self._family = described_devices(topology), find_family(find_preset(request.preset))[0]
        layout, self.num_matrices, self.subject = self._in_use()
        self.start = (MeshPlan(**{axis: layout.size(axis) for axis in ("dp", "sp", "tp")}), len(layout.copied))
        known = next((line.tried for line in read_table() if line.subject == self.subject), ())
        self.tried = {(one.mesh, one.copies): one for one in known}
        self._new: set[tuple[MeshPlan, int]] = set()

    def _in_use(self) -> tuple[Layout, int, Subject]:
        """Return the layout that the studio uses now, the number of matrices in a layer, and the table's key."""
        preset = find_preset(self._request.preset)
        model = describe_model(preset, self._devices, lambda program, lowered: Compilation(None))
        config = preset.network_configs()["transformer"]
        transformer = importlib.import_module(type(self._family).__module__.rpartition(".")[0] + ".transformer")
        sizes = transformer.layer_matrix_bytes(config, model.dtype.itemsize)
        kind, experts = self._devices[0].device_kind, model.spec.num_experts
        subject = describe_subject(kind, len(self._devices), sizes, config["num_layers"], experts)
        assert subject is not None, "the table is of TPUs"
        return model.layout(True), len(sizes), subject

    def compile(self, mesh: MeshPlan, copies: int) -> TriedPlan:
        """Compile this plan's step if it is not stored, and store the counts."""
        key = (mesh, copies)
        if key in self.tried and (not self._again or key in self._new):
            return self.tried[key]
        inspector = Inspector(lambda text: None, STEP)
        axes = {"dp": mesh.dp, "sp": mesh.sp, "tp": mesh.tp}
        preset = find_preset(self._request.preset)
        model = describe_model(preset, self._devices, inspector, axes, num_copies=copies)
        described = Slice(
            request=self._request,
            family=self._family,
            model=model,
            chip=chip_of(self._topology),
            num_devices=len(self._devices),
        )
        result = report(described, inspector)
        step = result["components"][STEP]
        seconds = step["predicted_seconds"]
        one = TriedPlan(
            mesh=mesh,
            copies=copies,
            seconds=None if seconds is None or not result["fits"] else round(seconds, 4),
            hbm_bytes=result["hbm_bytes_per_device"],
        )
        self.tried[key] = one
        self._new.add(key)
        print_progress(f"{mesh} copies={copies}: {_words(one)}; compiled in {step['compile_seconds']} s, {_kinds(step)}")
        self._store()
        return one

    def _store(self) -> None:
        lines = [line for line in read_table() if line.subject != self.subject]
        write_table([*lines, TunedPlan(subject=self.subject, preset=self._request.preset, tried=tuple(self.tried.values()))])

    @property
    def best(self) -> TriedPlan | None:
        return TunedPlan(subject=self.subject, preset=self._request.preset, tried=tuple(self.tried.values())).best

    def climb(self) -> None:
        """Move from the plan in use to neighbours with one copy more or fewer, until no neighbour is faster."""
        self.compile(*self.start)
        while (best := self.best) is not None:
            near = [best.copies - 1, best.copies + 1]
            for copies in (count for count in near if 0 <= count <= self.num_matrices):
                self.compile(best.mesh, copies)
            if self.best == best:
                return


def _words(plan: TriedPlan) -> str:
    size = f"{plan.hbm_bytes / 2**30:.1f} GiB a chip"
    return f"{size}, does not fit" if plan.seconds is None else f"{size}, {plan.seconds:.3f} s predicted"


def _kinds(step: dict) -> str:
    kinds = step["breakdown"] or {}
    return ", ".join(f"{kind} {seconds:.3f}" for kind, seconds in kinds.items() if seconds >= 0.0005)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", required=True)
    parser.add_argument("--topology", required=True)
    parser.add_argument(
        "--copies", type=int, nargs="*", help="numbers of copied matrices in a layer (the plan in use and its neighbours)"
    )
    parser.add_argument("--mesh", nargs="*", help="dp,sp,tp (the mesh in use)")
    parser.add_argument("--again", action="store_true", help="compile stored plans again")
    arguments = parser.parse_args()
    search = Search(example_request(find_preset(arguments.preset)), arguments.topology, again=arguments.again)
    if arguments.copies is None:
        search.climb()
    meshes = [MeshPlan(**dict(zip(("dp", "sp", "tp"), map(int, text.split(",")), strict=True))) for text in arguments.mesh or ()]
    for mesh in meshes or [search.start[0]]:
        for copies in arguments.copies or ():
            search.compile(mesh, copies)
    best = search.best
    print_progress(
        f"best: {best.mesh} copies={best.copies}: {_words(best)}" if best else "no plan leaves a quarter of a chip's memory free"
    )


if __name__ == "__main__":
    main()
