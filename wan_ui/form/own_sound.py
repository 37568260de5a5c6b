"""The visitor's own audio, which the video follows: a file or a recording, and its start.

Element ids: `own-sound`, `input-sound`, `sound-start`, `sound-note`.
"""

from dataclasses import dataclass

import gradio as gr

from backend.schemas.request import GenerationRequest
from presets import Preset
from wan_ui.components.events import QUIET
from wan_ui.components.field_errors import build_note
from wan_ui.i18n.english import Texts


@dataclass(frozen=True, kw_only=True)
class SoundPanel:
    """The panel's components. `box` is visible for presets that take audio."""

    box: gr.Accordion
    file: gr.Audio
    start: gr.Number
    note: gr.HTML

    def load_audio(self, request: GenerationRequest, path: str | None) -> dict[gr.blocks.Block, object]:
        """Return Gradio updates that show a request's audio. `path` is the file, None if it is missing."""
        box = gr.update(visible="sound" in request.resolved_preset.inputs, open=request.sound is not None)
        return {self.file: path, self.start: request.sound_start, self.box: box}


def build_sound_panel(preset: Preset, labels: Texts) -> SoundPanel:
    with gr.Accordion(labels.own_sound, open=False, elem_id="own-sound", visible="sound" in preset.inputs) as box:
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
        for event, news in (file.start_recording, "begun"), (file.stop_recording, "sent"), (file.clear, "dropped"):
            event(None, js=f"() => studio.recordingChanged('{news}')", **QUIET)
        start = gr.Number(label=labels.own_sound_start, value=0, minimum=0, step=0.1, elem_id="sound-start", min_width=100)
        note = build_note("sound-note")
    return SoundPanel(box=box, file=file, start=start, note=note)
