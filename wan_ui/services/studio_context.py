"""What every handler needs: the engine, who is asking, and what they may do with it."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gradio as gr
from starlette.requests import Request

from backend.engine.engine import Engine
from backend.engine.job import Job
from backend.engine.lock import EngineLock
from backend.engine.projects import Project
from backend.engine.scheduling import Room
from backend.errors import DataFolderError, JobNotFound, RequestError, StudioError
from backend.media.sandbox import Steps
from backend.prompt_rewriting.helper import Helper
from backend.schemas.request import GenerationRequest
from presets import Preset, list_presets
from wan_ui.gateway.access import Access
from wan_ui.gateway.limits import QUEUED_VIDEOS
from wan_ui.gateway.uploads import has_free_space
from wan_ui.gateway.visitors import format_address, owner_name
from wan_ui.i18n.english import Texts
from wan_ui.i18n.languages import texts_for
from wan_ui.services.caller import Caller
from wan_ui.services.presets import CanRun
from wan_ui.services.sandbox_calls import visitor
from wan_ui.services.shots import own_files


@dataclass(frozen=True, kw_only=True)
class StudioContext:
    """One engine, and the rules for what each visitor sees of it.

    `models` are the names of the presets that visitors may use; None: all that can run here. `uploads` keeps the folder of
    uploads from other servers (see `wan_ui.gateway.uploads.begin_uploads`).
    """

    engine: Engine
    access: Access
    can_run: CanRun
    most_waiting: int = QUEUED_VIDEOS.of_visitor  # the operator has no limit
    most_of_address: int = QUEUED_VIDEOS.of_address  # a new visitor is only a new cookie
    most_in_all: int = QUEUED_VIDEOS.in_all
    most_without_key: int = QUEUED_VIDEOS.without_key
    models: frozenset[str] | None = None
    rewriter: Helper | None = None
    uploads: EngineLock | None = None

    def caller(self, request: gr.Request) -> Caller:
        """Who is asking: the program whose key the request carries, else the browser by its cookies."""
        cookies = dict(request.cookies)
        return self._caller(
            request, owner_name(cookies, request.session_hash), self.access.is_operator(cookies), texts_for(request.headers)
        )

    def program(self, request: Request, name: str) -> Caller:
        """Which program is asking through the endpoint `name`: by its key, else by its address."""
        place = format_address(request.client[0]) if request.client else ""
        return self._caller(request, f"{name}-{hashlib.sha256(place.encode()).hexdigest()[:32]}", False, texts_for({}))

    def _caller(self, request: gr.Request | Request, owner: str, is_operator: bool, texts: Texts) -> Caller:
        """The caller of this request; without a key, `owner`."""
        key = self.access.find_program_key(request.headers)
        if key is not None:  # it was given by the operator, so its address does not count
            owner, is_operator, room = key.owner, False, replace(self._room(None), of_owner=key.most_waiting)
        elif self.access.has_key(request.headers):
            owner, is_operator, room = "operator", True, None
        else:
            room = None if is_operator else self._room(request.client)
        return Caller(owner=owner, scope=None if is_operator else owner, is_operator=is_operator, texts=texts, room=room)

    def offers(self, caller: Caller | None = None) -> CanRun:
        """Which presets are offered to this visitor; without one, to visitors in general."""
        is_operator = caller is not None and caller.is_operator
        return self.can_run if is_operator or self.models is None else self._is_offered

    def names(self, caller: Caller) -> list[str]:
        """The names of the presets that this visitor may ask for, whether they are here or not; the first is the usual one."""
        allowed = None if caller.is_operator else self.models
        return [preset.name for preset in list_presets() if allowed is None or preset.name in allowed]

    def job(self, job_id: object, caller: Caller) -> Job | None:
        """The job if it exists and the visitor may see it; `job_id` is what the page sent, unchecked."""
        try:
            job = self.engine.job(job_id) if isinstance(job_id, str) and job_id else None
        except JobNotFound:
            return None
        return job if job and caller.may_see(job.owner) else None

    def submitting(self, wanted: GenerationRequest, caller: Caller, again: tuple[str, int] | None = None) -> Steps[Job]:
        """Queues it for the visitor, within their limits, as steps; `again` as for `Engine.submit`, of a storyboard that they may
        see. Raises: StudioError."""
        self._check(wanted, caller)
        wanted = own_files(wanted, self.engine, caller)
        if again is not None and self.job(again[0], caller) is None:
            raise RequestError(f"again={str(again[0])[:60]!r}", "must be one of your storyboards", "check the job's id")
        job = yield from self.engine.submit_steps(wanted, caller.owner, caller.room, may_download=caller.is_operator, again=again)
        if caller.is_operator:
            self.engine.notify_operator(job.id)
        return job

    def submitting_all(self, wanted: Sequence[GenerationRequest], caller: Caller) -> Steps[tuple[str, ...]]:
        """Queues all of these, as steps, and gives the jobs' ids; if one is refused, cancels those that were queued. Raises:
        StudioError."""
        job_ids: list[str] = []
        self.engine.check_queue_limits(caller.owner, caller.room, len(wanted))  # before one begins
        try:
            for one in wanted:
                job = yield from self.submitting(one, caller)
                job_ids.append(job.id)
        except (StudioError, GeneratorExit):
            for job_id in job_ids:
                self.engine.cancel(job_id)
            raise
        return tuple(job_ids)

    async def submitted(self, wanted: GenerationRequest, caller: Caller, again: tuple[str, int] | None = None) -> Job:
        """As `submitting`, done. If the caller goes before it is told of the job, the job is cancelled."""
        steps = self.submitting(wanted, caller, again)
        return await self.engine.sandbox.run_steps_async(steps, visitor(caller), lambda job: self.engine.cancel(job.id))

    def importing(self, archive: Path, folder: str, caller: Caller) -> Steps[tuple[Project, int]]:
        """Brings a project that the visitor has uploaded into their library, as steps. Raises: StudioError."""
        if not has_free_space(self.engine.settings.data_dir):
            raise _no_room()
        try:
            limited = caller.room is not None
            return (yield from self.engine.import_project_steps(archive, Path(folder), caller.owner, is_limited=limited))
        except OSError as error:
            raise DataFolderError(
                f"the project could not be written ({error.strerror}):", "the disk must have room", "make room"
            ) from error

    def revising(self, job: Job, wanted: GenerationRequest, caller: Caller) -> Steps[Job]:
        """Replaces the request of a waiting job, within the visitor's limits, as steps. Raises: StudioError."""
        self._check(wanted, caller)
        wanted = own_files(wanted, self.engine, caller)
        return (yield from self.engine.revise_steps(job.id, wanted, may_download=caller.is_operator))

    def _check(self, wanted: GenerationRequest, caller: Caller) -> None:
        """Raises: StudioError for a preset that is not for visitors, and for anything if the disk is almost full."""
        if caller.is_operator:
            return
        if self.models is not None and wanted.preset not in self.models and not wanted.finished_video:
            fix = f"take {' or '.join(sorted(self.models))}"
            raise RequestError(f"preset={wanted.preset!r}", "is not offered to visitors of this server", fix)
        if not has_free_space(self.engine.settings.data_dir):
            raise _no_room()

    def _is_offered(self, preset: Preset) -> bool:
        return (self.models is None or preset.name in self.models) and self.can_run(preset)

    def _room(self, client: Any) -> Room:
        return Room(
            of_owner=self.most_waiting,
            of_address=self.most_of_address,
            in_all=self.most_in_all,
            without_key=min(self.most_without_key, self.most_in_all),
            address=format_address(client[0]) if client else "",
        )


def _no_room() -> DataFolderError:
    return DataFolderError("the server's disk is almost full, so", "it takes nothing more", "ask the operator to make room")
