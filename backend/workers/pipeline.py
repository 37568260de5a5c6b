"""The pipeline's functions for a worker. They are imported late, because they import jax."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backend.schemas.events import Event, Proposal
from backend.schemas.prompt_cues import Cue
from backend.schemas.request import GenerationRequest
from backend.schemas.worker import Device, HostPlace, UnusedAccelerator
from backend.settings import from_environment
from backend.workers.unused_accelerator import find_unused
from presets import Preset

if TYPE_CHECKING:
    from backend.pipeline.loaded import LoadedModel
    from backend.pipeline.model_cache import ModelCache
    from backend.pipeline.model_files import ModelFiles


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """The functions of the pipeline that a worker calls.

    Attributes:
        check: returns the files of a model for `load`. `check` and `load` pass each event to a function, and stop if it raises.
        find_unused: returns which accelerator is unused and why. Its argument is jax's devices, or the error that jax raised.
        refusals: returns a sentence for each kernel or compile option that the chip or the compiler refused.
        disable_crashed_kernels: disables the kernels that crashed an earlier process on any host. Its argument is a function that
            exchanges this host's list of such kernels for the merged list of all hosts.
        forget_running_kernels: is called before the process ends on request, so that a running kernel does not count as crashed.
        keeps_models: False if `model_cache` is always empty.
    """

    check: Callable[[Preset, str | None, Callable[[Event], None]], ModelFiles]
    load: Callable[..., LoadedModel]  # `backend.pipeline.load.load` with its options bound
    warm_up: Callable[[LoadedModel, GenerationRequest], Generator[Event]]
    generate: Callable[[GenerationRequest, LoadedModel, Path, Callable[[], bool]], Generator[Event]]
    live: Callable[[GenerationRequest, LoadedModel, Path, Callable[[], bool], Callable[[], list[Cue]]], Generator[Event]]
    draft: Callable[[GenerationRequest, LoadedModel, Path, Callable[[], bool]], Generator[Event]]
    device_facts: Callable[[], list[Device]]
    find_unused: Callable[[Sequence[Device] | Exception], UnusedAccelerator | None]
    refusals: Callable[[], tuple[str, ...]]
    disable_crashed_kernels: Callable[[Callable[[str], list[str]]], object]
    forget_running_kernels: Callable[[], object]
    suggest_smaller_requests: Callable[[GenerationRequest, Callable[[Event], None]], tuple[Proposal, ...]]
    model_cache: ModelCache
    keeps_models: bool = True


def import_ahead(module: str | None) -> None:
    """Import the modules that `import_pipeline` needs and the networks of all model families, without the devices."""
    if module is not None:
        importlib.import_module(module)
        return
    for name in ("pipeline.load", "pipeline.model_cache", "pipeline.storyboard", "pipeline.memory_suggestions"):
        importlib.import_module(f"backend.{name}")
    from backend.models import FAMILIES

    for family in FAMILIES.values():
        family.model()


def import_pipeline(
    module: str | None,
    profile: tuple[Path, str] | None = None,
    place: HostPlace | None = None,
    resident_gb: tuple[float | None, float | None] = (None, None),
    **options: Any,
) -> Pipeline:
    """Import the pipeline and bind its options, or import a module with the same functions for tests. `profile` is a folder for
    traces, and the steps to trace, such as "3-5". With `place`, the process joins a group of hosts. `resident_gb` are the most
    gigabytes of cached models, on the devices and in host memory. `options` are for `backend.pipeline.load.load`."""
    if module is not None:
        stand_in = importlib.import_module(module)
        return Pipeline(**{one.name: getattr(stand_in, one.name) for one in fields(Pipeline)})
    from backend.runtime.hosts import Place

    own = Place()
    if place is not None:  # before jax looks for devices, so that it sees the devices of all hosts
        import jax

        jax.distributed.initialize(place.coordinator, place.count, place.index, coordinator_bind_address=place.bind)
        own = Place(index=place.index, count=place.count)
    from backend.pipeline.instant import generate_draft
    from backend.pipeline.live import live
    from backend.pipeline.load import load
    from backend.pipeline.memory_suggestions import suggest_smaller_requests
    from backend.pipeline.model_cache import Bounds, ModelCache
    from backend.pipeline.model_files import check_model
    from backend.pipeline.profiling import Profile
    from backend.pipeline.storyboard import generate_video
    from backend.pipeline.warm_up import warm_up
    from backend.runtime.context import RuntimeContext
    from backend.runtime.devices import device_facts

    runtime, traced = RuntimeContext(place=own), None
    if profile is not None:
        first, last = map(int, profile[1].split("-"))
        traced = Profile(folder=profile[0], first=first, last=last)
    chips, host = (None if gigabytes is None else int(gigabytes * 1e9) for gigabytes in resident_gb)
    model_cache = ModelCache(functools.partial(Bounds.for_this_process, chips=chips, host=host, is_alone=own.is_alone))
    return Pipeline(
        check=check_model,
        load=functools.partial(load, model_cache=model_cache, runtime=runtime, **options),
        warm_up=lambda loaded, request: warm_up(loaded.model, request),
        generate=functools.partial(generate_video, profile=traced, runtime=runtime),
        live=live,
        draft=generate_draft,
        device_facts=device_facts,
        refusals=runtime.fallbacks.sentences,
        disable_crashed_kernels=functools.partial(runtime.crash_guard.withdraw_recorded, from_environment().kernels_dir),
        forget_running_kernels=runtime.crash_guard.forget_recent_runs,
        find_unused=find_unused,
        suggest_smaller_requests=functools.partial(suggest_smaller_requests, mesh=options.get("mesh"), runtime=runtime),
        model_cache=model_cache,
    )
