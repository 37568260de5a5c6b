"""Render the edit view as it is before a clip is opened. The view's scripts update it later."""

import json
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from backend.schemas.clip import ROUNDING, STRENGTH
from backend.schemas.control import appends_control_clip, extend_directions
from presets import Preset, list_presets
from wan_ui.components.descriptions import description_html
from wan_ui.edit.clip import THUMBNAILS
from wan_ui.edit.modes import MODES, control_scale_range, supported_modes
from wan_ui.edit.modes_html import (
    below_clip_html,
    below_timeline_html,
    canvas_html,
    drive_prompt_html,
    extra_clips_html,
    modes_menu_html,
    references_html,
    scale_html,
)
from wan_ui.form.unused_settings import setting_text
from wan_ui.gateway.body_limit import LONGEST_TEXT
from wan_ui.gateway.uploads import LARGEST_BODY
from wan_ui.i18n.english import Texts
from wan_ui.services.upscaling import UpscaleOffer

_WITH_CLIP = " ".join(way for way in MODES if way != "keys")
_LIMITS = (
    *("fps", "frame_step", "first_frames", "min_frames", "max_frames", "num_frames", "frame_counts"),
    *("sizes", "steps", "guidance", "negative_prompt", "max_references"),
)
_ACCEPTED = "video/*,image/gif,.mp4,.m4v,.mov,.webm,.gif"


def clip_presets(can_run: Callable[[Preset], bool]) -> list[Preset]:
    """Return the available presets that can edit clips."""
    return [preset for preset in list_presets() if {"video", "drive"} & preset.inputs.keys() and can_run(preset)]


def edit_html(
    presets: Sequence[Preset], texts: Texts, fill: Mapping[str, Any] | None = None, larger: Sequence[UpscaleOffer] = ()
) -> str:
    """Render the view for these presets.

    Args:
        fill: Settings and a clip to start with.
        larger: The upscalers that are offered for the clip.
    """
    if not presets:
        return f'<section class="edit"><p class="hint">{escape(texts.edit_none)}</p></section>'
    data, kept = {"words": _script_texts(texts), "fill": fill}, (fill or {}).get("kept", {})
    attributes = " ".join(f'data-{name}="{escape(json.dumps(value))}"' for name, value in data.items())
    return (
        f'<section class="edit" {attributes} data-clip="" aria-label="{escape(texts.edit_placeholder)}">'
        f"{modes_menu_html(presets, texts)}{_clip_html(texts)}{below_clip_html(texts)}"
        f"{_timeline_html(texts, larger)}{below_timeline_html(texts)}"
        f"{_settings_html(presets, texts, kept)}"
        f'<p class="note" role="alert" hidden></p>'
        f'<div class="edit-estimate"></div><div class="go">'
        f'<button type="button" class="primary" id="edit-make" disabled>{escape(texts.generate)}</button>'
        f'<button type="button" id="edit-stop" data-act="queue:cancel">{escape(texts.stop)}</button></div></section>'
    )


def _script_texts(texts: Texts) -> dict[str, str]:
    """Return the texts and limits that the scripts need."""
    large = texts.edit_large.format(megabytes=LARGEST_BODY // 1_000_000)
    return texts.with_prefix("edit_") | {"large": large, "bytes": str(LARGEST_BODY), "unreachable": texts.live_unreachable}


def _clip_html(texts: Texts) -> str:
    """Render the area into which a clip is dropped and where it plays."""
    return (
        f'<div class="clip" data-of="{_WITH_CLIP}"><label class="target"><input type="file" id="edit-file" accept="{_ACCEPTED}">'
        f'<span class="drop">{escape(texts.edit_drop)}</span><span class="other">{escape(texts.edit_other)}</span></label>'
        f'<video id="edit-player" muted playsinline preload="auto" hidden></video><img class="still" alt="" hidden>'
        f"{canvas_html(texts)}</div>"
    )


def _timeline_html(texts: Texts, larger: Sequence[UpscaleOffer]) -> str:
    """Render the thumbnails, the handles of the selected part, and the upscalers."""
    return (
        f'<div class="timeline" data-of="{_WITH_CLIP}" hidden>'
        f'<div class="strip" data-count="{THUMBNAILS}" data-rounding="{ROUNDING}">'
        f'<img class="thumbs" alt="" hidden><canvas class="film"></canvas>'
        f'<i class="before"></i><i class="after"></i>'
        f'<i class="taken"></i><i class="now"></i>'
        f'<input type="range" id="edit-from" min="0" max="1" step="0.01" value="0" aria-label="{escape(texts.edit_from)}">'
        f'<input type="range" id="edit-to" min="0" max="1" step="0.01" value="1" aria-label="{escape(texts.edit_to)}"></div>'
        f'<p class="line"><output id="edit-part"></output><span class="facts"></span></p>{_upscale_html(larger, texts)}</div>'
    )


def _upscale_html(larger: Sequence[UpscaleOffer], texts: Texts) -> str:
    """Render the controls that upscale the whole clip. Return "" without an upscaler."""
    if not larger:
        return ""
    options = "".join(f'<option value="{escape(one.value)}">{escape(one.label(texts))}</option>' for one in larger)
    return (
        f'<p class="line larger"><select id="edit-larger" aria-label="{escape(texts.upscaler)}">{options}</select>'
        f'<button type="button" id="edit-upscale">{escape(texts.edit_upscale)}</button><output></output></p>'
    )


def _kept_settings_html(kept: Mapping[str, Any], texts: Texts) -> str:
    """Render a button for each setting of a loaded video that has no field in this view. A press removes the setting."""
    chips = "".join(_kept_setting_html(name, value, texts) for name, value in kept.items())
    return f'<fieldset class="wide kept"><legend>{escape(texts.loaded_also)}</legend>{chips}</fieldset>' if kept else ""


def _kept_setting_html(name: str, value: Any, texts: Texts) -> str:
    words = setting_text(name, value, texts)
    return (
        f'<button type="button" data-kept="{escape(json.dumps({name: value}))}"'
        f' title="{escape(texts.loaded_remove.format(setting=words))}">{escape(words)}<i aria-hidden="true"> ×</i></button>'
    )


def _settings_html(presets: Sequence[Preset], texts: Texts, kept: Mapping[str, Any]) -> str:
    """Render the settings. The script fills them for the first preset."""
    options = "".join(_preset_option(preset, texts) for preset in presets)
    return (
        f'<div class="asked"><label class="wide">{escape(texts.preset)}<select id="edit-preset">{options}</select></label>'
        f'<label class="wide">{escape(texts.prompt)}<textarea id="edit-prompt" rows="3" maxlength="{LONGEST_TEXT}"'
        f' placeholder="{escape(texts.edit_placeholder)}"></textarea></label>{_kept_settings_html(kept, texts)}'
        f"{extra_clips_html(texts)}{references_html(texts)}"
        f'<div class="wide described" data-of="anew"><label class="strength"><span>{escape(texts.edit_strength)}<output></output>'
        f'</span><input type="range" id="edit-strength" min="0.05" max="1" step="0.05" value="{STRENGTH}"></label>'
        f"{description_html('strength', 'edit', texts.edit_strength, texts)}</div>{scale_html(texts)}"
        f'<label>{escape(texts.resolution)}<select id="edit-size"></select></label>'
        f"<label>{escape(texts.seed)}{_number_input('edit-seed', 0, 2**32 - 1, 1, texts.edit_seed)}</label>"
        f'<details class="wide"><summary>{escape(texts.more)}</summary><div class="asked">'
        f"<label>{escape(texts.steps)}{_number_input('edit-steps', 1, 1000, 1)}</label>"
        f"<label>{escape(texts.guidance)}{_number_input('edit-guidance', 0, 30, 0.1)}</label>"
        f"<label>{escape(texts.guidance_low)}{_number_input('edit-guidance-low', 0, 30, 0.1)}</label>"
        f'<label class="wide">{escape(texts.negative_prompt)}<textarea id="edit-negative" rows="2" maxlength="{LONGEST_TEXT}">'
        f"</textarea></label>{drive_prompt_html(texts)}</div></details></div>"
    )


def _number_input(element: str, smallest: float, largest: float, step: float, placeholder: str = "") -> str:
    return (
        f'<input type="number" id="{element}" min="{smallest}" max="{largest}" step="{step}" placeholder="{escape(placeholder)}">'
    )


def _preset_option(preset: Preset, texts: Texts) -> str:
    """Render the preset with all facts that the scripts need."""
    title = preset.words(texts.language).title
    limits = {name: getattr(preset, name) for name in _LIMITS} | {
        "title": title,
        "ways": supported_modes(preset),
        "extends": extend_directions(preset),
        "scaled": supported_modes(preset) if preset.has_control_blocks else ["follow"],
        "scales": control_scale_range(preset),
        "beside": appends_control_clip(preset),
        "drive_prompt": preset.drive_prompt,
        "inputs": list(preset.inputs),
    }
    return f'<option value="{escape(preset.name)}" data-limits="{escape(json.dumps(limits))}">{escape(title)}</option>'
