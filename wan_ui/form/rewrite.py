"""A suggestion for the prompt, if the server has a rewriter: what it would change, and a button to use it.

It never runs by itself and never changes the prompt. Element ids: `rewrite` (the button), `suggestion`.
"""

from dataclasses import dataclass
from difflib import SequenceMatcher
from html import escape

import gradio as gr

from backend.errors import StudioError
from wan_ui.desk.rewriter import PromptRewriter
from wan_ui.parts.buttons import text_button
from wan_ui.parts.notes import note_html, sentence
from wan_ui.words.english import Texts


@dataclass(frozen=True, kw_only=True)
class RewritePanel:
    """The panel's components; both are invisible without a rewriter."""

    button: gr.Button
    suggestion: gr.HTML


def build_rewrite_panel(labels: Texts, is_there: bool) -> RewritePanel:
    """Builds the panel, within the prompt's column."""
    button = gr.Button(labels.rewrite, size="sm", elem_id="rewrite", visible=is_there)
    return RewritePanel(button=button, suggestion=gr.HTML("", elem_id="suggestion", visible=is_there))


def suggest(rewriter: PromptRewriter, prompt: str, preset: str, texts: Texts) -> str:
    """The suggestion as HTML, or what went wrong."""
    if not prompt.strip():
        return ""
    try:
        return suggestion_html(prompt, rewriter.suggest(prompt, preset), texts)
    except StudioError as error:
        return note_html(sentence(error))


def suggestion_html(old: str, new: str, texts: Texts) -> str:
    """The removed and the added words, marked word by word."""
    if old.split() == new.split():
        return f'<p class="hint">{escape(texts.rewrite_same)}</p>'
    before, after, parts = old.split(), new.split(), []
    for what, first, last, start, end in SequenceMatcher(a=before, b=after, autojunk=False).get_opcodes():
        if what == "equal":
            parts.append(escape(" ".join(before[first:last])))
            continue
        parts += [f"<del>{escape(' '.join(before[first:last]))}</del>"] * (last > first)
        parts += [f"<ins>{escape(' '.join(after[start:end]))}</ins>"] * (end > start)
    use = text_button("fill:prompt", texts.rewrite_use, value=new)
    return f'<div class="suggestion"><p>{" ".join(parts)}</p><div class="actions">{use}</div></div>'
