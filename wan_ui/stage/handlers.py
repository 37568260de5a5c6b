"""Handlers of the stage: queue a job, follow it to its end, stop it, render it.

Every handler checks that the visitor may see its job, because the page's state is untrusted.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field

import gradio as gr

from backend.engine.job import Job
from backend.errors import RequestError, StudioError
from backend.media.sandbox import Steps
from backend.schemas.request import GenerationRequest
from wan_ui.components.events import EACH, QUIET, SILENT, Updates, Values, now_microseconds, stamp_html
from wan_ui.components.field_errors import error_place, error_sentence
from wan_ui.components.progress import StageView
from wan_ui.components.toast import Message
from wan_ui.form.form import Form
from wan_ui.form.handlers import FormHandlers
from wan_ui.form.instant import draft_view_html
from wan_ui.form.shots import sent_job_html
from wan_ui.header import status_html
from wan_ui.i18n.english import Texts
from wan_ui.queue.queue_query import stamped_queue_html
from wan_ui.services.caller import Caller
from wan_ui.services.job_followers import add_queue_position, follow_job
from wan_ui.services.panel import Panel
from wan_ui.services.presets import full_preset
from wan_ui.services.sandbox_calls import runs_sandbox_calls
from wan_ui.services.studio_context import StudioContext
from wan_ui.services.upscaling import find_offers
from wan_ui.stage.html import Model, stage_html
from wan_ui.stage.panel import Stage

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class StageHandlers(Panel):
    """The stage's handlers. `wan_ui.queue`, `wan_ui.form` and `wan_ui.edit` handle most buttons on the stage."""

    context: StudioContext
    form: Form
    panel: Stage
    message: gr.HTML
    followed: dict[str, str] = field(default_factory=dict)  # Gradio session -> the job that the page follows
    placed: dict[str, str] = field(
        default_factory=dict
    )  # Gradio session -> the job that was placed on the stage and is not followed yet

    @property
    def form_handlers(self) -> FormHandlers:
        """The form's handlers, for updates of the form when a job is queued or ends."""
        return FormHandlers(context=self.context, form=self.form, message=self.message)

    @property
    def outputs(self) -> list[gr.blocks.Block]:
        return [self.panel.job_id, self.panel.view, self.form.prompt.instant.view]

    def wire(self) -> None:
        """Connect the form's Generate and Stop buttons, and the stage's button for keeping the seed, to their handlers."""
        stage, actions, seed = self.panel, self.form.actions, self.form.settings
        instant = self.form.prompt.instant
        inputs = self.form.inputs | {self.form.editing, stage.job_id, instant.switch, instant.seed}
        submitted = actions.generate.click(self.submit, inputs, self._submit_outputs, **EACH)
        self.follow_after(submitted)
        self.form_handlers.show_editing_after(submitted)
        actions.stop.click(self.stop, stage.job_id, [actions.stop, self.message], **QUIET)
        stage.view.keep_seed(self.keep_seed, stage.job_id, [seed.seed, seed.is_seed_random], **QUIET)

    def follow_after(self, event: gr.events.Dependency) -> None:
        """Make the page follow its job to the end after this event.

        The event has no concurrency limit: it runs until the job ends, and a limit would make other pages wait.
        """
        followed = event.then(
            self.follow,
            self.panel.job_id,
            self.panel.view,
            concurrency_limit=None,
            trigger_mode="multiple",
            **SILENT,
        )
        updated = followed.then(
            self.update_after_job, None, [self.panel.status, self.form.actions.stop, self.panel.queue], **EACH
        )
        self.form_handlers.estimate_after(updated)

    def initial_updates(self, caller: Caller, parameters: Mapping[str, str], values: Values) -> Updates:
        """Return the visitor's job, and the stage in their language.

        If no job is found, the page's job id stays unchanged, because the page may have queued its first job meanwhile.
        """
        job_id = self.find_initial_job(caller)
        shown: Updates = {self.panel.job_id: job_id} if job_id else {}
        words: Updates = {}
        if not caller.uses_english:
            draft = self.form.prompt.instant.view
            words = {self.panel.view: stage_html(StageView(), None, caller.texts), draft: draft_view_html(caller.texts)}
        return shown | words

    @property
    def _submit_outputs(self) -> list[gr.blocks.Block]:
        """The components that `submit` may change."""
        stage, form = self.panel, self.form
        notes = form.note_components
        kept = [form.prompt.shots.sent_job, form.editing, form.settings.seed, form.session, form.prompt.history]
        kept += [form.prompt.instant.seed]
        return [stage.job_id, stage.view, stage.queue, *notes, *kept]

    @runs_sandbox_calls
    def submit(self, values: Values, request: gr.Request) -> Steps[Updates]:
        """Queue the form's request, or replace the request of the waiting job that is being edited.

        An invalid form changes only the error notes, not the stage.
        """
        caller, notes = self.context.identify_caller(request), self.form_handlers.show_note
        try:
            draft = self.form.read(self.form.prompt.instant.fix_seed(values, self.form.settings))
            job = yield from self._queue_job(draft.to_request(), values[self.form.editing], caller)
        except StudioError as error:
            return notes(error_sentence(error), error_place(error, is_of_shots=bool(values[self.form.prompt.shots.timeline])))
        except Exception:
            log.exception("A request could not be queued")
            return notes(f"{caller.texts.error_unexpected} {caller.texts.error_unexpected_fix}")
        is_seed_new = bool(values[self.form.settings.is_seed_random])
        shown = self._show_on_stage(values[self.panel.job_id], job, caller, request.session_hash or "")
        shown |= {self.form.prompt.shots.sent_job: sent_job_html(values[self.form.prompt.shots.timeline], job)}
        session = job.request.for_sharing() | {"is_seed_new": is_seed_new}
        return (
            notes()
            | shown
            | {self.form.editing: None, self.form.settings.seed: draft.given["seed"], self.form.session: session}
            | {self.form.prompt.instant.seed: None}
            | self.form_handlers.show_history(caller)
            | self._queue_updates(caller)
        )

    def _queue_updates(self, caller: Caller) -> Updates:
        return {self.panel.queue: stamped_queue_html(self.context, caller)}

    def _show_on_stage(self, shown: str | None, job: Job, caller: Caller, page: str) -> Updates:
        """Show the new job on the stage, unless the stage shows a job that has not ended.

        `shown` may be outdated while another press of Generate is processed. Therefore `placed` and `followed` are checked too.
        """
        for job_id in (shown, self.placed.get(page), self.followed.get(page)):
            old = self.context.find_job(job_id, caller)
            if old is not None and not old.has_ended and old.id != job.id:
                return {}
        self.placed[page] = job.id
        view = add_queue_position(StageView(phase="queued"), self.context.engine, job.id)
        return {self.panel.job_id: job.id, self.panel.view: self.draw(view, job, caller.texts)}

    def _queue_job(self, wanted: GenerationRequest, editing: str | None, caller: Caller) -> Steps[Job]:
        old = self.context.find_job(editing, caller)
        if old is not None:
            return (yield from self.context.revise_steps(old, wanted, caller))
        return (yield from self.context.submit_steps(wanted, caller))

    async def follow(self, job_id: str | None, request: gr.Request) -> AsyncIterator[object]:
        """Yield the stage after each of the job's events, until the job ends or the page shows another job."""
        caller, page = await asyncio.to_thread(self.context.identify_caller, request), request.session_hash or ""
        job = self.context.find_job(job_id, caller)
        if job is None or self.followed.get(page) == job.id:
            yield gr.skip()
            return
        self.followed[page] = job.id
        self.placed.pop(page, None)
        try:
            async for view in follow_job(self.context.engine, job.id):
                if self.followed.get(page) != job.id:
                    return
                yield self.draw(view, job, caller.texts)
        finally:
            if self.followed.get(page) == job.id:
                del self.followed[page]

    def stop(self, job_id: str | None, request: gr.Request) -> Updates:
        """Cancel the page's job. The follower shows the result."""
        caller, button = self.context.identify_caller(request), self.form.actions.stop
        job = self.context.find_job(job_id, caller)
        if job is None:
            return {button: gr.skip()}
        try:
            self.context.engine.queue.cancel(job.id)
        except StudioError as error:
            return {self.message: Message.from_error(error).html(caller.texts)}
        return {button: gr.update(value=caller.texts.stopping, interactive=False)}

    def update_after_job(self, request: gr.Request) -> Updates:
        """Update the worker status, the Stop button and the queue after the job has ended."""
        caller, now = self.context.identify_caller(request), now_microseconds()
        return self._queue_updates(caller) | {
            self.panel.status: stamp_html(status_html(self.context.engine.pool.workers(), caller.texts), now),
            self.form.actions.stop: gr.update(value=caller.texts.stop, interactive=True),
        }

    def find_initial_job(self, caller: Caller) -> str | None:
        """Return the job that a new page shows: the visitor's running job, else their newest job."""
        running = [job for job in self.context.engine.library.unended(caller.owner) if job.state == "running"]
        newest = running or self.context.engine.jobs.list_jobs(caller.owner, most=1)
        return newest[0].id if newest and not newest[0].deleted else None

    def keep_seed(self, job_id: str | None, request: gr.Request) -> tuple[object, object]:
        """Copy the seed of the video on the stage to the form, and turn off random seeds."""
        job = self.context.find_job(job_id, self.context.identify_caller(request))
        return (job.request.seed, False) if job else (gr.skip(), gr.skip())

    def draw(self, view: StageView, job: Job, texts: Texts) -> str:
        """Render the stage with the title of the model."""
        full = full_preset(job.request)
        try:
            title = job.request.resolved_preset.words(texts.language).title
        except RequestError:
            title = job.request.preset
        full_title = full.words(texts.language).title if full else ""
        found = tuple(find_offers(self.context.engine, job, view.result))
        return stage_html(view, job, texts, Model(title=title, full_title=full_title, offers=found))
