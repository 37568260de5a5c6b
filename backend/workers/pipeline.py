"""The pipeline as a worker uses it: its functions, imported late, because they import jax."""

import functools
import importlib
from collections.abc import Callable, Generator, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, Protocol

from backend.schemas.events import Event, Proposal
from backend.schemas.prompt_cues import Cue
from backend.schemas.request import GenerationRequest
from backend.schemas.worker import CachedModel, Device, HostPlace, UnusedAccelerator
from backend.settings import from_environment
from backend.workers.unused_accelerator import find_unused
from presets import Preset

Key = tuple[str, str]  # a checkpoint and the dtype that its model is kept in


class ModelCache(Protocol):
    """Kept models, by their checkpoint and dtype; see `backend.pipeline.model_cache`."""

    def activate(self, key: Key) -> Any | None:
        """The kept model, in use from now on; None if there is none, or its files have changed."""

    def peek(self, key: Key) -> Any | None:
        """The kept model, which changes nothing."""

    def set_expected(self, models: Sequence[str]) -> None:
        """Jobs in line need the models of these checkpoints."""

    def pin(self, model: str, is_pinned: bool) -> None:
        """This checkpoint's model is to stay, or no longer."""

    def unload(self, key: Key) -> None:
        """Forgets a model."""

    def unload_idle(self, model: str | None = None) -> bool:
        """Forgets all that are not in use, or this one; whether there was any."""

    def list_models(self) -> tuple[CachedModel, ...]:
        """What is kept, the model used last first."""

    def count_bytes(self) -> tuple[int, int]:
        """What they take on the devices and on the host."""


class NoModelCache(ModelCache):
    """None is kept, and what keeps some does nothing: of pipelines that stand in for ours."""

    def unload_idle(self, model: str | None = None) -> bool:
        return False

    def list_models(self) -> tuple[CachedModel, ...]:
        return ()

    def count_bytes(self) -> tuple[int, int]:
        return 0, 0


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """The functions that a worker needs; imported late, because they import jax. `check` returns the files of a model, which
    `load` takes. An exception from the event function ends `check` and `load`. `find_unused` says which accelerator is not used
    and why, from the devices or from the error in their place. `recall` withdraws the kernels that ended an earlier process, and
    is given what makes one host's list those of all; `excuse` is called before the process ends because it is asked to.
    `would_fit` finds what to propose for a request that has run out of memory; it tells of each compilation before it begins.
    `model_cache` are the models that `load` keeps; without them it keeps none."""

    check: Callable[[Preset, str | None, Callable[[Event], None]], Any]
    load: Callable[..., Any]
    warm_up: Callable[[Any, GenerationRequest], Generator[Event]]
    generate: Callable[[GenerationRequest, Any, Path, Callable[[], bool]], Generator[Event]]
    live: Callable[[GenerationRequest, Any, Path, Callable[[], bool], Callable[[], list[Cue]]], Generator[Event]]
    device_facts: Callable[[], list[Device]]
    find_unused: Callable[[Sequence[Device] | Exception], UnusedAccelerator | None]
    refusals: Callable[[], tuple[str, ...]]
    recall: Callable[[Callable[[str], list[str]]], object]
    excuse: Callable[[], object]
    would_fit: Callable[[GenerationRequest, Callable[[Event], None]], tuple[Proposal, ...]]
    model_cache: ModelCache = field(default_factory=NoModelCache)

    @property
    def keeps_models(self) -> bool:
        """Whether a model may come back."""
        return not isinstance(self.model_cache, NoModelCache)


def import_ahead(module: str | None) -> None:
    """Imports what `import_pipeline` needs, and the families' networks; touches no device."""
    if module is not None:
        importlib.import_module(module)
        return
    for name in ("pipeline.load", "pipeline.model_cache", "pipeline.storyboard", "pipeline.memory_suggestions"):
        importlib.import_module(f"backend.{name}")
    from backend.models import FAMILIES

    for family in FAMILIES:
        family.model()


def import_pipeline(
    module: str | None,
    profile: tuple[Path, str] | None = None,
    place: HostPlace | None = None,
    resident_gb: tuple[float | None, float | None] = (None, None),
    **options: Any,
) -> Pipeline:
    """The real pipeline, which loads with these options; or, for tests, a module that has all its functions. `profile` is a
    folder for traces, and the steps that are traced. The process joins those of other hosts, if it has a `place` among them.
    `resident_gb` bounds the models that are kept beside the one in use, on the devices and in the host's memory."""
    if module is not None:
        stand_in = importlib.import_module(module)
        needed = [one.name for one in fields(Pipeline) if one.default_factory is MISSING or hasattr(stand_in, one.name)]
        return Pipeline(**{name: getattr(stand_in, name) for name in needed})
    from backend.runtime import hosts

    if place is not None:
        hosts.join_hosts(place.index, place.count, place.coordinator, place.bind)
    from backend.pipeline.live import live
    from backend.pipeline.load import load
    from backend.pipeline.memory_suggestions import suggest_smaller_requests
    from backend.pipeline.model_cache import Bounds, ModelCache
    from backend.pipeline.model_files import check_model
    from backend.pipeline.profiling import Profile
    from backend.pipeline.storyboard import generate_video
    from backend.pipeline.warm_up import warm_up
    from backend.runtime.devices import device_facts
    from backend.runtime.kernel_crash_guard import KERNEL_CRASH_GUARD
    from backend.runtime.kernel_fallbacks import KERNEL_FALLBACKS

    if profile is not None:
        first, last = map(int, profile[1].split("-"))
        generate_video = functools.partial(generate_video, profile=Profile(folder=profile[0], first=first, last=last))
    chips, host = (None if gigabytes is None else int(gigabytes * 1e9) for gigabytes in resident_gb)
    model_cache = ModelCache(functools.partial(Bounds.for_this_process, chips=chips, host=host))
    return Pipeline(
        check=check_model,
        load=functools.partial(load, model_cache=model_cache, **options),
        warm_up=lambda loaded, request: warm_up(loaded.model, request),
        generate=generate_video,
        live=live,
        device_facts=device_facts,
        refusals=KERNEL_FALLBACKS.sentences,
        recall=functools.partial(KERNEL_CRASH_GUARD.withdraw_recorded, from_environment().kernels_dir),
        excuse=KERNEL_CRASH_GUARD.forget_recent_runs,
        find_unused=find_unused,
        would_fit=functools.partial(suggest_smaller_requests, mesh=options.get("mesh")),
        model_cache=model_cache,
    )
