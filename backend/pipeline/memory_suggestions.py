"""Find smaller requests that fit, after a video ran out of device memory: fewer frames, or a smaller size. All other memory than
the weights is assumed to grow with the tokens. A request is suggested only if the compiler reports that its largest program
fits."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar

import jax

from backend.chips import memory_bytes
from backend.errors import RequestError, bytes_needed, is_memory_short
from backend.pipeline.load import describe_model
from backend.pipeline.memory import program_bytes, unread_bytes, weight_bytes
from backend.pipeline.warm_up import calls
from backend.runtime.context import RuntimeContext
from backend.runtime.program import Compilation, Program, compile_with
from backend.schemas.events import Compiling, Event, Proposal
from backend.schemas.geometry import latent_frames, pixel_frames
from backend.schemas.request import GenerationRequest
from presets import list_presets

# Maximum number of compiled candidates: this many with fewer frames, and this many of a smaller size.
MAX_COMPILED_CANDIDATES = 2
Candidate = TypeVar("Candidate")
CAUTION = 0.95  # factor on the estimated number of tokens, because some of a program's memory does not shrink with the tokens
Tell = Callable[[Event], None]
# A program that does not fit, and whose size the compiler does not report, is assumed to need this factor times the device
# memory.
UNKNOWN_SIZE_FACTOR = 1.5


def suggest_smaller_requests(
    request: GenerationRequest,
    tell: Tell,
    mesh: Mapping[str, int | None] | None = None,
    memory: int | None = None,
    runtime: RuntimeContext | None = None,
) -> tuple[Proposal, ...]:
    """Suggest at most one request with fewer frames and one of a smaller size. `tell` receives an event before each compilation.
    `memory` is the memory of one device in bytes, by default as the device reports it or as known for the chip. If the memory is
    unknown, nothing is suggested. Raises: any error of `tell`; RequestError for a mesh that the devices do not allow."""
    devices = jax.devices()
    memory = memory or (devices[0].memory_stats() or {}).get("bytes_limit") or memory_bytes(devices[0].device_kind)
    if memory is None:
        return ()
    measured = measure_memory(request, devices, mesh, tell, runtime=runtime)
    needed = UNKNOWN_SIZE_FACTOR * memory if math.isinf(measured.peak) else measured.peak
    # If `needed` is at most `memory`, the request failed because other data occupied a part of the memory. Then less than
    # `needed` was free, so the candidates must need less than `needed`.
    room = memory if needed > memory else CAUTION * needed
    if needed <= measured.weights:
        return ()
    # The share of the request's tokens that fits. It is below 0 if the weights alone do not fit.
    share = CAUTION * (int(room) - measured.weights) / (int(needed) - measured.weights)

    def peak_if_fitting(candidate: GenerationRequest) -> int | None:
        peak = measure_memory(candidate, devices, mesh, tell, only=measured.largest, runtime=runtime).peak
        return int(peak) if peak <= room else None

    kinds = (fewer_frames(request, share), smaller_sizes(request, share))
    fitting = filter(None, (find_first_fitting(candidates, peak_if_fitting) for candidates in kinds))
    return tuple(
        Proposal(width=one.width, height=one.height, num_frames=one.num_frames, bytes_per_device=peak) for one, peak in fitting
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class MemoryNeeds:
    """The bytes of each device that a request needs. `weights` are the bytes of all weights, `peak` all bytes while the program
    `largest` runs. `peak` is infinite if that program does not fit and the compiler does not report its size."""

    weights: int
    largest: str | None
    peak: float


def measure_memory(
    request: GenerationRequest,
    devices: Sequence[jax.Device],
    mesh: Mapping[str, int | None] | None,
    tell: Tell,
    only: str | None = None,
    runtime: RuntimeContext | None = None,
) -> MemoryNeeds:
    """Compile the request's programs. If `only` is the key of a program, the others are described but not compiled."""
    needs: dict[str, float] = {}  # bytes of one device, with the weights that the program reads, by the program's key
    counted: dict[str, int] = {}  # bytes of these weights

    def compile_and_measure(program: Program, lowered: jax.stages.Lowered) -> Compilation:
        if only in (None, program.key):
            try:
                compiled = compile_with(lowered, program.layout.compiler_options, program.layout.runtime.fallbacks)
            except jax.errors.JaxRuntimeError as error:
                if not is_memory_short(error):
                    raise
                needed = bytes_needed(error)
            else:
                needed = program_bytes(compiled)
            needs[program.key] = max(needs.get(program.key, 0.0), math.inf if needed is None else float(needed))
        return Compilation(None)

    model = describe_model(request.resolved_preset, devices, compile_and_measure, mesh, runtime=runtime)
    what = f"settings that fit: {request.width}x{request.height}, {request.num_frames} frames"
    for call in calls(model, request):
        program, arguments = call.program, call.arguments
        if program.is_ready(*arguments):
            continue
        if only in (None, program.key):
            tell(Compiling(what))
        program.prepare(*arguments)
        counted.setdefault(program.key, sum(weight_bytes(model, among=arguments).values()))
    unread, weights = unread_bytes(model, request), sum(weight_bytes(model).values())
    peaks = {key: size + weights - counted[key] + unread.get(key, 0) for key, size in needs.items()}
    largest = max(peaks, key=lambda key: peaks[key]) if peaks else None
    return MemoryNeeds(weights=weights, largest=largest, peak=math.inf if largest is None else peaks[largest])


def find_first_fitting(
    candidates: Iterable[Candidate], bytes_if_fitting: Callable[[Candidate], int | None]
) -> tuple[Candidate, int] | None:
    """Return the first candidate that fits, with its bytes on each device, None if no compiled candidate fits. `bytes_if_fitting`
    compiles a candidate, at most `MAX_COMPILED_CANDIDATES` times, and returns its bytes, None if it does not fit."""
    for candidate in islice(candidates, MAX_COMPILED_CANDIDATES):
        if (size := bytes_if_fitting(candidate)) is not None:
            return candidate, size
    return None


def fewer_frames(request: GenerationRequest, share: float) -> Iterator[GenerationRequest]:
    """Yield the request with fewer and fewer frames, first with at most the fraction `share` of its tokens."""
    scale = request.resolved_preset.vae_scale_temporal
    while (count := int(latent_frames(request.num_frames, scale) * share)) > 1:
        changed = _with_settings(request, num_frames=pixel_frames(count, scale))
        if changed is None:
            return
        yield changed
        share *= CAUTION**3


def smaller_sizes(request: GenerationRequest, share: float) -> Iterator[GenerationRequest]:
    """Yield the request at sizes with at most the fraction `share` of its pixels, the largest size first. The sizes are the sizes
    of all presets in its preset's series that have the same orientation."""
    largest, series = share * request.width * request.height, request.resolved_preset.series
    sizes = {size for preset in list_presets() if preset.series == series for size in preset.sizes}
    for width, height in sorted(sizes, key=lambda size: -size[0] * size[1]):
        changed = _with_settings(request, width=width, height=height)
        if width * height <= largest and (width > height) == (request.width > request.height) and changed is not None:
            yield changed


def _with_settings(request: GenerationRequest, **changes: int) -> GenerationRequest | None:
    try:
        values: dict[str, Any] = request.model_dump() | changes
        return GenerationRequest(**values)
    except RequestError:
        return None
