"""HTML of the timeline in the visitor's language. `storyboard.js` draws the shots into it."""

import json
from html import escape

from backend.schemas.characters import MAX_NAME
from wan_ui.components.icons import icon
from wan_ui.i18n.english import Texts

_SOUNDS = "audio/*,video/mp4,video/webm,.wav,.mp3,.m4a,.ogg,.flac"


def storyboard_html(film: str, texts: Texts) -> str:
    """Render the switch, the timeline, the tools for the selected shot, the soundtrack and the player.

    Args:
        film: The timeline as JSON, "" without a storyboard.
    """
    words, timeline = json.dumps(_script_texts(texts), ensure_ascii=False), escape(texts.storyboard_timeline)
    close = escape(texts.storyboard_close)
    return (
        f'<div class="shots" data-on="{"true" if film else "false"}" data-film="{escape(film)}" '
        f'data-words="{escape(words)}">'
        f'<label class="shots-switch"><input type="checkbox"{" checked" if film else ""}>'
        f"<span>{escape(texts.storyboard)}</span></label>"
        f'<p class="hint">{escape(texts.storyboard_hint)}</p><p class="note" role="alert" hidden></p>'
        f'<div class="film-player" hidden role="group" aria-label="{escape(texts.storyboard_player)}"><div class="film-screen">'
        "<video playsinline></video><video playsinline></video><p></p></div>"
        f'<div class="film-bar"><button type="button" data-shot="pause"></button>'
        f'<input type="range" min="0" max="1000" value="0" aria-label="{escape(texts.storyboard_position)}"><output></output>'
        f'<button type="button" data-shot="close" title="{close}" aria-label="{close}">'
        f"{icon('cross')}</button></div><audio></audio></div>"
        f'<div class="film-scroll"><ol class="film" title="{timeline}" aria-label="{timeline}"></ol>'
        f'<div class="film-lane" hidden><canvas role="img"></canvas></div></div>'
        f'<div class="film-tools">{_button("add", texts.shot_add, None)}'
        f"{_button('play', texts.storyboard_play, 'play')}</div>"
        f'<p class="film-state" aria-live="polite"></p>'
        f"{_shot_html(texts)}{_characters_html(texts)}"
        f'<fieldset class="film-track"><legend>{escape(texts.soundtrack)}</legend>'
        f'<label class="film-file"><span>{escape(texts.soundtrack_add)}</span>'
        f'<input name="track" type="file" accept="{_SOUNDS}"></label>'
        f'<div class="film-track-set" hidden>{_number_input("track_start", texts.soundtrack_start, "0.1")}'
        f"{_number_input('track_fade', texts.soundtrack_fade, '0.1')}"
        f'<label>{escape(texts.soundtrack_volume)}<input name="track_volume" type="range" min="0" max="2" step="0.05" value="1">'
        f"</label>{_button('silence', texts.soundtrack_remove, None)}</div></fieldset></div>"
    )


def _script_texts(texts: Texts) -> dict[str, str]:
    """Return the texts of the script."""
    return {
        "number": texts.shot_number,
        "seconds": texts.shot_length,
        "finished": texts.shot_finished,
        "unfinished": texts.shot_unfinished,
        "all_finished": texts.storyboard_all_finished,
        "to_generate": texts.storyboard_unfinished,
        "regenerated": texts.storyboard_regenerated,
        "soundtrack_span": texts.soundtrack_span,
        "soundtrack_too_large": texts.soundtrack_too_large,
        "unreachable": texts.upload_failed,
        "play": texts.storyboard_play,
        "pause": texts.storyboard_pause,
        "empty": texts.storyboard_empty,
        "characters": texts.shot_characters,
        "no_characters": texts.shot_no_characters,
        "characters_hint": texts.characters_hint,
        "characters_hint_one": texts.characters_hint_one,
        "characters_unsupported": texts.characters_unsupported,
        "character_shots": texts.character_shots,
        "character_unused": texts.character_unused,
    }


def _shot_html(texts: Texts) -> str:
    starts = {"on": texts.shot_start_previous, "cut": texts.shot_start_prompt, "image": texts.shot_start_image}
    options = "".join(f'<option value="{value}">{escape(words)}</option>' for value, words in starts.items())
    moves = "".join(
        f'<button type="button" data-shot="{what}" title="{words}" aria-label="{words}">{icon(drawing)}</button>'
        for what, words, drawing in (("up", escape(texts.shot_up), "back"), ("down", escape(texts.shot_down), "forward"))
    )
    acts = {"split": texts.shot_split, "double": texts.shot_duplicate, "remove": texts.shot_remove}
    acts |= {"alone": texts.shot_generate, "keep": texts.shot_keep}
    buttons = "".join(_button(what, words, None) for what, words in acts.items())
    prompt = escape(texts.shot_prompt)
    return (
        f'<fieldset class="shot-detail" hidden><legend></legend>'
        f'<textarea name="prompt" rows="2" aria-label="{prompt}" placeholder="{prompt}"></textarea>'
        '<p class="hint shot-figures wide" hidden></p>'
        f'<label class="wide">{escape(texts.shot_start)}<select name="start">{options}</select></label>'
        f'<label class="wide shot-picture" hidden>{escape(texts.shot_image)}<span><img alt="" hidden>'
        f'<b>{escape(texts.shot_image_choose)}</b><input name="image" type="file" accept="image/*"></span></label>'
        f"{_number_input('seconds', texts.shot_seconds)}{_number_input('seed', texts.seed, '1')}"
        f"{_number_input('fade', texts.shot_fade, '0.1')}"
        f"{_number_input('from', texts.shot_from)}{_number_input('to', texts.shot_to)}"
        f'<span class="shot-buttons">{moves}{buttons}</span></fieldset>'
    )


def _characters_html(texts: Texts) -> str:
    """Render the list of characters, which `storyboard_characters.js` fills.

    Each row has a character's image, name and numbers of shots. A press on the image selects another file.
    """
    name, picture = escape(texts.character_name), escape(texts.character_image)
    return (
        f'<fieldset class="film-figures"><legend>{escape(texts.characters)}</legend>'
        f'<p class="hint wide"></p><ul class="wide"></ul>'
        f'<template><li><label class="figure-picture" title="{picture}"><img alt="" hidden>'
        f'<input name="figure-picture" type="file" accept="image/*" aria-label="{picture}"></label>'
        f'<input name="figure" maxlength="{MAX_NAME}" autocomplete="off" placeholder="{name}" aria-label="{name}">'
        f"<output></output>"
        f'<button type="button" data-figure="remove" title="{escape(texts.character_remove)}"'
        f' aria-label="{escape(texts.character_remove)}">{icon("cross")}</button></li></template>'
        f'<label class="film-file"><span>{escape(texts.character_add)}</span>'
        f'<input name="figure-new" type="file" accept="image/*"></label>'
        f'<p class="film-known wide" hidden>{escape(texts.characters_known)} <span></span></p></fieldset>'
    )


def _number_input(name: str, words: str, step: str = "any") -> str:
    return f'<label>{escape(words)}<input name="{name}" type="number" min="0" step="{step}" inputmode="decimal"></label>'


def _button(what: str, words: str, drawing: str | None) -> str:
    return f'<button type="button" data-shot="{what}">{icon(drawing) if drawing else ""}{escape(words)}</button>'
