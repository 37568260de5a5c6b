"""Draws the system panel while a visitor looks at it; for the operator, it cleans up and keeps models."""

from dataclasses import dataclass
from typing import cast, get_args

import gradio as gr

from backend.errors import StudioError
from backend.schemas.worker import Keeping
from wan_ui.components.buttons import Act
from wan_ui.components.events import Updates, Values
from wan_ui.components.toast import Message
from wan_ui.services.caller import Visit
from wan_ui.services.panel import Acts, Panel
from wan_ui.services.studio_context import Desk
from wan_ui.system.html import cleaned_words, system_html


@dataclass(frozen=True, kw_only=True)
class SystemHandlers(Panel):
    """Handlers of the system view."""

    desk: Desk
    panel: gr.HTML
    message: gr.HTML

    @property
    def outputs(self) -> list[gr.blocks.Block]:
        return [self.panel, self.message]

    @property
    def acts(self) -> Acts:
        return {"look_system": self.look, "clean": self.clean, "keep": self.keep}

    def look(self, values: Values, request: gr.Request, event: gr.EventData) -> Updates:
        """The panel, when it has come into view and while it stays there."""
        return self._drawn(self.desk.visit(request))

    def clean(self, values: Values, request: gr.Request, event: gr.EventData) -> Updates:
        """Removes at once what the hourly cleaning would remove, and says how much that was. For the operator only."""
        visit = self.desk.visit(request)
        if not visit.is_operator:
            return {self.panel: gr.skip()}
        try:
            message = Message(text=cleaned_words(self.desk.engine.cleaner.clean(), visit.texts))
        except StudioError as error:
            message = Message.refusal(error)
        return self._drawn(visit) | {self.message: message.html(visit.texts)}

    def keep(self, values: Values, request: gr.Request, event: gr.EventData) -> Updates:
        """Pins a model that a worker keeps, lets it go, or drops it. For the operator only."""
        visit, act = self.desk.visit(request), Act.of(event)
        if visit.is_operator and act.what in get_args(Keeping):
            self.desk.engine.keep_model(act.job, act.value, cast(Keeping, act.what))
        return {self.panel: gr.skip()}

    def _drawn(self, visit: Visit) -> Updates:
        return {self.panel: system_html(self.desk.engine, visit)}
