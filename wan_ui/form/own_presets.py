"""A visitor's named presets: settings without prompt, seed and files. A button beside the model opens the menu.

The server stores the presets under the visitor's name. Element ids: `own-presets`, inside it `own-name`, `own-file`.
"""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

import gradio as gr

from backend.errors import RequestError, StudioError
from backend.schemas.request import GenerationRequest
from backend.schemas.settings import FIELDS, FROM_INPUTS, INPUTS, find_preset
from wan_ui.components.buttons import Act, icon_button, text_button
from wan_ui.components.events import Updates, Values
from wan_ui.components.toast import Message
from wan_ui.form.form import Form
from wan_ui.form.load_settings import LoadHandlers, encode_settings
from wan_ui.form.unused_settings import shown_by_form, unused_settings_text
from wan_ui.i18n.english import Texts
from wan_ui.services.caller import Caller
from wan_ui.services.studio_context import StudioContext

_PERSONAL = FROM_INPUTS.union(one.name for one in FIELDS if one.personal)
_FORMAT = "wan-studio-presets"


Presets = Mapping[str, Mapping[str, Any]]


def own_presets_html(presets: Presets, texts: Texts) -> str:
    rows = "".join(
        f"<li>{text_button('own:load', name, hint=texts.my_presets_load.format(name=name), value=name)}"
        f"{icon_button('own:rename', 'edit', texts.my_presets_rename, value=name)}"
        f"{icon_button('own:delete', 'bin', texts.delete, value=name)}</li>"
        for name in presets
    )
    listed = f"<ul>{rows}</ul>" if rows else f'<p class="hint">{escape(texts.my_presets_none)}</p>'
    named, export = escape(texts.my_presets_name), ""
    if presets:
        content = json.dumps({"format": _FORMAT, "presets": presets}, ensure_ascii=False, indent=2)
        address = f"data:application/json;base64,{base64.b64encode(content.encode()).decode()}"
        export = f'<a class="button" href="{address}" download="presets.json">{escape(texts.my_presets_export)}</a>'
    return (
        f'<details class="popover" id="own-menu"><summary>{escape(texts.my_presets)}</summary><div>'
        f"<h2>{escape(texts.my_presets_title)}</h2>{listed}"
        f'<p class="row"><input id="own-name" maxlength="60" placeholder="{named}" aria-label="{named}">'
        f"{text_button('own:save', texts.my_presets_save)}</p>"
        f'<p class="row">{text_button("own:link", texts.copy_link, name="link")}{export}'
        f'<label class="button"><input type="file" id="own-file" accept=".json,application/json">'
        f"{escape(texts.my_presets_import)}</label></p></div></details>"
    )


@dataclass(frozen=True, kw_only=True)
class OwnPresetHandlers:
    """Handlers that save, load, rename, delete and import presets, and that copy the link to the form's settings."""

    context: StudioContext
    form: Form
    loading: LoadHandlers
    message: gr.HTML

    def act(self, values: Values, request: gr.Request, event: gr.EventData) -> Updates:
        caller = self.context.identify_caller(request)
        try:
            done = self._handle(Act.from_event(event), values, caller.owner, caller.texts)
        except StudioError as error:
            done = {self.message: Message.from_error(error).html(caller.texts)}
        return done | {self.form.own_presets: self.render_menu(caller)}

    def render_menu(self, caller: Caller) -> str:
        return own_presets_html(self.context.engine.user_presets.presets(caller.owner), caller.texts)

    def _handle(self, act: Act, values: Values, owner: str, texts: Texts) -> Updates:
        user_presets = self.context.engine.user_presets
        match act.what:
            case "save":
                user_presets.save_presets(owner, {act.job: preset_settings(self.form.read(values).to_settings())})
                return self._show_message(texts.my_presets_saved.format(name=act.job), texts)
            case "rename":
                user_presets.rename_preset(owner, act.value, act.job)
            case "delete":
                user_presets.delete_preset(owner, act.value)
            case "load":
                return self._load(user_presets.presets(owner).get(act.value), texts)
            case "import":
                return self._import(act.value, owner, texts)
            case "link":
                draft = self.form.read(values)
                copy = f"?settings={encode_settings(draft.to_settings())}"  # checks the characters, which are read below
                given, shots, figures = draft.given, draft.given.get("shots") or (), draft.given.get("figures") or ()
                names = [one.name for one in INPUTS if given.get(one.name)]  # a link does not contain files
                for name, parts in (("shot_images", shots), ("figure_images", figures)):
                    names += [name] if any(part.get("image") not in (None, "") for part in parts) else []
                names += ["shot_videos"] if any(row.get("job") for row in shots) else []
                named = texts.list_separator.join(texts.with_prefix("setting_")[name] for name in names)
                left_out = texts.settings_linked_without.format(settings=named) if names else ""
                text = " ".join(filter(None, (texts.settings_linked, left_out)))
                return {self.message: Message(text=text, copy=copy).html(texts)}
        return {}

    def _load(self, settings: dict[str, object] | None, texts: Texts) -> Updates:
        if settings is None:
            return {}
        request = check_settings(settings)
        self.loading.check_available(request, texts)
        unused = unused_settings_text(request, shown_by_form(request), texts)
        shown = self.form.show_settings(request, texts, self.context.can_run)
        return shown | (self._show_message(unused, texts) if unused else {})

    def _import(self, text: str, owner: str, texts: Texts) -> Updates:
        """Import all presets of a file, or none."""
        try:
            data = json.loads(text)
            if not isinstance(data, dict) or data.get("format") != _FORMAT:
                raise ValueError("another format")
            given = {str(name): dict(settings) for name, settings in dict(data["presets"]).items()}
            presets = {name: preset_settings(check_settings(settings)) for name, settings in given.items()}
        except (ValueError, TypeError, KeyError, RecursionError, StudioError) as error:
            raise RequestError(texts.my_presets_bad_file.format(reason=str(error)[:200])) from None
        self.context.engine.user_presets.save_presets(owner, presets)
        imported = texts.my_presets_imported_one if len(presets) == 1 else texts.my_presets_imported
        return self._show_message(imported.format(count=len(presets)), texts)

    def _show_message(self, text: str, texts: Texts) -> Updates:
        return {self.message: Message(text=text).html(texts)}


def preset_settings(request: GenerationRequest) -> dict[str, object]:
    return {name: value for name, value in request.for_sharing().items() if name not in _PERSONAL}


def check_settings(settings: dict[str, object]) -> GenerationRequest:
    """Validate stored settings. Return them as a request without personal data. Raises: RequestError."""
    request = GenerationRequest.from_stored(
        {name: value for name, value in settings.items() if name not in _PERSONAL} | {"prompt": "", "seed": 0}
    )
    find_preset(request.preset)
    return request
