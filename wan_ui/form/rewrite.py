"""A suggestion for the prompt, if the server has a language model for it.

Element ids: `rewrite` (the button), `suggestion`.
"""

import itertools
import operator
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from html import escape

import gradio as gr

from wan_ui.components.buttons import text_button
from wan_ui.i18n.english import Texts

MOST_COMPARED_WORDS = 300  # limit for each text; equal words at the start of both texts do not count


@dataclass(frozen=True, kw_only=True)
class RewritePanel:
    """The panel's components, hidden if no language model is configured.

    `put` is the suggestion that was inserted into the prompt, None without one.
    """

    button: gr.Button
    suggestion: gr.HTML
    put: gr.State


def build_rewrite_panel(labels: Texts, is_there: bool) -> RewritePanel:
    """Build the panel inside the prompt's column."""
    button = gr.Button(labels.rewrite, size="sm", elem_id="rewrite", visible=is_there)
    return RewritePanel(button=button, suggestion=gr.HTML("", elem_id="suggestion", visible=is_there), put=gr.State(None))


def partial_suggestion_html(text: str, texts: Texts) -> str:
    """Render an unfinished suggestion with a Stop button."""
    content = f"<p>{escape(text)}</p>" if text else f'<p class="hint">{escape(texts.rewrite_waiting)}</p>'
    stop = text_button("rewrite:stop", texts.stop)
    return f'<div class="suggestion" aria-busy="true">{content}<div class="actions">{stop}</div></div>'


def suggestion_used_html(old: str, texts: Texts) -> str:
    """Render the note after a suggestion was used, with an Undo button."""
    undo = text_button("rewrite:undo", texts.rewrite_undo, value=old)
    return f'<div class="suggestion used"><p class="hint">{escape(texts.rewrite_used)}</p><div class="actions">{undo}</div></div>'


def _compare_words(before: list[str], after: list[str]) -> Iterator[tuple[bool, int, int, int, int]]:
    """Yield equal and changed ranges of words, like `SequenceMatcher.get_opcodes`.

    If many words differ, they count as one change, because the matcher takes cubic time for repeated words.
    """
    same = sum(1 for _ in itertools.takewhile(operator.truth, map(operator.eq, before, after)))
    yield True, 0, same, 0, same
    old, new = before[same:], after[same:]
    if len(old) > MOST_COMPARED_WORDS or len(new) > MOST_COMPARED_WORDS:
        yield False, same, len(before), same, len(after)
        return
    for what, first, last, start, end in SequenceMatcher(a=old, b=new, autojunk=False).get_opcodes():
        yield what == "equal", same + first, same + last, same + start, same + end


def suggestion_html(old: str, new: str, texts: Texts) -> str:
    """Render the suggestion with removed and added words marked.

    This takes at most 0.2 s of processor time (measured). Call it outside the event loop.
    """
    before, after, parts = old.split(), new.split(), []
    if before == after:
        return f'<p class="hint">{escape(texts.rewrite_same)}</p>'
    for is_equal, first, last, start, end in _compare_words(before, after):
        if is_equal:
            parts.append(escape(" ".join(before[first:last])))
            continue
        parts += [f"<del>{escape(' '.join(before[first:last]))}</del>"] * (last > first)
        parts += [f"<ins>{escape(' '.join(after[start:end]))}</ins>"] * (end > start)
    use = text_button("rewrite:use", texts.rewrite_use, value=new)
    return f'<div class="suggestion"><p>{" ".join(parts)}</p><div class="actions">{use}</div></div>'
