"""The prompt, the prompt history, and examples for the model.

Element ids: `prompt`, `history`, `examples`, `prompt-note`, and the ids of `rewrite`, `instant` and `shots`.
"""

from dataclasses import dataclass
from html import escape

import gradio as gr

from presets import Preset
from presets.loader import Task
from wan_ui.components.events import QUIET
from wan_ui.components.field_errors import build_note
from wan_ui.form.instant import InstantPanel, build_instant_panel
from wan_ui.form.rewrite import RewritePanel
from wan_ui.form.shots import ShotsPanel, build_shots_panel
from wan_ui.gateway.body_limit import LONGEST_TEXT
from wan_ui.i18n.english import Texts


@dataclass(frozen=True, kw_only=True)
class PromptPanel:
    prompt: gr.Textbox
    history: gr.HTML
    rewrite: RewritePanel
    instant: InstantPanel
    shots: ShotsPanel
    examples: gr.Dataset
    note: gr.HTML


def build_prompt_panel(preset: Preset, texts: Texts, labels: Texts, *, has_rewriter: bool, offers_instant: bool) -> PromptPanel:
    with gr.Column(elem_id="prompt-column"):
        prompt = gr.Textbox(
            label=labels.prompt,
            placeholder=labels.prompt_placeholder,
            lines=3,
            max_lines=6,
            max_length=LONGEST_TEXT,
            elem_id="prompt",
        )
        history = gr.HTML(history_html([], texts), elem_id="history")
        rewrite = RewritePanel(
            button=gr.Button(labels.rewrite, size="sm", elem_id="rewrite", visible=has_rewriter),
            suggestion=gr.HTML("", elem_id="suggestion", visible=has_rewriter),
            put=gr.State(None),
        )
        instant = build_instant_panel(texts, labels, is_offered=offers_instant)
    shots = build_shots_panel(preset, texts)
    note = build_note("prompt-note")
    examples = gr.Dataset(
        label=labels.examples,
        components=[gr.Textbox(visible=False)],
        samples=example_samples(preset),
        sample_labels=example_captions(preset, texts),
        layout="gallery",
        samples_per_page=50,
        elem_id="examples",
    )
    examples.click(lambda sample: sample[0], examples, prompt, **QUIET)
    return PromptPanel(
        prompt=prompt, history=history, rewrite=rewrite, instant=instant, shots=shots, examples=examples, note=note
    )


def history_html(prompts: list[str], texts: Texts) -> str:
    """Render the prompt history behind a small button, and the button that shows the batch (`form/batch.py`)."""
    rows = "".join(
        f'<li><button type="button" data-act="fill:prompt" data-value="{escape(prompt)}">{escape(prompt)}</button></li>'
        for prompt in prompts
    )
    inside = f"<ul>{rows}</ul>" if rows else f'<p class="hint">{escape(texts.history_empty)}</p>'
    batch = f'<button type="button" class="batch-toggle" aria-expanded="false">{escape(texts.batch)}</button>'
    return f'{batch}<details class="popover"><summary>{escape(texts.history)}</summary><div>{inside}</div></details>'


def example_samples(preset: Preset) -> list[list[str]]:
    return [[example] for example in preset.examples]


def example_captions(preset: Preset, texts: Texts) -> list[str] | None:
    """Return the captions of the example prompts in the visitor's language, None if the captions are the prompts themselves."""
    captions = preset.words(texts.language).examples
    return None if captions == preset.examples else list(captions)


def shows_example_prompts(task: Task, preset: Preset | None) -> bool:
    """Return whether the example prompts are shown. They are hidden if example images have their own prompts."""
    return task == "t2v" or preset is None or not preset.image_examples
