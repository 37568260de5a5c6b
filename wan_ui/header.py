"""The bar at the top: the product's name, what the worker does right now, light or dark.

Element ids: `header`, `worker-status`, `theme-toggle`.
"""

from dataclasses import dataclass
from html import escape

import gradio as gr

from backend.worker_process import WorkerStatus
from wan_ui.text import Texts

POLL_SECONDS = 2.0
_LOGO = (
    '<svg class="logo" viewBox="0 0 28 28" aria-hidden="true"><rect width="28" height="28" rx="8"/>'
    '<path d="M6.5 9.5l3.6 9 3.9-9 3.9 9 3.6-9"/></svg>'
)
_THEME_TOGGLE = """
const key = 'studio-theme';
const apply = theme => document.body.classList.toggle('dark', theme === 'dark');
const stored = localStorage.getItem(key);
if (stored) apply(stored);
element.addEventListener('click', event => {
  if (!event.target.closest('#theme-toggle')) return;
  const theme = document.body.classList.contains('dark') ? 'light' : 'dark';
  localStorage.setItem(key, theme);
  apply(theme);
});
"""


@dataclass(frozen=True, kw_only=True)
class Header:
    """The bar's components; `timer` ticks when the status shall be read again."""

    status: gr.HTML
    timer: gr.Timer


def build_header(status: WorkerStatus, texts: Texts) -> Header:
    """Lays the bar out."""
    with gr.Row(elem_id="header"):
        gr.HTML(f"<h1>{_LOGO}<span>{escape(texts.product)}</span></h1>", elem_id="title")
        shown = gr.HTML(status_html(status, texts), elem_id="worker-status")
        gr.HTML(_toggle_html(texts), js_on_load=_THEME_TOGGLE, elem_id="theme")
    return Header(status=shown, timer=gr.Timer(POLL_SECONDS))


def status_html(status: WorkerStatus, texts: Texts) -> str:
    """The worker's state as a dot, a word and its own sentence."""
    word = getattr(texts, f"worker_{status.state}")
    detail = "" if status.state in ("ready", "busy") else escape(status.detail)
    return (
        f'<p class="status" role="status" data-state="{status.state}" title="{detail}"><i></i>'
        f"<b>{escape(word)}</b><span>{detail}</span></p>"
    )


def _toggle_html(texts: Texts) -> str:
    label = escape(texts.theme_toggle)
    return (
        f'<button id="theme-toggle" type="button" aria-label="{label}" title="{label}">'
        '<svg viewBox="0 0 20 20" aria-hidden="true"><path d="M10 2a8 8 0 1 0 0 16 8 8 0 0 0 0-16zm0 1.6v12.8'
        'a6.4 6.4 0 0 1 0-12.8z"/></svg></button>'
    )
