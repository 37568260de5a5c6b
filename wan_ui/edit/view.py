"""The view in which clips are edited: the settings, and the stage beside them. The view is one piece of HTML. Its scripts call
`wan_ui.edit.routes`, and notify Gradio when a video is queued.
"""

import gradio as gr

from wan_ui.components.events import start_script
from wan_ui.edit.handlers import EditHandlers
from wan_ui.edit.html import clip_presets, edit_html
from wan_ui.edit.routes import edit_routes
from wan_ui.services.upscaling import offers_for_any_clip
from wan_ui.view import Shell, View


def build_edit(shell: Shell) -> EditHandlers:
    html = edit_html(clip_presets(shell.context.preset_filter()), shell.texts, larger=offers_for_any_clip(shell.context.engine))
    panel = gr.HTML(html, js_on_load=start_script("edit", "queued"), elem_id="edit", apply_default_css=False)
    return EditHandlers(context=shell.context, panel=panel, stage=shell.stage, message=shell.message)


EDIT = View(
    key="edit",
    title="view_edit",
    build=build_edit,
    beside=("create",),
    on_phone=("create",),
    routes=edit_routes,
    rules={
        "/studio/edit": "login",
        "/studio/edit/clip": "login",
        "/studio/edit/estimate": "login",
        "/studio/edit/mask": "login",
        "/studio/edit/picture": "login",
        "/studio/edit/presets": "login",
    },
)
