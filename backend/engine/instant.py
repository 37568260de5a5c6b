"""Instant drafts: small clips that a page requests while the visitor types.

A draft is not a job. It has no place in the queue, no events in the store and no files except copies of its inputs, which are
deleted when the draft ends. Drafts run while no video waits or, if the workers share one machine's processors, runs.
"""

import shutil
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex
from threading import Condition
from typing import Any, Literal

from backend.errors import Busy, RequestError
from backend.schemas.events import DraftFinished, Event, Failed, Interrupted
from backend.schemas.geometry import nearest_values
from backend.schemas.numbers import nearest_lengths
from backend.schemas.request import GenerationRequest
from backend.schemas.shape import Shape
from backend.worker_pool.pool import WorkerPool
from backend.worker_pool.supervisor import Supervisor
from presets import Preset

MOST_OF_ADDRESS, MOST_IN_ALL = 8, 40
"""The most drafts in progress, for one network address and in total."""
MOST_FRAMES = 13  # 0.8 s at 16 frames per second; the decoder takes most of a draft's time, and it grows with each frame
MOST_EVALUATIONS = 16  # limit of the transformer's evaluations per draft; a guided step needs two evaluations
MOST_DEATHS, QUIET_SECONDS = 2, 600.0  # drafts are refused if this many drafts crashed workers within this time

DraftResult = DraftFinished | Failed | Literal["replaced"] | None
"""A draft's final event, "replaced" after its owner requested a newer draft, None if it was stopped or its worker ended."""

DRAFT_INPUTS = frozenset({"image", "last_image", "sound"})
"""The inputs of videos that have an instant draft. A draft has no sound."""

_OFF: dict[str, object] = {
    "step_cache": 0.0,
    "mag_cache": 0.0,
    "progressive": 0,
    "sparse": 0.0,
    "cfg_zero": False,
    "context_windows": None,
    "upscale": 0,
    "upscaler": "",
    "sound": None,
    "sound_start": 0.0,
}
"""Settings that save nothing, or change nothing that is visible, in few steps and frames."""


def choose_preset(request: GenerationRequest, others: Sequence[Preset]) -> Preset:
    """Return the request's preset or one of `others`: the preset whose draft needs the fewest evaluations of the transformer.

    Presets with other LoRAs are left out, because merging LoRAs takes as long as loading a model. The method of sparse attention
    does not count, because it hardly changes the steps of a draft (docs/performance.md).
    """
    own = request.resolved_preset
    needed = {"t2v": set(), "i2v": {"image"}}[request.task] | ({"last_image"} if request.last_image else set())
    fitting = [
        preset
        for preset in others
        if request.task in preset.tasks and preset.loras == own.loras and needed <= preset.inputs.keys() and not preset.live
    ]
    return min([own, *fitting], key=lambda preset: _draft_steps(preset, preset.steps) * (2 if max(preset.guidance) > 1 else 1))


def draft_request(request: GenerationRequest, preset: Preset) -> GenerationRequest:
    """Return the request of an instant draft, with the prompt, image and seed of `request`.

    It keeps the request's `quantize`, so that the model in memory can be used.
    Raises: RequestError for storyboards, live videos, and requests with inputs other than `DRAFT_INPUTS`.
    """
    if request.shots or request.is_open or request.inputs().keys() - DRAFT_INPUTS:
        raise RequestError("this video", "has no instant draft: only text and image to video have", "press Generate")
    scale = min(1.0, max(preset.min_width, preset.min_height) / min(request.width, request.height))
    given: dict[str, Any] = {"num_frames": nearest_lengths(min(request.num_frames, MOST_FRAMES), preset)[0]}
    limits = {"width": (preset.min_width, preset.max_width), "height": (preset.min_height, preset.max_height)}
    for name, limit in limits.items():
        side = getattr(request, name) * scale
        given[name] = min(nearest_values(round(side), preset.size_multiple, *limit), key=lambda one: abs(one - side))
    if preset.name == request.preset:
        return request.with_changes(**given, **_OFF, steps=_draft_steps(preset, request.steps))
    names = ("prompt", "negative_prompt", "image", "last_image", "image_focus", "loras", "seed", "quantize")
    own = {name: getattr(request, name) for name in names}
    return GenerationRequest.from_preset(preset, **own, **given, **_OFF, steps=_draft_steps(preset, preset.steps))


def _draft_steps(preset: Preset, steps: int) -> int:
    return min(steps, MOST_EVALUATIONS // (2 if max(preset.guidance) > 1 else 1))


@dataclass(frozen=True, kw_only=True)
class InstantDraft:
    """A draft in progress. `folder` exists only if the request has inputs.

    The page should request the draft again if `result` receives None. After "replaced" it must not: two pages of one owner
    would stop each other's drafts again and again.
    """

    owner: str
    address: str
    folder: Path
    result: "Future[DraftResult]" = field(default_factory=Future)

    @property
    def id(self) -> str:
        return self.folder.name


class InstantDrafts:
    """The drafts of one engine. The lock `changed` guards all state; `dispatch` is called with the lock when a draft is added."""

    def __init__(self, pool: WorkerPool, changed: Condition, dispatch: Callable[[], None]):
        self._pool, self._changed, self._dispatch = pool, changed, dispatch
        self._drafts: dict[str, InstantDraft] = {}  # the newest draft of each owner
        self._waiting: list[tuple[InstantDraft, GenerationRequest, Shape]] = []
        self._running: dict[str, tuple[InstantDraft, Supervisor]] = {}  # by the draft's id, also drafts that are being stopped
        self.are_paused = False  # True while drafts would delay or slow down a video
        self._is_closed = False
        self._deaths: list[float] = []  # monotonic times at which drafts crashed their workers

    @property
    def are_pending(self) -> bool:
        return bool(self._waiting or self._running)

    def reserve(self, owner: str, address: str, folder: Path) -> InstantDraft:
        """Return the owner's new draft, with its own folder in `folder`. The owner's earlier draft stops within one step.

        Raises: Busy while drafts are paused, if earlier drafts crashed their workers, or if too many drafts are in progress.
        """
        with self._changed:
            if old := self._drafts.get(owner):
                self._stop(old, "replaced")
            if self.are_paused or self._is_closed:
                raise Busy("a video is being generated, so", "instant drafts wait", "they continue afterwards")
            self._deaths = [moment for moment in self._deaths if time.monotonic() - moment < QUIET_SECONDS]
            if len(self._deaths) >= MOST_DEATHS:
                raise Busy("drafts ended their worker", "twice in ten minutes", "press Generate, or wait ten minutes")
            near = sum(bool(address) and draft.address == address for draft in self._drafts.values())
            if near >= MOST_OF_ADDRESS or len(self._drafts) >= MOST_IN_ALL:
                raise Busy("too many instant drafts", "are in progress", "they continue in a moment")
            self._drafts[owner] = draft = InstantDraft(owner=owner, address=address, folder=folder / f"draft-{token_hex(12)}")
            return draft

    def start(self, draft: InstantDraft, request: GenerationRequest, shape: Shape) -> None:
        """Start the reserved draft on the next idle worker that has compiled its programs. Do nothing if it was stopped.

        Raises: Busy if the idle workers have another model and load models only for jobs, as a worker on several hosts does.
        """
        with self._changed:
            if draft.result.done():
                shutil.rmtree(draft.folder, ignore_errors=True)
                return
            self._waiting.append((draft, request, shape))
            self._dispatch()
            if not self.are_paused and draft.id not in self._running:
                ready = [worker.view().facts for worker in self._pool.ready_workers()]
                if ready and all(not facts.can_prepare and facts.model != shape.model for facts in ready):
                    raise Busy("instant drafts with this model", "wait until a video has loaded it", "press Generate")
                self._pool.prepare_for(request, shape)

    def drop(self, draft: InstantDraft) -> None:
        """Stop a draft that is no longer needed, and delete its folder. Do nothing to an ended draft."""
        with self._changed:
            self._stop(draft)
            if draft.id not in self._running:
                shutil.rmtree(draft.folder, ignore_errors=True)

    def stop_owner(self, owner: str) -> None:
        with self._changed:
            if draft := self._drafts.get(owner):
                self._stop(draft)

    def prepare(self, request: GenerationRequest, shape: Shape) -> None:
        """Let an idle worker compile the programs of a draft of this shape, unless drafts are paused."""
        with self._changed:
            if not self.are_paused and not self.are_pending:
                self._pool.prepare_for(request, shape)

    def set_paused(self, is_paused: bool) -> None:
        """Stop all drafts, or start waiting drafts, oldest first. Must be called with the lock."""
        self.are_paused = is_paused
        if is_paused:
            for draft in [*self._drafts.values()]:
                self._stop(draft)
            return
        for entry in self._waiting.copy():
            draft, request, shape = entry
            if worker := self._pool.assign_draft(draft.id, request, draft.folder, shape):
                self._waiting.remove(entry)
                self._running[draft.id] = draft, worker

    def handle_event(self, job_id: str, event: Event) -> bool:
        """Handle an event of a draft's worker. Return False if the event belongs to no draft. Must be called with the lock."""
        if job_id not in self._running:
            return False
        if event.is_final or isinstance(event, Interrupted):
            draft, _ = self._running.pop(job_id)
            if isinstance(event, Interrupted) and event.by == "worker":
                self._deaths.append(time.monotonic())
            self._end(draft, event if isinstance(event, DraftFinished | Failed) else None)
            shutil.rmtree(draft.folder, ignore_errors=True)
        return True

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            running = [draft for draft, _ in self._running.values()]
            for draft in [*self._drafts.values()]:
                self._stop(draft)
            for draft in running:
                shutil.rmtree(draft.folder, ignore_errors=True)

    def _stop(self, draft: InstantDraft, result: Literal["replaced"] | None = None) -> None:
        """End the draft without an event. Its worker stops within one step."""
        self._end(draft, result)
        # The folder of a draft that neither waits nor runs is kept, because its inputs are still being written.
        for entry in [entry for entry in self._waiting if entry[0] is draft]:
            self._waiting.remove(entry)
            shutil.rmtree(draft.folder, ignore_errors=True)
        if draft.id in self._running:
            self._running[draft.id][1].cancel(draft.id)

    def _end(self, draft: InstantDraft, result: DraftResult) -> None:
        if self._drafts.get(draft.owner) is draft:
            del self._drafts[draft.owner]
        if not draft.result.done():
            draft.result.set_result(result)
