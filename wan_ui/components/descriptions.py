"""The descriptions of settings, which a "?" beside the label opens. English texts come from the table of settings.

Views in HTML call `description_html`. Gradio's components get the text of `describe` as `info`, and the class `DESCRIBED`.
`descriptions.js` adds the same "?" to each component of this class.
"""

from html import escape

from backend.schemas.settings import FIELDS
from wan_ui.i18n.english import Texts

DESCRIBED = "described"
_SETTING_OF = {
    "resolution": "width",
    "length": "num_frames",
    "guidance_low": "guidance",
    "guidance_start": "guidance_interval",
    "guidance_end": "guidance_interval",
    **{f"{setting.name}_sound": setting.name for setting in FIELDS if setting.label and setting.is_list},
}


def describe(control: str, texts: Texts) -> str:
    """Return the description of a control's setting.

    Most controls have the name of their setting. Others are in `_SETTING_OF`, such as "length" for "num_frames".
    """
    return texts.describe_setting(_SETTING_OF.get(control, control))


def description_html(control: str, view: str, label: str, texts: Texts) -> str:
    """Render the "?" and the text that it opens, for an element of the class `DESCRIBED`. `view` makes the id unique."""
    element = f"about-{view}-{control}"
    return (
        f'<button type="button" class="about" popovertarget="{element}" aria-label="{escape(label)} ?">?</button>'
        f'<div popover class="description" id="{element}">{escape(describe(control, texts))}</div>'
    )
