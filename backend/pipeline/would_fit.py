"""Finds what would fit on this machine's devices where a video has run out of their memory: fewer frames, or a smaller size.

The failed request's programs are compiled and their memory is read from what the compiler made, as `check-tpu` does for a
described slice; candidates of the estimate are then compiled too, and proposed only if they fit.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax

from backend.chips import memory_bytes
from backend.contract.events import Compiling, Event, Proposal
from backend.contract.request import GenerationRequest, find_preset
from backend.errors import bytes_needed, is_memory_short
from backend.families.model import Model
from backend.pipeline.candidates import CAUTION, TRIES, fewer_frames, share_of_tokens, smaller_sizes
from backend.pipeline.load import describe_model
from backend.pipeline.warm_up import calls
from backend.runtime.program import Compilation, Program, compile_with
from backend.weights.parking import device_bytes

Tell = Callable[[Event], None]
NOT_SAID = 1.5  # times the memory: taken for a program that does not fit and whose compiler does not say how much it needs

logger = logging.getLogger(__name__)


def would_fit(
    request: GenerationRequest, tell: Tell, mesh: Mapping[str, int | None] | None = None, memory: int | None = None
) -> tuple[Proposal, ...]:
    """At most one proposal with fewer frames and one of a smaller size. `memory` are the bytes of one device, without it as the
    devices report them; nothing is proposed if they do not. Raises: whatever `tell` raises, which is called before each
    compilation; RequestError for a mesh that the devices do not allow.
    """
    devices = jax.devices()
    memory = memory or _memory_of(devices)
    if memory is None:
        return ()
    found = _measured(request, devices, mesh, tell)
    needed = NOT_SAID * memory if math.isinf(found.peak) else found.peak
    room = memory if needed > memory else CAUTION * needed  # it ran out all the same: so much is not there while it runs
    if needed <= found.weights:
        return ()
    share = share_of_tokens(weights=found.weights, needed=int(needed), capacity=int(room))
    proposals = []
    for candidates in (fewer_frames(request, share), smaller_sizes(request, share)):
        for _, candidate in zip(range(TRIES), candidates, strict=False):
            peak = _measured(candidate, devices, mesh, tell, only=found.largest).peak
            if peak <= room:
                proposals.append(_proposal(candidate, int(peak)))
                break
    return tuple(proposals)


def _proposal(request: GenerationRequest, peak: int) -> Proposal:
    return Proposal(width=request.width, height=request.height, num_frames=request.num_frames, bytes_per_device=peak)


class Meter:
    """A `Compiler` that keeps how many bytes each program needs on a device, infinite if the compiler has no room for it and does
    not say. With `only`, other programs are described and not compiled."""

    def __init__(self, only: str | None = None) -> None:
        self._only = only
        self.needs: dict[str, float] = {}  # by the program's key

    def __call__(self, program: Program, lowered: jax.stages.Lowered) -> Compilation:
        if self._only in (None, program.key):
            self.needs[program.key] = max(self.needs.get(program.key, 0.0), _needed(program, lowered))
        return Compilation(None)


class _Found:
    """What a request needs: bytes at rest on each device, the most while a program runs, and that program's key."""

    def __init__(self, model: Model, needs: Mapping[str, float], counted: Mapping[str, int]) -> None:
        """`needs` are each program's bytes by its key, of which `counted` are weights at rest."""
        self.weights = _weight_bytes(model)
        peaks = {key: size + self.weights - counted[key] for key, size in needs.items()}
        self.largest = max(peaks, key=peaks.get) if peaks else None
        self.peak: float = peaks[self.largest] if peaks else math.inf


def _weight_bytes(model: Model, among: Any = None) -> int:
    """Bytes at rest on each device; with `among`, of those that are in these arguments."""
    return sum(device_bytes(network.at_rest, network.tied, among) for network in model.networks)


def _measured(
    request: GenerationRequest,
    devices: Sequence[jax.Device],
    mesh: Mapping[str, int | None] | None,
    tell: Tell,
    only: str | None = None,
) -> _Found:
    meter = Meter(only)
    model = describe_model(find_preset(request.preset), devices, meter, mesh)
    what = f"what would fit: {request.width}x{request.height}, {request.num_frames} frames"
    counted: dict[str, int] = {}
    for program, arguments in _programs(model, request):
        if only in (None, program.key):
            tell(Compiling(what))
        program.prepare(*arguments)
        counted.setdefault(program.key, _weight_bytes(model, among=arguments))
    return _Found(model, meter.needs, counted)


def _programs(model: Model, request: GenerationRequest) -> Iterator[tuple[Program, tuple]]:
    for call in calls(model, request):
        if not call.program.is_ready(*call.arguments):
            yield call.program, call.arguments


def _needed(program: Program, lowered: jax.stages.Lowered) -> float:
    try:
        compiled = compile_with(lowered, program.layout.compiler_options)
    except jax.errors.JaxRuntimeError as error:
        if not is_memory_short(error):
            raise
        needed = bytes_needed(error)
        return math.inf if needed is None else float(needed)
    return _bytes_of(compiled.memory_analysis())


def _bytes_of(memory: Any) -> float:
    if memory is None:
        return math.inf
    kept = memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
    return float(kept + memory.temp_size_in_bytes + memory.generated_code_size_in_bytes)


def _memory_of(devices: Sequence[jax.Device]) -> int | None:
    stats = devices[0].memory_stats() or {}
    return stats.get("bytes_limit") or memory_bytes(devices[0].device_kind)
