"""Build the form: the panels, and the buttons below them.

Element ids: `tabs`, `generate`, `stop`, `leave`, `estimate`, `goes-into`.
"""

import gradio as gr

from presets import list_presets
from wan_ui.components.events import start_script
from wan_ui.form.batch import build_batch
from wan_ui.form.form import Actions, Form
from wan_ui.form.own_presets import own_presets_html
from wan_ui.form.own_sound import build_sound_panel
from wan_ui.form.picture import build_image_panel
from wan_ui.form.prompt import build_prompt_panel
from wan_ui.form.settings import build_settings_panel
from wan_ui.i18n.english import Texts
from wan_ui.services.presets import preset_choices
from wan_ui.services.studio_context import StudioContext


def build_form(context: StudioContext, texts: Texts, labels: Texts) -> Form:
    """Build the whole column with the values of the first preset that can run on this machine."""
    choices = preset_choices("t2v", context.preset_filter())
    preset, has_rewriter = choices.pick_preset(None) or list_presets()[0], context.rewriter is not None
    with gr.Column(elem_id="asked-for"):
        with gr.Tabs(elem_id="tabs") as tabs:
            with gr.Tab(labels.tab_text, id="t2v") as text_tab:
                pass
            with gr.Tab(labels.tab_image, id="i2v") as image_tab:
                image = build_image_panel(preset, texts, labels)
        offers_instant = context.offers_instant
        prompt = build_prompt_panel(preset, texts, labels, has_rewriter=has_rewriter, offers_instant=offers_instant)
        batch = build_batch(texts, labels)
        sound = build_sound_panel(preset, labels)
        own_presets = gr.HTML(own_presets_html({}, texts), js_on_load=start_script("own_presets"), elem_id="own-presets")
        settings = build_settings_panel(choices, preset, texts, labels)
    task, can_generate = gr.State("t2v"), bool(choices.available)
    with gr.Column(elem_id="actions"):
        project, estimate = gr.HTML("", elem_id="goes-into"), gr.HTML("", elem_id="estimate")
        with gr.Row(elem_id="buttons"):
            generate = gr.Button(labels.generate, variant="primary", size="lg", elem_id="generate", interactive=can_generate)
            leave = gr.Button(labels.discard_changes, size="lg", elem_id="leave", visible=False)
            stop = gr.Button(labels.stop, variant="stop", size="lg", elem_id="stop")
    return Form(
        task=task,
        tabs=tabs,
        tab_items=(text_tab, image_tab),
        prompt=prompt,
        settings=settings,
        image=image,
        sound=sound,
        own_presets=own_presets,
        batch=batch,
        actions=Actions(generate=generate, leave=leave, stop=stop, estimate=estimate, project=project),
        editing=gr.State(None),
        session=gr.BrowserState(None, storage_key="studio-settings", secret=context.access.browser_secret()),
    )
