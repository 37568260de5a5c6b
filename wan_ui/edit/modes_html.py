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
from wan_ui.i18n.english import Texts

PICTURES = "image/png,image/jpeg,image/webp,.png,.jpg,.jpeg,.webp"
_MASKS = f"{PICTURES},video/*,image/gif,.mp4,.m4v,.mov,.webm,.gif"
CLIPS = "video/*,image/gif,.mp4,.m4v,.mov,.webm,.gif"
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


def below_clip_html(texts: Texts) -> str:
    """Render the controls below the clip: the image of the person that Animate moves, the brush, the margins, what is kept."""

    def key(name: str, words: str, is_pressed: bool | None = None) -> str:
        pressed = "" if is_pressed is None else f' aria-pressed="{str(is_pressed).lower()}"'
        return quiet_button(name, words, f'id="edit-{name}"{pressed}')

    brush = f'<input type="range" id="edit-brush-size" min="1" max="{_LARGEST_BRUSH}" value="12"'
    sides = {"left": texts.edit_left, "top": texts.edit_top, "right": texts.edit_right, "bottom": texts.edit_bottom}
    margins = "".join(
        f'<label>{escape(name)}<input type="number" id="edit-{side}" min="0" max="4096" step="1" value="0"></label>'
        for side, name in sides.items()
    )
    return (
        f'<div class="figure" data-of="animate"><p class="title">{escape(texts.edit_figure)}</p><div class="tiles takes-files">'
        f'<label class="tile add" title="{escape(texts.edit_add_figure)}"><input type="file" id="edit-figure"'
        f' accept="{PICTURES}">+</label></div></div>'
        f'<div class="brush" data-of="paint"><div class="tools">{key("brush", texts.edit_brush, True)}'
        f'{key("eraser", texts.edit_eraser, False)}{brush} aria-label="{escape(texts.edit_brush_size)}">'
        f"{key('undo', texts.edit_undo)}{key('clear', texts.edit_clear)}{key('play', texts.edit_play, False)}</div>"
        f'<label class="check"><input type="checkbox" id="edit-invert"><span>{escape(texts.edit_invert)}</span></label>'
        f'<p class="line"><label class="link"><input type="file" id="edit-mask" accept="{_MASKS}">'
        f"{escape(texts.edit_upload_mask)}</label></p>"
        f'<p class="line brought" hidden><span></span><button type="button" class="link" id="edit-mask-remove">'
        f"{escape(texts.edit_remove)}</button></p></div>"
        f'<fieldset class="settings margins" data-of="widen"><legend>{escape(texts.edit_margins)}</legend>'
        f'{margins}<output id="edit-inner" class="wide"></output></fieldset>'
        f'<div class="keeps" data-of="paint widen"><label class="check"><input type="checkbox" id="edit-keeps" checked>'
        f"<span>{escape(texts.edit_keeps)}</span></label></div>"
    )


def below_timeline_html(texts: Texts) -> str:
    """Render the controls below the timeline: Motion control, the track of keyframes with the buttons of one, and Extend."""
    kinds = (("edges", texts.edit_kind_edges), ("grey", texts.edit_kind_grey), ("as-is", texts.edit_kind_as_is))
    sizes = (("1", texts.edit_downscale_none), ("2", texts.edit_downscale_half))
    where = (("after", texts.edit_after), ("before", texts.edit_before))
    overlaps = [
        (str(count), (texts.edit_overlaps_one if count == 1 else texts.edit_overlaps).format(frames=count)) for count in OVERLAPS
    ]
    return (
        f'<div class="settings" data-of="follow"><label class="wide">{escape(texts.edit_kind)}<select id="edit-kind">'
        f'{_options(kinds)}</select></label><label class="wide beside">{escape(texts.edit_downscale)}<select id="edit-downscale">'
        f"{_options(sizes)}</select></label></div>"
        f'<div class="keys" data-of="keys"><div class="track takes-files" role="group" aria-label="{escape(texts.edit_track)}">'
        f'<label class="empty"><input type="file" id="edit-keys-first" accept="{PICTURES}" multiple>'
        f"{escape(texts.edit_track_empty)}</label></div>"
        f'<p class="line chosen"><output></output><button type="button" class="link" id="edit-key-remove" hidden>'
        f'{escape(texts.edit_remove)}</button><label class="link"><input type="file" id="edit-keys" accept="{PICTURES}" multiple>'
        f"{escape(texts.edit_add_keys)}</label></p></div>"
        f'<div class="settings" data-of="extend keys"><label data-of="extend">{escape(texts.edit_where)}<select id="edit-where">'
        f'{_options(where)}</select></label><label data-of="extend">{escape(texts.edit_overlap)}<select id="edit-overlap">'
        f'{_options(overlaps)}</select></label><label class="wide">{escape(texts.edit_length)}<select id="edit-length"></select>'
        f'</label><output id="edit-goes" class="wide" data-of="extend"></output></div>'
    )


def extra_clips_html(texts: Texts) -> str:
    """Render inputs besides the driving video: a clip of the face, a clip whose person is replaced, and a mask of that clip."""
    rows = (
        ("face", "edit-face", CLIPS, texts.edit_face),
        ("video", "edit-into", CLIPS, texts.edit_into),
        ("mask", "edit-into-mask", _MASKS, texts.edit_into_mask),
    )
    fields = "".join(
        f'<p class="line" data-beside="{name}"><label class="link"><input type="file" id="{element}" accept="{accepted}">'
        f"{escape(words)}</label><output></output>"
        f'<button type="button" class="link" hidden>{escape(texts.edit_remove)}</button></p>'
        for name, element, accepted, words in rows
    )
    return f'<div class="besides wide" data-takes="face"><p class="hint">{escape(texts.edit_poses)}</p>{fields}</div>'


def _options(pairs: Sequence[tuple[str, str]]) -> str:
    return "".join(f'<option value="{value}">{escape(words)}</option>' for value, words in pairs)
