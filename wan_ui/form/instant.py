"""Instant mode: a switch at the prompt. While it is on, the page requests small drafts, which its script shows over the stage.

Element ids: `instant` (the switch), `instant-result`, `draft` (the view over the stage). `instant.js` sends the requests.
"""

import json
import secrets
from dataclasses import dataclass
from html import escape

import gradio as gr

from backend.schemas.request import SEED_LIMIT
from wan_ui.components.buttons import quiet_button
from wan_ui.components.descriptions import DESCRIBED
from wan_ui.components.events import Values, start_script
from wan_ui.components.values import NO_PICTURE
from wan_ui.form.settings import SettingsPanel
from wan_ui.i18n.english import Texts


@dataclass(frozen=True, kw_only=True)
class InstantPanel:
    """The components of instant mode.

    `result` contains the answer to the page's last request. `seed` is the seed of all drafts until the next video is queued,
    None before the first draft. The view Create places `view` over the stage.
    """

    switch: gr.Checkbox
    result: gr.HTML
    seed: gr.State
    view: gr.HTML

    def fix_seed(self, values: Values, settings: SettingsPanel) -> Values:
        """Return the form's values with the seed of the drafts, if Instant is on and each video gets a new seed."""
        if not values[self.switch] or not (values[settings.is_seed_random] or values[settings.seed] is None):
            return values
        seed = values[self.seed]
        own = seed if isinstance(seed, int) else secrets.randbelow(SEED_LIMIT)
        return values | {settings.seed: own, settings.is_seed_random: False}


def build_instant_panel(texts: Texts, labels: Texts, *, is_offered: bool) -> InstantPanel:
    """Build the switch and the text for answers in the prompt's column. Build the view of drafts, which the caller places."""
    with gr.Row(elem_id="instant-row", visible=is_offered):
        switch = gr.Checkbox(
            label=labels.instant,
            info=labels.instant_hint,
            elem_id="instant",
            elem_classes=DESCRIBED,
            container=False,
            min_width=60,
        )
        result = gr.HTML("", js_on_load=start_script("instant"), elem_id="instant-result", apply_default_css=False)
    view = gr.HTML(draft_view_html(texts), elem_id="draft", apply_default_css=False, render=False)
    return InstantPanel(switch=switch, result=result, seed=gr.State(None), view=view)


def draft_view_html(texts: Texts) -> str:
    """Render the view without a draft. The page's script fills it in."""
    return (
        f'<section class="draft" aria-label="{escape(texts.instant_draft)}" hidden><div class="viewport">'
        f'<div class="screen"><img alt="" src="{NO_PICTURE}"></div></div>'
        f'<p class="line" role="status"><b>{escape(texts.instant_draft)}</b><span class="detail"></span>'
        f"{quiet_button('cross', texts.instant_hide, 'data-draft-hide')}</p></section>"
    )


def result_html(
    number: int, note: str = "", *, prompt: str = "", seed: int = 0, picture: str = "", is_waiting: bool = False
) -> str:
    """Render the answer to request `number` of the page.

    `picture` is an animated WebP in base64, "" without a draft. If `is_waiting`, the page must request the draft again later.
    """
    answer = {"number": number, "prompt": prompt, "seed": seed, "picture": picture, "isWaiting": is_waiting}
    return f'<p class="hint" role="status" data-answer="{escape(json.dumps(answer))}">{escape(note)}</p>'
