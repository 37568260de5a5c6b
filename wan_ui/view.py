"""The interface of the studio's views. A view is one constant in the list of `wan_ui.views`."""

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
    """The engine, the texts and the components that all views share.

    `stage.follow_after` makes the page follow the job in `stage.panel.job_id`. `labels` are keys of texts that Gradio translates
    in the browser.
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

    `title` is a field of `Texts`. `beside` lists the other columns that the view shows: `FORM`, or keys of other views.
    `on_phone` lists the columns that it also shows on a phone. Routes without a rule are refused. `streams` are regular
    expressions of routes with endless responses.
    """

    key: str
    title: str
    build: Callable[[Shell], Panel]
    beside: tuple[str, ...] = ()
    on_phone: tuple[str, ...] = ()
    routes: Callable[[StudioContext], Sequence[Route]] = lambda context: ()
    rules: Rules = field(default_factory=dict)
    streams: tuple[str, ...] = ()


def collect_rules(views: Sequence[View]) -> Rules:
    return {path: rule for rules in (ROUTES, *(view.rules for view in views)) for path, rule in rules.items()}


def column_classes(column: str, views: Sequence[View]) -> list[str]:
    """Return the CSS classes of a column. They list the views that show the column."""
    wide = [view.key for view in views if column == view.key or column in view.beside]
    narrow = [view.key for view in views if column == view.key or column in view.on_phone]
    seen_first = ["shown", "shown-on-phone"] if views and views[0].key in wide else []
    return ["place", *(f"in-{key}" for key in wide), *(f"phone-{key}" for key in narrow), *seen_first]
