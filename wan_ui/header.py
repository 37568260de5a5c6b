"""The bar at the top of the page: views, worker status, language, queue, help, and light or dark theme.

Only the page's script stores which view is open (`data-view` of the body). All views are always on the page, so that switching
is immediate. Element ids: `header`, `views`, `worker-status`, `queue-toggle`, `help-toggle`, `help`, `drop-zone`, `notice`,
`language`, `theme-toggle`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import gradio as gr

from backend.schemas.worker import WorkerView, summarize_status
from wan_ui.components.events import start_script
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


@dataclass(frozen=True, kw_only=True)
class Header:
    """The components of the header."""

    title: gr.HTML
    status: gr.HTML
    tools: gr.HTML


def build_header(workers: Sequence[WorkerView], views: Names, texts: Texts) -> Header:
    """Build the header with these views."""
    with gr.Row(elem_id="header"):
        title = gr.HTML(title_html(views, texts), elem_id="title")
        shown = gr.HTML(status_html(workers, texts), js_on_load=start_script("worker_status"), elem_id="worker-status")
        tools = gr.HTML(tools_html(views, texts), js_on_load=start_script("theme"), elem_id="theme")
    return Header(title=title, status=shown, tools=tools)


def title_html(views: Names, texts: Texts) -> str:
    """Render the product's name and the buttons of the views."""
    tabs = "".join(f'<button type="button" data-view="{escape(key)}">{escape(name)}</button>' for key, name in views)
    return (
        f'<div class="top"><h1>{_LOGO}<span>{escape(texts.product)}</span></h1>'
        f'<nav id="views" aria-label="{escape(texts.views)}">{tabs}</nav></div>'
    )


def status_html(workers: Sequence[WorkerView], texts: Texts) -> str:
    """Render the worker's state as a dot, a word and a sentence.

    For several workers, render their best state and how many workers have this state.
    """
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
    named = texts.list_separator.join(name for _, name in views)
    first, *others = texts.help_keys
    shown = (first, (f"Alt 1 – {len(views)}", named), *others)
    keys = pairs_html(shown)
    queue, theme = escape(texts.queue_title), escape(texts.theme_toggle)
    return (
        f'<div class="tools">{_language_html(texts, escape(texts.language_choose))}'
        f'<button id="queue-toggle" type="button" title="{queue}"><span class="unseen">{queue}</span>'
        f'{icon("list")}<b class="badge" hidden></b></button>{_tool_button("help-toggle", "question", texts.help_title)}'
        f'<button id="theme-toggle" type="button" aria-label="{theme}" title="{theme}">'
        '<svg viewBox="0 0 20 20" aria-hidden="true"><path d="M10 2a8 8 0 1 0 0 16 8 8 0 0 0 0-16zm0 1.6v12.8'
        'a6.4 6.4 0 0 1 0-12.8z"/></svg></button>'
        f'<dialog id="help" aria-label="{escape(texts.help_title)}"><h2>{escape(texts.help_title)}</h2><dl>{keys}</dl>'
        f'<form method="dialog"><button>{escape(texts.close)}</button></form></dialog>'
        f'<div id="drop-zone" hidden><p>{escape(texts.drop_here)}</p>'
        f'<p class="clip" hidden>{escape(texts.drop_clip)}</p></div>{_notice_html(texts)}</div>'
    )


def _language_html(current: Texts, label: str) -> str:
    """Render the selection of the page's language. The name of each language is in that language."""
    options = "".join(
        f'<option value="{escape(code)}" lang="{escape(code)}"{" selected" if texts is current else ""}>'
        f"{escape(texts.language_name)}</option>"
        for code, texts in LANGUAGES.items()
    )
    return f'<select id="language" aria-label="{label}" title="{label}">{options}</select>'


def _notice_html(texts: Texts) -> str:
    """Render the question about browser notifications, which `notice.js` shows once.

    The element's data attributes have the texts that scripts show later, such as the text of a notification.
    """
    buttons = "".join(
        f'<button type="button" data-notice="{answer}">{escape(words)}</button>'
        for answer, words in (("yes", texts.notify_yes), ("no", texts.notify_no))
    )
    words = f'data-done="{escape(texts.notify_finished)}" data-failed="{escape(texts.notify_failed)}"'
    words += f' data-unsent="{escape(texts.recording_unsent)}"'
    return f'<div id="notice" role="status" hidden {words}><span>{escape(texts.notify_ask)}</span>{buttons}</div>'


def _tool_button(element: str, name: str, label: str) -> str:
    words = escape(label)
    return f'<button id="{element}" type="button" aria-label="{words}" title="{words}">{icon(name)}</button>'
