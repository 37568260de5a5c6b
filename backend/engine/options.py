"""The options of an engine: its workers, the model to load first, and the limits of the data folder."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from backend.catalog.weights_here import matches_preset
from backend.engine.cleaning import NO_LIMITS, Limits
from backend.schemas.worker import Hosts, WorkerOptions
from backend.settings import Settings
from backend.shares import Share
from backend.workers.process import WorkerPlan
from presets import Preset, list_presets


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """The options of an engine.

    `model` is a checkpoint that replaces the presets' checkpoints. Without `start_worker`, each worker starts with its first
    job. `preset` is loaded first. With `resume`, jobs of earlier engines continue. `pipeline` replaces the pipeline in tests.
    Each part of `shares` gets one worker on this machine. `hosts` run one worker together. `cluster` is the address of a Ray
    cluster, with a worker on each free slice or node. `notify` are the operator's addresses, `webhooks` the allowed hosts.
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
    webhooks: Sequence[str] = ()

    def plan(self, settings: Settings) -> WorkerPlan:
        """Return the `WorkerPlan` that all workers have in common."""
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
        """Return a copy of `plan` for each worker of this machine, with its share and, if there are several, a numbered name."""
        if self.cluster is not None:
            return []
        if len(self.shares) == 1:
            return [replace(plan, share=self.shares[0])]
        return [replace(plan, share=share, name=f"{plan.name}-{number}") for number, share in enumerate(self.shares, 1)]


def choose_first_preset(model: str | None) -> Preset:
    """Return the preset to load first: the preset of the checkpoint, else a preset that can load it, else the first preset."""
    presets = list_presets()
    named = [preset for preset in presets if model in (preset.model, preset.model_source)]
    return next(iter(named), None) or next((preset for preset in presets if model and matches_preset(preset, model)), presets[0])
