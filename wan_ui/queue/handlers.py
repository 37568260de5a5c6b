"""Handlers of the buttons of jobs: move, cancel, star, delete, generate again, show on the stage."""

import re
import secrets
from dataclasses import dataclass

import gradio as gr

from backend.engine.job import Job
from backend.errors import RequestError, StudioError
from backend.media.sandbox import Steps
from backend.schemas.request import SEED_LIMIT
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
        return {self.queue: stamped_queue_html(self.context, caller)}

    def act(self, request: gr.Request, event: gr.EventData) -> Updates:
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

        The request is unchanged, has a new seed, regenerates a storyboard from a shot on, or upscales the video.
        """
        act, caller = Act.from_event(event), self.context.identify_caller(request)
        job = self.context.find_job(act.job, caller)
        if job is None:
            return {self.message: gr.skip()}
        wanted, regenerated = job.request, None
        try:
            if act.what == "upscale":
                result = self.context.engine.events.result(job.id)
                if result is None:
                    raise RequestError("this video", "does not exist and cannot be upscaled", "choose another")
                wanted = upscale_job_request(job, result, *parse_offer(act.value))
            elif act.what in ("seed", "shot"):
                seed = secrets.randbelow(SEED_LIMIT)
                seed = seed if seed != wanted.seed else (seed + 1) % SEED_LIMIT
                wanted = wanted.model_copy(update={"finished_video": None}).with_changes(seed=seed)
            if act.what == "shot":
                # Shots from this number on get new seeds, earlier ones are kept. No shot has the number 0.
                regenerated = job.id, int(act.value) if re.fullmatch(r"[0-9]{1,3}", act.value) else 0
                wanted = wanted.with_changes(shots=[shot.model_dump() | {"seed": None} for shot in wanted.shots])
            copy = yield from self.context.submit_steps(wanted, caller, regenerated_shot=regenerated)
        except StudioError as error:
            return {self.message: Message.from_error(error).html(caller.texts)}
        shown = copy.id if job.has_ended else gr.skip()  # a job that has not ended stays on the stage
        return self.draw(caller) | {self.job_id: shown, self.message: Message(view="stage").html(caller.texts)}

    def show(self, request: gr.Request, event: gr.EventData) -> Updates:
        act, caller = Act.from_event(event), self.context.identify_caller(request)
        job = self.context.find_job(act.job, caller)
        if job is None:
            return {self.job_id: gr.skip()}
        return {self.job_id: job.id, self.message: Message(view="stage").html(caller.texts)}

    def _run_action(self, what: str, value: str, job: Job, texts: Texts) -> Updates:
        """Run one action on a job. Return a message after the job was deleted or restored."""
        engine = self.context.engine
        match what:
            case "cancel":
                engine.queue.cancel(job.id)
            case "go_on":
                engine.queue.resume(job.id)
            case "up" | "down" | "move":
                line, own = engine.queue.waiting_job_ids(), {other.id for other in engine.library.unended(job.owner)}
                mine, index = [key for key in line if key in own], 0
                if job.id in mine and what == "move":
                    index = mine.index(value) if value in mine else len(mine)
                elif job.id in mine:
                    index = max(0, mine.index(job.id) + (1 if what == "down" else -1))
                engine.queue.move(job.id, index)
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
