"""The form's components, the values that the visitor entered, and the request that these values define."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gradio as gr

from backend.schemas.characters import read_characters
from backend.schemas.request import SEED_LIMIT, GenerationRequest
from backend.schemas.settings import FROM_INPUTS, SETTINGS, Shot, find_preset
from backend.schemas.shots import FILES, read_shots
from wan_ui.form.controls import is_shown, read_controls
from wan_ui.form.own_sound import SoundPanel
from wan_ui.form.picture import PICTURES, ImagePanel, uploaded_picture
from wan_ui.form.prompt import PromptPanel
from wan_ui.form.settings import SettingsPanel, control_updates
from wan_ui.form.shots import convert_frame_rate, read_storyboard
from wan_ui.gateway.uploads import check_upload_path
from wan_ui.i18n.english import Texts
from wan_ui.services.presets import CanRun, preset_choices


@dataclass(frozen=True, kw_only=True)
class Draft:
    """The values of the form, unchecked. `to_request` validates them.

    `given` has the settings by name. `guidance` has two values even if the preset has one expert. Images are paths of uploads.
    `shots` has a dict for each shot. None or a missing value means the preset's own value. Sliders always have a value.
    """

    given: Mapping[str, Any]

    def to_request(self) -> GenerationRequest:
        """Validate the values. Raises: RequestError."""
        return GenerationRequest(**self._values())

    def to_settings(self) -> GenerationRequest:
        """Return the settings without files, for presets and links. The form can be incomplete. Raises: RequestError."""
        return GenerationRequest.from_stored(omit_input_files(self._values()))

    def _values(self) -> dict[str, Any]:
        preset = find_preset(self.given["preset"])
        unused = {*PICTURES} - preset.inputs.keys() if self.given["task"] == "i2v" else {*PICTURES, "image_focus"}
        unused |= set() if "sound" in preset.inputs and self.given.get("sound") else {"sound", "sound_start"}
        given = {name: value for name, value in self.given.items() if value is not None or SETTINGS[name].slider_range}
        values = preset.model_dump(include=set(SETTINGS))
        values |= {name: value for name, value in given.items() if name not in unused | {"shots"}}
        values["guidance"] = values["guidance"][: preset.num_experts]
        if shots := given.get("shots"):
            values |= read_shots(convert_frame_rate(shots, values["fps"]), preset, values["fps"])
            values["prompt"] = next((row["prompt"] for row in shots if row.get("prompt")), "")
            values |= read_characters(values.pop("figures", None) or ())
        return values


def omit_input_files(settings: Mapping[str, Any]) -> dict[str, object]:
    """Return the settings of a request without its files, and without settings about these files."""
    kept = {name: value for name, value in settings.items() if name not in FROM_INPUTS}
    if kept.get("shots"):
        shots = (shot.model_dump() if isinstance(shot, Shot) else dict(shot) for shot in kept["shots"])
        kept["shots"] = tuple({name: value for name, value in shot.items() if name not in FILES} for shot in shots)
    if kept.get("figures"):
        kept["figures"] = tuple(
            {"name": figure["name"]} if isinstance(figure, Mapping) and "name" in figure else figure for figure in kept["figures"]
        )
    return kept


@dataclass(frozen=True, kw_only=True)
class Actions:
    """The buttons below the form, the line with the expected time, and the line that names the project."""

    generate: gr.Button
    leave: gr.Button
    stop: gr.Button
    estimate: gr.HTML
    project: gr.HTML


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The table of a batch, its preview button, and the list of videos."""

    table: gr.Textbox
    preview: gr.Button
    plan: gr.HTML


@dataclass(frozen=True, kw_only=True)
class Form:
    """The panels together. Handlers take `inputs` as a set, so that Gradio passes them as one argument.

    `own_presets` is the menu of the visitor's presets. `editing` is the id of the queued job that the visitor edits. `session`
    has the form's values that the browser remembers.
    """

    task: gr.State
    tabs: gr.Tabs
    tab_items: tuple[gr.Tab, gr.Tab]
    prompt: PromptPanel
    settings: SettingsPanel
    image: ImagePanel
    sound: SoundPanel
    own_presets: gr.HTML
    batch: Batch
    actions: Actions
    editing: gr.State
    session: gr.BrowserState

    @property
    def inputs(self) -> set[gr.blocks.Block]:
        settings, image = self.settings, self.image
        return {
            self.task,
            self.prompt.prompt,
            self.prompt.shots.timeline,
            *image.by_setting.values(),
            image.focus,
            self.sound.file,
            self.sound.start,
            settings.preset,
            settings.seed,
            settings.is_seed_random,
            *settings.follows_preset,
        }

    @property
    def note_components(self) -> list[gr.HTML]:
        """Return the notes for errors, in the order of `PLACES`."""
        return [self.prompt.note, self.image.note, self.sound.note, self.settings.note]

    def show_settings(self, request: GenerationRequest, texts: Texts, can_run: CanRun) -> dict[gr.blocks.Block, object]:
        """Return Gradio updates that show a request's settings. Prompt, seed and images stay as they are."""
        preset = request.resolved_preset
        choices = preset_choices(request.task, can_run)
        shown = [*choices.available, *(one for one in choices.unavailable if one == preset)]
        named = [(one.words(texts.language).title, one.name) for one in shown]
        controls, values = self.settings.controls, control_updates(preset, texts, request)
        return {
            self.task: request.task,
            self.tabs: gr.update(selected=request.task),
            self.settings.preset: gr.update(choices=named, value=preset.name),
            self.image.last_image: gr.update(visible="last_image" in preset.inputs),
            self.sound.box: gr.update(visible="sound" in preset.inputs),
            **{controls[name]: gr.update(**update) for name, update in values.items()},
            **self.prompt.shots.show_shots(request, texts),
        }

    def show_prompt(self, request: GenerationRequest, *, is_seed_new: bool) -> dict[gr.blocks.Block, object]:
        """Return Gradio updates for the prompt and the seed, which `show_settings` leaves out."""
        return {
            self.prompt.prompt: request.prompt,
            self.settings.seed: request.seed,
            self.settings.is_seed_random: is_seed_new,
            self.image.focus: request.image_focus,
        }

    def read(self, values: dict[gr.blocks.Block, Any]) -> Draft:
        """Return the values of `inputs` as unchecked settings. Draw a random seed if each video gets a new seed.

        Raises: RequestError for an unknown model and an unreadable size, ImageError or SoundError for a path that is no upload.
        """
        settings = self.settings
        preset = find_preset(values[settings.preset] or "")
        shown = {name for name in settings.controls if is_shown(name, preset)}
        controls = {name: values[control] for name, control in settings.controls.items() if name in shown}
        is_random = values[settings.is_seed_random] or values[settings.seed] is None
        is_image, sound = values[self.task] == "i2v", values[self.sound.file]
        return Draft(
            given={
                **read_controls(controls),
                **{role: uploaded_picture(values[part]) if is_image else None for role, part in self.image.by_setting.items()},
                "sound": str(check_upload_path(sound.get("path"), "sound")) if isinstance(sound, dict) else None,
                "sound_start": values[self.sound.start] or 0.0,
                "task": values[self.task],
                "preset": preset.name,
                "prompt": values[self.prompt.prompt] or "",
                "seed": secrets.randbelow(SEED_LIMIT) if is_random else values[settings.seed],
                "image_focus": tuple(values[self.image.focus]),
            }
            | read_storyboard(values[self.prompt.shots.timeline])
        )
