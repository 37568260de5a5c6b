"""Handlers of the buttons of jobs: move, cancel, star, delete, generate again, show on the stage."""

import re
import secrets
from dataclasses import dataclass

import gradio as gr

from backend.engine.job import Job
from backend.errors import RequestError, StudioError
from backend.media.sandbox import Steps
from backend.schemas.request import SEED_LIMIT, GenerationRequest
from wan_ui.components.buttons import Act, text_button
from wan_ui.components.events import Updates
from wan_ui.components.toast import Message
from wan_ui.i18n.english import Texts
from wan_ui.queue.queue_query import stamped_queue_html
from wan_ui.services.caller import Caller
from wan_ui.services.sandbox_calls import runs_sandbox_calls
from wan_ui.services.studio_context import StudioContext
from wan_ui.services.upscaling import parse_offer, upscale_job_request

QUEUE_ACTS = ("queue", "again", "show")


@dataclass(frozen=True, kw_only=True)
class QueueHandlers:
    """Handlers for the buttons of jobs, in all views. `job_id` is the job on the stage."""

    context: StudioContext
    queue: gr.HTML
    message: gr.HTML
    job_id: gr.State

    @property
    def outputs(self) -> list[gr.blocks.Block]:
        return [self.queue, self.message]

    def draw(self, caller: Caller) -> Updates:
        """Render the queue."""
        return {self.queue: stamped_queue_html(self.context, caller)}

    def act(self, request: gr.Request, event: gr.EventData) -> Updates:
        """Move, cancel, resume, star, delete or restore a job."""
        act, caller = Act.from_event(event), self.context.identify_caller(request)
        job = self.context.find_job(act.job, caller)
        updates: Updates = {}
        if job is not None:
            try:
                updates = self._run_action(act.what, act.value, job, caller.texts)
            except StudioError as error:
                updates = {self.message: Message.from_error(error).html(caller.texts)}
            self.context.engine.count_change()
        return updates | self.draw(caller)

    @runs_sandbox_calls
    def again(self, request: gr.Request, event: gr.EventData) -> Steps[Updates]:
        """Queue a job's request again, and show the new job on the stage.

        The new request can be unchanged, have a new seed, regenerate a storyboard from a given shot on, or upscale the video.
        """
        act, caller = Act.from_event(event), self.context.identify_caller(request)
        job = self.context.find_job(act.job, caller)
        if job is None:
            return {self.message: gr.skip()}
        try:
            wanted = self._next_request(job, act)
            first = _parse_shot_number(act.value) if act.what == "shot" else None
            steps = (
                self.context.submit_steps(wanted, caller)
                if first is None
                else self._regenerate_from_shot(job, wanted, first, caller)
            )
            copy = yield from steps
        except StudioError as error:
            return {self.message: Message.from_error(error).html(caller.texts)}
        shown = copy.id if job.has_ended else gr.skip()  # a job that has not ended stays on the stage
        return self.draw(caller) | {self.job_id: shown, self.message: Message(view="stage").html(caller.texts)}

    def show(self, request: gr.Request, event: gr.EventData) -> Updates:
        """Show a job on the stage."""
        act, caller = Act.from_event(event), self.context.identify_caller(request)
        job = self.context.find_job(act.job, caller)
        if job is None:
            return {self.job_id: gr.skip()}
        return {self.job_id: job.id, self.message: Message(view="stage").html(caller.texts)}

    def _next_request(self, job: Job, act: Act) -> GenerationRequest:
        """Return the job's request unchanged, with a new seed, or for upscaling its video. Raises: RequestError."""
        if act.what == "upscale":
            result = self.context.engine.events.result(job.id)
            if result is None:
                raise RequestError("this video", "does not exist and cannot be upscaled", "choose another")
            return upscale_job_request(job, result, *parse_offer(act.value))
        if act.what in ("seed", "shot"):
            made = job.request.model_copy(update={"finished_video": None})
            return made.with_changes(seed=_new_seed(job.request.seed))
        return job.request

    def _regenerate_from_shot(self, job: Job, wanted: GenerationRequest, first: int, caller: Caller) -> Steps[Job]:
        """Queue the storyboard with new seeds from shot `first` on. Earlier shots are kept. Raises: StudioError."""
        reseeded = [shot.model_dump() | {"seed": None} for shot in wanted.shots]
        return self.context.submit_steps(wanted.with_changes(shots=reseeded), caller, regenerated_shot=(job.id, first))

    def _run_action(self, what: str, value: str, job: Job, texts: Texts) -> Updates:
        """Run one action on a job. Return a message after the job was deleted or restored."""
        engine = self.context.engine
        match what:
            case "cancel":
                engine.queue.cancel(job.id)
            case "go_on":
                engine.queue.resume(job.id)
            case "up" | "down" | "move":
                engine.queue.move(job.id, _new_index(engine.queue.waiting_job_ids(), self._own_job_ids(job), job.id, what, value))
            case "star":
                engine.library.star(job.id, not job.is_starred)
            case "delete":
                engine.library.delete(job.id)
                undo = text_button("queue:restore", texts.undo, job=job.id)
                return {self.message: Message(text=texts.deleted, button=undo).html(texts)}
            case "restore":
                engine.library.restore(job.id)
                return {self.message: Message(text=texts.restored).html(texts)}
        return {}

    def _own_job_ids(self, job: Job) -> set[str]:
        return {other.id for other in self.context.engine.library.unended(job.owner)}


def _new_index(line: list[str], own: set[str], job_id: str, what: str, value: str) -> int:
    """Return the job's new index among the waiting jobs of its owner."""
    mine = [key for key in line if key in own]
    if job_id not in mine:
        return 0
    if what == "move":
        return mine.index(value) if value in mine else len(mine)
    return max(0, mine.index(job_id) + (1 if what == "down" else -1))


def _parse_shot_number(value: str) -> int:
    """Return the shot's number, or 0 if `value` is not a number. No shot has the number 0."""
    return int(value) if re.fullmatch(r"[0-9]{1,3}", str(value)) else 0


def _new_seed(old: int) -> int:
    seed = secrets.randbelow(SEED_LIMIT)
    return seed if seed != old else (seed + 1) % SEED_LIMIT
