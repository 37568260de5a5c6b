"""The context of every handler: the engine, the caller, and the caller's rights."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gradio as gr
from starlette.requests import Request

from backend.catalog.compatibility import judge_compatibility, recommend_preset
from backend.engine.engine import Engine
from backend.engine.instant import InstantDraft
from backend.engine.job import Job
from backend.engine.lock import EngineLock
from backend.engine.projects import Project
from backend.engine.scheduling import QueueLimits
from backend.errors import DataFolderError, JobNotFound, RequestError, StudioError
from backend.media.sandbox import Steps
from backend.prompt_rewriting.helper import Helper
from backend.schemas.request import GenerationRequest
from presets import Preset, list_presets
from presets.loader import EMBEDDED_PREFIX, Task
from wan_ui.gateway.access import Access
from wan_ui.gateway.limits import QUEUED_VIDEOS
from wan_ui.gateway.uploads import has_free_space
from wan_ui.gateway.visitors import format_address, owner_name
from wan_ui.i18n.english import Texts
from wan_ui.i18n.languages import texts_for
from wan_ui.services.caller import Caller
from wan_ui.services.presets import CanRun, preset_choices, takes_inputs
from wan_ui.services.sandbox_calls import requester_from_caller
from wan_ui.services.shots import resolve_shot_files


@dataclass(frozen=True, kw_only=True)
class StudioContext:
    """One engine, and the rights of each caller.

    `models` are the names of the presets that visitors may use, None for all that can run on this machine. `uploads` is the lock
    of the upload folder (see `wan_ui.gateway.uploads.create_upload_folder`). `offers_instant` is false if the operator disabled
    instant drafts.
    """

    engine: Engine
    access: Access
    can_run: CanRun
    most_waiting: int = QUEUED_VIDEOS.of_visitor  # queued videos per visitor; the operator has no limit
    most_of_address: int = QUEUED_VIDEOS.of_address  # needed because a visitor who deletes the cookie is a new visitor
    most_in_all: int = QUEUED_VIDEOS.in_all
    most_without_key: int = QUEUED_VIDEOS.without_key
    models: frozenset[str] | None = None
    rewriter: Helper | None = None
    uploads: EngineLock | None = None
    offers_instant: bool = True

    def identify_caller(self, request: gr.Request) -> Caller:
        """Return the sender of a page's request, identified by a program's key if the request has one, else by cookies."""
        cookies = dict(request.cookies)
        return self._make_caller(
            request, owner_name(cookies, request.session_hash), self.access.is_operator(cookies), texts_for(request.headers)
        )

    def identify_program(self, request: Request, name: str) -> Caller:
        """Return the program that calls the endpoint `name`, identified by its key, else by its network address."""
        place = format_address(request.client[0]) if request.client else ""
        return self._make_caller(request, f"{name}-{hashlib.sha256(place.encode()).hexdigest()[:32]}", False, texts_for({}))

    def _make_caller(self, request: gr.Request | Request, owner: str, is_operator: bool, texts: Texts) -> Caller:
        """Return the caller of a request. `owner` is the name of a caller without a key."""
        key = self.access.find_program_key(request.headers)
        if key is not None:  # the operator issued the key, so no limit per address applies
            owner, is_operator, limits = key.owner, False, replace(self._queue_limits(None), of_owner=key.most_waiting)
        elif self.access.has_operator_key(request.headers):
            owner, is_operator, limits = "operator", True, None
        else:
            limits = None if is_operator else self._queue_limits(request.client)
        return Caller(
            owner=owner, scope=None if is_operator else owner, is_operator=is_operator, texts=texts, queue_limits=limits
        )

    def preset_filter(self, caller: Caller | None = None) -> CanRun:
        """Return a function that tells whether a preset is offered to the caller, or to visitors if no caller is given."""
        is_operator = caller is not None and caller.is_operator
        return self.can_run if is_operator or self.models is None else self._is_offered

    def default_preset(self, caller: Caller, given: Mapping[str, object] | None = None) -> str:
        """Return the name of the preset for a request that names none. `given` are the request's inputs and settings by name.

        Candidates are the installed presets that the caller may use and that take these inputs. The preset that the workers load
        first has priority, then the best preset for the devices, then the first preset in the list. Demo models are returned only
        if there is no other candidate, and instead of models that this machine is too slow or too small for. Without candidates,
        return a preset that the caller may use after a download.
        """
        wanted, devices = given or {}, self.engine.pool.representative_worker().facts.devices
        task: Task = "i2v" if wanted.get("image") or wanted.get("last_image") else "t2v"
        installed = [one for one in preset_choices(task, self.preset_filter(caller)).available if takes_inputs(one, wanted)]
        real = [one for one in installed if not one.model.startswith(EMBEDDED_PREFIX)]
        real = [
            one
            for one in real
            if one.name == self.engine.first_preset or judge_compatibility([one], devices).verdict not in ("slow", "short")
        ]
        best, need = recommend_preset(devices, real.__contains__, task)
        first = [preset for preset in real if preset.name == self.engine.first_preset]
        allowed = [one for one in list_presets() if caller.is_operator or self.models is None or one.name in self.models]
        return next(iter([*first, *([best] if need else []), *real, *installed, *allowed])).name

    def find_job(self, job_id: object, caller: Caller) -> Job | None:
        """Return the job if it exists and the caller may see it, else None. `job_id` is an unchecked value from the page."""
        try:
            job = self.engine.jobs.find(job_id) if isinstance(job_id, str) and job_id else None
        except JobNotFound:
            return None
        return job if job and caller.may_see(job.owner) else None

    def submit_steps(
        self, wanted: GenerationRequest, caller: Caller, regenerated_shot: tuple[str, int] | None = None
    ) -> Steps[Job]:
        """Queue a request within the caller's limits. Yields sandbox calls (see `Steps`).

        `regenerated_shot` is a pair: the id of a storyboard's job, and the number of the first shot to regenerate (see
        `Engine.submit`). The caller must be allowed to see this job. Raises: StudioError.
        """
        self._check_allowed(wanted, caller)
        wanted = resolve_shot_files(wanted, self.engine, caller)
        if regenerated_shot is not None and self.find_job(regenerated_shot[0], caller) is None:
            given = f"again={str(regenerated_shot[0])[:60]!r}"
            raise RequestError(given, "must be one of your storyboards", "check the job's id")
        job = yield from self.engine.submit_steps(
            wanted, caller.owner, caller.queue_limits, may_download=caller.is_operator, regenerated_shot=regenerated_shot
        )
        if caller.is_operator:
            self.engine.jobs.request_notification(job.id)
        return job

    def draft_steps(self, wanted: GenerationRequest, caller: Caller) -> Steps[InstantDraft]:
        """Start an instant draft within the caller's limits. Yields sandbox calls (see `Steps`). Raises: StudioError."""
        self._check_allowed(wanted, caller)
        can_run = self.preset_filter(caller)
        return (yield from self.engine.draft_steps(wanted, caller.owner, caller.queue_limits, can_run))

    def prepare_draft(self, wanted: GenerationRequest, caller: Caller) -> None:
        """Let an idle worker prepare for an instant draft of the request. Raises: StudioError."""
        self._check_allowed(wanted, caller)
        self.engine.prepare_draft(wanted, self.preset_filter(caller))

    def submit_all_steps(self, wanted: Sequence[GenerationRequest], caller: Caller) -> Steps[tuple[str, ...]]:
        """Queue all requests, and return the jobs' ids. If a request is refused, cancel the jobs of earlier requests.

        Yields sandbox calls (see `Steps`). Raises: StudioError.
        """
        job_ids: list[str] = []
        self.engine.check_queue_limits(caller.owner, caller.queue_limits, len(wanted))  # check all before the first is queued
        try:
            for one in wanted:
                job = yield from self.submit_steps(one, caller)
                job_ids.append(job.id)
        except (StudioError, GeneratorExit):
            for job_id in job_ids:
                self.engine.queue.cancel(job_id)
            raise
        return tuple(job_ids)

    async def submit(self, wanted: GenerationRequest, caller: Caller, regenerated_shot: tuple[str, int] | None = None) -> Job:
        """Queue a request. Cancel the job if the caller disconnects before it receives the job. Raises: StudioError."""
        steps = self.submit_steps(wanted, caller, regenerated_shot)
        return await self.engine.sandbox.run_steps_async(
            steps, requester_from_caller(caller), lambda job: self.engine.queue.cancel(job.id)
        )

    def import_project_steps(self, archive: Path, folder: str, caller: Caller) -> Steps[tuple[Project, int]]:
        """Import an uploaded project into the caller's library. Yields sandbox calls (see `Steps`). Raises: StudioError."""
        if not has_free_space(self.engine.settings.data_dir):
            raise _disk_full_error()
        try:
            limited = caller.queue_limits is not None
            return (yield from self.engine.import_project_steps(archive, Path(folder), caller.owner, is_limited=limited))
        except OSError as error:
            raise DataFolderError(
                f"the project could not be written ({error.strerror}):", "the disk must have free space", "free some space"
            ) from error

    def revise_steps(self, job: Job, wanted: GenerationRequest, caller: Caller) -> Steps[Job]:
        """Replace the request of a queued job within the caller's limits. Yields sandbox calls (see `Steps`).

        Raises: StudioError.
        """
        self._check_allowed(wanted, caller)
        wanted = resolve_shot_files(wanted, self.engine, caller)
        return (yield from self.engine.revise_steps(job.id, wanted, may_download=caller.is_operator))

    def _check_allowed(self, wanted: GenerationRequest, caller: Caller) -> None:
        """Check that visitors may use the preset and that the disk has free space. Raises: StudioError."""
        if caller.is_operator:
            return
        if self.models is not None and wanted.preset not in self.models and not wanted.finished_video:
            fix = f"take {' or '.join(sorted(self.models))}"
            raise RequestError(f"preset={wanted.preset!r}", "is not offered to visitors of this server", fix)
        if not has_free_space(self.engine.settings.data_dir):
            raise _disk_full_error()

    def _is_offered(self, preset: Preset) -> bool:
        return (self.models is None or preset.name in self.models) and self.can_run(preset)

    def _queue_limits(self, client: Any) -> QueueLimits:
        return QueueLimits(
            of_owner=self.most_waiting,
            of_address=self.most_of_address,
            in_all=self.most_in_all,
            without_key=min(self.most_without_key, self.most_in_all),
            address=format_address(client[0]) if client else "",
        )


def _disk_full_error() -> DataFolderError:
    return DataFolderError(
        "the server's disk is almost full, so", "it accepts no new videos or projects", "ask the operator to free space"
    )
