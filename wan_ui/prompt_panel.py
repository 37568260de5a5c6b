"""The prompt, the negative prompt and examples that fit the model.

Element ids: `prompt`, `negative-prompt`, `examples`, `prompt-note`.
"""

from dataclasses import dataclass

import gradio as gr

from presets import Preset
from presets.loader import Task
from wan_ui.notes import build_note
from wan_ui.text import Texts


@dataclass(frozen=True, kw_only=True)
class PromptPanel:
    """The panel's components."""

    prompt: gr.Textbox
    negative_prompt: gr.Textbox
    examples: gr.Dataset
    note: gr.HTML


def build_prompt_panel(preset: Preset, texts: Texts) -> PromptPanel:
    """Lays the panel out, filled for this preset."""
    prompt = gr.Textbox(
        label=texts.prompt, placeholder=texts.prompt_placeholder, lines=3, max_lines=6, elem_id="prompt"
    )
    note = build_note("prompt-note")
    examples = gr.Dataset(
        label=texts.examples, components=[gr.Textbox(visible=False)], samples=example_samples(preset), layout="gallery",
        samples_per_page=50, elem_id="examples",
    )  # fmt: skip
    negative = gr.Textbox(
        label=texts.negative_prompt, placeholder=texts.negative_placeholder, value=preset.negative_prompt, lines=1,
        max_lines=2, elem_id="negative-prompt",
    )  # fmt: skip
    examples.click(lambda sample: sample[0], examples, prompt, queue=False, show_progress="hidden",
                   api_visibility="private")  # fmt: skip
    return PromptPanel(prompt=prompt, negative_prompt=negative, examples=examples, note=note)


def example_samples(preset: Preset) -> list[list[str]]:
    """The preset's examples as rows of a Gradio dataset."""
    return [[example] for example in preset.examples]


def shows_prompts(task: Task, preset: Preset | None) -> bool:
    """Whether the example prompts are shown: not where example pictures come with prompts of their own."""
    return task == "t2v" or preset is None or not preset.image_examples
