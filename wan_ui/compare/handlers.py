"""Queues comparisons, fills the compare view, and makes its link."""

from dataclasses import dataclass
from typing import Any

import gradio as gr

from backend.engine.shelf import Comparison
from backend.errors import StudioError
from wan_ui.compare.html import MOST, Cell, Side, compare_html
from wan_ui.compare.panel import ComparePanel, variations
from wan_ui.desk.desk import Desk
from wan_ui.desk.followers import view_of
from wan_ui.form.form import Form
from wan_ui.parts.buttons import Act
from wan_ui.parts.message import Message
from wan_ui.parts.notes import sentence


@dataclass(frozen=True, kw_only=True)
class CompareHandlers:
    """Handlers of the compare view."""

    desk: Desk
    form: Form
    panel: ComparePanel
    message: gr.HTML

    @property
    def outputs(self) -> list[gr.Component]:
        return [self.panel.view, self.panel.shown, self.panel.chosen, self.message]

    def start(self, values: dict[gr.Component, Any], request: gr.Request) -> dict:
        """Queues the form's settings with one thing varied: all of them, or none."""
        panel, texts = self.panel, self.desk.texts(request)
        try:
            base = self.form.read(values).to_request()
            wanted = variations(base, values[panel.what], values[panel.values] or "", values[panel.presets] or [])
            jobs = self._submitted(wanted, request)
        except StudioError as error:
            return {self.message: Message(text=sentence(error), is_bad=True).html(texts)}
        made = self.desk.engine.shelf.compare(self.desk.owner(request), jobs)
        return self._shown(made, request) | {panel.chosen: []}

    def act(self, chosen: list[str], shown: str, request: gr.Request, event: gr.EventData) -> dict:
        """Chooses a video for comparing, makes the link, or starts over."""
        act = Act.of(event)
        match act.what:
            case "add":
                return self._add(chosen, act.job, request)
            case "link":
                return {self.message: self._link(shown, request)}
            case "clear":
                empty = compare_html(Side(), self.desk.texts(request))
                return {self.panel.view: empty, self.panel.shown: "", self.panel.chosen: []}
        return {self.panel.chosen: gr.skip()}

    def open(self, comparison_id: str, request: gr.Request) -> dict:
        """The comparison of a link, for those who may see its videos; nothing for others."""
        found = self.desk.engine.shelf.comparison(comparison_id)
        return self._shown(found, request) if found and self._may_see(found, request) else {}

    def tick(self, shown: str, request: gr.Request) -> str | None:
        """The view as it is now, or None where there is nothing on view."""
        found = self.desk.engine.shelf.comparison(shown) if shown else None
        return compare_html(self._side(found, request), self.desk.texts(request)) if found else None

    def _submitted(self, wanted: list, request: gr.Request) -> tuple[str, ...]:
        """Queues all; takes back those that were queued if one is refused."""
        made: list[str] = []
        try:
            for one in wanted:
                made.append(self.desk.submit(one, request).id)
        except StudioError:
            for job_id in made:
                self.desk.engine.cancel(job_id)
            raise
        return tuple(made)

    def _add(self, chosen: list[str], job_id: str, request: gr.Request) -> dict:
        job = self.desk.job(job_id, request)
        if job is None:
            return {self.panel.chosen: gr.skip()}
        texts = self.desk.texts(request)
        chosen = list(dict.fromkeys([*(chosen if len(chosen) < MOST else []), job.id]))
        if len(chosen) < 2:
            words = texts.compare_tray.format(count=1)
            return {
                self.panel.chosen: chosen,
                self.panel.view: compare_html(Side(chosen=1), texts),
                self.panel.shown: "",
                self.message: Message(text=words).html(texts),
            }
        made = self.desk.engine.shelf.compare(self.desk.owner(request), tuple(chosen))
        return self._shown(made, request) | {self.panel.chosen: chosen}

    def _shown(self, comparison: Comparison, request: gr.Request) -> dict:
        texts = self.desk.texts(request)
        return {
            self.panel.view: compare_html(self._side(comparison, request), texts),
            self.panel.shown: comparison.id,
            self.message: Message(view="compare").html(texts),
        }

    def _side(self, comparison: Comparison, request: gr.Request) -> Side:
        jobs = [self.desk.job(job_id, request) for job_id in comparison.jobs]
        cells = tuple(Cell(job=job, view=view_of(self.desk, job)) for job in jobs if job)
        return Side(id=comparison.id, cells=cells)

    def _may_see(self, comparison: Comparison, request: gr.Request) -> bool:
        return self.desk.scope(request) in (None, comparison.owner)

    def _link(self, shown: str, request: gr.Request) -> str:
        texts = self.desk.texts(request)
        found = self.desk.engine.shelf.comparison(shown)
        if found is None or not self._may_see(found, request):
            return Message().html(texts)
        return Message(text=texts.compare_linked, copy=f"?compare={found.id}").html(texts)
