"""Search and render the library, and show the details of one video."""

from collections.abc import Mapping
from dataclasses import dataclass

import gradio as gr

from backend.engine.job import Job, Selection
from wan_ui.components.buttons import Act
from wan_ui.components.events import LAST, QUIET, Updates, Values
from wan_ui.components.toast import Message
from wan_ui.library.desktop import open_folder
from wan_ui.library.html import LibraryContent, detail_html, library_html
from wan_ui.library.panel import CARDS_AT_ONCE, LibraryPanel, dropdown_choices, preset_filter_choices
from wan_ui.library.projects import ProjectHandlers
from wan_ui.services.caller import Caller
from wan_ui.services.panel import Acts, Panel
from wan_ui.services.studio_context import StudioContext
from wan_ui.services.upscaling import find_offers


@dataclass(frozen=True, kw_only=True)
class LibraryHandlers(Panel):
    """Handlers of the library."""

    context: StudioContext
    panel: LibraryPanel
    message: gr.HTML
    projects: ProjectHandlers

    @property
    def inputs(self) -> set[gr.blocks.Block]:
        return self.panel.inputs

    @property
    def outputs(self) -> list[gr.blocks.Block]:
        panel = self.panel
        drawn = [panel.grid, panel.detail, panel.chosen, panel.most, panel.preset, panel.order, panel.length, panel.size]
        return [*drawn, *self.projects.outputs]

    @property
    def acts(self) -> Acts:
        return {"choose": self.act, "project": self.projects.act}

    def wire(self) -> None:
        """Connect the search and the filters to their handler."""
        panel = self.panel
        changes = [panel.search.change, *(control.input for control in panel.filters if control is not panel.search)]
        gr.on(changes, self.search, panel.inputs, panel.grid, **QUIET, **LAST)

    def initial_updates(self, caller: Caller, parameters: Mapping[str, str], values: Values) -> Updates:
        """Return the projects, and the menus in the visitor's language. The first `tick` adds the videos."""
        shown, panel, texts = self.projects.current_updates(caller), self.panel, caller.texts
        if caller.uses_english:
            return shown
        return shown | {
            panel.preset: gr.update(choices=preset_filter_choices(texts)),
            panel.order: gr.update(choices=dropdown_choices(texts.orders)),
            panel.length: gr.update(choices=dropdown_choices(texts.lengths)),
            panel.size: gr.update(choices=dropdown_choices(texts.sizes)),
            panel.detail: detail_html(None, None, texts),
        }

    def tick(self, caller: Caller, values: Values) -> Updates:
        """Render the grid and the details."""
        job = self.context.find_job(values[self.panel.chosen], caller)
        result = self.context.engine.events.result(job.id) if job else None
        owner = job.owner if job and caller.is_operator else ""
        projects = self.context.engine.projects.list_for_owner(job.owner) if job else ()
        drawn = {
            self.panel.grid: self._grid_html(values, caller),
            self.panel.detail: detail_html(
                job, result, caller.texts, owner, projects, offers=find_offers(self.context.engine, job, result)
            ),
        }
        return drawn | {self.panel.projects: self.projects.current_updates(caller)[self.panel.projects]}

    def search(self, values: Values, request: gr.Request) -> Updates:
        """Render the grid for the search and the filters."""
        return {self.panel.grid: self._grid_html(values, self.context.identify_caller(request))}

    def act(self, values: Values, request: gr.Request, event: gr.EventData) -> Updates:
        """Show a video's details, show more cards, or open a video's folder."""
        act, caller, panel = Act.from_event(event), self.context.identify_caller(request), self.panel
        if act.what == "more":
            values = values | {panel.most: values[panel.most] + CARDS_AT_ONCE}
            return {panel.most: values[panel.most]} | self.tick(caller, values)
        job = self.context.find_job(act.job, caller)
        if job is None:
            return {panel.chosen: gr.skip()}
        if act.what == "folder":
            return self._open_folder(job, caller)
        return {panel.chosen: job.id} | self.tick(caller, values | {panel.chosen: job.id})

    def _open_folder(self, job: Job, caller: Caller) -> Updates:
        """Open the job's folder on the server's desktop, or show its path. For the operator only."""
        if not caller.is_operator:
            return {self.message: gr.skip()}
        words = caller.texts.folder_opened if open_folder(job.folder) else caller.texts.folder_at
        return {self.message: Message(text=words.format(folder=job.folder)).html(caller.texts)}

    def _grid_html(self, values: Values, caller: Caller) -> str:
        selection = self.panel.selection(values, caller)
        library = self.context.engine.library
        jobs = tuple(library.videos(selection))
        content = LibraryContent(
            jobs=jobs,
            count=library.count(selection),
            chosen=values[self.panel.chosen] or "",
            is_filtered=selection != Selection(owner=selection.owner, most=selection.most, order=selection.order),
            sounding=library.with_sound([job.id for job in jobs]),
        )
        return library_html(content, caller.texts)
