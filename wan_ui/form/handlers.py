"""Handlers of the form: tasks, models and images, the estimate, and the texts of a page that opens."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import gradio as gr

from backend.errors import StudioError
from backend.schemas.guidance_steps import guide_first_steps, interval_end
from backend.schemas.shots import needs_only_cutting
from presets import load_preset
from presets.loader import Task
from wan_ui.components.events import LAST, QUIET, RAW, Listener, Updates, Values
from wan_ui.components.field_errors import PLACES, Place, note_html
from wan_ui.components.toast import Message
from wan_ui.form.batch import csv_button_html
from wan_ui.form.estimate import estimate_html
from wan_ui.form.form import Form
from wan_ui.form.image_handlers import ImageHandlers
from wan_ui.form.load_settings import LoadHandlers, decode_settings
from wan_ui.form.own_presets import OwnPresetHandlers
from wan_ui.form.picture import picture_examples_html
from wan_ui.form.prompt import example_captions, example_samples, history_html, shows_example_prompts
from wan_ui.form.settings import control_updates, preset_updates, unavailable_presets_html
from wan_ui.form.shots import max_characters_html
from wan_ui.form.shots_html import storyboard_html
from wan_ui.services.caller import Caller
from wan_ui.services.presets import preset_choices
from wan_ui.services.studio_context import StudioContext

MOST_HISTORY = 20
# Choose a preset; estimate; use settings; open a dropped file; My presets; suggest a prompt; batch; instant drafts.
FORM_ACTS = ("choose", "estimate", "fill", "drop", "own", "rewrite", "batch", "instant")

# When the visitor chooses a preset, the server's answer overwrites all controls. Gradio can report one choice several times, so
# the page sends it only once (see `typed.js`).
_LOOKED_AT = "name => studio.form.presetLookedAt(name)"
_SELECTED = "() => studio.form.presetSelected()"
_CHOSEN = "name => studio.form.presetChosen(name)"
_FORGET_TYPED = "() => studio.form.forgetTyped()"
_NOTE_TYPED = "value => studio.form.noteTyped('NAME', value)"
_PUT_BACK = "() => studio.form.typedValues(NAMES)"  # undefined for a control without a typed value: Gradio skips the control
_IF_TYPED = "(count, ...others) => [studio.form.typedOr('guided_steps', null), ...others]"
_COUNT_TYPED = "(count, ...others) => [studio.form.typedOr('guided_steps', count), ...others]"
_STEPS_TYPED = "(count, name, steps) => [count, name, studio.form.typedOr('steps', steps)]"


@dataclass(frozen=True, kw_only=True)
class FormHandlers:
    """The form's handlers. `message` is the line at the bottom of the page."""

    context: StudioContext
    form: Form
    message: gr.HTML

    @property
    def loading(self) -> LoadHandlers:
        return LoadHandlers(context=self.context, form=self.form, message=self.message)

    @property
    def own_presets(self) -> OwnPresetHandlers:
        return OwnPresetHandlers(context=self.context, form=self.form, loading=self.loading, message=self.message)

    @property
    def outputs(self) -> list[gr.blocks.Block]:
        prompt, image, settings = self.form.prompt, self.form.image, self.form.settings
        words = [prompt.history, prompt.examples, image.examples, settings.preset_note]
        return [*self.loading.outputs, *words, self.form.own_presets, self.form.batch.plan]

    def wire(self) -> None:
        form, settings = self.form, self.form.settings
        switched = [form.task, settings.preset, settings.preset_note, form.actions.generate, *self._preset_outputs]
        controls, preset = settings.controls, settings.preset
        # Gradio runs listeners in the order of registration. The listeners that note typed values must run before the
        # listeners that call the server.
        for name, control in controls.items():
            control.input(None, control, js=_NOTE_TYPED.replace("NAME", name), **QUIET)
        for event, script in (preset.focus, _LOOKED_AT), (preset.select, _SELECTED), (preset.input, _CHOSEN):
            event(None, preset, js=script, **QUIET)
        for tab in form.tab_items:
            tab.select(None, js=_FORGET_TYPED, **QUIET)
        tasks: tuple[Task, ...] = ("t2v", "i2v")
        for tab, task in zip(form.tab_items, tasks, strict=True):
            self._restore_typed_after(tab.select(self.task_chooser(task), preset, switched, **QUIET, **LAST))
        inputs, outputs = self._guidance_inputs, settings.guidance_controls
        controls["guided_steps"].input(self.apply_guided_steps, inputs, outputs, js=_COUNT_TYPED, **QUIET, **LAST)
        controls["steps"].input(self.keep_guided_steps, inputs[:3], controls["guidance_end"], js=_STEPS_TYPED, **QUIET, **LAST)
        ImageHandlers(context=self.context, form=self.form).wire()
        actions = form.actions
        self.show_editing_after(actions.leave.click(lambda: None, None, form.editing, **QUIET))
        changing = (*settings.estimate_inputs, form.task, form.image.image)
        gr.on([component.change for component in changing], self.estimate, form.inputs, actions.estimate, **RAW, **LAST)

    def show_editing_after(self, event: gr.events.Dependency) -> None:
        """Update the labels of the buttons after this event, because a queued video may now be edited."""
        actions = self.form.actions
        event.then(self.show_edit_mode, self.form.editing, [actions.generate, actions.leave], **QUIET, **LAST)

    def wire_choice(self, choice: Listener) -> None:
        """Connect the event that the page sends when the visitor has chosen a preset."""
        inputs = [self.form.settings.preset, self.form.task]
        self._restore_typed_after(choice(self.choose_preset, inputs, [self.form.task, *self._preset_outputs], **QUIET, **LAST))

    @property
    def _preset_outputs(self) -> list[gr.blocks.Block]:
        form = self.form
        follow = [form.prompt.shots.max_characters, form.image.last_image, form.sound.box, *form.settings.follows_preset]
        return [form.prompt.examples, form.image.examples, *follow]

    @property
    def _guidance_inputs(self) -> list[gr.blocks.Block]:
        settings = self.form.settings
        return [settings.controls["guided_steps"], settings.preset, settings.controls["steps"], *settings.guidance_controls[:2]]

    def _restore_typed_after(self, event: gr.events.Dependency) -> None:
        """Restore the values that the visitor typed while the server answered this event.

        If the visitor typed a number of guided steps, compute guidance again.
        """
        settings = self.form.settings
        put_back = _PUT_BACK.replace("NAMES", json.dumps([*settings.controls]))
        kept = event.then(None, None, settings.follows_preset, js=put_back, **QUIET)
        kept.then(self.apply_guided_steps, self._guidance_inputs, settings.guidance_controls, js=_IF_TYPED, **RAW, **LAST)

    def initial_updates(self, caller: Caller, parameters: Mapping[str, str], values: Values) -> Updates:
        """Show the texts in the visitor's language, the presets and prompts, and the settings of a link or of the last
        session."""
        texts, form, can_run = caller.texts, self.form, self.context.preset_filter(caller)
        shown = self.show_history(caller) | {form.own_presets: self.own_presets.render_menu(caller)}
        if not caller.uses_english or can_run != self.context.preset_filter():  # the page was built in English, for visitors
            choices = preset_choices("t2v", can_run)
            shown |= {
                form.settings.preset_note: unavailable_presets_html(choices, texts),
                form.prompt.shots.editor: storyboard_html("", texts),
                form.batch.plan: csv_button_html(texts),
            }
            if (preset := choices.pick_preset(None)) is not None:
                named, captions = choices.dropdown_choices(texts.language), example_captions(preset, texts)
                shown |= {
                    form.prompt.shots.max_characters: max_characters_html(preset),
                    form.settings.preset: gr.update(choices=named, value=preset.name),
                    form.settings.controls["length"]: gr.update(**control_updates(preset, texts)["length"]),
                    form.prompt.examples: gr.Dataset(samples=example_samples(preset), sample_labels=captions),
                    form.image.examples: picture_examples_html(preset, texts),
                }
        if "settings" in parameters:
            try:
                request = decode_settings(parameters["settings"])
                message = Message(text=texts.loaded.format(seed=request.seed), view="create")
                return shown | self.loading.show_request(request, texts, message)
            except StudioError as error:
                return shown | {self.message: Message.from_error(error).html(texts)}
        return shown | self.loading.load_session(values[form.session], texts)

    def show_history(self, caller: Caller) -> Updates:
        prompts = self.context.engine.library.prompts(caller.owner, MOST_HISTORY)
        return {self.form.prompt.history: history_html(prompts, caller.texts)}

    def show_note(self, text: str = "", place: Place = "settings") -> Updates:
        """Show the text in the note at this place, and hide the other notes."""
        return {note: note_html(text if at == place else "") for at, note in zip(PLACES, self.form.note_components, strict=True)}

    def estimate(self, values: Values, request: gr.Request) -> str:
        """Render the estimate for the form's request. Let an idle worker load and compile for this request."""
        texts, engine = self.context.identify_caller(request).texts, self.context.engine
        prompt, image = self.form.prompt.prompt, self.form.image.image
        try:
            draft = self.form.read(values | {prompt: values[prompt] or "?"})
            if values[self.form.task] == "i2v" and not values[image]:
                return ""
            wanted = draft.to_request()
        except StudioError:
            return ""
        if needs_only_cutting(wanted):
            return ""  # all shots are finished, and the storyboard already shows a text about this
        engine.prepare_for(wanted)
        return estimate_html(engine.estimates.estimate(wanted), engine.estimates.is_warm(engine.estimates.shape(wanted)), texts)

    def show_edit_mode(self, editing: str | None, request: gr.Request) -> tuple[object, object]:
        """Update the Generate button's label, and show the button that discards changes while a queued video is edited."""
        texts = self.context.identify_caller(request).texts
        return gr.update(value=texts.save_changes if editing else texts.generate), gr.update(visible=bool(editing))

    def task_chooser(self, task: Task) -> Callable[[str | None, gr.Request], Updates]:
        """Return a handler that shows the presets of this task. It keeps the chosen preset if it is available for the task."""
        form = self.form

        def choose(name: str | None, request: gr.Request) -> Updates:
            caller = self.context.identify_caller(request)
            choices, texts = preset_choices(task, self.context.preset_filter(caller)), caller.texts
            preset = choices.pick_preset(name)
            info, is_other = None if preset else texts.presets_none, preset is None or preset.name != name
            # A slow answer must not overwrite a newer choice, so it sets the preset only if the preset changes.
            other: dict[str, Any] = {"value": preset.name if preset else None} if is_other else {}
            shown = {
                form.task: task,
                form.prompt.examples: gr.update(visible=shows_example_prompts(task, preset)),
                form.settings.preset: gr.update(choices=choices.dropdown_choices(texts.language), info=info, **other),
                form.settings.preset_note: unavailable_presets_html(choices, texts),
                form.actions.generate: gr.update(interactive=preset is not None),
            }
            return shown | (self._follow_preset(preset.name, task, caller) if preset and is_other else {})

        return choose

    def choose_preset(self, name: str | None, task: Task, request: gr.Request) -> Updates:
        """Show this preset's choices, its examples and its negative prompt."""
        return self._follow_preset(name, task, self.context.identify_caller(request)) if name else {self.form.task: gr.skip()}

    def _follow_preset(self, name: str, task: Task, caller: Caller) -> Updates:
        preset, texts, form = load_preset(name), caller.texts, self.form
        updates = dict(zip(form.settings.follows_preset, preset_updates(preset, texts), strict=True))
        return updates | {
            form.prompt.examples: gr.Dataset(
                samples=example_samples(preset),
                sample_labels=example_captions(preset, texts),
                visible=shows_example_prompts(task, preset),
            ),
            form.image.examples: picture_examples_html(preset, texts),
            form.image.last_image: gr.update(visible="last_image" in preset.inputs),
            form.sound.box: gr.update(visible="sound" in preset.inputs),
            form.prompt.shots.max_characters: max_characters_html(preset),
        }

    def apply_guided_steps(
        self, count: float | None, name: str | None, steps: float, guidance: float, low: float
    ) -> tuple[Any, ...]:
        """Return the guidance of both experts, and the start and end of guidance in per cent.

        With these values only the first `count` steps have guidance. Without a valid `count`, return no changes.
        """
        try:
            preset = load_preset(name or "")
            found = guide_first_steps(preset, count, {"steps": steps, "guidance": (guidance, low)[: preset.num_experts]})
        except (StudioError, LookupError):
            found = {}
        if not found:
            return (gr.skip(),) * 4
        high, *others = found["guidance"]
        start, end = found.get("guidance_interval", (0.0, 1.0))
        return high, others[0] if others else high, round(100 * start, 6), round(100 * end, 6)

    def keep_guided_steps(self, count: float, name: str | None, steps: float) -> object:
        """Return the end of guidance in per cent, so that the first `count` of `steps` steps have guidance.

        Return no change for presets without the control "guided_steps".
        """
        try:
            is_shown = load_preset(name or "").first_guidance is not None
        except LookupError:
            is_shown = False
        return round(100 * interval_end(count, steps), 6) if is_shown and count and steps and 0 < count < steps else gr.skip()
