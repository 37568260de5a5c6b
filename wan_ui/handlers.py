"""What happens when somebody presses something. Talks to the engine; knows components only through `Form`.

Every handler that is given a job checks that the visitor owns it, whatever the page's state says.
"""

import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import gradio as gr

from backend.engine import Engine
from backend.errors import JobNotFound, StudioError
from backend.store import Job
from presets import load_preset
from wan_ui.followers import follow, placed
from wan_ui.form import Form, parse_size
from wan_ui.header import status_html
from wan_ui.image_panel import CENTRE, describe_picture, focus_at, picture_examples_html, uploaded_picture
from wan_ui.notes import Notes, notes_for
from wan_ui.preset_choices import CanRun, elsewhere_html, has_weights, preset_choices
from wan_ui.prompt_panel import example_samples, shows_prompts
from wan_ui.settings_panel import preset_updates
from wan_ui.stage_html import stage_html
from wan_ui.stage_view import StageView
from wan_ui.text import Texts
from wan_ui.visitors import owner_of

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Handlers:
    """The studio's handlers as methods, for one engine, one form, one language."""

    engine: Engine
    form: Form
    texts: Texts
    can_run: CanRun = has_weights

    def submit(self, values: dict[gr.Component, Any], request: gr.Request) -> tuple:
        """Queues what the form says. Gives the job's id, the notes, the seed and the stage.

        A wrong form changes nothing but the notes: what the stage shows stays.
        """
        try:
            draft = self.form.read(values)
            job = self.engine.submit(draft.to_request(), owner=_owner(request))
        except StudioError as error:
            return gr.skip(), *notes_for(error).html(), gr.skip(), gr.skip()
        except Exception:
            log.exception("a request could not be submitted")
            text = f"{self.texts.error_unexpected} {self.texts.error_unexpected_fix}"
            return gr.skip(), *Notes(settings=text).html(), gr.skip(), gr.skip()
        view = placed(StageView(phase="queued"), self.engine, job.id)
        return job.id, *Notes().html(), draft.seed, self.draw(view, job)

    async def follow(self, job_id: str | None, request: gr.Request) -> AsyncIterator[Any]:
        """The stage after each of the job's events, until it ends."""
        job = self._own_job(job_id, request)
        if job is None:
            yield gr.skip()
            return
        async for view in follow(self.engine, job.id):
            yield self.draw(view, job)

    def stop(self, job_id: str | None, request: gr.Request) -> Any:
        """Asks the engine to stop the page's job; the follower shows what comes of it."""
        job = self._own_job(job_id, request)
        if job is None:
            return gr.skip()
        self.engine.cancel(job.id)
        return gr.update(value=self.texts.stopping, interactive=False)

    def settle(self) -> tuple[str, Any]:
        """The worker's status, and a Stop button that can be pressed again."""
        return self.status(), gr.update(value=self.texts.stop, interactive=True)

    def attach(self, request: gr.Request) -> str | None:
        """The visitor's newest job, for a page that has just been opened or reloaded."""
        jobs = self.engine.jobs(owner=_owner(request))
        return jobs[0].id if jobs else None

    def keep_seed(self, job_id: str | None, request: gr.Request) -> tuple[Any, Any]:
        """Puts the seed of the video on the stage into the form, and keeps it there."""
        job = self._own_job(job_id, request)
        return (job.request.seed, False) if job else (gr.skip(), gr.skip())

    def status(self) -> str:
        """What the worker does right now."""
        return status_html(self.engine.worker_status(), self.texts)

    def choose_task(self, task: str, name: str | None) -> tuple:
        """The presets for this task, keeping the chosen one where it can be kept, and whether any can run."""
        choices = preset_choices(task, self.can_run)
        preset = choices.pick(name)
        info = None if preset else self.texts.presets_none
        picker = gr.update(choices=choices.dropdown(), value=preset.name if preset else None, info=info)
        prompts = gr.update(visible=shows_prompts(task, preset))
        return task, picker, elsewhere_html(choices, self.texts), prompts, gr.update(interactive=preset is not None)

    def choose_preset(self, name: str | None, task: str) -> list[Any]:
        """What the other controls offer for this preset, its examples and its negative prompt."""
        if not name:
            return [gr.skip()] * (3 + len(self.form.settings.follows_preset))
        preset = load_preset(name)
        prompts = gr.Dataset(samples=example_samples(preset), visible=shows_prompts(task, preset))
        pictures = picture_examples_html(preset, self.texts)
        return [prompts, pictures, preset.negative_prompt, *preset_updates(preset, self.texts)]

    def choose_picture(self, name: str | None, event: gr.EventData) -> tuple[Any, Any]:
        """The picture and the prompt of one of the preset's examples."""
        examples = load_preset(name).image_examples if name else ()
        if not 0 <= event.index < len(examples):
            return gr.skip(), gr.skip()
        return str(examples[event.index].path), examples[event.index].prompt

    def show_picture(self, file: dict | None, resolution: str) -> tuple[str, str, tuple[float, float]]:
        """The crop preview, the note and the focus for a picture that is new."""
        return *self.show_crop(file, resolution, CENTRE), CENTRE

    def show_crop(self, file: dict | None, resolution: str, focus: tuple[float, float]) -> tuple[str, str]:
        """The crop preview and the picture's note."""
        return describe_picture(uploaded_picture(file), parse_size(resolution), focus, self.texts)

    def move_crop(self, file: dict | None, resolution: str, event: gr.SelectData) -> tuple[float, float]:
        """The focus for a click in the picture."""
        path = uploaded_picture(file)
        return focus_at(path, tuple(event.index), parse_size(resolution)) if path else CENTRE

    def draw(self, view: StageView, job: Job) -> str:
        """The stage as HTML, captioned with the name of the model."""
        return stage_html(view, job, self.texts, load_preset(job.request.preset).title)

    def _own_job(self, job_id: str | None, request: gr.Request) -> Job | None:
        try:
            job = self.engine.job(job_id) if job_id else None
        except JobNotFound:
            return None
        return job if job and job.owner == _owner(request) else None


def _owner(request: gr.Request) -> str:
    return owner_of(dict(request.cookies), request.session_hash)
