"""Compile a preset's real programs for a described TPU slice and report memory, compile time and predicted seconds.

This runs in a separate process (`backend.cli.check_tpu_run`), because libtpu reads its settings before jax is imported.
"""

from __future__ import annotations

import dataclasses
import math
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from backend.chips import Chip, StepFlops, chip_of
from backend.errors import bytes_needed
from backend.models import find_family as of_preset
from backend.models.model import Model
from backend.models.spec import Family
from backend.pipeline.load import describe_model
from backend.pipeline.memory import program_bytes, weight_bytes
from backend.pipeline.warm_up import calls
from backend.runtime.devices import described_devices
from backend.runtime.mesh import Layout
from backend.runtime.program import Compilation, Compiler, Program
from backend.schemas.progressive import at_step
from backend.schemas.request import GenerationRequest
from backend.schemas.settings import find_preset
from backend.schemas.worker import AXES
from backend.tpu_analysis.hlo_cost import predict
from backend.tpu_analysis.kernels_cost import KernelCost
from backend.tpu_analysis.published import published_step
from backend.tpu_analysis.remedy import Remedy, Shortage, find_remedies

STEP = "denoise_step"  # the key of every family's program for one step
REFINING_STEP = "refining_step"  # the key of the program for a step that refines enlarged latents
SPARSE_STEP = "sparse_step"  # the key of the program for a step with Sol-Attn
SMALL_STEP = "small_step"  # the key of the program for a step at half the size; later steps are "denoise_step"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Slice:
    """The subject of a report: a request, and its model without weights on a described slice."""

    request: GenerationRequest
    family: Family
    model: Model
    chip: Chip
    num_devices: int

    @property
    def layout(self) -> Layout:
        return self.model.layout(self.request.is_guided)

    @property
    def step_flops(self) -> StepFlops:
        """The number of operations of `STEP`, or of one context window in `STEP`, for all guidance branches."""
        return self.flops_of(self.steps[STEP])

    @property
    def steps(self) -> dict[str, int]:
        """Maps the key of each step program to the index of a step that uses the program."""
        first, last = 0, self.request.num_steps - 1
        step = last if self.request.progressive else first
        return {SMALL_STEP: first, STEP: step, REFINING_STEP: last, SPARSE_STEP: last}

    def flops_of(self, step: int) -> StepFlops:
        """Return the number of operations of the step with this index."""
        configs = find_preset(self.request.preset).network_configs()
        return self.family.step_flops(configs, at_step(self.request, step), self.request.num_branches)


def describe_slice(request: GenerationRequest, topology: str, mesh: dict[str, int | None], compiler: Compiler) -> Slice:
    """Describe the request on the slice. Raises: RequestError for an illegal mesh."""
    preset = request.resolved_preset
    devices, (family, _) = described_devices(topology), of_preset(preset)
    model = describe_model(preset, devices, compiler, mesh)
    return Slice(request=request, family=family, model=model, chip=chip_of(topology), num_devices=len(devices))


class Inspector:
    """A `Compiler` that stores the costs of each program: bytes, seconds of compiling, predicted seconds.

    If `only` is the key of a program, no other program is compiled.
    """

    def __init__(self, tell: Callable[[str], None], only: str | None = None) -> None:
        self.costs: dict[str, dict[str, Any]] = {}
        self.slice: Slice | None = None  # set after the programs are created, before the first is compiled
        self._tell, self._only = tell, only

    def __call__(self, program: Program, lowered: jax.stages.Lowered) -> Compilation:
        if self._only not in (None, program.key):
            return Compilation(None)
        chip, plan = self.slice.chip.name, program.layout.plan_text
        self._tell(f"compiling {program.name} for {self.slice.num_devices} x {chip} ({plan})")
        started = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            try:  # read the HLO from a file, because `as_text` fails for programs with asynchronous copies, such as the decoder
                options = {**program.layout.compiler_options, "xla_dump_to": folder, "xla_dump_hlo_as_text": True}
                compiled = lowered.compile(compiler_options=options)
            except jax.errors.JaxRuntimeError as error:
                cost = _refusal_cost(error, time.monotonic() - started)
            else:
                seconds = time.monotonic() - started
                hlo = next(Path(folder).glob("*.after_codegen.txt")).read_text("utf-8")
                cost = _program_cost(self.slice, program, compiled, hlo, seconds)
        self.costs[program.key] = cost
        return Compilation(None)


def report(slice_: Slice, inspector: Inspector) -> dict[str, Any]:
    """Return `check-tpu`'s report about one preset on one slice. Its "components" are the programs."""
    inspector.slice = slice_
    repeats: Counter[str] = Counter()
    counted: dict[str, int] = {}  # bytes of weights that are arguments of each program
    for call in calls(slice_.model, slice_.request):
        call.program.prepare(*call.arguments)
        repeats[call.program.key] += 1
        if call.program.key in inspector.costs and call.program.key not in counted:
            counted[call.program.key] = sum(weight_bytes(slice_.model, among=call.arguments).values())
    programs = {
        name: cost | {"repeats": repeats[name], "weight_argument_bytes": counted[name]} for name, cost in inspector.costs.items()
    }
    return _summary(slice_, programs, weight_bytes(slice_.model))


def _program_cost(slice_: Slice, program: Program, compiled: jax.stages.Compiled, hlo: str, seconds: float) -> dict[str, Any]:
    memory = compiled.memory_analysis()
    number = slice_.steps.get(program.key)
    lengths = slice_.model.attention_lengths(at_step(slice_.request, number or 0))
    cost = predict(hlo, slice_.chip, KernelCost(chip=slice_.chip, lengths=lengths))
    if number is not None:  # for v5e, libtpu's estimate can be below the time at the published peak; the longer time counts
        least = slice_.flops_of(number).matmul_seconds(slice_.chip, slice_.num_devices)
        cost.seconds["matmul"] = max(cost.seconds["matmul"], least)
    needed = program_bytes(compiled)
    return {
        "fits": needed <= slice_.chip.hbm_bytes,
        "hbm_bytes_per_device": needed,
        "argument_bytes": memory.argument_size_in_bytes,
        "temporary_bytes": memory.temp_size_in_bytes,
        "compile_seconds": round(seconds, 1),
        "predicted_seconds": cost.total,
        "breakdown": cost.seconds | {"hidden collectives": cost.hidden},
    }


def _refusal_cost(error: Exception, seconds: float) -> dict[str, Any]:
    """Return the cost of a program that does not fit, read from the compiler's error. Raises: `error` itself if it has another
    cause."""
    needed = bytes_needed(error)
    if needed is None:
        raise error
    return {
        "fits": False,
        "hbm_bytes_per_device": needed,
        "argument_bytes": None,
        "temporary_bytes": None,
        "compile_seconds": round(seconds, 1),
        "predicted_seconds": None,
        "breakdown": None,
    }


def _summary(slice_: Slice, programs: dict[str, dict], resident: dict[str, int]) -> dict[str, Any]:
    chip, request = slice_.chip, slice_.request
    peak = max(_peak_with(cost, resident) for cost in programs.values())
    is_known = all(cost["predicted_seconds"] is not None for cost in programs.values())
    total = sum(cost["predicted_seconds"] * cost["repeats"] for cost in programs.values()) if is_known else None
    flops = slice_.step_flops
    step = programs.get(STEP, {}).get("predicted_seconds")
    roofline = flops.roofline_seconds(chip, slice_.num_devices)
    return {
        "preset": request.preset,
        "mesh": {axis: slice_.layout.size(axis) for axis in AXES},
        "fits": all(cost["fits"] for cost in programs.values()) and peak <= chip.hbm_bytes,
        "hbm_bytes_per_device": peak,
        "hbm_capacity_bytes": chip.hbm_bytes,
        "weight_bytes_per_device": {part.replace("_", " "): size for part, size in resident.items()},
        "components": programs,
        "predicted_total_seconds": total,
        "roofline_seconds": roofline,
        "floor_seconds": flops.floor_seconds(chip, slice_.num_devices),
        "mfu": roofline / step if step else None,
        "published": published_step(request.preset, chip.name, slice_.num_devices),
    }


def remedies(
    result: dict[str, Any], request: GenerationRequest, topology: str, mesh: dict[str, int | None], tell
) -> list[Remedy]:
    """Return changes that make the report's request fit, judged by the program that needs most memory."""
    resident = {name.replace(" ", "_"): size for name, size in result["weight_bytes_per_device"].items()}
    largest = max(result["components"], key=lambda name: _peak_with(result["components"][name], resident))

    def compiled(other: str, changed: GenerationRequest) -> int | None:
        inspector = Inspector(tell, largest)
        changed_result = report(
            describe_slice(changed, other, mesh if other == topology else dict.fromkeys(AXES), inspector), inspector
        )
        return changed_result["hbm_bytes_per_device"] if changed_result["fits"] else None

    shortage = Shortage(
        request=request,
        topology=topology,
        num_devices=math.prod(result["mesh"].values()),
        weights=sum(resident.values()),
        needed=result["hbm_bytes_per_device"],
        capacity=result["hbm_capacity_bytes"],
    )
    return find_remedies(shortage, compiled)


def _peak_with(cost: dict[str, Any], resident: dict[str, int]) -> int:
    """Return the bytes on a device while this program runs: its own bytes, and all weights that are not its arguments."""
    return cost["hbm_bytes_per_device"] + sum(resident.values()) - cost["weight_argument_bytes"]
