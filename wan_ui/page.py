"""Handlers of the whole page: its opening, and later updates. Every view takes part in both.

`wan_ui.routes.changes` sends the worker status and the queue.
"""

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass

import gradio as gr

from wan_ui.components.events import Updates, Values
from wan_ui.components.toast import Message
from wan_ui.form.handlers import FormHandlers
from wan_ui.header import Header, Names, title_html, tools_html
from wan_ui.i18n.english import Texts
from wan_ui.queue.handlers import QueueHandlers
from wan_ui.services.caller import Caller
from wan_ui.services.studio_context import StudioContext
from wan_ui.view import Panel, View

log = logging.getLogger(__name__)

_CHANGES = "changes"  # key in `seen`: the engine's change count when the page was last updated


@dataclass(frozen=True, kw_only=True)
class PageHandlers:
    """The header, the form, the queue and all views together.

    `seen` stores hashes of what a page's components show, so that an update sends only changes.
    """

    context: StudioContext
    header: Header
    form: FormHandlers
    queue: QueueHandlers
    views: Sequence[View]
    panels: Sequence[Panel]
    seen: gr.State

    @property
    def inputs(self) -> set[gr.blocks.Block]:
        """The components that `tick` reads."""
        return {self.seen}.union(*(panel.inputs for panel in self.panels))

    @property
    def opening_inputs(self) -> set[gr.blocks.Block]:
        """The components that `open` reads."""
        return self.inputs | {self.form.form.session}

    @property
    def opening_outputs(self) -> list[gr.blocks.Block]:
        """The components that `open` may change."""
        several = [self.header.title, self.header.tools, *self.form.outputs]
        return list(dict.fromkeys([*several, *self._panel_outputs()]))

    @property
    def tick_outputs(self) -> list[gr.blocks.Block]:
        """The components that `tick` may change."""
        return list(dict.fromkeys([self.seen, *self._panel_outputs()]))

    def open(self, values: Values, request: gr.Request) -> Updates:
        """Fill a new page: texts in the visitor's language, their jobs, and the settings of a link or of the last visit.

        If the link or the settings cannot be loaded, the page opens without them and shows a message.
        """
        caller = self.context.identify_caller(request)
        try:
            return self._opening_updates(caller, dict(request.query_params), values)
        except Exception:
            log.exception("A page could not load the settings of its link or of the last visit")
        message = Message(text=f"{caller.texts.error_unexpected} {caller.texts.opened_without}", is_bad=True)
        return self._opening_updates(caller, {}, values | {self.form.form.session: None}) | {
            self.form.message: message.html(caller.texts)
        }

    def _opening_updates(self, caller: Caller, parameters: dict[str, str], values: Values) -> Updates:
        shown = self.form.initial_updates(caller, parameters, values)
        if not caller.uses_english:
            names = view_names(self.views, caller.texts)
            shown |= {self.header.title: title_html(names, caller.texts), self.header.tools: tools_html(names, caller.texts)}
        for panel in self.panels:
            shown |= panel.initial_updates(caller, parameters, values)
        return shown

    def tick(self, values: Values, request: gr.Request) -> Updates:
        """Send the changes of the views since the last update. The page calls this after an event of `/studio/changes`."""
        caller, seen, drawn = self.context.identify_caller(request), values[self.seen], {}
        changes = self.context.engine.event_log.count_changes()
        if seen.get(_CHANGES) != changes:
            for panel in self.panels:
                drawn |= panel.tick(caller, values)
        marks = {
            str(component._id): hashlib.blake2b(repr(update).encode(), digest_size=8).hexdigest()
            for component, update in drawn.items()
        }
        news = {one: update for one, update in drawn.items() if seen.get(str(one._id)) != marks[str(one._id)]}
        return news | {self.seen: seen | marks | {_CHANGES: changes}}

    def _panel_outputs(self) -> list[gr.blocks.Block]:
        return [component for panel in self.panels for component in panel.outputs]


def view_names(views: Sequence[View], texts: Texts) -> Names:
    """Return the key and the name of each view, for the header."""
    return [(view.key, view.translate_title(texts)) for view in views]
