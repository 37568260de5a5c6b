"""The compare view: its components and handlers, which queue comparisons, show them, and create links to them."""

from collections.abc import Mapping
from dataclasses import dataclass

import gradio as gr

from backend.engine.user_presets import Comparison
from backend.errors import StudioError
from backend.media.sandbox import Steps
from backend.schemas.request import GenerationRequest
from wan_ui.compare.html import MOST, Cell, CompareContent, compare_html, differences
from wan_ui.compare.variations import SAME_FOR_MODELS, Axis, find_varied_setting, grid_requests, varied_requests
from wan_ui.components.buttons import Act
from wan_ui.components.events import EACH, LAST, QUIET, RAW, Updates, Values
from wan_ui.components.toast import Message
from wan_ui.form.form import Form
from wan_ui.form.load_settings import LoadHandlers
from wan_ui.form.unused_settings import setting_label, unused_settings_text
from wan_ui.i18n.english import Texts
from wan_ui.services.caller import Caller
from wan_ui.services.job_followers import stage_view
from wan_ui.services.panel import Acts, Panel
from wan_ui.services.presets import preset_choices
from wan_ui.services.sandbox_calls import runs_sandbox_calls
from wan_ui.services.studio_context import StudioContext


@dataclass(frozen=True, kw_only=True)
class ComparePanel:
    """The view's components. `shown` is the id of the current comparison. `chosen` has the ids of the selected jobs."""

    what: gr.Dropdown
    values: gr.Textbox
    presets: gr.Dropdown
    also: gr.Dropdown
    also_values: gr.Textbox
    start: gr.Button
    view: gr.HTML
    shown: gr.State
    chosen: gr.State


@dataclass(frozen=True, kw_only=True)
class CompareHandlers(Panel):
    """Handlers of the compare view. The bar is the row of controls above the videos, which chooses the settings to vary."""

    context: StudioContext
    form: Form
    panel: ComparePanel
    message: gr.HTML

    @property
    def loading(self) -> LoadHandlers:
        return LoadHandlers(context=self.context, form=self.form, message=self.message)

    @property
    def inputs(self) -> set[gr.blocks.Block]:
        return {self.panel.shown, self.panel.chosen}

    @property
    def outputs(self) -> list[gr.blocks.Block]:
        panel = self.panel
        filled = [panel.what, panel.values, panel.presets, panel.also, panel.also_values, *self.loading.outputs]
        return [panel.view, panel.shown, panel.chosen, *filled]

    @property
    def acts(self) -> Acts:
        return {"compare": self.act}

    def wire(self) -> None:
        panel = self.panel
        inputs = self.form.inputs | {panel.what, panel.values, panel.presets, panel.also, panel.also_values}
        outputs = [panel.view, panel.shown, panel.chosen, self.message]
        self.after_act(panel.start.click(self.start, inputs, outputs, **RAW))
        panel.what.input(_values_or_presets, panel.what, [panel.values, panel.presets], **QUIET, **LAST)
        panel.also.input(_also_values, panel.also, panel.also_values, **QUIET, **LAST)

    def after_act(self, acted: gr.events.Dependency) -> None:
        """Render the comparison again after an action.

        Until the action is answered, the page does not have the comparison's id, so `tick` does not render the comparison.
        """
        acted.then(self.render_again, self.panel.shown, self.panel.view, **EACH)

    def initial_updates(self, caller: Caller, parameters: Mapping[str, str], values: Values) -> Updates:
        """Return the view in the visitor's language. If the page's address names a comparison, open the comparison.

        If the address also contains settings, do not open the comparison. If the visitor may not see its videos, load only its
        settings into the form.
        """
        shown: Updates = {}
        if not caller.uses_english:  # the view was built in English
            presets = preset_choices("t2v", self.context.preset_filter(caller)).dropdown_choices(caller.texts.language)
            shown = {
                self.panel.view: compare_html(CompareContent(), caller.texts),
                self.panel.what: gr.update(choices=what_choices(caller.texts)),
                self.panel.also: gr.update(choices=also_choices(caller.texts)),
                self.panel.presets: gr.update(choices=presets),
            }
        if "compare" not in parameters or "settings" in parameters:
            return shown
        comparison = self.context.engine.user_presets.comparison(parameters["compare"])
        if comparison is None:
            return shown
        is_visible = caller.may_see(comparison.owner)
        return shown | (self._show_comparison(comparison, caller) if is_visible else self._load_settings(comparison, caller))

    def tick(self, caller: Caller, values: Values) -> Updates:
        comparison = self.context.engine.user_presets.comparison(values[self.panel.shown])
        return {self.panel.view: self._render(comparison, caller)} if comparison else {}

    def render_again(self, shown: str, request: gr.Request) -> object:
        caller, found = self.context.identify_caller(request), self.context.engine.user_presets.comparison(shown)
        return self._render(found, caller) if found else gr.skip()

    @runs_sandbox_calls
    def start(self, values: Values, request: gr.Request) -> Steps[Updates]:
        """Queue the form's settings with one or two settings varied. If one video is refused, none is queued."""
        panel, caller = self.panel, self.context.identify_caller(request)
        try:
            base = self.form.read(values).to_request()
            wanted, columns = self._requested_videos(base, values)
            jobs = yield from self.context.submit_all_steps(wanted, caller)
        except StudioError as error:
            return {self.message: Message.from_error(error).html(caller.texts)}
        comparison = self.context.engine.user_presets.compare(caller.owner, jobs, columns)
        lost = unused_settings_text(base, SAME_FOR_MODELS, caller.texts) if values[panel.what] == "preset" else ""
        return self._show_comparison(comparison, caller, lost) | {panel.chosen: []}

    def act(self, values: Values, request: gr.Request, event: gr.EventData) -> Updates:
        """Add a video, compare a video with its source clip, create a link, or clear the view."""
        act, caller, panel = Act.from_event(event), self.context.identify_caller(request), self.panel
        texts, user_presets, job = caller.texts, self.context.engine.user_presets, self.context.find_job(act.job, caller)
        match act.what:
            case "add" if job is not None:
                chosen = values[panel.chosen] if len(values[panel.chosen]) < MOST else []
                chosen = list(dict.fromkeys([*chosen, job.id]))
                if len(chosen) >= 2:
                    return self._show_comparison(user_presets.compare(caller.owner, tuple(chosen)), caller) | {
                        panel.chosen: chosen
                    }
                return {
                    panel.chosen: chosen,
                    panel.view: compare_html(CompareContent(chosen=1), texts),
                    panel.shown: "",
                    self.message: Message(text=texts.compare_tray.format(count=1)).html(texts),
                }
            case "original" if job is not None and job.request.has_original:
                # This comparison has a single job, all other comparisons have several jobs.
                return self._show_comparison(user_presets.compare(caller.owner, (job.id,)), caller)
            case "link":
                comparison = user_presets.comparison(values[panel.shown])
                if comparison is None or not caller.may_see(comparison.owner):
                    return {self.message: Message().html(texts)}
                return {self.message: Message(text=texts.compare_linked, copy=f"?compare={comparison.id}").html(texts)}
            case "clear":
                return {panel.view: compare_html(CompareContent(), texts), panel.shown: "", panel.chosen: []}
        return {panel.chosen: gr.skip()}

    def _load_settings(self, comparison: Comparison, caller: Caller) -> Updates:
        columns, texts, panel = comparison.columns, caller.texts, self.panel
        try:
            requests = [self.context.engine.jobs.find(job_id).request for job_id in comparison.jobs]
            if not requests:
                return {}
            varied_too = self._unsupported_differences_text(requests, columns, caller)
            message = Message(text=" ".join(filter(None, (texts.compare_shared, varied_too))), view="compare")
            filled = self.loading.show_request(requests[0], texts, message)
        except StudioError as error:
            return {self.message: Message.from_error(error).html(texts)}
        what, values = find_varied_setting(requests[:columns] if columns else requests)
        also, others = find_varied_setting(requests[::columns]) if columns else ("", [])
        is_preset = what == "preset"
        named = preset_choices("t2v", self.context.preset_filter(caller)).dropdown_choices(texts.language)
        return filled | {
            panel.what: gr.update(choices=what_choices(texts), value=what),
            panel.values: gr.update(value=", ".join(values) if not is_preset else "", visible=not is_preset),
            panel.presets: gr.update(choices=named, value=values if is_preset else [], visible=is_preset),
            panel.also: gr.update(choices=also_choices(texts), value=also),
            panel.also_values: gr.update(value=", ".join(others), visible=bool(also)),
        }

    def _unsupported_differences_text(self, requests: list[GenerationRequest], columns: int, caller: Caller) -> str:
        """Return a sentence that lists the differing settings that the bar cannot vary, "" if no such setting differs."""
        across, _ = find_varied_setting(requests[:columns] if columns else requests)
        down = find_varied_setting(requests[::columns])[0] if columns else ""
        if across == "preset":  # each model has its own defaults, so other settings differ too
            return ""
        names = [name for name, _ in differences(requests) if name not in (across, down)]
        named = caller.texts.list_separator.join(setting_label(name, caller.texts) for name in names)
        return caller.texts.compare_not_varied.format(settings=named) if names else ""

    def _requested_videos(self, base: GenerationRequest, values: Values) -> tuple[list[GenerationRequest], int]:
        """Return the requests for the values in the bar, and the number of columns of the grid (0 if only one setting varies).

        Raises: RequestError.
        """
        panel, also = self.panel, str(values[self.panel.also] or "")
        what, text, presets = values[panel.what], values[panel.values] or "", values[panel.presets] or []
        if not also:
            return varied_requests(base, what, text, presets), 0
        down = Axis(what=also, text=str(values[panel.also_values] or ""))
        return grid_requests(base, Axis(what=str(what), text=text, presets=tuple(presets)), down)

    def _show_comparison(self, comparison: Comparison, caller: Caller, said: str = "") -> Updates:
        return {
            self.panel.view: self._render(comparison, caller),
            self.panel.shown: comparison.id,
            self.message: Message(text=said, view="compare").html(caller.texts),
        }

    def _render(self, comparison: Comparison, caller: Caller) -> str:
        jobs = [self.context.find_job(job_id, caller) for job_id in comparison.jobs]
        cells = tuple(Cell(job=job, view=stage_view(self.context, job)) for job in jobs if job)
        if len(comparison.jobs) == 1 and cells and cells[0].job.request.has_original:
            cells = (Cell(job=cells[0].job, view=cells[0].view, is_original=True), *cells)
        columns = comparison.columns if len(cells) == len(jobs) else 0
        return compare_html(CompareContent(id=comparison.id, cells=cells, columns=columns), caller.texts)


def what_choices(texts: Texts) -> list[tuple[str, str]]:
    return [(name, key) for key, name in texts.compare_what]


def also_choices(texts: Texts) -> list[tuple[str, str]]:
    """Return the choices for the second varied setting of a grid. The first choice means no second setting."""
    return [(texts.compare_also_none, ""), *(choice for choice in what_choices(texts) if choice[1] not in ("preset", "loras"))]


def _also_values(also: str) -> object:
    """Show the text field for the values of the second varied setting `also`. Hide the field if `also` is ""."""
    return gr.update(visible=bool(also))


def _values_or_presets(what: str) -> tuple[object, object]:
    """Show the text field for the values, or the list of models if the model varies. Hide both if the LoRAs vary."""
    return gr.update(visible=what not in ("preset", "loras")), gr.update(visible=what == "preset")
