"""What concerns the whole page: opening it (a link, the last session, the visitor's language), and the tick after that."""

from dataclasses import dataclass
from typing import Any

import gradio as gr

from backend.contract.request import GenerationRequest
from backend.errors import StudioError
from wan_ui.compare.handlers import CompareHandlers
from wan_ui.compare.html import Side, compare_html, differences
from wan_ui.compare.panel import what_choices
from wan_ui.desk.presets import preset_choices
from wan_ui.form.fill import FillHandlers
from wan_ui.form.own_presets import OwnPresetHandlers
from wan_ui.form.picture import picture_examples_html
from wan_ui.form.prompt import example_captions, example_samples, history_html
from wan_ui.form.settings import elsewhere_html, settings_of
from wan_ui.header import Header, title_html, tools_html
from wan_ui.library.handlers import JobHandlers
from wan_ui.library.html import detail_html
from wan_ui.library.panel import preset_filter
from wan_ui.parts.buttons import Act
from wan_ui.parts.message import Message
from wan_ui.parts.notes import sentence
from wan_ui.parts.progress import StageView
from wan_ui.stage.handlers import MOST_HISTORY, Handlers
from wan_ui.stage.html import stage_html
from wan_ui.system.panel import system_html
from wan_ui.words.english import ENGLISH, Texts


@dataclass(frozen=True, kw_only=True)
class PageHandlers:
    """All other handlers together, for the moments that concern all of them."""

    main: Handlers
    jobs: JobHandlers
    compare: CompareHandlers
    fill: FillHandlers
    own: OwnPresetHandlers
    header: Header
    system: gr.HTML
    seen: gr.State

    @property
    def opened(self) -> list[gr.Component]:
        """What `open` may change."""
        header, stage = self.header, self.main.stage
        several = [
            *self.fill.outputs,
            *self.compare.outputs,
            *self.jobs.outputs,
            header.title,
            header.tools,
            self.own.panel,
            stage.job_id,
            stage.view,
            self.main.form.prompt.history,
            self.main.form.prompt.examples,
            self.main.form.image.examples,
            self.main.form.settings.preset_note,
            self.compare.panel.what,
            self.compare.panel.values,
            self.compare.panel.presets,
            self.jobs.library.preset,
        ]
        return list(dict.fromkeys(several))

    @property
    def ticked(self) -> list[gr.Component]:
        """What `tick` may change."""
        return [self.header.status, self.jobs.queue, self.jobs.library.grid, self.compare.panel.view, self.seen]

    def open(self, values: dict[gr.Component, Any], request: gr.Request) -> dict:
        """A page that has just been opened: the visitor's words, their jobs, and the settings of a link or of last time."""
        desk, texts = self.main.desk, self.main.desk.texts(request)
        prompts = desk.engine.library.prompts(desk.owner(request), MOST_HISTORY)
        shown = {
            self.header.title: title_html(texts),
            self.header.tools: tools_html(texts),
            self.own.panel: self.own.html(request),
            self.main.stage.job_id: self.main.attach(request),
            self.main.form.prompt.history: history_html(prompts, texts),
        }
        return shown | self._words(texts) | self._settings(values, request, texts)

    def _words(self, texts: Texts) -> dict:
        """What the page was built with in English, in the visitor's language; nothing for who reads English."""
        if texts is ENGLISH:
            return {}
        compare, library = self.compare.panel, self.jobs.library
        return self._presets(texts) | {
            self.main.stage.view: stage_html(StageView(), None, texts),
            compare.view: compare_html(Side(), texts),
            compare.what: gr.update(choices=what_choices(texts)),
            library.preset: gr.update(choices=preset_filter(texts)),
            library.detail: detail_html(None, None, texts),
        }

    def _presets(self, texts: Texts) -> dict:
        """The presets for choice, and what the one that is chosen at first says of itself and its examples."""
        choices, form = preset_choices("t2v", self.main.desk.can_run), self.main.form
        named, preset = choices.dropdown(texts.language), choices.pick(None)
        shown = {
            form.settings.preset_note: elsewhere_html(choices, texts),
            self.compare.panel.presets: gr.update(choices=named),
        }
        if preset is None:
            return shown
        captions = example_captions(preset, texts)
        return shown | {
            form.settings.preset: gr.update(choices=named, value=preset.name),
            form.settings.length: gr.update(**settings_of(preset, texts)["length"]),
            form.prompt.examples: gr.Dataset(samples=example_samples(preset), sample_labels=captions),
            form.image.examples: picture_examples_html(preset, texts),
        }

    def _settings(self, values: dict[gr.Component, Any], request: gr.Request, texts: Texts) -> dict:
        asked = dict(request.query_params)
        if "settings" in asked:
            return self.fill.link(asked["settings"], texts)
        stored = self.fill.stored(values[self.main.stage.session], texts)
        if "compare" in asked:
            return stored | (self.compare.open(asked["compare"], request) or self._shared(asked["compare"], texts))
        return stored

    def _shared(self, comparison_id: str, texts: Texts) -> dict:
        """Somebody else's comparison: its settings, ready to be queued; never its videos."""
        engine, panel = self.main.desk.engine, self.compare.panel
        found = engine.shelf.comparison(comparison_id)
        try:
            requests = [engine.job(job_id).request for job_id in found.jobs] if found else []
            if not requests:
                return {}
            filled = self.fill.shown(requests[0], texts, Message(text=texts.compare_shared, view="compare"))
        except StudioError as error:
            return {self.fill.message: Message(text=sentence(error), is_bad=True).html(texts)}
        what, values = varied(requests)
        is_preset = what == "preset"
        named = preset_choices("t2v", self.main.desk.can_run).dropdown(texts.language)
        return filled | {
            panel.what: gr.update(choices=what_choices(texts), value=what),
            panel.values: gr.update(value=", ".join(values) if not is_preset else "", visible=not is_preset),
            panel.presets: gr.update(choices=named, value=values if is_preset else [], visible=is_preset),
        }

    def tick(self, values: dict[gr.Component, Any], request: gr.Request) -> dict:
        """Sends what has changed since this page was last told."""
        seen = values[self.seen]
        fresh, now = self.jobs.tick(seen, values, request)
        status, compared = self.main.status(request), None
        if fresh or seen.get("changes") != now.get("changes"):
            compared = self.compare.tick(values[self.compare.panel.shown], request)
        news = fresh | ({self.compare.panel.view: compared} if compared and compared != seen.get("compare") else {})
        now = now | {"status": status, "compare": compared or seen.get("compare")}
        return news | ({self.header.status: status} if status != seen.get("status") else {}) | {self.seen: now}

    def look(self, request: gr.Request, event: gr.EventData) -> str:
        """The system panel, which came into view."""
        Act.of(event)
        return system_html(self.main.desk, request)


def varied(requests: list[GenerationRequest]) -> tuple[str, list[str]]:
    """What a comparison varies, as the compare bar says it, and its values."""
    for name, values in differences(requests):
        if name in ("seed", "steps", "flow_shift", "preset"):
            return name, [str(value) for value in values]
        if name == "guidance":
            return name, [f"{value[0]:g}" for value in values]
    return "seed", []
