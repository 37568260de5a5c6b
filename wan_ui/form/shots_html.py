"""The timeline as HTML: its frame, in the visitor's language; the blocks are drawn by `storyboard.js`."""

import json
from html import escape

from backend.schemas.characters import MAX_NAME
from wan_ui.components.icons import icon
from wan_ui.i18n.english import Texts

_SOUNDS = "audio/*,video/mp4,video/webm,.wav,.mp3,.m4a,.ogg,.flac"


def editor_html(film: str, texts: Texts) -> str:
    """The switch, the timeline, the tools for the chosen shot, the sound below and the player; `film` is the timeline as JSON, ""
    for none."""
    words, timeline = json.dumps(_words(texts), ensure_ascii=False), escape(texts.film_timeline)
    return (
        f'<div class="shots" data-on="{"true" if film else "false"}" data-film="{escape(film)}" '
        f'data-words="{escape(words)}">'
        f'<label class="shots-switch"><input type="checkbox"{" checked" if film else ""}>'
        f"<span>{escape(texts.storyboard)}</span></label>"
        f'<p class="hint">{escape(texts.storyboard_hint)}</p><p class="note" role="alert" hidden></p>'
        f"{_player(texts)}"
        f'<div class="film-scroll"><ol class="film" title="{timeline}" aria-label="{timeline}"></ol>'
        f'<div class="film-lane" hidden><canvas role="img"></canvas></div></div>'
        f'<div class="film-tools">{_button("add", texts.shot_add, None)}'
        f"{_button('play', texts.film_play, 'play')}</div>"
        f'<p class="film-state" aria-live="polite"></p>'
        f"{_detail(texts)}{_figures(texts)}{_track(texts)}</div>"
    )


def _words(texts: Texts) -> dict[str, str]:
    """What the script says."""
    return {
        "number": texts.shot_number,
        "seconds_of": texts.shot_seconds_of,
        "is_made": texts.shot_is_made,
        "is_new": texts.shot_is_new,
        "all_made": texts.film_all_made,
        "some_made": texts.film_some_made,
        "made_anew": texts.film_made_anew,
        "track_of": texts.film_track_of,
        "large": texts.film_large,
        "lost": texts.film_lost,
        "play": texts.film_play,
        "pause": texts.film_pause,
        "none": texts.film_none,
        "shot_with": texts.shot_with,
        "shot_without": texts.shot_without,
        "figures_hint": texts.figures_hint,
        "figures_hint_one": texts.figures_hint_one,
        "figures_none": texts.figures_none,
        "figure_in": texts.figure_in,
        "figure_unused": texts.figure_unused,
    }


def _player(texts: Texts) -> str:
    return (
        f'<div class="film-player" hidden role="group" aria-label="{escape(texts.film_player)}"><div class="film-screen">'
        "<video playsinline></video><video playsinline></video><p></p></div>"
        f'<div class="film-bar"><button type="button" data-shot="pause"></button>'
        f'<input type="range" min="0" max="1000" value="0" aria-label="{escape(texts.film_place)}"><output></output>'
        f'<button type="button" data-shot="close" title="{escape(texts.film_close)}" aria-label="{escape(texts.film_close)}">'
        f"{icon('cross')}</button></div><audio></audio></div>"
    )


def _detail(texts: Texts) -> str:
    starts = "".join(
        f'<option value="{value}">{escape(words)}</option>'
        for value, words in (("on", texts.shot_goes_on), ("cut", texts.shot_cut), ("image", texts.shot_from_picture))
    )
    sides = (("up", texts.shot_up, "back"), ("down", texts.shot_down, "forward"))
    moves = "".join(_icon_button(what, words, drawing) for what, words, drawing in sides)
    acts = {"split": texts.shot_split, "double": texts.shot_double, "remove": texts.shot_remove}
    acts |= {"alone": texts.shot_alone, "keep": texts.shot_keep}
    buttons = "".join(_button(what, words, None) for what, words in acts.items())
    prompt = escape(texts.shot_prompt)
    return (
        f'<fieldset class="shot-detail" hidden><legend></legend>'
        f'<textarea name="prompt" rows="2" aria-label="{prompt}" placeholder="{prompt}"></textarea>'
        '<p class="hint shot-figures wide" hidden></p>'
        f'<label class="wide">{escape(texts.shot_start)}<select name="start">{starts}</select></label>'
        f'<label class="wide shot-picture" hidden>{escape(texts.shot_picture)}<span><img alt="" hidden>'
        f'<b>{escape(texts.shot_picture_choose)}</b><input name="image" type="file" accept="image/*"></span></label>'
        f"{_number('seconds', texts.shot_seconds)}{_number('seed', texts.seed, '1')}{_number('fade', texts.shot_fade, '0.1')}"
        f"{_number('from', texts.shot_from)}{_number('to', texts.shot_to)}"
        f'<span class="shot-buttons">{moves}{buttons}</span></fieldset>'
    )


def _figures(texts: Texts) -> str:
    """The list of figures, which `storyboard_characters.js` fills; a row is a picture, which a press replaces, a name and the
    shots."""
    name, picture = escape(texts.figure_name), escape(texts.figure_picture)
    return (
        f'<fieldset class="film-figures"><legend>{escape(texts.figures)}</legend><p class="hint wide"></p><ul class="wide"></ul>'
        f'<template><li><label class="figure-picture" title="{picture}"><img alt="" hidden>'
        f'<input name="figure-picture" type="file" accept="image/*" aria-label="{picture}"></label>'
        f'<input name="figure" maxlength="{MAX_NAME}" autocomplete="off" placeholder="{name}" aria-label="{name}">'
        f"<output></output>"
        f'<button type="button" data-figure="remove" title="{escape(texts.figure_remove)}"'
        f' aria-label="{escape(texts.figure_remove)}">{icon("cross")}</button></li></template>'
        f'<label class="film-file"><span>{escape(texts.figure_add)}</span>'
        f'<input name="figure-new" type="file" accept="image/*"></label>'
        f'<p class="film-known wide" hidden>{escape(texts.figures_known)} <span></span></p></fieldset>'
    )


def _track(texts: Texts) -> str:
    return (
        f'<fieldset class="film-track"><legend>{escape(texts.film_track)}</legend>'
        f'<label class="film-file"><span>{escape(texts.film_track_add)}</span>'
        f'<input name="track" type="file" accept="{_SOUNDS}"></label>'
        f'<div class="film-track-set" hidden>{_number("track_start", texts.film_track_start, "0.1")}'
        f"{_number('track_fade', texts.film_track_fade, '0.1')}"
        f'<label>{escape(texts.film_track_volume)}<input name="track_volume" type="range" min="0" max="2" step="0.05" value="1">'
        f"</label>{_button('silence', texts.film_track_remove, None)}</div></fieldset>"
    )


def _number(name: str, words: str, step: str = "any") -> str:
    return f'<label>{escape(words)}<input name="{name}" type="number" min="0" step="{step}" inputmode="decimal"></label>'


def _button(what: str, words: str, drawing: str | None) -> str:
    return f'<button type="button" data-shot="{what}">{icon(drawing) if drawing else ""}{escape(words)}</button>'


def _icon_button(what: str, words: str, drawing: str) -> str:
    return (
        f'<button type="button" data-shot="{what}" title="{escape(words)}" aria-label="{escape(words)}">{icon(drawing)}</button>'
    )
