"""Build the form: the panels, and the buttons below them.

Element ids: `tabs`, `generate`, `stop`, `leave`, `estimate`, `goes-into`.
"""

import gradio as gr

from presets import Preset, list_presets
from wan_ui.form.batch import build_batch
from wan_ui.form.form import Actions, Form
from wan_ui.form.own_presets import build_own_presets
from wan_ui.form.own_sound import build_sound_panel
from wan_ui.form.picture import ImagePanel, build_image_panel
from wan_ui.form.prompt import build_prompt_panel
from wan_ui.form.settings import build_settings_panel
from wan_ui.i18n.english import Texts
from wan_ui.services.presets import PresetChoices, preset_choices
from wan_ui.services.studio_context import StudioContext


def build_form(context: StudioContext, texts: Texts, labels: Texts) -> Form:
    """Build the whole column with the values of the first preset that can run on this machine."""
    choices = preset_choices("t2v", context.preset_filter())
    preset = choices.pick_preset(None) or list_presets()[0]
    with gr.Column(elem_id="asked-for"):
        tabs, tab_items, image = _build_tabs(preset, texts, labels)
        prompt = build_prompt_panel(
            preset, texts, labels, has_rewriter=context.rewriter is not None, offers_instant=context.offers_instant
        )
        batch = build_batch(texts, labels)
        sound = build_sound_panel(preset, labels)
        own_presets = build_own_presets(texts)
        settings = build_settings_panel(choices, preset, texts, labels)
    return Form(
        task=gr.State("t2v"),
        tabs=tabs,
        tab_items=tab_items,
        prompt=prompt,
        settings=settings,
        image=image,
        sound=sound,
        own_presets=own_presets,
        batch=batch,
        actions=_build_actions(choices, labels),
        editing=gr.State(None),
        session=gr.BrowserState(None, storage_key="studio-settings", secret=context.access.browser_secret()),
    )


def _build_tabs(preset: Preset, texts: Texts, labels: Texts) -> tuple[gr.Tabs, tuple[gr.Tab, gr.Tab], ImagePanel]:
    with gr.Tabs(elem_id="tabs") as tabs:
        with gr.Tab(labels.tab_text, id="t2v") as text_tab:
            pass
        with gr.Tab(labels.tab_image, id="i2v") as image_tab:
            image = build_image_panel(preset, texts, labels)
    return tabs, (text_tab, image_tab), image


def _build_actions(choices: PresetChoices, labels: Texts) -> Actions:
    can_generate = bool(choices.available)
    with gr.Column(elem_id="actions"):
        project = gr.HTML("", elem_id="goes-into")
        estimate = gr.HTML("", elem_id="estimate")
        with gr.Row(elem_id="buttons"):
            generate = gr.Button(labels.generate, variant="primary", size="lg", elem_id="generate", interactive=can_generate)
            leave = gr.Button(labels.discard_changes, size="lg", elem_id="leave", visible=False)
            stop = gr.Button(labels.stop, variant="stop", size="lg", elem_id="stop")
    return Actions(generate=generate, leave=leave, stop=stop, estimate=estimate, project=project)
