"""The form's components, the values that the visitor has filled in, and the request from them."""

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import gradio as gr

from backend.errors import RequestError
from backend.schemas.characters import read_characters
from backend.schemas.request import SEED_LIMIT, GenerationRequest, find_preset
from backend.schemas.settings import FROM_INPUTS, SETTINGS, Shot
from backend.schemas.shots import FILES, read_shots
from presets import list_presets
from wan_ui.form.loras import parse_loras
from wan_ui.form.own_sound import SoundPanel, takes_sound, uploaded_sound
from wan_ui.form.picture import PICTURES, ImagePanel, uploaded_picture
from wan_ui.form.prompt import PromptPanel
from wan_ui.form.settings import PLAIN, SettingsPanel
from wan_ui.form.shots import convert_frame_rate, read_storyboard
from wan_ui.i18n.english import Texts
from wan_ui.services.presets import CanRun, preset_choices


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A filled-in form as the page sent it; `to_request` checks it.

    `given` has the settings by name: `guidance` for two experts, however many there are, pictures as the paths of uploads, and
    `shots` as rows. One that is None, or left out, is the preset's own; not so of a slider, which always has a value.
    """

    given: Mapping[str, Any]

    def to_request(self) -> GenerationRequest:
        """The request. Raises: RequestError, in the engine's own words."""
        return GenerationRequest(**self._values())

    def to_settings(self) -> GenerationRequest:
        """The settings without pictures, even if the form is incomplete: for presets and links. Raises: RequestError."""
        return GenerationRequest.from_stored(omit_input_files(self._values()))

    def _values(self) -> dict[str, Any]:
        preset = find_preset(self.given["preset"])
        unused = {*PICTURES} - preset.inputs.keys() if self.given["task"] == "i2v" else {*PICTURES, "image_focus"}
        unused |= set() if takes_sound(preset) and self.given.get("sound") else {"sound", "sound_start"}
        given = {name: value for name, value in self.given.items() if value is not None or SETTINGS[name].slider}
        values = preset.model_dump(include=set(SETTINGS))
        values |= {name: value for name, value in given.items() if name not in unused | {"shots"}}
        values["guidance"] = given["guidance"][: preset.num_experts]
        if shots := given.get("shots"):
            values |= read_shots(convert_frame_rate(shots, values["fps"]), preset, values["fps"])
            values["prompt"] = next((row["prompt"] for row in shots if row.get("prompt")), "")
            values |= read_characters(values.pop("figures", None) or ())
        return values


def omit_input_files(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a request without its pictures and videos, and without what says how these are used."""
    kept = {name: value for name, value in settings.items() if name not in FROM_INPUTS}
    if kept.get("shots"):
        shots = (shot.model_dump() if isinstance(shot, Shot) else dict(shot) for shot in kept["shots"])
        kept["shots"] = tuple({name: value for name, value in shot.items() if name not in FILES} for shot in shots)
    if kept.get("figures"):
        kept["figures"] = tuple(map(_omit_character_image, kept["figures"]))
    return kept


def _omit_character_image(figure: object) -> Any:
    return {"name": figure["name"]} if isinstance(figure, Mapping) and "name" in figure else figure


_WINDOWS = {"on": True, "off": False}  # otherwise the preset says it


@dataclass(frozen=True, kw_only=True)
class Actions:
    """The buttons below the form, the line that says how long a video will take, and the one that names its project."""

    generate: gr.Button
    leave: gr.Button
    stop: gr.Button
    estimate: gr.HTML
    project: gr.HTML


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The table of many videos, the button that looks at it, and the plan that this shows."""

    table: gr.Textbox
    preview: gr.Button
    plan: gr.HTML


@dataclass(frozen=True, kw_only=True)
class Form:
    """The panels together. Handlers take `inputs` as a set, so that Gradio passes them as one argument.

    `own` is the menu of the visitor's own presets, `editing` the id of the waiting job that is being changed, `session` the
    values of the form that the browser keeps.
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
            self.prompt.shots.lines,
            *image.by_role.values(),
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
        """What is said of errors, in the order of `PLACES`."""
        return [self.prompt.note, self.image.note, self.sound.note, self.settings.note]

    @property
    def loadable(self) -> list[gr.blocks.Block]:
        """The components that loading settings may change, in a fixed order."""
        shots = self.prompt.shots
        follow = [self.tabs, shots.editor, shots.figures, self.sound.box]
        return [*follow, *sorted(self.inputs, key=lambda component: component._id)]

    def show_settings(self, request: GenerationRequest, texts: Texts, can_run: CanRun) -> dict[gr.blocks.Block, Any]:
        """Gradio updates that put a request's settings into the controls; prompt, seed and pictures stay as they are."""
        preset = find_preset(request.preset)
        choices = preset_choices(request.task, can_run)
        named = [
            (found.words(texts.language).title, found.name)
            for found in (*choices.available, *choices.unavailable)
            if found in choices.available or found == preset
        ]
        return {
            self.task: request.task,
            self.tabs: gr.update(selected=request.task),
            self.settings.preset: gr.update(choices=named, value=preset.name),
            self.image.last_image: gr.update(visible="last_image" in preset.inputs),
            **self.sound.show_preset(preset),
            **self.settings.show_values(request, preset, texts),
            **self.prompt.shots.show_shots(request, texts),
        }

    def show_prompt(self, request: GenerationRequest, *, is_seed_new: bool) -> dict[gr.blocks.Block, Any]:
        """Gradio updates for what `show_settings` leaves out: the prompt, and the seed or a new seed each time."""
        return {
            self.prompt.prompt: request.prompt,
            self.settings.seed: request.seed,
            self.settings.is_seed_random: is_seed_new,
            self.image.focus: request.image_focus,
        }

    def read(self, values: dict[gr.blocks.Block, Any]) -> Draft:
        """The values of `inputs` as a draft; draws the seed if it should be a new one each time.

        Raises: RequestError for a size that cannot be read, ImageError or SoundError for a file that was not uploaded.
        """
        settings = self.settings
        controls = {name: values[control] for name, control in settings.controls.items()}
        width, height = parse_size(controls["resolution"])
        is_random = values[settings.is_seed_random] or values[settings.seed] is None
        return Draft(
            given={
                **{one.name: controls[one.name] or "" if one.type is str else controls[one.name] for one in PLAIN},
                **self._read_images(values),
                "sound": uploaded_sound(values[self.sound.file]),
                "sound_start": values[self.sound.start] or 0.0,
                "task": values[self.task],
                "preset": values[settings.preset] or "",
                "prompt": values[self.prompt.prompt] or "",
                "width": width,
                "height": height,
                "num_frames": controls["length"],
                "guidance": (controls["guidance"], controls["guidance_low"]),
                "guidance_interval": (_percent_to_share(controls["guidance_start"]), _percent_to_share(controls["guidance_end"])),
                "seed": secrets.randbelow(SEED_LIMIT) if is_random else values[settings.seed],
                "image_focus": tuple(values[self.image.focus]),
                "loras": parse_loras(controls["loras"]),
                "context_windows": _WINDOWS.get(controls["context_windows"]),
            }
            | read_storyboard(values[self.prompt.shots.lines])
        )

    def _read_images(self, values: dict[gr.blocks.Block, Any]) -> dict[str, str | None]:
        """The paths of the pictures by role; none for text to video."""
        is_image = values[self.task] == "i2v"
        return {role: uploaded_picture(values[part]) if is_image else None for role, part in self.image.by_role.items()}


def _percent_to_share(percent: Any) -> float:
    """Turns per cent into a share (0..1). Raises: RequestError."""
    try:
        return round(float(percent) / 100, 8)
    except (TypeError, ValueError):
        what = f"guidance_interval={str(percent)[:40]!r}"
        raise RequestError(what, "must be numbers of per cent", "0 to 100 is usual") from None


def parse_size(choice: str) -> tuple[int, int]:
    """Width and height from a value of the resolution dropdown, such as "832x480".

    Raises: RequestError, also for a size that no preset makes: pictures are cropped and padded to sizes from here.
    """
    sizes = re.fullmatch(r"([0-9]{1,5})x([0-9]{1,5})", str(choice))
    if sizes is None:
        raise RequestError(f"resolution={str(choice)[:40]!r}", "must be WIDTHxHEIGHT", "choose one that is offered")
    width, height = int(sizes[1]), int(sizes[2])
    smallest, largest = _side_limits()
    if not (smallest <= width <= largest and smallest <= height <= largest):
        raise RequestError(f"resolution={choice}", f"must have sides of {smallest} to {largest}", "choose one that is offered")
    return width, height


@cache
def _side_limits() -> tuple[int, int]:
    """The shortest and the longest side that any preset makes; reads the presets' files once."""
    presets = list_presets()
    shortest = min(side for preset in presets for side in (preset.min_width, preset.min_height))
    return shortest, max(side for preset in presets for side in (preset.max_width, preset.max_height))
