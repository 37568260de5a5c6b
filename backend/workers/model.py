"""The model that a worker uses: how it is loaded, replaced, and compiled ahead. Knows no jobs but those that wait for it."""

import functools
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

from backend.errors import DeviceError, KernelRefused, ModelError, StudioError, is_memory_short, one_line
from backend.pipeline.live_events import stop_when
from backend.schemas.events import Compiling, Event, Loading, Rate
from backend.schemas.request import GenerationRequest, example_request, find_preset
from backend.schemas.shape import Shape
from backend.schemas.worker import CacheAction, UnusedAccelerator, WorkerFacts
from backend.workers.failures import failure_outcome
from backend.workers.multihost_sync import MultihostSync
from backend.workers.pipeline import Key, Pipeline
from backend.workers.prefetch import Prefetch
from backend.workers.reports import Reports
from backend.workers.tasks import Tasks
from presets import Preset

logger = logging.getLogger(__name__)


class WorkerModel:
    """One model at a time, with the pipeline that runs it and may keep others. A `model` given here replaces the presets' own."""

    def __init__(
        self, import_pipeline: Callable[[], Pipeline], model: str | None, reports: Reports, sync: MultihostSync, tasks: Tasks
    ):
        self._import_pipeline, self._model = import_pipeline, model
        self._reports, self._sync, self._tasks = reports, sync, tasks
        self.pipeline: Pipeline | None = None
        self.loaded: Any = None  # what the pipeline's `load` returned
        self.can_serve = False  # whether any request can be served, as far as is known
        self.rates: dict[str, Rate] = {}  # of the last video
        self._source: tuple[str, str] | None = None  # the checkpoint and the dtype
        self._unused: UnusedAccelerator | None = None
        self._warm: set[Shape] = set()  # whose programs are all compiled
        self._prefetch: Prefetch | None = None  # the model that the next job needs, on its way
        self._prefetch_lock = threading.Lock()
        self._next_preset: str | None = None

    @property
    def started(self) -> Pipeline:
        """The pipeline, after `start`."""
        assert self.pipeline is not None, "`start` comes first"
        return self.pipeline

    def shape_for(self, request: GenerationRequest) -> Shape:
        """What is compiled for this request."""
        return Shape.from_request(request, self._model)

    def mark_warm(self, request: GenerationRequest) -> None:
        """All programs of this request are compiled."""
        self._warm.add(self.shape_for(request))

    def load(
        self, preset: Preset, is_stopped: Callable[[], bool] = lambda: False, request: GenerationRequest | None = None
    ) -> None:
        """Makes the preset's model the one in use. One that is kept comes back; another is loaded, and meanwhile the programs of
        the `request` are made ready. The models before it give up their places only when the new one's files are here and
        checked, but before they are loaded: memory may not hold all. Raises: Stopped about a second after `is_stopped`, but on
        several hosts, which would stop at different places.
        """
        wanted = self._key(preset)
        self.start()
        report = stop_when(is_stopped, self._report) if self._sync.is_alone else self._report
        self._finish_prefetch(wanted, self.shape_for(request) if request else None, report)
        if self._use_cached(wanted):
            return
        self._reports.send_status("loading", f"Loading {preset.title}")
        files = self.started.check(preset, self._model, report)
        if len(set(self._reports.gather("checked", getattr(files, "files_hash", "")))) > 1:
            raise ModelError("The hosts have different files", "of this model", "download it anew on each of them")
        self.loaded = self._source = None
        self.loaded = self._load_with_retry(preset, report, files, request)
        self._source, self.can_serve = wanted, True
        self._warm = {shape for shape in self._warm if shape.model != wanted[0]}
        self.report_facts()

    def _key(self, preset: Preset) -> Key:
        return self._model or preset.model_source, preset.dtype

    def _use_cached(self, wanted: Key) -> bool:
        """Whether this model is in use from now on, because it was in use or kept; on several hosts, on each of them."""
        if not self.started.keeps_models:
            return self._source == wanted
        if self._source != wanted and any(model.model == wanted[0] for model in self.started.model_cache.list_models()):
            self._reports.send_status("loading", "Restoring a cached model")
        kept = self.started.model_cache.activate(wanted)
        if "" in self._reports.gather("kept", "yes" if kept is not None else ""):
            self.started.model_cache.unload(wanted)
            return False
        is_other = self._source != wanted
        self.loaded, self._source = kept, wanted
        if is_other:
            self.report_facts()
        return True

    def _load_with_retry(
        self, preset: Preset, report: Callable[[Event], None], files: object, request: GenerationRequest | None
    ) -> Any:
        """The model, loaded; where memory is short for it beside those that are kept, without them."""
        try:
            return self.started.load(preset, self._model, report, files=files, request=request)
        except Exception as error:
            if isinstance(error, StudioError) or not is_memory_short(error) or not self.unload_idle():
                raise
            logger.warning("Memory is short for this model (%s); the others are dropped", one_line(str(error))[:200])
        return self.started.load(preset, self._model, report, files=files, request=request)

    def unload_idle(self) -> bool:
        """Forgets the kept models that are not in use; whether there was any. On several hosts none: one may not decide alone."""
        if self.pipeline is None or not self._sync.is_alone or not self.pipeline.model_cache.unload_idle():
            return False
        self.report_facts()
        return True

    def expect_models(self, models: Sequence[str], preset: str | None) -> None:
        """Jobs in line need these checkpoints' models; this preset's is fetched while another is in use."""
        self._next_preset = preset
        if self.pipeline is not None:
            self.started.model_cache.set_expected(models)
            self.prefetch_next()

    def prefetch_next(self) -> None:
        """Begins to fetch the model that the next job needs, unless it is kept or the present one is still being loaded."""
        name = self._next_preset
        if name is None or not self._may_prefetch:
            return
        preset = find_preset(name)
        key = self._key(preset)
        assert self._source is not None, "`_may_prefetch` says so"
        if key[0] not in {self._source[0], *(model.model for model in self.started.model_cache.list_models())}:
            self._start_prefetch(key, None, functools.partial(self._prefetch_model, preset))

    def prepare_for(self, request: GenerationRequest) -> None:
        """Makes ready, while no job is there, what this request would need: its model, if it has room beside the one in use, and
        its programs."""
        shape = self.shape_for(request)
        if not self._may_prefetch or shape in self._warm:
            return
        preset = find_preset(request.preset)
        key, model_cache = self._key(preset), self.started.model_cache

        def load(tell: Callable[[Event], None]) -> None:
            if model_cache.peek(key) is None:
                self._prefetch_model(preset, tell)

        def compile_ahead(tell: Callable[[Event], None]) -> None:
            for event in self.started.warm_up(model_cache.peek(key), request):
                tell(event)
            self.mark_warm(request)
            self.report_facts()

        self._start_prefetch(key, shape, load, compile_ahead)

    @property
    def _may_prefetch(self) -> bool:
        """Whether there is a model in use, and others may come beside it; on several hosts one may not decide alone."""
        return self._source is not None and self._sync.is_alone and self.started.keeps_models

    def _prefetch_model(self, preset: Preset, tell: Callable[[Event], None]) -> None:
        files = self.started.check(preset, self._model, tell)
        self.started.load(preset, self._model, tell, files=files, is_used=False)
        self.report_facts()

    def _start_prefetch(self, key: Key, shape: Shape | None, *work: Callable[[Callable[[Event], None]], None]) -> None:
        with self._prefetch_lock:
            if shape is not None and self._tasks.uncancelled():  # a job has come: it gives up what is on its way, under this lock
                return
            before = self._prefetch
            if before is not None and before.is_running:
                if before.key == key and shape in (None, before.shape):
                    return
                before.abandon()
            self._prefetch = Prefetch(key, work[0], shape, *work[1:])

    def _finish_prefetch(self, wanted: Key, shape: Shape | None, report: Callable[[Event], None]) -> None:
        """Waits for the wanted model, and for programs of this shape, if they are on their way; gives up all else."""
        with self._prefetch_lock:
            fetch, self._prefetch = self._prefetch, None
        if fetch is not None and fetch.key == wanted:
            fetch.wait(shape, report)
        elif fetch is not None:
            fetch.abandon()

    def manage(self, model: str, how: CacheAction) -> None:
        """What the operator asks for a kept model; one that is in use is not dropped."""
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
        """Loads the model again, to be laid out without the refused kernel. Raises: Stopped."""
        logger.warning("%s; loading the model again, to be laid out without it", refused.cause)
        self._reports.gather(failure_outcome(refused))
        self.started.model_cache.unload(self._key(preset))
        self.loaded = self._source = None
        self.load(preset, is_stopped)

    def warm_up(self, preset: Preset) -> None:
        """Compiles the preset's own shapes ahead, on the model laid out without kernels that are refused; stops as soon as a job
        waits."""
        while True:
            try:
                return self._warm_up(example_request(preset))
            except KernelRefused as refused:
                self.reload_without_kernel(refused, preset)

    def _warm_up(self, request: GenerationRequest) -> None:
        self._reports.send_status("warming", "Compiling before the first video")
        for event in self.started.warm_up(self.loaded, request):
            if not is_from_file(event) and self._sync.decide("waiting", self._tasks.has_waiting()):
                return
            if isinstance(event, Compiling):
                detail = f"Loaded {event.what} precompiled" if event.is_loaded else f"Compiling {event.what}"
                self._reports.send_status("warming", detail)
        self.mark_warm(request)

    def report_facts(self) -> None:
        """Sends the facts. What was compiled for a model that is kept no longer has gone with it."""
        kept = self.started.model_cache.list_models()
        models = {model.model for model in kept} | ({self._source[0]} if self._source else set())
        self._warm = {shape for shape in self._warm if shape.model in models}
        facts = WorkerFacts(
            devices=tuple(self.started.device_facts()),
            model=self._source[0] if self._source else None,
            kept=kept,
            kept_bytes=self.started.model_cache.count_bytes(),
            warm=frozenset(self._warm),
            versions=getattr(self.loaded, "versions", {}),
            refused=self.started.refusals(),
            notice=self._unused,
            rates=self.rates,
        )
        self._reports.send_facts(facts)

    def start(self) -> None:
        """Imports the pipeline and asks for the devices, once. Then a preset may run, unless one model replaces all. Raises:
        DeviceError."""
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
            self._reports.send_facts(WorkerFacts(notice=self._unused))
            raise DeviceError(self._unused.found, fix=self._unused.mend) from error
        pipeline.recall(lambda own: self._reports.gather("without", own))
        self.pipeline, self.can_serve = pipeline, self._model is None

    def _report(self, event: Event) -> None:
        """Reports the progress of loading, as the worker's status and as an event of each job that waits for it."""
        if isinstance(event, Loading):
            self._reports.send_status("loading", f"Loading {event.what}{_share(event)}")
        elif isinstance(event, Compiling):  # the weights are here, and a program that was begun meanwhile is not ready
            self._reports.send_status("warming", f"Compiling {event.what}")
        for task in self._tasks.uncancelled():
            self._reports.send_event(task.job_id, event)


def is_from_file(event: Event) -> bool:
    """Whether this is about a program that was read from a file, which one host may have and another may not."""
    return isinstance(event, Compiling) and event.is_loaded


def _share(event: Loading) -> str:
    if not event.bytes_total:
        return ""
    speed, left = event.bytes_per_second, event.bytes_total - event.bytes_done
    pace = f", {speed / 1e6:.1f} MB/s, {left / speed:.0f} s left" if speed else ""
    return f" ({event.bytes_done / 1e6:.0f} of {event.bytes_total / 1e6:.0f} MB{pace})"
