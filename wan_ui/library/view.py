"""The library: the view of all finished videos. Search and render it, and show the details of one video."""

import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import gradio as gr

from backend.engine.job import Selection
from backend.settings import has_screen
from wan_ui.components.buttons import Act
from wan_ui.components.events import LAST, QUIET, Updates, Values
from wan_ui.components.toast import Message
from wan_ui.library.html import LibraryContent, detail_html, library_html
from wan_ui.library.panel import CARDS_AT_ONCE, LibraryPanel, build_library_panel, dropdown_choices, preset_filter_choices
from wan_ui.library.projects import ProjectHandlers
from wan_ui.services.caller import Caller
from wan_ui.services.panel import Acts, Panel
from wan_ui.services.studio_context import StudioContext
from wan_ui.services.upscaling import find_offers
from wan_ui.view import Shell, View

OPENER = "xdg-open"


def open_folder(folder: Path) -> bool:
    """Show a folder in the file manager. Return False without a desktop."""
    opener = shutil.which(OPENER)
    if opener is None or not has_screen():
        return False
    subprocess.Popen(
        [opener, str(folder)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    return True


@dataclass(frozen=True, kw_only=True)
class LibraryHandlers(Panel):
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
        return {self.panel.grid: self._grid_html(values, self.context.identify_caller(request))}

    def act(self, values: Values, request: gr.Request, event: gr.EventData) -> Updates:
        """Show a video's details, or more cards. For the operator, open a video's folder on the desktop, or show its path."""
        act, caller, panel = Act.from_event(event), self.context.identify_caller(request), self.panel
        if act.what == "more":
            values = values | {panel.most: values[panel.most] + CARDS_AT_ONCE}
            return {panel.most: values[panel.most]} | self.tick(caller, values)
        job = self.context.find_job(act.job, caller)
        if job is None:
            return {panel.chosen: gr.skip()}
        if act.what == "folder":
            if not caller.is_operator:
                return {self.message: gr.skip()}
            words = caller.texts.folder_opened if open_folder(job.folder) else caller.texts.folder_at
            return {self.message: Message(text=words.format(folder=job.folder)).html(caller.texts)}
        return {panel.chosen: job.id} | self.tick(caller, values | {panel.chosen: job.id})

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


def build_library(shell: Shell) -> LibraryHandlers:
    panel = build_library_panel(shell.texts, shell.labels)
    goes = shell.form.actions.project
    projects = ProjectHandlers(context=shell.context, menu=panel.projects, filter=panel.project, goes=goes, message=shell.message)
    return LibraryHandlers(context=shell.context, panel=panel, message=shell.message, projects=projects)


LIBRARY = View(key="library", title="view_library", build=build_library)
