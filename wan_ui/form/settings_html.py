"""The settings as HTML, for views without Gradio components. `settings.js` fills the fields for the selected model and mode, and
reads their values. `controls.py` describes them.

Element ids start with the view's name: `edit-solver` is the sampler of Edit.
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from html import escape
from typing import Any

from backend.errors import StudioError
from presets import Preset
from wan_ui.components.descriptions import description_html
from wan_ui.form.controls import NAMES, Control, control_values, describe_controls
from wan_ui.form.own_presets import check_settings
from wan_ui.gateway.body_limit import LONGEST_TEXT
from wan_ui.i18n.english import Texts
from wan_ui.services.caller import Caller
from wan_ui.services.studio_context import StudioContext

_LONG = ("negative_prompt", "loras")  # texts of several lines
_HAS_OWN_FIELD = ("length",)  # omitted here: Edit's timeline sets the length, and a live video has no fixed length

Modes = Mapping[str, Collection[str]]
"""The fields of the request that each mode of a view sets, by the mode's name."""


def settings_html(
    view: str, presets: Sequence[Preset], modes: Callable[[Preset], Modes], texts: Texts, first: Collection[str]
) -> str:
    """Render an empty field for each setting that any of these presets can use in any of the preset's modes.

    `modes` returns a preset's modes. The controls `first` are always visible. "More settings" shows the other controls.
    """
    used: dict[str, Control] = {}
    for preset in presets:
        for given in modes(preset).values():
            shown = describe_controls(preset, texts, given=given)
            used |= {name: one for name, one in shown.items() if one.is_shown and name not in _HAS_OWN_FIELD}
    used["seed"] = Control(name="seed", label="seed", kind="number", value=None, is_whole=True)
    names = dict.fromkeys(("resolution", "seed", *NAMES))
    fields = {name: _field_html(view, used[name], texts) for name in names if name in used}
    visible, more = ("".join(html for name, html in fields.items() if (name in first) is is_first) for is_first in (True, False))
    own = (
        f'<details class="popover own wide"><summary>{escape(texts.my_presets)}</summary><div><ul></ul>'
        f'<p class="hint">{escape(texts.my_presets_here)}</p></div></details>'
    )
    return (
        f'<div class="settings">{visible}<details class="wide more"><summary>{escape(texts.more)}</summary>'
        f'<div class="settings">{own}{more}</div></details></div>'
    )


def preset_controls(preset: Preset, modes: Modes, texts: Texts) -> dict[str, Any]:
    """Return what `settings.js` needs of each control that this preset uses: its value, choices and limits, as JSON values.

    `modes` of a control names the modes that show the control. It is missing if all modes show the control.
    """
    by_mode = {mode: describe_controls(preset, texts, given=given) for mode, given in modes.items()}
    found = {}
    for name, control in next(iter(by_mode.values())).items():
        shown = [mode for mode, controls in by_mode.items() if controls[name].is_shown]
        if shown and name not in _HAS_OWN_FIELD:
            facts = {"value": control.value, "choices": control.choices, "limits": control.limits}
            facts["guidance"] = preset.first_guidance if name == "guided_steps" else None
            facts["modes"] = [] if len(shown) == len(by_mode) else shown
            found[name] = {key: value for key, value in facts.items() if value not in (None, (), [])}
    return found


def own_preset_values(context: StudioContext, caller: Caller, presets: Collection[Preset]) -> list[dict[str, Any]]:
    """Return the visitor's *My presets* that use these models: the names, and the values of the controls."""
    names, found = {preset.name for preset in presets}, []
    for name, settings in context.engine.user_presets.presets(caller.owner).items():
        try:
            request = check_settings(dict(settings))
        except StudioError:
            continue  # the model of this preset no longer exists
        if request.preset in names:
            found.append({"name": name, "preset": request.preset, "settings": control_values(request)})
    return found


def data_attribute(name: str, value: Any) -> str:
    """Return a data attribute with JSON. Single quotes keep it short, because JSON has many double quotes."""
    text = escape(json.dumps(value, ensure_ascii=False), quote=False).replace("'", "&#39;")
    return f"data-{name}='{text}'"


def _field_html(view: str, control: Control, texts: Texts) -> str:
    element, name = escape(f"{view}-{control.name.replace('_', '-')}"), escape(control.name)
    named = getattr(texts, control.label)
    label = f'<label for="{element}">{escape(named)}</label>{description_html(control.name, view, named, texts)}'
    hint = f' placeholder="{escape(texts.seed_placeholder)}"' if control.name == "seed" else ""
    style = ""
    if control.name in _LONG:
        style, tag = " wide", f'<textarea id="{element}" rows="2" maxlength="{LONGEST_TEXT}"></textarea>'
    elif control.kind == "choice":
        tag = f'<select id="{element}"></select>'
    elif control.kind == "check":
        style, tag = " wide toggle", f'<input type="checkbox" id="{element}">'
    elif control.kind == "text":
        tag = f'<input id="{element}" maxlength="{LONGEST_TEXT}">'
    else:
        tag = f'<input type="number" id="{element}" step="{1 if control.is_whole else "any"}"{hint}>'
    return f'<div class="field described{style}" data-setting="{name}">{label}{tag}</div>'
