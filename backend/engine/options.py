"""How an engine starts: which workers, with what loaded first, and how much the videos may take."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from backend.catalog.weights_here import fits
from backend.engine.cleaning import NO_LIMITS, Limits
from backend.schemas.worker import Hosts, WorkerOptions
from backend.settings import Settings
from backend.shares import Share
from backend.workers.process import WorkerPlan
from presets import Preset, list_presets


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """The workers are one for each of this machine's `shares`, reached through `transport`; or one that is spread over several
    `hosts`; or, with a `cluster`'s address, one for each of its machines, as they come and go.

    `model` replaces the presets' checkpoint, `preset` is loaded first, `warm_up` compiles its shapes ahead,
    `resume` continues with the jobs that earlier engines left, `pipeline` names a stand-in module for tests, `options` say
    how a worker uses its devices, `limits` how much the videos may take on the disk.
    Without `start_worker` the processes start with their first jobs. With `has_standby` another process waits beside each worker
    of this machine, so that one that dies is soon replaced. `notify` are the addresses at which the operator is told of the end
    of their own videos (see `backend.engine.notifications`).
    """

    model: str | None = None
    start_worker: bool = True
    preset: str | None = None
    warm_up: bool = True
    resume: bool = True
    pipeline: str | None = None
    options: WorkerOptions | None = None
    shares: Sequence[Share] = (Share(),)
    transport: str = "process"
    hosts: Hosts | None = None
    cluster: str | None = None
    limits: Limits = NO_LIMITS
    has_standby: bool = False
    notify: Sequence[str] = ()

    def plan(self, settings: Settings) -> WorkerPlan:
        """What all workers have in common."""
        return WorkerPlan(
            preset=self.preset or choose_first_preset(self.model).name,
            model=self.model,
            warm_up=self.warm_up,
            settings=settings,
            pipeline=self.pipeline,
            options=self.options or WorkerOptions(),
            transport="hosts" if self.hosts else self.transport,
            hosts=self.hosts,
            has_standby=self.has_standby,
        )

    def plans(self, plan: WorkerPlan) -> list[WorkerPlan]:
        """The plan of each worker of this machine; if there are several, their names are numbered."""
        if self.cluster is not None:
            return []
        if len(self.shares) == 1:
            return [replace(plan, share=self.shares[0])]
        return [replace(plan, share=share, name=f"{plan.name}-{number}") for number, share in enumerate(self.shares, 1)]


def choose_first_preset(model: str | None) -> Preset:
    """The preset to load first: the one made for this checkpoint, else one of its kind, else the first of all."""
    presets = list_presets()
    named = [preset for preset in presets if model in (preset.model, preset.model_source)]
    return next(iter(named), None) or next((preset for preset in presets if model and fits(preset, model)), presets[0])
