"""Render the edit view as it is before a clip is opened. The view's scripts update it later."""

from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from backend.schemas.clip import ROUNDING, STRENGTH
from backend.schemas.control import appends_control_clip, extend_directions
from backend.schemas.settings import SETTINGS
from presets import Preset, list_presets
from wan_ui.components.descriptions import description_html
from wan_ui.edit.clip import THUMBNAILS
from wan_ui.edit.modes import MODES, mode_fields, supported_modes
from wan_ui.edit.modes_html import CLIPS, PICTURES, below_clip_html, below_timeline_html, extra_clips_html, modes_menu_html
from wan_ui.form.settings_html import data_attribute, preset_controls, settings_html
from wan_ui.gateway.body_limit import LONGEST_TEXT
from wan_ui.gateway.uploads import LARGEST_BODY
from wan_ui.i18n.english import Texts
from wan_ui.services.upscaling import UpscaleOffer

_WITH_CLIP = " ".join(way for way in MODES if way != "keys")
_LIMITS = ("frame_step", "first_frames", "min_frames", "max_frames", "num_frames", "frame_counts", "sizes", "max_references")


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
    large = texts.edit_large.format(megabytes=LARGEST_BODY // 1_000_000)
    words = texts.with_prefix("edit_") | {"large": large, "bytes": str(LARGEST_BODY), "unreachable": texts.live_unreachable}
    return (
        f'<section class="edit" {data_attribute("words", words)} {data_attribute("fill", fill)} data-clip=""'
        f' aria-label="{escape(texts.edit_placeholder)}">{modes_menu_html(presets, texts)}'
        f'<div class="clip" data-of="{_WITH_CLIP}"><label class="target"><input type="file" id="edit-file" accept="{CLIPS}">'
        f'<span class="drop">{escape(texts.edit_drop)}</span><span class="other">{escape(texts.edit_other)}</span></label>'
        f'<video id="edit-player" muted playsinline preload="auto" hidden></video><img class="still" alt="" hidden>'
        f'<canvas id="edit-canvas" tabindex="0" aria-label="{escape(texts.edit_canvas)}" hidden></canvas>'
        f'<i class="ring" hidden></i></div>{below_clip_html(texts)}'
        f"{_timeline_html(texts, larger)}{below_timeline_html(texts)}"
        f"{_settings_html(presets, texts)}"
        f'<p class="note" role="alert" hidden></p>'
        f'<div class="edit-estimate"></div><div class="go">'
        f'<button type="button" class="primary" id="edit-make" disabled>{escape(texts.generate)}</button>'
        f'<button type="button" id="edit-stop" data-act="queue:cancel">{escape(texts.stop)}</button></div></section>'
    )


def _timeline_html(texts: Texts, larger: Sequence[UpscaleOffer]) -> str:
    upscale = ""
    if larger:
        options = "".join(f'<option value="{escape(one.value)}">{escape(one.label(texts))}</option>' for one in larger)
        upscale = (
            f'<p class="line larger"><select id="edit-larger" aria-label="{escape(texts.upscaler)}">{options}</select>'
            f'<button type="button" id="edit-upscale-clip">{escape(texts.edit_upscale)}</button><output></output></p>'
        )
    return (
        f'<div class="timeline" data-of="{_WITH_CLIP}" hidden>'
        f'<div class="strip" data-count="{THUMBNAILS}" data-rounding="{ROUNDING}">'
        f'<img class="thumbs" alt="" hidden><canvas class="film"></canvas>'
        f'<i class="before"></i><i class="after"></i>'
        f'<i class="taken"></i><i class="now"></i>'
        f'<input type="range" id="edit-from" min="0" max="1" step="0.01" value="0" aria-label="{escape(texts.edit_from)}">'
        f'<input type="range" id="edit-to" min="0" max="1" step="0.01" value="1" aria-label="{escape(texts.edit_to)}"></div>'
        f'<p class="line"><output id="edit-part"></output><span class="facts"></span></p>{upscale}</div>'
    )


def _settings_html(presets: Sequence[Preset], texts: Texts) -> str:
    options = ""
    for preset in presets:
        title = preset.words(texts.language).title
        limits = {name: getattr(preset, name) for name in _LIMITS} | {
            "title": title,
            "ways": supported_modes(preset),
            "extends": extend_directions(preset),
            "scaled": supported_modes(preset) if preset.has_control_blocks else ["follow"],
            "scales": (0.05, 1.0) if appends_control_clip(preset) else SETTINGS["control_scale"].limits,
            "beside": appends_control_clip(preset),
            "drive_prompt": preset.drive_prompt,
            "inputs": list(preset.inputs),
            "controls": preset_controls(preset, mode_fields(preset), texts),
        }
        known = data_attribute("limits", limits)
        options += f'<option value="{escape(preset.name)}" {known}>{escape(title)}</option>'
    return (
        f'<div class="settings"><label class="wide">{escape(texts.preset)}<select id="edit-preset">{options}</select></label>'
        f'<label class="wide">{escape(texts.prompt)}<textarea id="edit-prompt" rows="3" maxlength="{LONGEST_TEXT}"'
        f' placeholder="{escape(texts.edit_placeholder)}"></textarea></label>'
        f'{extra_clips_html(texts)}<div class="references wide" data-takes="references">'
        f'<p class="title">{escape(texts.edit_references)}</p><div class="tiles takes-files">'
        f'<label class="tile add" title="{escape(texts.edit_add_reference)}">'
        f'<input type="file" id="edit-references" accept="{PICTURES}" multiple>+</label></div></div>'
        f'<div class="wide described" data-of="anew"><label class="strength"><span>{escape(texts.edit_strength)}<output></output>'
        f'</span><input type="range" id="edit-strength" min="0.05" max="1" step="0.05" value="{STRENGTH}"></label>'
        f"{description_html('strength', 'edit', texts.edit_strength, texts)}</div>"
        # The script sets the slider's limits to the model's limits.
        f'<label class="wide scale"><span>{escape(texts.edit_scale)}<output>1.00</output></span>'
        f'<input type="range" id="edit-scale" min="0" max="2" step="0.05" value="1"></label>'
        f'<label class="wide" data-of="animate">{escape(texts.edit_drive_prompt)}<textarea id="edit-drive-prompt" rows="2"'
        f' maxlength="{LONGEST_TEXT}"></textarea></label></div>'
        + settings_html("edit", presets, mode_fields, texts, ("resolution", "seed"))
    )
