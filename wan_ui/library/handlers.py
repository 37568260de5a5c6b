"""What buttons on jobs do: order and cancel, star and delete, make again. Also draws the queue and the library again.

`seen` remembers, for one page, what its panels show, so that a tick sends only what has changed.
"""

import hashlib
import secrets
from dataclasses import dataclass
from typing import Any

import gradio as gr

from backend.contract.request import SEED_LIMIT
from backend.engine.store import Job, Selection
from backend.errors import StudioError
from wan_ui.desk.desk import Desk
from wan_ui.library.desktop import open_folder
from wan_ui.library.html import Shelf, detail_html, library_html
from wan_ui.library.panel import LibraryPanel
from wan_ui.parts.buttons import Act, text_button
from wan_ui.parts.message import Message
from wan_ui.parts.notes import sentence
from wan_ui.queue.html import queue_html
from wan_ui.queue.reading import queue_of
from wan_ui.words.english import Texts

CARDS_AT_ONCE = 48


@dataclass(frozen=True, kw_only=True)
class JobHandlers:
    """Handlers for the queue and the library."""

    desk: Desk
    queue: gr.HTML
    library: LibraryPanel
    message: gr.HTML
    job_id: gr.State

    @property
    def outputs(self) -> list[gr.Component]:
        return [self.queue, self.library.grid, self.library.detail, self.message]

    def act(self, values: dict, request: gr.Request, event: gr.EventData) -> dict:
        """Order, cancel, star, delete, take back."""
        act, texts = Act.of(event), self.desk.texts(request)
        job = self.desk.job(act.job, request)
        said: dict = {}
        if job is not None:
            try:
                may_open = act.what == "folder" and self.desk.is_operator(request)
                said = self._opened(job, texts) if may_open else self._done(act.what, act.value, job, texts)
            except StudioError as error:
                said = {self.message: Message(text=sentence(error), is_bad=True).html(texts)}
            self.desk.engine.touch()
        return said | {self.queue: self._queue(request)} | self.shelf(values, request)

    def again(self, request: gr.Request, event: gr.EventData) -> dict:
        """Queues a job's request once more: the same, or with a new seed. Shows it on the stage."""
        act, texts = Act.of(event), self.desk.texts(request)
        job = self.desk.job(act.job, request)
        if job is None:
            return {self.message: gr.skip()}
        try:
            wanted = job.request.changed(seed=_new_seed(job.request.seed)) if act.what == "seed" else job.request
            made = self.desk.submit(wanted, request)
        except StudioError as error:
            return {self.message: Message(text=sentence(error), is_bad=True).html(texts)}
        shown = made.id if job.has_ended else gr.skip()  # a copy of what still waits does not push it off the stage
        return {self.queue: self._queue(request), self.job_id: shown, self.message: Message(view="create").html(texts)}

    def show(self, request: gr.Request, event: gr.EventData) -> dict:
        """Puts a job on the stage."""
        act, texts = Act.of(event), self.desk.texts(request)
        job = self.desk.job(act.job, request)
        if job is None:
            return {self.job_id: gr.skip()}
        return {self.job_id: job.id, self.message: Message(view="create").html(texts)}

    def choose(self, values: dict, request: gr.Request, event: gr.EventData) -> dict:
        """Shows everything about a card, or more cards."""
        act = Act.of(event)
        panel = self.library
        if act.what == "more":
            values = values | {panel.most: values[panel.most] + CARDS_AT_ONCE}
            return {panel.most: values[panel.most]} | self.shelf(values, request)
        job = self.desk.job(act.job, request)
        if job is None:
            return {panel.chosen: gr.skip()}
        values = values | {panel.chosen: job.id}
        return {panel.chosen: job.id, panel.detail: self._detail(job, request), panel.grid: self._grid(values, request)}

    def shelf(self, values: dict, request: gr.Request) -> dict:
        """The grid and the detail as they are now."""
        job = self.desk.job(values[self.library.chosen], request)
        return {self.library.grid: self._grid(values, request), self.library.detail: self._detail(job, request)}

    def search(self, values: dict, request: gr.Request) -> dict:
        """The grid for what is asked for."""
        return {self.library.grid: self._grid(values, request)}

    def tick(self, seen: dict[str, Any], values: dict, request: gr.Request) -> tuple[dict, dict[str, Any]]:
        """What has changed in the queue and the library since this page was last told, and what it has seen now."""
        changes = self.desk.engine.changes()
        if seen.get("changes") == changes:
            return {}, seen
        drawn = {self.queue: self._queue(request), self.library.grid: self._grid(values, request)}
        marks = {str(component._id): _mark(html) for component, html in drawn.items()}
        fresh = {one: html for one, html in drawn.items() if seen.get(str(one._id)) != marks[str(one._id)]}
        return fresh, {"changes": changes} | marks

    def _opened(self, job: Job, texts: Texts) -> dict:
        """The job's folder on the server's desktop, or where it is; for the operator, who may know."""
        words = texts.folder_opened if open_folder(job.folder) else texts.folder_at
        return {self.message: Message(text=words.format(folder=job.folder)).html(texts)}

    def _done(self, what: str, value: str, job: Job, texts: Texts) -> dict:
        """Does one thing to one job, and says so where it can be undone."""
        engine = self.desk.engine
        match what:
            case "cancel":
                engine.cancel(job.id)
            case "up" | "down" | "move":
                engine.move(job.id, _index(engine.line(), self._own(job), job.id, what, value))
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

    def _own(self, job: Job) -> set[str]:
        return {other.id for other in self.desk.engine.library.unended(job.owner)}

    def _queue(self, request: gr.Request) -> str:
        return queue_html(queue_of(self.desk, request), self.desk.texts(request))

    def _grid(self, values: dict, request: gr.Request) -> str:
        selection = self.library.selection(values, self.desk, request)
        library = self.desk.engine.library
        shelf = Shelf(
            jobs=tuple(library.videos(selection)),
            count=library.count(selection),
            chosen=values[self.library.chosen] or "",
            is_filtered=_is_filtered(selection),
        )
        return library_html(shelf, self.desk.texts(request))

    def _detail(self, job: Job | None, request: gr.Request) -> str:
        result = self.desk.engine.library.result(job.id) if job else None
        owner = job.owner if job and self.desk.is_operator(request) else ""
        return detail_html(job, result, self.desk.texts(request), owner)


def _index(line: list[str], own: set[str], job_id: str, what: str, value: str) -> int:
    """The number among the owner's waiting jobs that the job shall have."""
    mine = [key for key in line if key in own]
    if job_id not in mine:
        return 0
    if what == "move":
        return mine.index(value) if value in mine else len(mine)
    return max(0, mine.index(job_id) + (1 if what == "down" else -1))


def _is_filtered(selection: Selection) -> bool:
    return bool(selection.words or selection.presets or selection.is_starred or selection.is_deleted)


def _mark(html: str) -> str:
    return hashlib.blake2b(html.encode(), digest_size=8).hexdigest()


def _new_seed(old: int) -> int:
    seed = secrets.randbelow(SEED_LIMIT)
    return seed if seed != old else (seed + 1) % SEED_LIMIT
