"""Render a comparison: players side by side, shared controls, and a table of the differences. No function has side effects."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from backend.engine.job import Job
from backend.schemas.request import GenerationRequest
from backend.schemas.settings import FIELDS, MOST_PROMPT
from wan_ui.components.buttons import icon_button, play_button, sound_button
from wan_ui.components.icons import icon
from wan_ui.components.progress import StageView, format_duration
from wan_ui.components.values import NO_PICTURE
from wan_ui.form.unused_settings import setting_label, setting_text, value_text
from wan_ui.i18n.english import Texts
from wan_ui.services.media import BEFORE, media_url

MOST = 4
_PLAYS = 'data-compare="play"'


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One video of a comparison. If `is_original` is True, the cell shows the source clip of the job's video."""

    job: Job
    view: StageView
    is_original: bool = False


@dataclass(frozen=True, kw_only=True)
class CompareContent:
    """The content of the compare view.

    `chosen` is the number of videos that the visitor has selected for a comparison. If `columns` is not 0, the cells are a grid,
    row by row.
    """

    id: str = ""
    cells: tuple[Cell, ...] = ()
    chosen: int = 0
    columns: int = 0


def compare_html(content: CompareContent, texts: Texts) -> str:
    """Render the view without the bar that chooses the settings to vary."""
    if not content.cells:
        words = texts.compare_tray.format(count=content.chosen) if content.chosen else texts.compare_empty
        return (
            f'<section class="compare" data-count="0"><div class="empty"><p class="title">{escape(texts.compare_empty_title)}</p>'
            f'<p class="hint">{escape(words)}</p></div></section>'
        )
    requests, has_original = [cell.job.request for cell in content.cells], any(cell.is_original for cell in content.cells)
    labels = [texts.compare_before, texts.compare_after] if has_original else difference_labels(requests, texts)
    named = enumerate(zip(content.cells, labels, strict=True), 1)
    cells = "".join(_cell_html(cell, number, label, texts) for number, (cell, label) in named)
    done = sum(cell.is_original or cell.view.result is not None for cell in content.cells)
    table = "" if content.columns else _table_html(content.cells, has_original, texts)
    ratio = max(request.width / request.height for request in requests)
    return (
        f'<section class="compare" data-count="{len(content.cells)}" data-done="{done}" data-comparison="{escape(content.id)}"'
        f' data-original="{"true" if has_original else "false"}" data-grid="{"true" if content.columns else "false"}">'
        f'<div class="grid" style="--ratio: {ratio:.4f}; --columns: {content.columns or min(len(content.cells), 2)}">{cells}'
        f'<input type="range" class="edge" min="0" max="100" value="50" aria-label="{escape(texts.compare_wipe_edge)}" hidden>'
        f"</div>"
        f"{_bar_html(content, labels, done, texts)}{table}</section>"
    )


def _cell_html(cell: Cell, number: int, label: str, texts: Texts) -> str:
    job, view = cell.job, cell.view
    file = BEFORE if cell.is_original else view.result.path if view.result else None
    shown = f'preload="auto" src="{media_url(job, file)}"' if file else "hidden"
    source = media_url(job, view.preview) if view.preview and not file else NO_PICTURE
    match job.state:
        case _ if file:
            state = ""
        case "queued":
            state = texts.queued
        case "running" if view.phase == "denoising":
            state = texts.denoising_step.format(index=view.index, total=view.total)
        case "running":
            state = texts.starting
        case "failed":
            state = texts.failed
        case _:
            state = texts.cancelled
    has_sound = view.result and view.result.has_sound and not cell.is_original  # source clips are shown without audio
    words, attributes = texts.compare_hear.format(number=number), f'data-compare="sound"{"" if has_sound else " hidden"}'
    return (
        f'<figure data-job="{escape(job.id)}" data-state="{job.state}" data-fps="{job.request.fps}"'
        f' data-sound="{"true" if has_sound else "false"}">'
        f'<div class="screen"><video muted playsinline {shown}></video><img src="{source}" alt=""{" hidden" if file else ""}>'
        f'<p class="state">{escape(state)}</p></div>{sound_button(words, attributes)}'
        f"<figcaption>{escape(label)}</figcaption></figure>"
    )


def _bar_html(content: CompareContent, labels: list[str], done: int, texts: Texts) -> str:
    total = len(content.cells)
    progress = texts.compare_progress.format(done=done, total=total) if done < total else ""
    options = "".join(f'<option value="{number}">{escape(label)}</option>' for number, label in enumerate(labels))
    second = options.replace('value="1"', 'value="1" selected')
    export = (
        f'<a id="compare-export" data-watch-tasks href="studio/compare/{escape(content.id)}.mp4" download="comparison.mp4">'
        f"{icon('download')}"
        f"<span>{escape(texts.compare_export)}</span></a>"
        if done == total
        else ""
    )
    return (
        f'<div class="together">{play_button(texts, _PLAYS)}'
        f'<input type="range" min="0" max="1000" value="0" data-compare="scrub" aria-label="{escape(texts.scrub)}">'
        f"<output></output>"
        f'<label class="wipe"><input type="checkbox" data-compare="wipe"><span>{escape(texts.compare_wipe)}</span></label>'
        f'<select data-compare="left" aria-label="{escape(texts.compare_wipe_left)}" hidden>{options}</select>'
        f'<select data-compare="right" aria-label="{escape(texts.compare_wipe_right)}" hidden>{second}</select>'
        f'<span class="progress" role="status">{escape(progress)}</span>'
        f'<span class="actions">{export}{icon_button("compare:link", "link", texts.copy_link)}'
        f"{icon_button('compare:clear', 'cross', texts.compare_clear)}</span></div>"
    )


def _table_html(cells: Sequence[Cell], has_original: bool, texts: Texts) -> str:
    requests, rows = [cell.job.request for cell in cells], []
    for name, values in differences(requests):
        short = [value_text(name, value, texts, MOST_PROMPT) for value in values]
        # Lists whose short texts are equal, such as shots with other seeds, are written in full.
        rows.append((setting_label(name, texts), short if len({*short}) > 1 else [str(value) for value in values]))
    note = f'<p class="hint">{escape(texts.compare_same)}</p>' if not rows else ""
    if has_original:
        strength = [] if requests[-1].strength is None else [(texts.edit_strength, ["", f"{requests[-1].strength:g}"])]
        note, rows = "", [(texts.prompt, ["", requests[-1].prompt]), *strength]
    timed = [cell.view.result if not cell.is_original else None for cell in cells]
    seconds = [format_duration(result.seconds.get("total", 0.0)) if result else "" for result in timed]
    rows.append((texts.shot_seconds, seconds))
    body = "".join(
        f'<tr><th scope="row">{escape(name)}</th>{"".join(f"<td>{escape(value)}</td>" for value in values)}</tr>'
        for name, values in rows
    )
    return f'{note}<table class="differences"><tbody>{body}</tbody></table>'


def differences(requests: list[GenerationRequest]) -> list[tuple[str, list[Any]]]:
    """Return the names of the settings that differ between the requests, with the value of each request.

    Files are compared by their names, without folders.
    """
    shared = [request.for_sharing() for request in requests]
    differing = (one for one in FIELDS if len({str(data.get(one.name, one.default)) for data in shared}) > 1)
    return [(one.name, [one.value_in(request) for request in requests]) for one in differing]


def difference_labels(requests: list[GenerationRequest], texts: Texts) -> list[str]:
    """Label each request with its values of one or two differing fields, or with its number if no field differs."""
    differing = [name for name, _ in differences(requests)]
    if not differing:
        return [str(number) for number in range(1, len(requests) + 1)]
    shown = differing if len(differing) == 2 else [name for name in differing if name != "seed"][:2] or differing[:1]
    return [" · ".join(setting_text(name, request, texts) for name in shown) for request in requests]
