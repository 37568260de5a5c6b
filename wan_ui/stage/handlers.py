"""What happens when somebody presses something in the form or on the stage. Knows components only through `Form`.

Every handler that is given a job checks that the visitor may see it, whatever the page's state says.
"""

import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import gradio as gr

from backend.contract.request import find_preset
from backend.engine.store import Job
from backend.errors import RequestError, StudioError
from backend.media.pictures import load_checked_image
from presets import load_preset
from wan_ui.desk.desk import Desk
from wan_ui.desk.followers import follow, placed
from wan_ui.desk.presets import full_preset, preset_choices
from wan_ui.desk.uploads import picture_to_cache
from wan_ui.form.estimate import estimate_html
from wan_ui.form.form import Form, parse_size
from wan_ui.form.picture import CENTRE, describe_picture, focus_at, padded, picture_examples_html, uploaded_picture
from wan_ui.form.prompt import example_captions, example_samples, history_html, shows_prompts
from wan_ui.form.rewrite import suggest
from wan_ui.form.settings import elsewhere_html, preset_updates
from wan_ui.header import status_html
from wan_ui.parts.notes import Notes, note_html, notes_for, sentence
from wan_ui.parts.progress import StageView
from wan_ui.queue.html import queue_html
from wan_ui.queue.reading import queue_of
from wan_ui.stage.html import Model, stage_html
from wan_ui.words.english import Texts

log = logging.getLogger(__name__)
MOST_HISTORY = 20


@dataclass(frozen=True, kw_only=True)
class Stage:
    """The components that a job on the stage concerns."""

    view: gr.HTML
    job_id: gr.State
    editing: gr.State
    generate: gr.Button
    leave: gr.Button
    stop: gr.Button
    estimate: gr.HTML
    session: gr.BrowserState
    queue: gr.HTML


@dataclass(frozen=True, kw_only=True)
class Handlers:
    """The studio's handlers as methods, for one engine and one form."""

    desk: Desk
    form: Form
    stage: Stage
    followed: dict[str, str] = field(default_factory=dict)  # which job each page shows, by Gradio's session

    @property
    def submitted(self) -> list[gr.Component]:
        """What `submit` may change."""
        stage, form = self.stage, self.form
        notes = [form.prompt.note, form.image.note, form.settings.note]
        return [
            stage.job_id,
            stage.editing,
            *notes,
            form.settings.seed,
            stage.view,
            stage.session,
            form.prompt.history,
            stage.queue,
        ]

    def submit(self, values: dict[gr.Component, Any], request: gr.Request) -> dict:
        """Queues what the form says, or puts it in the place of the waiting job that is being changed.

        A wrong form changes nothing but the notes: what the stage shows stays.
        """
        texts = self.desk.texts(request)
        try:
            draft = self.form.read(values)
            job = self._queue(draft.to_request(), values[self.stage.editing], request)
        except StudioError as error:
            return self._notes(notes_for(error))
        except Exception:
            log.exception("a request could not be submitted")
            return self._notes(Notes(settings=f"{texts.error_unexpected} {texts.error_unexpected_fix}"))
        kept = job.request.for_sharing() | {"is_seed_new": bool(values[self.form.settings.is_seed_random])}
        history = history_html(self.desk.engine.library.prompts(self.desk.owner(request), MOST_HISTORY), texts)
        return (
            self._notes(Notes())
            | self._on_stage(values[self.stage.job_id], job, texts, request)
            | {
                self.stage.editing: None,
                self.form.settings.seed: draft.seed,
                self.stage.session: kept,
                self.form.prompt.history: history,
                self.stage.queue: queue_html(queue_of(self.desk, request), texts),
            }
        )

    def _on_stage(self, shown: str | None, made: Job, texts: Texts, request: gr.Request) -> dict:
        """The new job on the stage, unless that shows one which is still being made: the queue shows the new one then."""
        old = self.desk.job(shown, request)
        if old is not None and not old.has_ended and old.id != made.id:
            return {}
        view = placed(StageView(phase="queued"), self.desk.engine, made.id)
        return {self.stage.job_id: made.id, self.stage.view: self.draw(view, made, texts)}

    def _queue(self, wanted, editing: str | None, request: gr.Request) -> Job:
        old = self.desk.job(editing, request)
        if old is not None:
            return self.desk.revise(old, wanted, request)
        return self.desk.submit(wanted, request)

    def _notes(self, notes: Notes) -> dict:
        form = self.form
        return dict(zip((form.prompt.note, form.image.note, form.settings.note), notes.html(), strict=True))

    async def follow(self, job_id: str | None, request: gr.Request) -> AsyncIterator[Any]:
        """The stage after each of the job's events, until it ends or the page shows another job."""
        job = self.desk.job(job_id, request)
        if job is None:
            yield gr.skip()
            return
        page, texts = request.session_hash or "", self.desk.texts(request)
        if self.followed.get(page) == job.id:
            yield gr.skip()
            return
        self.followed[page] = job.id
        try:
            async for view in follow(self.desk.engine, job.id):
                if self.followed.get(page) != job.id:
                    return
                yield self.draw(view, job, texts)
        finally:
            if self.followed.get(page) == job.id:
                del self.followed[page]

    def stop(self, job_id: str | None, request: gr.Request) -> Any:
        """Asks the engine to stop the page's job; the follower shows what comes of it."""
        job = self.desk.job(job_id, request)
        if job is None:
            return gr.skip()
        texts = self.desk.texts(request)
        self.desk.engine.cancel(job.id)
        return gr.update(value=texts.stopping, interactive=False)

    def settle(self, request: gr.Request) -> tuple[str, Any, str]:
        """The worker's status, a Stop button that can be pressed again, and the queue without the job that has ended."""
        texts = self.desk.texts(request)
        queue = queue_html(queue_of(self.desk, request), texts)
        return self.status(request), gr.update(value=texts.stop, interactive=True), queue

    def attach(self, request: gr.Request) -> str | None:
        """The job that a page which has just been opened shows: what runs for the visitor, else their newest."""
        owner = self.desk.owner(request)
        running = [job for job in self.desk.engine.library.unended(owner) if job.state == "running"]
        newest = running or self.desk.engine.jobs(owner=owner)[:1]
        return newest[0].id if newest and not newest[0].deleted else None

    def keep_seed(self, job_id: str | None, request: gr.Request) -> tuple[Any, Any]:
        """Puts the seed of the video on the stage into the form, and keeps it there."""
        job = self.desk.job(job_id, request)
        return (job.request.seed, False) if job else (gr.skip(), gr.skip())

    def status(self, request: gr.Request) -> str:
        """What the workers do right now."""
        return status_html(self.desk.engine.workers(), self.desk.texts(request))

    def estimate(self, values: dict[gr.Component, Any], request: gr.Request) -> str:
        """The line at the Generate button, for the form as it is."""
        texts, engine = self.desk.texts(request), self.desk.engine
        prompt, image = self.form.prompt.prompt, self.form.image.image
        try:
            draft = self.form.read(values | {prompt: values[prompt] or "?"})
            if draft.task == "i2v" and not values[image]:
                return ""
            wanted = draft.to_request()
        except StudioError:
            return ""
        return estimate_html(engine.estimate(wanted), engine.is_warm(engine.shape(wanted)), texts)

    def suggest(self, prompt: str, preset: str | None, request: gr.Request) -> str:
        """A suggestion for the prompt, for somebody who asked for one."""
        rewriter = self.desk.rewriter
        return suggest(rewriter, prompt or "", preset or "", self.desk.texts(request)) if rewriter else ""

    def edit_mode(self, editing: str | None, request: gr.Request) -> tuple[Any, Any]:
        """The Generate button's words, and the button that leaves the waiting video as it is."""
        texts = self.desk.texts(request)
        return gr.update(value=texts.save_changes if editing else texts.generate), gr.update(visible=bool(editing))

    def chooser(self, task: str) -> Callable[[str | None, gr.Request], dict]:
        """`choose_task` for one task."""

        def choose(name: str | None, request: gr.Request) -> dict:
            return self.choose_task(task, name, request)

        return choose

    def choose_task(self, task: str, name: str | None, request: gr.Request) -> dict:
        """The presets for this task, keeping the chosen one where it can be kept, and whether any can run."""
        choices, texts = preset_choices(task, self.desk.can_run), self.desk.texts(request)
        preset, form = choices.pick(name), self.form
        info = None if preset else texts.presets_none
        shown = {
            form.task: task,
            form.prompt.examples: gr.update(visible=shows_prompts(task, preset)),
            form.settings.preset: gr.update(
                choices=choices.dropdown(texts.language), value=preset.name if preset else None, info=info
            ),
            form.settings.preset_note: elsewhere_html(choices, texts),
            self.stage.generate: gr.update(interactive=preset is not None),
        }
        return shown | (self.choose_preset(preset.name, task, request) if preset and preset.name != name else {})

    def choose_preset(self, name: str | None, task: str, request: gr.Request) -> dict:
        """What the other controls offer for this preset, its examples and its negative prompt."""
        if not name:
            return {self.form.task: gr.skip()}
        preset, texts, form = load_preset(name), self.desk.texts(request), self.form
        updates = dict(zip(form.settings.follows_preset, preset_updates(preset, texts), strict=True))
        return updates | {
            form.prompt.examples: gr.Dataset(
                samples=example_samples(preset),
                sample_labels=example_captions(preset, texts),
                visible=shows_prompts(task, preset),
            ),
            form.image.examples: picture_examples_html(preset, texts),
            form.image.last_image: gr.update(visible=preset.takes_last_image),
        }

    def choose_picture(self, name: str | None, event: gr.EventData) -> tuple[Any, Any]:
        """The picture and the prompt of one of the preset's examples."""
        examples = load_preset(name).image_examples if name else ()
        if not 0 <= event.index < len(examples):
            return gr.skip(), gr.skip()
        return str(examples[event.index].path), examples[event.index].prompt

    def show_picture(self, file: Any, resolution: str, request: gr.Request) -> tuple[Any, str, tuple[float, float]]:
        """The crop preview, the note and the focus for a picture that is new."""
        return *self.show_crop(file, resolution, CENTRE, request), CENTRE

    def show_crop(self, file: Any, resolution: str, focus: tuple[float, float], request: gr.Request) -> tuple[Any, str]:
        """The crop preview and the picture's note."""
        try:
            path, size, texts = uploaded_picture(file), parse_size(resolution), self.desk.texts(request)
            if path is None:
                return describe_picture(None, size, focus, texts)
            return self.desk.engine.decoding.run(describe_picture, path, size, focus, texts)
        except StudioError as error:
            return gr.skip(), note_html(sentence(error))

    def move_crop(self, file: Any, resolution: str, event: gr.SelectData) -> tuple[float, float]:
        """The focus for a click in the picture."""
        try:
            path, size = uploaded_picture(file), parse_size(resolution)
            return self.desk.engine.decoding.run(focus_at, path, tuple(event.index), size) if path else CENTRE
        except StudioError:
            return CENTRE

    def pad(self, file: Any, resolution: str) -> Any:
        """The whole picture with bars in place of a crop."""
        try:
            path, size = uploaded_picture(file), parse_size(resolution)
            return self.desk.engine.decoding.run(self._pad, path, size) if path else gr.skip()
        except StudioError:
            return gr.skip()

    def _pad(self, path: str, size: tuple[int, int]) -> str:
        return picture_to_cache(padded(load_checked_image(path), size), self.desk.engine.settings.data_dir)

    def draw(self, view: StageView, job: Job, texts: Texts) -> str:
        """The stage as HTML, with the name of the model."""
        full = full_preset(job.request)
        try:
            title = find_preset(job.request.preset).words(texts.language).title
        except RequestError:
            title = job.request.preset
        full_title = full.words(texts.language).title if full else ""
        return stage_html(view, job, texts, Model(title=title, full_title=full_title))
