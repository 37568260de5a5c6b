"""Trace some denoising steps and the decoder's first pieces, for TensorBoard and XProf. In the trace, `jax.named_scope` marks
`attention`, `products` (of matrices), `decoder` and `collectives`: the exchanges between chips before and after attention. The
exchanges that gather weights have no mark, because the compiler adds them."""

import contextlib
import dataclasses
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Literal

import jax

DECODED_PIECES = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class Profile:
    """Settings of each video's traces, in subfolders of `folder`: denoising steps `first` to `last`, and the decoder's first
    pieces."""

    folder: Path
    first: int = 3
    last: int = 5


class Tracer(contextlib.ExitStack):
    """Traces units of work, such as steps, into `folder`: units `first` to `last`, counted from 1. None traces nothing."""

    def __init__(self, folder: Path | None, first: int, last: int) -> None:
        super().__init__()
        self._folder, self._first, self._last = folder, first, last
        self._is_on = False

    @contextlib.contextmanager
    def trace_unit(self, number: int, wait: Callable[[], object]) -> Generator[None]:
        """Trace the block as unit `number` of the work. `wait()` must wait until the devices have finished the unit."""
        if self._folder is None or not self._first <= number <= self._last:
            yield
            return
        if not self._is_on:
            options = jax.profiler.ProfileOptions()
            options.python_tracer_level = 0  # tracing Python's calls crashes processes with several threads (jax 0.10.2)
            jax.profiler.start_trace(str(self._folder), profiler_options=options)
            self.callback(jax.profiler.stop_trace)
            self._is_on = True
        with jax.profiler.StepTraceAnnotation("unit", step_num=number):
            yield
            wait()
        if number == self._last:
            self._is_on = False
            self.close()


def create_tracer(profile: Profile | None, video: Path, part: Literal["steps", "decoder"]) -> Tracer:
    if profile is None:
        return Tracer(None, 0, 0)
    first, last = (profile.first, profile.last) if part == "steps" else (1, DECODED_PIECES)
    return Tracer(profile.folder / video.name / part, first, last)
