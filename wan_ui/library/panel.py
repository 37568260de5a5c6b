"""All videos that were made: a search, filters, a grid of videos that play under the pointer, and all about the chosen one.

Element ids: `library-search`, `library-preset`, `library-starred`, `library-bin`, `library-grid`, `library-detail`.
"""

from dataclasses import dataclass
from typing import Any

import gradio as gr

from backend.engine.job import Selection
from presets import list_presets
from wan_ui.desk.visit import Visit
from wan_ui.door.body_limit import LONGEST_TEXT
from wan_ui.library.html import Shelf, detail_html, library_html
from wan_ui.words.english import Texts

CARDS_AT_ONCE = 48


@dataclass(frozen=True, kw_only=True)
class LibraryPanel:
    """The panel's components; `chosen` is a job's id, `most` how many cards are shown."""

    search: gr.Textbox
    preset: gr.Dropdown
    is_starred: gr.Checkbox
    is_deleted: gr.Checkbox
    grid: gr.HTML
    detail: gr.HTML
    chosen: gr.State
    most: gr.State

    @property
    def inputs(self) -> set[gr.Component]:
        return {self.search, self.preset, self.is_starred, self.is_deleted, self.chosen, self.most}

    def selection(self, values: dict[gr.Component, Any], visit: Visit) -> Selection:
        """The search and the filters, limited to what this visitor may see."""
        preset = values[self.preset]
        return Selection(
            owner=visit.scope,
            words=tuple(str(values[self.search] or "").split()[:20]),
            presets=(str(preset),) if preset else (),
            is_starred=bool(values[self.is_starred]),
            is_deleted=bool(values[self.is_deleted]),
            most=min(int(values[self.most]), 5000),
        )


def preset_filter(texts: Texts) -> list[tuple[str, str]]:
    """The choices of the filter: all presets, or one of them."""
    named = [(preset.words(texts.language).title, preset.name) for preset in list_presets()]
    return [(texts.library_presets, ""), *named]


def build_library_panel(texts: Texts, labels: Texts) -> LibraryPanel:
    """Builds the panel, empty."""
    presets = preset_filter(texts)
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
        preset = gr.Dropdown(
            presets,
            value="",
            label=labels.preset,
            show_label=False,
            container=False,
            filterable=False,
            elem_id="library-preset",
            scale=2,
            min_width=160,
        )
        starred = gr.Checkbox(label=labels.library_starred, elem_id="library-starred", container=False, min_width=90)
        deleted = gr.Checkbox(label=labels.library_bin, elem_id="library-bin", container=False, min_width=90)
    with gr.Row(elem_id="library-columns"):
        grid = gr.HTML(library_html(Shelf(jobs=(), count=0), texts), elem_id="library-grid", apply_default_css=False)
        detail = gr.HTML(detail_html(None, None, texts), elem_id="library-detail", apply_default_css=False)
    return LibraryPanel(
        search=search,
        preset=preset,
        is_starred=starred,
        is_deleted=deleted,
        grid=grid,
        detail=detail,
        chosen=gr.State(""),
        most=gr.State(CARDS_AT_ONCE),
    )
