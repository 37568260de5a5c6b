"""Find smaller requests that fit, after a video ran out of device memory: fewer frames, or a smaller size.

The programs of the failed request are compiled, and the compiler reports how much memory they need. From these numbers,
`backend.pipeline.memory_candidates` estimates which smaller requests fit. Then the compiler reports the memory of such a
request's largest program. The request is suggested only if this memory fits.
"""

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import jax

from backend.chips import memory_bytes
from backend.errors import bytes_needed, is_memory_short
from backend.models.model import Model
from backend.pipeline.load import describe_model
from backend.pipeline.memory import program_bytes, unread_bytes, weight_bytes
from backend.pipeline.memory_candidates import CAUTION, fewer_frames, find_first_fitting, fitting_share_of_tokens, smaller_sizes
from backend.pipeline.warm_up import calls
from backend.runtime.context import RuntimeContext
from backend.runtime.program import Compilation, Program, compile_with
from backend.schemas.events import Compiling, Event, Proposal
from backend.schemas.request import GenerationRequest

Tell = Callable[[Event], None]
# A program that does not fit, and whose size the compiler does not report, is assumed to need this factor times the device
# memory.
UNKNOWN_SIZE_FACTOR = 1.5

logger = logging.getLogger(__name__)


def suggest_smaller_requests(
    request: GenerationRequest,
    tell: Tell,
    mesh: Mapping[str, int | None] | None = None,
    memory: int | None = None,
    runtime: RuntimeContext | None = None,
) -> tuple[Proposal, ...]:
    """Suggest at most one request with fewer frames and one of a smaller size.

    `tell` receives an event before each compilation. `memory` is the memory of one device in bytes, by default as the device
    reports it or as known for the chip. If the memory is unknown, nothing is suggested.

    Raises: any error of `tell`; RequestError for a mesh that the devices do not allow.
    """
    devices = jax.devices()
    memory = memory or _device_memory(devices)
    if memory is None:
        return ()
    measured = measure_memory(request, devices, mesh, tell, runtime=runtime)
    needed = UNKNOWN_SIZE_FACTOR * memory if math.isinf(measured.peak) else measured.peak
    # If `needed` is at most `memory`, the request failed because other data occupied a part of the memory. Then less than
    # `needed` was free, so the candidates must need less than `needed`.
    room = memory if needed > memory else CAUTION * needed
    if needed <= measured.weights:
        return ()
    share = fitting_share_of_tokens(weights=measured.weights, needed=int(needed), capacity=int(room))

    def peak_if_fitting(candidate: GenerationRequest) -> int | None:
        peak = measure_memory(candidate, devices, mesh, tell, only=measured.largest, runtime=runtime).peak
        return int(peak) if peak <= room else None

    kinds = (fewer_frames(request, share), smaller_sizes(request, share))
    fitting = filter(None, (find_first_fitting(candidates, peak_if_fitting) for candidates in kinds))
    return tuple(
        Proposal(width=one.width, height=one.height, num_frames=one.num_frames, bytes_per_device=peak) for one, peak in fitting
    )


class Meter:
    """A `Compiler` that records in `needs` how many bytes of a device each program takes.

    The number is infinite if the program does not fit and the compiler does not report its size. If `only` is the key of a
    program, all other programs are described but not compiled.
    """

    def __init__(self, only: str | None = None) -> None:
        self._only = only
        self.needs: dict[str, float] = {}  # bytes of one device by the program's key

    def __call__(self, program: Program, lowered: jax.stages.Lowered) -> Compilation:
        if self._only in (None, program.key):
            self.needs[program.key] = max(self.needs.get(program.key, 0.0), _bytes_needed(program, lowered))
        return Compilation(None)


class MemoryNeeds:
    """The memory that a request needs on each device.

    `weights` are the bytes of all weights. `largest` is the key of the program that needs most memory, and `peak` are all used
    bytes while this program runs.
    """

    def __init__(self, model: Model, needs: Mapping[str, float], counted: Mapping[str, int], unread: Mapping[str, int]) -> None:
        """Compute the peak. All mappings have the keys of programs.

        `needs` has all bytes that a program uses, including the weights that it reads. `counted` has the bytes of these weights.
        `unread` is the result of `unread_bytes`.
        """
        self.weights = sum(weight_bytes(model).values())
        peaks = {key: size + self.weights - counted[key] + unread.get(key, 0) for key, size in needs.items()}
        self.largest = max(peaks, key=lambda key: peaks[key]) if peaks else None
        self.peak: float = math.inf if self.largest is None else peaks[self.largest]


def measure_memory(
    request: GenerationRequest,
    devices: Sequence[jax.Device],
    mesh: Mapping[str, int | None] | None,
    tell: Tell,
    only: str | None = None,
    runtime: RuntimeContext | None = None,
) -> MemoryNeeds:
    meter = Meter(only)
    model = describe_model(request.resolved_preset, devices, meter, mesh, runtime=runtime)
    what = f"settings that fit: {request.width}x{request.height}, {request.num_frames} frames"
    counted: dict[str, int] = {}
    for program, arguments in _unprepared_programs(model, request):
        if only in (None, program.key):
            tell(Compiling(what))
        program.prepare(*arguments)
        counted.setdefault(program.key, sum(weight_bytes(model, among=arguments).values()))
    return MemoryNeeds(model, meter.needs, counted, unread_bytes(model, request))


def _unprepared_programs(model: Model, request: GenerationRequest) -> Iterator[tuple[Program, tuple]]:
    for call in calls(model, request):
        if not call.program.is_ready(*call.arguments):
            yield call.program, call.arguments


def _bytes_needed(program: Program, lowered: jax.stages.Lowered) -> float:
    try:
        compiled = compile_with(lowered, program.layout.compiler_options, program.layout.runtime.fallbacks)
    except jax.errors.JaxRuntimeError as error:
        if not is_memory_short(error):
            raise
        needed = bytes_needed(error)
    else:
        needed = program_bytes(compiled)
    return math.inf if needed is None else float(needed)


def _device_memory(devices: Sequence[jax.Device]) -> int | None:
    stats = devices[0].memory_stats() or {}
    return stats.get("bytes_limit") or memory_bytes(devices[0].device_kind)
