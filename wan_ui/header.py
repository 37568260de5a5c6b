"""The bar at the top of the page: views, worker status, language, queue, help, and light or dark theme.

Only the page's script stores which view is open. All views are always on the page, so that switching is immediate.
"""

from collections.abc import Sequence
from html import escape

from backend.schemas.worker import WorkerView, summarize_status
from wan_ui.components.field_errors import shorten_paths
from wan_ui.components.icons import icon
from wan_ui.components.values import pairs_html
from wan_ui.i18n.details import translate_detail
from wan_ui.i18n.english import Texts
from wan_ui.i18n.languages import LANGUAGES

Names = Sequence[tuple[str, str]]  # the key and the name of each view, in order
_LOGO = (
    '<svg class="logo" viewBox="0 0 28 28" aria-hidden="true"><rect width="28" height="28" rx="8"/>'
    '<path d="M6.5 9.5l3.6 9 3.9-9 3.9 9 3.6-9"/></svg>'
)


def title_html(views: Names, texts: Texts) -> str:
    tabs = "".join(f'<button type="button" data-view="{escape(key)}">{escape(name)}</button>' for key, name in views)
    return (
        f'<div class="top"><h1>{_LOGO}<span>{escape(texts.product)}</span></h1>'
        f'<nav id="views" aria-label="{escape(texts.views)}">{tabs}</nav></div>'
    )


def status_html(workers: Sequence[WorkerView], texts: Texts) -> str:
    """Render the worker's state as a dot, a word and a sentence. For several workers, render their best state and its count."""
    status = summarize_status(workers)
    word = getattr(texts, f"worker_{status.state}")
    detail = "" if status.state in ("ready", "busy") else escape(translate_detail(shorten_paths(status.detail), texts))
    if not workers:
        detail = escape(texts.worker_none)
    if len(workers) > 1:
        count = sum(worker.status.state == status.state for worker in workers)
        detail = escape(texts.workers_alike.format(count=count, total=len(workers)))
    return (
        f'<p class="status" role="status" data-state="{status.state}" title="{detail}"><i></i>'
        f"<b>{escape(word)}</b><span>{detail}</span></p>"
    )


def tools_html(views: Names, texts: Texts) -> str:
    """Render the buttons for language, queue, help and theme, and the help dialog."""
    first, *others = texts.help_keys
    keys = pairs_html((first, (f"Alt 1 – {len(views)}", texts.list_separator.join(name for _, name in views)), *others))
    queue, theme = escape(texts.queue_title), escape(texts.theme_toggle)
    helped, label = escape(texts.help_title), escape(texts.language_choose)
    current = texts
    languages = "".join(
        f'<option value="{escape(code)}" lang="{escape(code)}"{" selected" if texts is current else ""}>'
        f"{escape(texts.language_name)}</option>"
        for code, texts in LANGUAGES.items()
    )
    # The question about browser notifications, which `notice.js` shows once, with the texts that scripts show later
    buttons = "".join(
        f'<button type="button" data-notice="{answer}">{escape(words)}</button>'
        for answer, words in (("yes", texts.notify_yes), ("no", texts.notify_no))
    )
    words = f'data-done="{escape(texts.notify_finished)}" data-failed="{escape(texts.notify_failed)}"'
    words += f' data-unsent="{escape(texts.recording_unsent)}"'
    return (
        f'<div class="tools"><select id="language" aria-label="{label}" title="{label}">{languages}</select>'
        f'<button id="queue-toggle" type="button" title="{queue}"><span class="unseen">{queue}</span>'
        f'{icon("list")}<b class="badge" hidden></b></button>'
        f'<button id="help-toggle" type="button" aria-label="{helped}" title="{helped}">{icon("question")}</button>'
        f'<button id="theme-toggle" type="button" aria-label="{theme}" title="{theme}">'
        '<svg viewBox="0 0 20 20" aria-hidden="true"><path d="M10 2a8 8 0 1 0 0 16 8 8 0 0 0 0-16zm0 1.6v12.8'
        'a6.4 6.4 0 0 1 0-12.8z"/></svg></button>'
        f'<dialog id="help" aria-label="{helped}"><h2>{helped}</h2><dl>{keys}</dl>'
        f'<form method="dialog"><button>{escape(texts.close)}</button></form></dialog>'
        f'<div id="drop-zone" hidden><p>{escape(texts.drop_here)}</p>'
        f'<p class="clip" hidden>{escape(texts.drop_clip)}</p></div>'
        f'<div id="notice" role="status" hidden {words}><span>{escape(texts.notify_ask)}</span>{buttons}</div></div>'
    )
