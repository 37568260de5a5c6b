"""Traces of some denoising steps and of the decoder's first pieces, for TensorBoard and XProf.

`jax.named_scope` marks the operations: `attention`, `products`, `collectives` (exchanges of tokens for heads; the compiler adds
the gathers of weights) and `decoder`.
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
    """Trace the denoising steps `first` to `last` of each video, counted from 1, and the decoder, into a folder of the video's
    own in `folder`."""

    folder: Path
    first: int = 3
    last: int = 5


class Tracer:
    """Traces units of work from the `first` to the `last`, counted from 1, into `folder`; nothing if that is None. A context."""

    def __init__(self, folder: Path | None, first: int, last: int) -> None:
        self._folder, self._first, self._last = folder, first, last
        self._is_on = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    @contextlib.contextmanager
    def unit(self, number: int, wait: Callable[[], object]) -> Generator[None]:
        """Around one unit of work; `wait` returns when the devices have done it."""
        if self._folder is None or not self._first <= number <= self._last:
            yield
            return
        if not self._is_on:
            jax.profiler.start_trace(str(self._folder), profiler_options=_options())
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


def _options() -> jax.profiler.ProfileOptions:
    """Without Python's own calls: to follow them crashes a process with other threads, of which ours has some (jax 0.10.2)."""
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    return options


def trace_steps(profile: Profile | None, video: Path) -> Tracer:
    """For the denoising of the video that is made in this folder."""
    if profile is None:
        return Tracer(None, 0, 0)
    return Tracer(profile.folder / video.name / "steps", profile.first, profile.last)


def trace_decoder(profile: Profile | None, video: Path) -> Tracer:
    """For its decoder."""
    return Tracer(None if profile is None else profile.folder / video.name / "decoder", 1, DECODED_PIECES)
