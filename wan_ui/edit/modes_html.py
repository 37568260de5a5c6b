"""HTML of the modes of Edit: their menu, brush, margins, keyframes and reference images.

An element with `data-of` is shown only in the modes that `data-of` lists. An element with `data-takes` is shown only for models
that take the input that `data-takes` names.
"""

from collections.abc import Sequence
from html import escape

from backend.schemas.control import OVERLAPS
from presets import Preset
from wan_ui.components.buttons import quiet_button
from wan_ui.components.icons import icon
from wan_ui.edit.modes import MODES, supported_modes
from wan_ui.gateway.body_limit import LONGEST_TEXT
from wan_ui.i18n.english import Texts

_PICTURES = "image/png,image/jpeg,image/webp,.png,.jpg,.jpeg,.webp"
_MASKS = f"{_PICTURES},video/*,image/gif,.mp4,.m4v,.mov,.webm,.gif"
_CLIPS = "video/*,image/gif,.mp4,.m4v,.mov,.webm,.gif"
_SIDES = ("left", "top", "right", "bottom")
_LARGEST_BRUSH = 40  # per cent of the shorter side of the frame


def modes_menu_html(presets: Sequence[Preset], texts: Texts) -> str:
    """Render the menu of the modes that any of these models supports, and a hint about the selected mode.

    The menu is hidden if it has only one mode.
    """
    ways = [way for way in MODES if any(way in supported_modes(preset) for preset in presets)]
    names, hints = texts.with_prefix("edit_way_"), texts.with_prefix("edit_hint_")
    buttons = "".join(
        f'<label><input type="radio" name="edit-way" value="{way}" data-hint="{escape(hints[way])}">'
        f"<span>{icon(f'way_{way}')}{escape(names[way])}</span></label>"
        for way in ways
    )
    hidden = " hidden" if len(ways) < 2 else ""
    return (
        f'<div class="choose"{hidden}><div class="ways" role="radiogroup" aria-label="{escape(texts.edit_modes)}">{buttons}</div>'
        f'<p class="hint"></p></div>'
    )


def canvas_html(texts: Texts) -> str:
    """Render the canvas for painting over the shown frame, and the ring that shows the brush."""
    label = escape(texts.edit_canvas)
    return f'<canvas id="edit-canvas" tabindex="0" aria-label="{label}" hidden></canvas><i class="ring" hidden></i>'


def below_clip_html(texts: Texts) -> str:
    """Render the controls below the clip."""
    return f"{_person_html(texts)}{_brush_html(texts)}{_margins_html(texts)}{_keep_pixels_html(texts)}"


def below_timeline_html(texts: Texts) -> str:
    """Render the controls below the timeline."""
    return f"{_motion_control_html(texts)}{_keyframes_html(texts)}{_extend_html(texts)}"


def _person_html(texts: Texts) -> str:
    """Render the image of the person that Animate moves."""
    return (
        f'<div class="figure" data-of="animate"><p class="title">{escape(texts.edit_figure)}</p><div class="tiles takes-files">'
        f'<label class="tile add" title="{escape(texts.edit_add_figure)}"><input type="file" id="edit-figure"'
        f' accept="{_PICTURES}">+</label></div></div>'
    )


def extra_clips_html(texts: Texts) -> str:
    """Render inputs besides the driving video: a clip of the face, a clip whose person is replaced, and a mask of that clip."""
    rows = (
        ("face", "edit-face", _CLIPS, texts.edit_face),
        ("video", "edit-into", _CLIPS, texts.edit_into),
        ("mask", "edit-into-mask", _MASKS, texts.edit_into_mask),
    )
    fields = "".join(
        f'<p class="line" data-beside="{name}"><label class="link"><input type="file" id="{element}" accept="{accepted}">'
        f"{escape(words)}</label><output></output>"
        f'<button type="button" class="link" hidden>{escape(texts.edit_remove)}</button></p>'
        for name, element, accepted, words in rows
    )
    return f'<div class="besides wide" data-takes="face"><p class="hint">{escape(texts.edit_poses)}</p>{fields}</div>'


def drive_prompt_html(texts: Texts) -> str:
    """Render the field for a prompt that describes the driving video."""
    return (
        f'<label class="wide" data-of="animate">{escape(texts.edit_drive_prompt)}<textarea id="edit-drive-prompt" rows="2"'
        f' maxlength="{LONGEST_TEXT}"></textarea></label>'
    )


def _brush_html(texts: Texts) -> str:
    def key(name: str, words: str, is_pressed: bool | None = None) -> str:
        pressed = "" if is_pressed is None else f' aria-pressed="{str(is_pressed).lower()}"'
        return quiet_button(name, words, f'id="edit-{name}"{pressed}')

    tools = [
        key("brush", texts.edit_brush, True),
        key("eraser", texts.edit_eraser, False),
        f'<input type="range" id="edit-brush-size" min="1" max="{_LARGEST_BRUSH}" value="12"'
        f' aria-label="{escape(texts.edit_brush_size)}">',
        key("undo", texts.edit_undo),
        key("clear", texts.edit_clear),
        key("play", texts.edit_play, False),
    ]
    return (
        f'<div class="brush" data-of="paint"><div class="tools">{"".join(tools)}</div>'
        f"{_checkbox('edit-invert', texts.edit_invert)}"
        f'<p class="line"><label class="link"><input type="file" id="edit-mask" accept="{_MASKS}">'
        f"{escape(texts.edit_upload_mask)}</label></p>"
        f'<p class="line brought" hidden><span></span><button type="button" class="link" id="edit-mask-remove">'
        f"{escape(texts.edit_remove)}</button></p></div>"
    )


def _margins_html(texts: Texts) -> str:
    names = (texts.edit_left, texts.edit_top, texts.edit_right, texts.edit_bottom)
    fields = "".join(
        f'<label>{escape(name)}<input type="number" id="edit-{side}" min="0" max="4096" step="1" value="0"></label>'
        for side, name in zip(_SIDES, names, strict=True)
    )
    return (
        f'<fieldset class="settings margins" data-of="widen"><legend>{escape(texts.edit_margins)}</legend>'
        f'{fields}<output id="edit-inner" class="wide"></output></fieldset>'
    )


def _keep_pixels_html(texts: Texts) -> str:
    return f'<div class="keeps" data-of="paint widen">{_checkbox("edit-keeps", texts.edit_keeps, is_checked=True)}</div>'


def _motion_control_html(texts: Texts) -> str:
    kinds = (("edges", texts.edit_kind_edges), ("grey", texts.edit_kind_grey), ("as-is", texts.edit_kind_as_is))
    sizes = [("1", texts.edit_downscale_none), ("2", texts.edit_downscale_half)]
    return (
        f'<div class="settings" data-of="follow"><label class="wide">{escape(texts.edit_kind)}<select id="edit-kind">'
        f'{_options(kinds)}</select></label><label class="wide beside">{escape(texts.edit_downscale)}<select id="edit-downscale">'
        f"{_options(sizes)}</select></label></div>"
    )


def _keyframes_html(texts: Texts) -> str:
    """Render the keyframes' track and the buttons for the selected keyframe."""
    return (
        f'<div class="keys" data-of="keys"><div class="track takes-files" role="group" aria-label="{escape(texts.edit_track)}">'
        f'<label class="empty">{_image_input("edit-keys-first")}{escape(texts.edit_track_empty)}</label></div>'
        f'<p class="line chosen"><output></output><button type="button" class="link" id="edit-key-remove" hidden>'
        f"{escape(texts.edit_remove)}</button>"
        f'<label class="link">{_image_input("edit-keys")}{escape(texts.edit_add_keys)}</label></p></div>'
    )


def _extend_html(texts: Texts) -> str:
    where = (("after", texts.edit_after), ("before", texts.edit_before))
    overlaps = [
        (str(count), (texts.edit_overlaps_one if count == 1 else texts.edit_overlaps).format(frames=count)) for count in OVERLAPS
    ]
    return (
        f'<div class="settings" data-of="extend keys"><label data-of="extend">{escape(texts.edit_where)}<select id="edit-where">'
        f'{_options(where)}</select></label><label data-of="extend">{escape(texts.edit_overlap)}<select id="edit-overlap">'
        f'{_options(overlaps)}</select></label><label class="wide">{escape(texts.edit_length)}<select id="edit-length"></select>'
        f'</label><output id="edit-goes" class="wide" data-of="extend"></output></div>'
    )


def references_html(texts: Texts) -> str:
    """Render the reference images, with a button that adds one."""
    return (
        '<div class="references wide" data-takes="references">'
        f'<p class="title">{escape(texts.edit_references)}</p><div class="tiles takes-files">'
        f'<label class="tile add" title="{escape(texts.edit_add_reference)}">'
        f"{_image_input('edit-references')}+</label></div></div>"
    )


def scale_html(texts: Texts) -> str:
    """Render the slider of the control strength. The page's script sets the slider's limits to the model's limits."""
    return (
        f'<label class="wide scale"><span>{escape(texts.edit_scale)}<output>1.00</output></span>'
        f'<input type="range" id="edit-scale" min="0" max="2" step="0.05" value="1"></label>'
    )


def _image_input(element: str) -> str:
    return f'<input type="file" id="{element}" accept="{_PICTURES}" multiple>'


def _checkbox(element: str, words: str, *, is_checked: bool = False) -> str:
    checked = " checked" if is_checked else ""
    return f'<label class="check"><input type="checkbox" id="{element}"{checked}><span>{escape(words)}</span></label>'


def _options(pairs: Sequence[tuple[str, str]]) -> str:
    return "".join(f'<option value="{value}">{escape(words)}</option>' for value, words in pairs)
