"""The stage, a large view of the running or last video, and its handlers: queue a job, follow it to its end, stop it, render it.

Every handler checks that the visitor may see its job, because the page's state is untrusted. Element ids: `stage`, inside it
`download`; the phase is the attribute `data-phase` of `.stage`, the job `data-job`.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field

import gradio as gr

from backend.engine.job import Job
from backend.errors import RequestError, StudioError
from backend.media.sandbox import Steps
from wan_ui.components.events import EACH, LAST, QUIET, RAW, SILENT, Updates, Values, now_microseconds, stamp_html, start_script
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

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Stage:
    """The components that show the job on the stage. `status` is the worker status in the header."""

    view: gr.HTML
    job_id: gr.State
    queue: gr.HTML
    status: gr.HTML


def build_stage(queue: gr.HTML, status: gr.HTML, texts: Texts) -> Stage:
    """Build the stage without a video. The caller places its view on the page with the view's method `render`."""
    html = stage_html(StageView(), None, texts)
    view = gr.HTML(html, js_on_load=start_script("stage", "keep_seed"), elem_id="stage", apply_default_css=False, render=False)
    return Stage(view=view, job_id=gr.State(None), queue=queue, status=status)


@dataclass(frozen=True, kw_only=True)
class StageHandlers(Panel):
    """The stage's handlers. `wan_ui.queue`, `wan_ui.form` and `wan_ui.edit` handle most buttons on the stage."""

    context: StudioContext
    form: Form
    panel: Stage
    message: gr.HTML
    # Gradio session -> the job that the page follows, and the job that was placed on the stage and is not followed yet
    followed: dict[str, str] = field(default_factory=dict)
    placed: dict[str, str] = field(default_factory=dict)

    @property
    def form_handlers(self) -> FormHandlers:
        return FormHandlers(context=self.context, form=self.form, message=self.message)

    @property
    def outputs(self) -> list[gr.blocks.Block]:
        return [self.panel.job_id, self.panel.view, self.form.prompt.instant.view]

    def wire(self) -> None:
        """Connect the form's Generate and Stop buttons, and the stage's button for keeping the seed, to their handlers."""
        stage, form, actions, seed = self.panel, self.form, self.form.actions, self.form.settings
        instant = form.prompt.instant
        inputs = form.inputs | {form.editing, stage.job_id, instant.switch, instant.seed}
        kept = [form.prompt.shots.sent_job, form.editing, seed.seed, form.session, form.prompt.history, instant.seed]
        outputs = [stage.job_id, stage.view, stage.queue, *form.note_components, *kept]
        submitted = actions.generate.click(self.submit, inputs, outputs, **EACH)
        self.follow_after(submitted)
        self.form_handlers.show_editing_after(submitted)
        actions.stop.click(self.stop, stage.job_id, [actions.stop, self.message], **QUIET)
        stage.view.keep_seed(self.keep_seed, stage.job_id, [seed.seed, seed.is_seed_random], **QUIET)

    def follow_after(self, event: gr.events.Dependency) -> None:
        """Make the page follow its job to the end after this event.

        The event has no concurrency limit: it runs until the job ends, and a limit would make other pages wait.
        """
        panel, unlimited = self.panel, {"concurrency_limit": None, "trigger_mode": "multiple"}
        followed = event.then(self.follow, panel.job_id, panel.view, **unlimited, **SILENT)
        updated = followed.then(self.update_after_job, None, [panel.status, self.form.actions.stop, panel.queue], **EACH)
        updated.then(self.form_handlers.estimate, self.form.inputs, self.form.actions.estimate, **RAW, **LAST)

    def initial_updates(self, caller: Caller, parameters: Mapping[str, str], values: Values) -> Updates:
        """Return the visitor's running job, else their newest job, and the stage in their language.

        If no job is found, the page's job id stays unchanged, because the page may have queued its first job meanwhile.
        """
        jobs = [job for job in self.context.engine.library.unended(caller.owner) if job.state == "running"]
        jobs = jobs or self.context.engine.jobs.list_jobs(caller.owner, most=1)
        shown: Updates = {self.panel.job_id: jobs[0].id} if jobs and not jobs[0].deleted else {}
        if caller.uses_english:
            return shown
        draft = self.form.prompt.instant.view
        return shown | {self.panel.view: stage_html(StageView(), None, caller.texts), draft: draft_view_html(caller.texts)}

    @runs_sandbox_calls
    def submit(self, values: Values, request: gr.Request) -> Steps[Updates]:
        """Queue the form's request, or replace the request of the waiting job that is being edited.

        An invalid form changes only the error notes, not the stage.
        """
        caller, notes = self.context.identify_caller(request), self.form_handlers.show_note
        try:
            draft = self.form.read(self.form.prompt.instant.fix_seed(values, self.form.settings))
            wanted, edited = draft.to_request(), self.context.find_job(values[self.form.editing], caller)
            if edited is not None:
                job = yield from self.context.revise_steps(edited, wanted, caller)
            else:
                job = yield from self.context.submit_steps(wanted, caller)
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
            | {self.panel.queue: stamped_queue_html(self.context, caller)}
        )

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
        return {
            self.panel.queue: stamped_queue_html(self.context, caller),
            self.panel.status: stamp_html(status_html(self.context.engine.pool.workers(), caller.texts), now),
            self.form.actions.stop: gr.update(value=caller.texts.stop, interactive=True),
        }

    def keep_seed(self, job_id: str | None, request: gr.Request) -> tuple[object, object]:
        """Copy the seed of the video on the stage to the form, and turn off random seeds."""
        job = self.context.find_job(job_id, self.context.identify_caller(request))
        return (job.request.seed, False) if job else (gr.skip(), gr.skip())

    def draw(self, view: StageView, job: Job, texts: Texts) -> str:
        full = full_preset(job.request)
        try:
            title = job.request.resolved_preset.words(texts.language).title
        except RequestError:
            title = job.request.preset
        full_title = full.words(texts.language).title if full else ""
        found = tuple(find_offers(self.context.engine, job, view.result))
        return stage_html(view, job, texts, Model(title=title, full_title=full_title, offers=found))
