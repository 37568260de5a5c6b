"""The interface of the studio's views. A view is one constant in the list of `wan_ui.views`, and the rest follows from it:
its place in the header and its key, its column, its buttons, what it shows when the page opens, and how it is updated.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import gradio as gr
from starlette.routing import Route

from wan_ui.form.form import Form
from wan_ui.gateway.rules import ROUTES, Rules
from wan_ui.i18n.english import Texts
from wan_ui.services.panel import Panel
from wan_ui.services.studio_context import StudioContext
from wan_ui.stage.handlers import StageHandlers

FORM = "form"  # the column of the form, for `View.beside`


@dataclass(frozen=True, kw_only=True)
class Shell:
    """The engine, texts and components that all views share, from which each view is built.

    `stage.follow_after` makes the page follow the job of `stage.panel.job_id`; `labels` are the texts as keys that Gradio
    translates in the browser.
    """

    context: StudioContext
    texts: Texts
    labels: Texts
    form: Form
    stage: StageHandlers
    message: gr.HTML


@dataclass(frozen=True, kw_only=True)
class View:
    """One view of the studio.

    `title` names a field of `Texts`. `beside` lists the other columns that are shown with the view's own: `FORM`, or the keys of
    other views; `on_phone` lists those that are also shown on a phone, where columns are below one another. `rules` says who may
    use the view's own routes (see `wan_ui.gateway.rules`): one without a rule is refused. `streams` are patterns of those routes
    that do not end by themselves.
    """

    key: str
    title: str
    build: Callable[[Shell], Panel]
    beside: tuple[str, ...] = ()
    on_phone: tuple[str, ...] = ()
    routes: Callable[[StudioContext], Sequence[Route]] = lambda context: ()
    rules: Rules = field(default_factory=dict)
    streams: tuple[str, ...] = ()

    def translate_title(self, texts: Texts) -> str:
        """The view's name in this language."""
        return getattr(texts, self.title)


def collect_rules(views: Sequence[View]) -> Rules:
    """The rules of all addresses: the studio's own, and those of these views."""
    return {path: rule for rules in (ROUTES, *(view.rules for view in views)) for path, rule in rules.items()}


def column_classes(column: str, views: Sequence[View]) -> list[str]:
    """The classes of a column, from which the page's script reads in which views it is shown."""
    wide = [view.key for view in views if column == view.key or column in view.beside]
    narrow = [view.key for view in views if column == view.key or column in view.on_phone]
    seen_first = ["shown", "shown-on-phone"] if views and views[0].key in wide else []
    return ["place", *(f"in-{key}" for key in wide), *(f"phone-{key}" for key in narrow), *seen_first]
