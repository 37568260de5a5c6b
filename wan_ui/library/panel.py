"""The library's panel: search, filters, a grid of videos that play under the pointer, and details of the selected video.

Element ids: `library-search`, `library-preset`, `library-project`, `library-size`, `library-length`, `library-order`,
`library-starred`, `library-bin`, `library-grid`, `library-detail`.
"""

from dataclasses import dataclass
from typing import Any

import gradio as gr

from backend.engine.job import Selection
from presets import list_presets
from wan_ui.gateway.body_limit import LONGEST_TEXT
from wan_ui.i18n.english import Texts
from wan_ui.library.html import LibraryContent, detail_html, library_html
from wan_ui.library.projects import EVERYWHERE, build_projects_menu, project_filter, selected_project
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
        """The search, the filters and the order."""
        choices = [self.preset, self.project, self.order, self.length, self.size]
        return [self.search, *choices, self.is_starred, self.is_deleted]

    def selection(self, values: dict[gr.blocks.Block, Any], caller: Caller) -> Selection:
        """Return the search and the filters as a `Selection` of jobs that the visitor may see."""
        preset = values[self.preset]
        return Selection(
            owner=caller.scope,
            words=tuple(str(values[self.search] or "").split()[:20]),
            presets=(str(preset),) if preset else (),
            is_starred=bool(values[self.is_starred]),
            is_deleted=bool(values[self.is_deleted]),
            project=selected_project(values[self.project]),
            order=str(values[self.order]),
            length=str(values[self.length] or ""),
            size=str(values[self.size] or ""),
            most=min(int(values[self.most]), 5000),
        )


def preset_filter_choices(texts: Texts) -> list[tuple[str, str]]:
    """Return the choices of the filter by preset: all presets, or a single preset."""
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
    """Build the panel, at first without videos."""
    presets = preset_filter_choices(texts)
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
        preset = _filter_dropdown(presets, "", labels.preset, "preset")
        project = _filter_dropdown(project_filter((), texts), EVERYWHERE, labels.project, "project")
        size = _filter_dropdown(dropdown_choices(texts.sizes), "", labels.resolution, "size")
        length = _filter_dropdown(dropdown_choices(texts.lengths), "", labels.length, "length")
        order = _filter_dropdown(dropdown_choices(texts.orders), "newest", labels.library_order, "order")
        starred = gr.Checkbox(label=labels.library_starred, elem_id="library-starred", container=False, min_width=90)
        deleted = gr.Checkbox(label=labels.library_bin, elem_id="library-bin", container=False, min_width=90)
        projects = build_projects_menu(texts)
    with gr.Row(elem_id="library-columns"):
        grid = gr.HTML(library_html(LibraryContent(jobs=(), count=0), texts), elem_id="library-grid", apply_default_css=False)
        detail = gr.HTML(detail_html(None, None, texts), elem_id="library-detail", apply_default_css=False)
    return LibraryPanel(
        search=search,
        preset=preset,
        project=project,
        order=order,
        length=length,
        size=size,
        projects=projects,
        is_starred=starred,
        is_deleted=deleted,
        grid=grid,
        detail=detail,
        chosen=gr.State(""),
        most=gr.State(CARDS_AT_ONCE),
    )
