"""The state of one process that its models share. It is created once, by the main function of a worker or a command."""

import dataclasses
import functools

from backend.runtime.hosts import Place
from backend.runtime.kernel_crash_guard import KernelCrashGuard
from backend.runtime.kernel_fallbacks import KernelFallbacks


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class RuntimeContext:
    """The place of the process among the hosts, and the compile options and kernels that the process does not use.

    Layouts and loaded models refer to the context, so that their programs can read it.
    """

    place: Place = Place()
    fallbacks: KernelFallbacks = dataclasses.field(default_factory=KernelFallbacks)

    @functools.cached_property
    def crash_guard(self) -> KernelCrashGuard:
        """The guard of the first run of each program with kernels."""
        return KernelCrashGuard(self.fallbacks)
