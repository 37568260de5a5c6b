"""A sound of the visitor's own, which the picture follows: a file or a recording, and where in it the video begins.

Element ids: `own-sound`, `input-sound`, `sound-start`, `sound-note`.
"""

from dataclasses import dataclass
from typing import Any

import gradio as gr

from backend.schemas.request import GenerationRequest, find_preset
from presets import Preset
from wan_ui.components.events import QUIET
from wan_ui.components.field_errors import build_note
from wan_ui.gateway.uploads import check_upload_path
from wan_ui.i18n.english import Texts


@dataclass(frozen=True, kw_only=True)
class SoundPanel:
    """The panel's components; `box` is seen for presets that take a sound."""

    box: gr.Accordion
    file: gr.Audio
    start: gr.Number
    note: gr.HTML

    def show_preset(self, preset: Preset) -> dict[gr.blocks.Block, Any]:
        """Gradio updates for this preset."""
        return {self.box: gr.update(visible=takes_sound(preset))}

    def load_audio(self, request: GenerationRequest, path: str | None) -> dict[gr.blocks.Block, Any]:
        """Gradio updates that show a request's sound, which lies at `path`, or ask for it again if it is not here."""
        box = gr.update(visible=takes_sound(find_preset(request.preset)), open=request.sound is not None)
        return {self.file: path, self.start: request.sound_start, self.box: box}


def takes_sound(preset: Preset) -> bool:
    """Whether the picture of the preset's model can follow a sound."""
    return "sound" in preset.inputs


def build_sound_panel(preset: Preset, labels: Texts) -> SoundPanel:
    """Builds the panel."""
    with gr.Accordion(labels.own_sound, open=False, elem_id="own-sound", visible=takes_sound(preset)) as box:
        gr.Markdown(labels.own_sound_file, elem_classes="hint")
        file = gr.Audio(
            label=labels.own_sound,
            show_label=False,
            sources=["upload", "microphone"],
            type="filepath",
            editable=False,
            buttons=[],
            elem_id="input-sound",
        )
        for event, told in (file.start_recording, "begun"), (file.stop_recording, "sent"), (file.clear, "dropped"):
            event(None, js=f"() => studio.recordingChanged('{told}')", **QUIET)
        start = gr.Number(label=labels.own_sound_start, value=0, minimum=0, step=0.1, elem_id="sound-start", min_width=100)
        note = build_note("sound-note")
    return SoundPanel(box=box, file=file, start=start, note=note)


def uploaded_sound(file: object) -> str | None:
    """The path of a sound as the page sends it, unopened. Raises: SoundError for a path that is not an upload's."""
    return str(check_upload_path(file.get("path"), "sound")) if isinstance(file, dict) else None
