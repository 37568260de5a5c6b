"""Load, replace and prepare the model that a worker uses, and report the worker's status, facts and job events to its engine."""

import functools
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

from backend.errors import DeviceError, KernelRefused, ModelError, StudioError, is_memory_short, one_line
from backend.pipeline.live_events import stop_when
from backend.schemas.events import Compiling, Event, Loading, Rate
from backend.schemas.request import GenerationRequest, example_request
from backend.schemas.settings import find_preset
from backend.schemas.shape import Shape
from backend.schemas.worker import CacheAction, UnusedAccelerator, WorkerFacts, WorkerState, WorkerStatus
from backend.workers.messages import Channel, Facts, JobEvent, Status
from backend.workers.multihost_sync import FAILED, MultihostSync
from backend.workers.pipeline import Pipeline
from backend.workers.prefetch import Key, Prefetch, Report
from presets import Preset

logger = logging.getLogger(__name__)


class Reports:
    """Sends reports from any thread. While the worker waits for other hosts, the last status is repeated to show progress."""

    def __init__(self, channel: Channel, sync: MultihostSync | None):
        self.channel, self.sync = channel, sync
        self._status: WorkerStatus | None = None

    def send_status(self, state: WorkerState, detail: str) -> None:
        self._status = WorkerStatus(state=state, detail=detail)
        self.channel.send(Status(status=self._status))

    def send_event(self, job_id: str, event: Event) -> None:
        self.channel.send(JobEvent(job_id=job_id, event=event))

    def decide(self, what: str, value: object) -> Any:
        """See `MultihostSync.decide`."""
        return value if self.sync is None else self.sync.decide(what, value)

    def gather(self, what: str, value: str = "") -> list[str]:
        """Return the values of all hosts. See `MultihostSync.gather`."""
        return [value] if self.sync is None else self.sync.gather(what, value, self._repeat_status)

    def _repeat_status(self) -> None:
        if self._status is not None:
            self.channel.send(Status(status=self._status))


class WorkerModel:
    """The model in use and the pipeline that runs it. The argument `model` is a checkpoint that replaces the presets'
    checkpoints. `jobs` returns the ids of the worker's jobs, without cancelled jobs."""

    def __init__(
        self, import_pipeline: Callable[[], Pipeline], model: str | None, reports: Reports, jobs: Callable[[], list[str]]
    ):
        self._import_pipeline, self._model = import_pipeline, model
        self._reports, self._sync, self._jobs = reports, reports.sync, jobs
        self.pipeline: Pipeline | None = None
        self.loaded: Any = None  # the result of the pipeline's `load`
        self.can_serve = False  # False if all requests are expected to fail
        self.rates: dict[str, Rate] = {}  # the last video's arithmetic speed by stage
        self._source: tuple[str, str] | None = None  # the checkpoint and the weight format of the model in use
        self._unused: UnusedAccelerator | None = None
        self.warm: set[Shape] = set()  # shapes with all programs compiled
        self._prefetch: Prefetch | None = None  # loads the model of the next job
        self._prefetch_lock = threading.Lock()
        self._next_preset: str | None = None

    @property
    def started(self) -> Pipeline:
        assert self.pipeline is not None, "`start` comes first"
        return self.pipeline

    def shape_for(self, request: GenerationRequest) -> Shape:
        return Shape.from_request(request, self._model)

    def load(
        self, preset: Preset, is_stopped: Callable[[], bool] = lambda: False, request: GenerationRequest | None = None
    ) -> None:
        """Use the preset's model from now on. Load it unless it is cached, while the programs of `request` are compiled. Other
        models are unloaded if memory is short. With several hosts `is_stopped` is ignored, because the hosts would stop at
        different places. Raises: Stopped about a second after `is_stopped` returns True."""
        wanted = self._key(preset)
        self.start()
        report = stop_when(is_stopped, self._report) if self._sync is None else self._report
        with self._prefetch_lock:
            fetch, self._prefetch = self._prefetch, None
        if fetch is not None and fetch.key == wanted:
            fetch.wait(self.shape_for(request) if request else None, report)
        elif fetch is not None:
            fetch.abandon()
        if not self.started.keeps_models:
            if self._source == wanted:
                return
        else:  # use the model from now on if all hosts have it cached
            if self._source != wanted and any(model.model == wanted[0] for model in self.started.model_cache.list_models()):
                self._reports.send_status("loading", "Restoring a cached model")
            kept = self.started.model_cache.activate(wanted)
            if "" not in self._reports.gather("kept", "yes" if kept is not None else ""):
                is_other = self._source != wanted
                self.loaded, self._source = kept, wanted
                if is_other:
                    self.report_facts()
                return
            self.started.model_cache.unload(wanted)
        self._reports.send_status("loading", f"Loading {preset.title}")
        files = self.started.check(preset, self._model, report)
        if len(set(self._reports.gather("checked", getattr(files, "files_hash", "")))) > 1:
            raise ModelError("The hosts have different files", "of this model", "download it again on each host")
        self.loaded = self._source = None
        self.loaded = self._load_with_retry(preset, report, files, request)
        self._source, self.can_serve = wanted, True
        self.warm = {shape for shape in self.warm if shape.model != wanted[0]}
        self.report_facts()

    def _key(self, preset: Preset) -> Key:
        return self._model or preset.model_source, preset.weight_format

    def _load_with_retry(self, preset: Preset, report: Report, files: Any, request: GenerationRequest | None) -> Any:
        """Load the model. If memory is short, unload the cached models and try again."""
        try:
            return self.started.load(preset, self._model, report, files=files, request=request)
        except Exception as error:
            if isinstance(error, StudioError) or not is_memory_short(error) or not self.unload_idle():
                raise
            logger.warning("Memory is short for this model (%s); unloading the other models", one_line(str(error))[:200])
        return self.started.load(preset, self._model, report, files=files, request=request)

    def unload_idle(self) -> bool:
        """Unload the cached models that are not in use. Return whether any was unloaded. With several hosts, do nothing: one host
        must not decide alone."""
        if self.pipeline is None or self._sync is not None or not self.pipeline.model_cache.unload_idle():
            return False
        self.report_facts()
        return True

    def expect_models(self, models: Sequence[str], preset: str | None) -> None:
        """Record the checkpoints that queued jobs need, and start to load the model of `preset` beside the current model."""
        self._next_preset = preset
        if self.pipeline is not None:
            self.started.model_cache.set_expected(models)
            self.prefetch_next()

    def prefetch_next(self) -> None:
        """Start to load the model that the next job needs, unless it is cached or the current model is still loading."""
        name = self._next_preset
        if name is None or not self._may_prefetch:
            return
        preset = find_preset(name)
        key = self._key(preset)
        assert self._source is not None, "checked by `_may_prefetch`"
        if key[0] not in {self._source[0], *(model.model for model in self.started.model_cache.list_models())}:
            self._start_prefetch(key, None, functools.partial(self._prefetch_model, preset))

    def prepare_for(self, request: GenerationRequest) -> None:
        """Prepare for this request while the worker is idle: load its model, if memory suffices, and compile its programs."""
        shape = self.shape_for(request)
        if not self._may_prefetch or shape in self.warm:
            return
        preset = request.resolved_preset
        key, model_cache = self._key(preset), self.started.model_cache

        def compile_ahead(tell: Report) -> None:
            loaded = model_cache.peek(key)
            if loaded is None:  # it was unloaded to free memory for another model
                return
            for event in self.started.warm_up(loaded, request):
                tell(event)
            self.warm.add(shape)
            self.report_facts()

        self._start_prefetch(key, shape, functools.partial(self._prefetch_model, preset), compile_ahead)

    @property
    def _may_prefetch(self) -> bool:
        """True if another model may be loaded next to the model in use, which several hosts do not do."""
        return self._source is not None and self._sync is None and self.started.keeps_models

    def _prefetch_model(self, preset: Preset, tell: Report) -> None:
        if self.started.model_cache.peek(self._key(preset)) is None:
            files = self.started.check(preset, self._model, tell)
            self.started.load(preset, self._model, tell, files=files, is_used=False)
            self.report_facts()

    def _start_prefetch(self, key: Key, shape: Shape | None, *work: Callable[[Report], None]) -> None:
        with self._prefetch_lock:
            if shape is not None and self._jobs():  # a job has arrived, and its `load` abandons the prefetch
                return
            before = self._prefetch
            if before is not None and before.is_running:
                if before.key == key and shape in (None, before.shape):
                    return
                before.abandon()
            self._prefetch = Prefetch(key, work[0], shape, *work[1:])

    def manage(self, model: str, how: CacheAction) -> None:
        """Apply the operator's choice for a cached model. A model in use is not unloaded."""
        if self.pipeline is None:
            return
        if how == "drop":
            self.started.model_cache.unload_idle(model)
        else:
            self.started.model_cache.pin(model, how == "pin")
        self.report_facts()

    def reload_without_kernel(
        self, refused: KernelRefused, preset: Preset, is_stopped: Callable[[], bool] = lambda: False
    ) -> None:
        """Load the model again without the refused kernel. Raises: Stopped."""
        logger.warning("%s; loading the model again without this kernel", refused.cause)
        self._reports.gather(failure_outcome(refused))
        self.started.model_cache.unload(self._key(preset))
        self.loaded = self._source = None
        self.load(preset, is_stopped)

    def warm_up(self, preset: Preset) -> None:
        """Compile the preset's shapes ahead. Reload the model without refused kernels. Stop as soon as a job waits."""
        request = example_request(preset)
        while True:
            try:
                self._reports.send_status("warming", "Compiling before the first video")
                for event in self.started.warm_up(self.loaded, request):
                    # Only the hosts that have a program's file report that it was loaded, so that event must not start a sync.
                    is_loaded = isinstance(event, Compiling) and event.is_loaded
                    if not is_loaded and self._reports.decide("waiting", bool(self._jobs())):
                        return
                    if isinstance(event, Compiling):
                        detail = f"Loaded {event.what} precompiled" if event.is_loaded else f"Compiling {event.what}"
                        self._reports.send_status("warming", detail)
                self.warm.add(self.shape_for(request))
                return
            except KernelRefused as refused:
                self.reload_without_kernel(refused, preset)

    def report_facts(self) -> None:
        """Send the `WorkerFacts`. Their `warm` shapes are only the shapes of models that are still loaded or cached."""
        kept = self.started.model_cache.list_models()
        models = {model.model for model in kept} | ({self._source[0]} if self._source else set())
        self.warm = {shape for shape in self.warm if shape.model in models}
        facts = WorkerFacts(
            devices=tuple(self.started.device_facts()),
            model=self._source[0] if self._source else None,
            cached_models=kept,
            cached_bytes=self.started.model_cache.count_bytes(),
            warm=frozenset(self.warm),
            versions=getattr(self.loaded, "versions", {}),
            refused=self.started.refusals(),
            notice=self._unused,
            rates=self.rates,
            can_prepare=self._may_prefetch,
        )
        self._reports.channel.send(Facts(facts=facts))

    def start(self) -> None:
        """Import the pipeline and initialize the devices, once. Raises: DeviceError."""
        if self.pipeline is not None:
            return
        self._reports.send_status("loading", "Starting the runtime")
        pipeline = self._import_pipeline()
        try:
            self._unused = pipeline.find_unused(pipeline.device_facts())
        except Exception as error:
            self._unused = pipeline.find_unused(error)
            if self._unused is None:
                raise
            self._reports.channel.send(Facts(facts=WorkerFacts(notice=self._unused)))
            raise DeviceError(self._unused.found, fix=self._unused.fix) from error
        pipeline.disable_crashed_kernels(lambda own: self._reports.gather("without", own))
        self.pipeline, self.can_serve = pipeline, self._model is None

    def _report(self, event: Event) -> None:
        """Report the progress of loading, as the worker's status and as an event of each waiting job."""
        if isinstance(event, Loading):
            done, total, speed = event.bytes_done, event.bytes_total, event.bytes_per_second
            pace = f", {speed / 1e6:.1f} MB/s, {(total - done) / speed:.0f} s left" if speed else ""
            progress = f" ({done / 1e6:.0f} of {total / 1e6:.0f} MB{pace})" if total else ""
            self._reports.send_status("loading", f"Loading {event.what}{progress}")
        elif isinstance(event, Compiling):  # the weights are loaded, but the programs are not all compiled
            self._reports.send_status("warming", f"Compiling {event.what}")
        for job_id in self._jobs():
            self._reports.send_event(job_id, event)


def failure_outcome(error: Exception) -> str:
    """Return a text for `gather` that is equal on all hosts if the same kind of error occurred on all hosts."""
    return f"{FAILED}{type(error).__name__}"
