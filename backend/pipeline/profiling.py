"""Trace some denoising steps and the decoder's first pieces, for TensorBoard and XProf.

In the trace, `jax.named_scope` marks four groups of operations: `attention`, `products` (of matrices), `decoder` and
`collectives`. `collectives` are the exchanges between chips before and after attention. The exchanges that gather weights belong
to no group, because the compiler adds them.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Self

import jax

DECODED_PIECES = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class Profile:
    """Settings of the traces of each video. Traced are the denoising steps `first` to `last`, counted from 1, and the decoder's
    first pieces. Each video's traces are written to a subfolder of `folder`."""

    folder: Path
    first: int = 3
    last: int = 5


class Tracer:
    """Traces units of work, such as steps, into `folder`: units `first` to `last`, counted from 1. Without a folder, traces
    nothing. A context manager."""

    def __init__(self, folder: Path | None, first: int, last: int) -> None:
        self._folder, self._first, self._last = folder, first, last
        self._is_on = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    @contextlib.contextmanager
    def trace_unit(self, number: int, wait: Callable[[], object]) -> Generator[None]:
        """Trace the code inside the block as unit `number` of the work. `wait()` must wait until the devices have finished the
        unit."""
        if self._folder is None or not self._first <= number <= self._last:
            yield
            return
        if not self._is_on:
            jax.profiler.start_trace(str(self._folder), profiler_options=_create_options())
            self._is_on = True
        with jax.profiler.StepTraceAnnotation("unit", step_num=number):
            yield
            wait()
        if number == self._last:
            self._stop()

    def _stop(self) -> None:
        if self._is_on:
            self._is_on = False
            jax.profiler.stop_trace()


def _create_options() -> jax.profiler.ProfileOptions:
    """Return options that do not trace Python's calls. Tracing these calls crashes processes with several threads, such as ours
    (jax 0.10.2)."""
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    return options


def trace_steps(profile: Profile | None, video: Path) -> Tracer:
    """Create the tracer for the denoising of the video in the folder `video`."""
    if profile is None:
        return Tracer(None, 0, 0)
    return Tracer(profile.folder / video.name / "steps", profile.first, profile.last)


def trace_decoder(profile: Profile | None, video: Path) -> Tracer:
    """Create the tracer for the decoding of the video in the folder `video`."""
    return Tracer(None if profile is None else profile.folder / video.name / "decoder", 1, DECODED_PIECES)
