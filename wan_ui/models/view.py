"""The models view: a card per model with its sizes, its memory and its download. Element id: `models`.

`data-model` is a card's model. The view is rendered when it opens, then every few seconds, and every second during a download.
"""

from dataclasses import dataclass, field

import gradio as gr

from backend.errors import StudioError
from wan_ui.components.buttons import Act, text_button
from wan_ui.components.events import Updates, Values
from wan_ui.components.toast import Message
from wan_ui.components.values import format_bytes
from wan_ui.form.form import Form
from wan_ui.form.settings import unavailable_presets_html
from wan_ui.models.html import models_html, short_name
from wan_ui.services.caller import Caller
from wan_ui.services.panel import Acts, Panel
from wan_ui.services.presets import preset_choices
from wan_ui.services.studio_context import StudioContext
from wan_ui.view import Shell, View


@dataclass(frozen=True, kw_only=True)
class ModelsHandlers(Panel):
    """Handlers of the models view. `preset_updates` caches the updates of the form's list of presets, which many pages share."""

    context: StudioContext
    form: Form
    panel: gr.HTML
    message: gr.HTML
    preset_updates: dict[tuple[object, ...], Updates] = field(default_factory=dict)

    @property
    def inputs(self) -> set[gr.blocks.Block]:
        return {self.form.task}

    @property
    def outputs(self) -> list[gr.blocks.Block]:
        return [self.panel, self.message, self.form.settings.preset, self.form.settings.preset_note]

    @property
    def acts(self) -> Acts:
        return {"look_models": self.render_panel, "model": self.act}

    def tick(self, caller: Caller, values: Values) -> Updates:
        """Update the presets of the form if a model was downloaded or removed since the server started."""
        count, task = self.context.engine.models.changes(), values[self.form.task]
        if count == 0 or task not in ("t2v", "i2v"):
            return {}
        key = count, task, caller.is_operator, caller.texts.language
        if key not in self.preset_updates:
            self.preset_updates.clear()
            choices, settings = preset_choices(task, self.context.preset_filter(caller)), self.form.settings
            self.preset_updates[key] = {
                settings.preset: gr.update(choices=choices.dropdown_choices(caller.texts.language)),
                settings.preset_note: unavailable_presets_html(choices, caller.texts),
            }
        return dict(self.preset_updates[key])

    def render_panel(self, values: Values, request: gr.Request, event: gr.EventData) -> Updates:
        """Render the panel when the view opens, and repeatedly while it is open."""
        caller = self.context.identify_caller(request)
        return {self.panel: models_html(self.context.engine.models.rows(), caller)}

    def act(self, values: Values, request: gr.Request, event: gr.EventData) -> Updates:
        """Handle a button of a model. For the operator only."""
        caller, act = self.context.identify_caller(request), Act.from_event(event)
        if not caller.is_operator:
            return {self.panel: gr.skip()}
        engine, texts, source, message = self.context.engine, caller.texts, act.value, None
        model = short_name(source)
        try:
            match act.what:
                case "fetch":
                    engine.models.fetch(source)
                    message = Message(text=texts.model_started.format(model=model, where=texts.models_downloading))
                case "ask":
                    button = text_button("model:remove", texts.model_remove, value=source)
                    message = Message(text=texts.model_remove_ask.format(model=model), button=button)
                case "remove":
                    freed = engine.remove_model(source)
                    message = Message(text=texts.model_removed.format(model=model, size=format_bytes(freed)))
                case _:
                    engine.models.downloads.pause(source)
        except StudioError as error:
            message = Message.from_error(error)
        news = {} if message is None else {self.message: message.html(texts)}
        return {self.panel: models_html(engine.models.rows(), caller)} | news


def build_models(shell: Shell) -> ModelsHandlers:
    panel = gr.HTML("", elem_id="models", apply_default_css=False)
    return ModelsHandlers(context=shell.context, form=shell.form, panel=panel, message=shell.message)


MODELS = View(key="models", title="view_models", build=build_models)
