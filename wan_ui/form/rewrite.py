"""A suggestion for the prompt, if the server has a language model for it.

Element ids: `rewrite` (the button), `suggestion`.
"""

import itertools
import operator
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


def partial_suggestion_html(text: str, texts: Texts) -> str:
    """Render an unfinished suggestion with a Stop button."""
    content = f"<p>{escape(text)}</p>" if text else f'<p class="hint">{escape(texts.rewrite_waiting)}</p>'
    stop = text_button("rewrite:stop", texts.stop)
    return f'<div class="suggestion" aria-busy="true">{content}<div class="actions">{stop}</div></div>'


def suggestion_html(old: str, new: str, texts: Texts) -> str:
    """Render the suggestion with removed and added words marked.

    This takes at most 0.2 s of processor time (measured). Call it outside the event loop.
    """
    before, after = old.split(), new.split()
    if before == after:
        return f'<p class="hint">{escape(texts.rewrite_same)}</p>'
    same = sum(1 for _ in itertools.takewhile(operator.truth, map(operator.eq, before, after)))
    parts, before, after = [escape(" ".join(before[:same]))], before[same:], after[same:]
    # If many words differ, they count as one change, because the matcher takes cubic time for repeated words.
    changes = [("replace", 0, len(before), 0, len(after))]
    if len(before) <= MOST_COMPARED_WORDS and len(after) <= MOST_COMPARED_WORDS:
        changes = SequenceMatcher(a=before, b=after, autojunk=False).get_opcodes()
    for what, first, last, start, end in changes:
        if what == "equal":
            parts.append(escape(" ".join(before[first:last])))
            continue
        parts += [f"<del>{escape(' '.join(before[first:last]))}</del>"] * (last > first)
        parts += [f"<ins>{escape(' '.join(after[start:end]))}</ins>"] * (end > start)
    use = text_button("rewrite:use", texts.rewrite_use, value=new)
    return f'<div class="suggestion"><p>{" ".join(parts)}</p><div class="actions">{use}</div></div>'
