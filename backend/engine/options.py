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

    Attributes:
        model: a checkpoint that replaces the presets' checkpoints.
        start_worker: if False, each worker process starts with its first job.
        preset: the preset whose model is loaded first.
        warm_up: compile the preset's shapes ahead.
        resume: continue the jobs of earlier engines.
        pipeline: a module that replaces the pipeline in tests.
        options: how a worker uses its devices.
        shares: the parts of this machine. Each part gets one worker.
        transport: how the engine reaches the workers of this machine.
        hosts: several hosts that run one worker together.
        cluster: the address of a Ray cluster. A worker runs on each free slice or node of the cluster.
        limits: the limits of the data folder.
        has_standby: start a standby process for each worker of this machine, which replaces a dead worker quickly.
        notify: the addresses that are notified when the operator's videos end (see `backend.engine.notifications`).
        webhooks: the hosts to which the engine may report the end of programs' videos (see `backend.engine.webhooks`).
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
        """Return the `WorkerPlan` that all workers have in common: which model a worker loads, and how it runs."""
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
        """Return a copy of the common `plan` for each worker of this machine, with the worker's part of the machine.

        If the machine has several workers, the copies get numbered names.
        """
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
