"""One denoising step of a preset on this machine's devices, without a checkpoint: memory, predicted and measured seconds. The
weights are artificial, so the result of the step is not checked."""

import time
from collections.abc import Callable, Iterator
from functools import cache
from types import SimpleNamespace
from typing import Any, cast

import jax
import jax.numpy as jnp

from backend.accelerators import MOST_FLOPS_ON_A_CPU
from backend.chips import CHIPS, DEVICE_KINDS, GIB, Chip, memory_bytes
from backend.errors import StudioError, one_line
from backend.models import find_family
from backend.models.model import Model
from backend.pipeline.load import describe_model
from backend.pipeline.memory import weight_bytes
from backend.pipeline.warm_up import calls
from backend.runtime.program import Compilation, Program, compile_now, compile_with
from backend.runtime.work import Call
from backend.schemas.check import Check
from backend.schemas.request import GenerationRequest, example_request
from backend.selftest.kernels import REPORT
from backend.tpu_analysis.report import STEP, Inspector, Slice
from presets import Preset

RUNS = 3
SMALLER = "use a smaller preset; `python app.py check-tpu` shows what fits on a slice"


class KeepingInspector(Inspector):
    """An `Inspector` that also returns the compiled programs, so that they can run on the devices of this machine."""

    def __call__(self, program: Program, lowered: jax.stages.Lowered) -> Compilation:
        compiled: list[jax.stages.Compiled] = []

        def compile_without_refused(compiler_options: dict[str, Any]) -> jax.stages.Compiled:
            compiled.append(compile_with(lowered, compiler_options, program.layout.runtime.fallbacks))
            return compiled[-1]

        only_compiles = SimpleNamespace(compile=compile_without_refused)  # `Inspector` calls nothing else
        super().__call__(program, cast(jax.stages.Lowered, only_compiles))
        return Compilation(compiled[-1] if compiled else None)


def check_step(preset: Preset, memory: int | None, tell: Callable[[str], None]) -> Iterator[Check]:
    """Check whether the preset's weights fit, and measure one step on all devices. Stop after the first fault. `memory` is the
    number of bytes of a device, None if the devices do not report it."""
    devices, request = jax.devices(), example_request(preset)
    family, _ = find_family(preset)
    flops = family.step_flops(preset.network_configs(), request, request.num_branches).total
    if devices[0].platform == "cpu" and flops > MOST_FLOPS_ON_A_CPU:
        found = f"one step of {preset.name} takes {flops / 1e12:,.0f} TFLOP, too much for a CPU"
        fix = "use a TPU slice; `python app.py check-tpu` predicts steps without a TPU"
        yield Check(name="one step", state="warning", found=found, fix=fix)
        return
    chip = CHIPS.get(DEVICE_KINDS.get(devices[0].device_kind, ""))
    inspector = None if chip is None else KeepingInspector(tell, only=STEP)
    try:
        model = describe_model(preset, devices, inspector or compile_now)
    except StudioError as error:
        yield Check(name="mesh", state="fault", found=error.cause, fix=error.fix)
        return
    room = memory or memory_bytes(devices[0].device_kind)
    check = check_weights(preset.name, sum(weight_bytes(model).values()), room)
    yield check
    if check.state == "fault":
        return
    if inspector is not None and chip is not None:
        inspector.slice = Slice(request=request, family=family, model=model, chip=chip, num_devices=len(devices))
    yield time_step(model, request, inspector, chip)


def check_weights(name: str, needed: int, room: int | None) -> Check:
    """Check whether weights of `needed` bytes fit into a device's memory of `room` bytes."""
    if room is None:
        return Check(name="memory", state="skipped", found="the devices do not report their memory")
    found = f"the weights of {name} take {needed / GIB:.2f} of {room / GIB:.1f} GiB on each device"
    if needed < room:
        return Check(name="memory", state="ok", found=found)
    return Check(name="memory", state="fault", found=found, fix=SMALLER)


def time_step(model: Model, request: GenerationRequest, inspector: Inspector | None, chip: Chip | None) -> Check:
    """Measure one step, or report why it does not run. With an `inspector`, also report the predicted seconds."""
    try:
        call = next(call for call in calls(model, request) if call.program.key == STEP)
        call.program.prepare(*call.arguments)
        cost = {} if inspector is None else inspector.costs[STEP]
        if not cost.get("fits", True):
            assert chip is not None, "only an inspector can find that the step does not fit"
            needed = cost["hbm_bytes_per_device"] / GIB
            found = f"one step needs {needed:.1f} GiB on each device, which has {chip.hbm_bytes / GIB:.0f}"
            return Check(name="one step", state="fault", found=found, fix=SMALLER)
        seconds = min(_run(call) for _ in range(RUNS))
    except Exception as error:  # any error of the compiler or chip is a finding
        is_short = "RESOURCE_EXHAUSTED" in str(error) or "out of memory" in str(error).lower()
        found = one_line(f"{type(error).__name__}: {error}")[:400]
        return Check(name="one step", state="fault", found=found, fix=SMALLER if is_short else REPORT)
    predicted = cost.get("predicted_seconds")
    beside = "nothing is predicted for these devices" if predicted is None else f"predicted {predicted:.3g} s"
    size = f"{request.width}x{request.height}, {request.num_frames} frames"
    return Check(name="one step", state="ok", found=f"{request.preset}, {size}: measured {seconds:.3g} s, {beside}")


def _run(call: Call) -> float:
    """Return the seconds of one run. Each run creates new arguments, because the program overwrites some arguments."""
    arguments = jax.tree.map(lambda leaf: _make_fill(leaf.shape, leaf.dtype, leaf.sharding)(), call.arguments)
    jax.block_until_ready(arguments)
    started = time.perf_counter()
    jax.block_until_ready(call.program(*arguments))
    return time.perf_counter() - started


@cache
def _make_fill(shape: tuple[int, ...], dtype: jnp.dtype, sharding: jax.sharding.Sharding) -> Callable[[], jax.Array]:
    """Return a function that creates an array with this sharding: sine waves of small amplitude, or zeros if the dtype is not
    floating-point. Floating-point zeros would select the slow form of the attention, the online softmax."""

    def fill() -> jax.Array:
        if not jnp.issubdtype(dtype, jnp.floating):
            return jnp.zeros(shape, dtype)
        waves = jnp.zeros(shape, jnp.float32)
        for axis in range(len(shape)):
            waves += jnp.sin((7.0 + axis) * jax.lax.broadcasted_iota(jnp.float32, shape, axis))
        return (0.02 * waves).astype(dtype)

    return jax.jit(fill, out_shardings=sharding)
