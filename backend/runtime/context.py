"""The objects that all models of a process share. The main function of a worker or a command creates them once."""

import dataclasses
import functools

from backend.runtime.hosts import Place
from backend.runtime.kernel_crash_guard import KernelCrashGuard
from backend.runtime.kernel_fallbacks import KernelFallbacks


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class RuntimeContext:
    """The place of the process among the hosts, and the compile options and kernels that the process does not use.

    Each `Layout` has a reference to the context. Programs read the context through their layout.
    """

    place: Place = Place()
    fallbacks: KernelFallbacks = dataclasses.field(default_factory=KernelFallbacks)

    @functools.cached_property
    def crash_guard(self) -> KernelCrashGuard:
        """The object that withdraws kernels which fail, crash or hang when a program runs for the first time."""
        return KernelCrashGuard(self.fallbacks)
