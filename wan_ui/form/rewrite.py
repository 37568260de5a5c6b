"""A suggestion for the prompt, if the server has a helper: the button, and what is shown of a suggestion.

Element ids: `rewrite` (the button), `suggestion`.
"""

from dataclasses import dataclass
from difflib import SequenceMatcher
from html import escape

import gradio as gr

from wan_ui.parts.buttons import text_button
from wan_ui.words.english import Texts


@dataclass(frozen=True, kw_only=True)
class RewritePanel:
    """The panel's components, invisible without a helper; `put` is the suggestion that stands in the prompt, None for none."""

    button: gr.Button
    suggestion: gr.HTML
    put: gr.State


def build_rewrite_panel(labels: Texts, is_there: bool) -> RewritePanel:
    """Builds the panel, within the prompt's column."""
    button = gr.Button(labels.rewrite, size="sm", elem_id="rewrite", visible=is_there)
    return RewritePanel(button=button, suggestion=gr.HTML("", elem_id="suggestion", visible=is_there), put=gr.State(None))


def growing_html(text: str, texts: Texts) -> str:
    """A suggestion that is being written, with a button to stop it."""
    said = f"<p>{escape(text)}</p>" if text else f'<p class="hint">{escape(texts.rewrite_waits)}</p>'
    stop = text_button("rewrite:stop", texts.stop)
    return f'<div class="suggestion" aria-busy="true">{said}<div class="actions">{stop}</div></div>'


def used_html(old: str, texts: Texts) -> str:
    """What is said after a suggestion was used, with a button that takes it back."""
    undo = text_button("rewrite:undo", texts.rewrite_undo, value=old)
    return f'<div class="suggestion used"><p class="hint">{escape(texts.rewrite_used)}</p><div class="actions">{undo}</div></div>'


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
    use = text_button("rewrite:use", texts.rewrite_use, value=new)
    return f'<div class="suggestion"><p>{" ".join(parts)}</p><div class="actions">{use}</div></div>'
