"""The library's panel: search, filters, a grid of videos that play under the pointer, and details of the selected video.

Element ids: `library-` and `search`, `preset`, `project`, `size`, `length`, `order`, `starred`, `bin`, `grid`, `detail`.
"""

from dataclasses import dataclass
from typing import Any

import gradio as gr

from backend.engine.job import Selection
from presets import list_presets
from wan_ui.components.events import start_script
from wan_ui.gateway.body_limit import LONGEST_TEXT
from wan_ui.i18n.english import Texts
from wan_ui.library.html import LibraryContent, detail_html, library_html
from wan_ui.library.projects import EVERYWHERE, NOWHERE, project_filter, projects_html
from wan_ui.services.caller import Caller

CARDS_AT_ONCE = 48


@dataclass(frozen=True, kw_only=True)
class LibraryPanel:
    """The panel's components. `chosen` is the selected job's id. `most` is the number of shown cards."""

    search: gr.Textbox
    preset: gr.Dropdown
    project: gr.Dropdown
    order: gr.Dropdown
    length: gr.Dropdown
    size: gr.Dropdown
    projects: gr.HTML
    is_starred: gr.Checkbox
    is_deleted: gr.Checkbox
    grid: gr.HTML
    detail: gr.HTML
    chosen: gr.State
    most: gr.State

    @property
    def inputs(self) -> set[gr.blocks.Block]:
        return {*self.filters, self.chosen, self.most}

    @property
    def filters(self) -> list[gr.Textbox | gr.Dropdown | gr.Checkbox]:
        choices = [self.preset, self.project, self.order, self.length, self.size]
        return [self.search, *choices, self.is_starred, self.is_deleted]

    def selection(self, values: dict[gr.blocks.Block, Any], caller: Caller) -> Selection:
        preset, project = values[self.preset], str(values[self.project] or EVERYWHERE)
        return Selection(
            owner=caller.scope,
            words=tuple(str(values[self.search] or "").split()[:20]),
            presets=(str(preset),) if preset else (),
            is_starred=bool(values[self.is_starred]),
            is_deleted=bool(values[self.is_deleted]),
            project={EVERYWHERE: None, NOWHERE: ""}.get(project, project),
            order=str(values[self.order]),
            length=str(values[self.length] or ""),
            size=str(values[self.size] or ""),
            most=min(int(values[self.most]), 5000),
        )


def preset_filter_choices(texts: Texts) -> list[tuple[str, str]]:
    named = [(preset.words(texts.language).title, preset.name) for preset in list_presets()]
    return [(texts.library_presets, ""), *named]


def dropdown_choices(table: tuple[tuple[str, str], ...]) -> list[tuple[str, str]]:
    """Convert (value, text) pairs to the (text, value) choices of a dropdown."""
    return [(words, value) for value, words in table]


def _filter_dropdown(choices: list[tuple[str, str]], value: str, label: str, name: str) -> gr.Dropdown:
    """Return a dropdown for a filter. Only screen readers use `label`."""
    return gr.Dropdown(
        choices,
        value=value,
        label=label,
        elem_id=f"library-{name}",
        show_label=False,
        container=False,
        filterable=False,
        scale=2,
        min_width=110,
    )


def build_library_panel(texts: Texts, labels: Texts) -> LibraryPanel:
    with gr.Row(elem_id="library-bar"):
        search = gr.Textbox(
            label=labels.library_search,
            show_label=False,
            placeholder=labels.library_search,
            max_length=LONGEST_TEXT,
            elem_id="library-search",
            container=False,
            scale=3,
        )
        bar: dict[str, Any] = {
            "preset": _filter_dropdown(preset_filter_choices(texts), "", labels.preset, "preset"),
            "project": _filter_dropdown(project_filter((), texts), EVERYWHERE, labels.project, "project"),
            "size": _filter_dropdown(dropdown_choices(texts.sizes), "", labels.resolution, "size"),
            "length": _filter_dropdown(dropdown_choices(texts.lengths), "", labels.length, "length"),
            "order": _filter_dropdown(dropdown_choices(texts.orders), "newest", labels.library_order, "order"),
            "is_starred": gr.Checkbox(label=labels.library_starred, elem_id="library-starred", container=False, min_width=90),
            "is_deleted": gr.Checkbox(label=labels.library_bin, elem_id="library-bin", container=False, min_width=90),
        }
        menu = projects_html((), "", texts)
        projects = gr.HTML(menu, js_on_load=start_script("projects"), elem_id="projects", apply_default_css=False)
    with gr.Row(elem_id="library-columns"):
        grid = gr.HTML(library_html(LibraryContent(jobs=(), count=0), texts), elem_id="library-grid", apply_default_css=False)
        detail = gr.HTML(detail_html(None, None, texts), elem_id="library-detail", apply_default_css=False)
    drawn = {"projects": projects, "grid": grid, "detail": detail}
    return LibraryPanel(search=search, **bar, **drawn, chosen=gr.State(""), most=gr.State(CARDS_AT_ONCE))
