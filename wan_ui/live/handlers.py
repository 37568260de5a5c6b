"""Draws the live view when a page opens. What is pressed and said there goes through `wan_ui.live.routes`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import gradio as gr

from presets import list_presets
from wan_ui.desk.desk import Desk
from wan_ui.desk.visit import Visit
from wan_ui.live.html import live_html
from wan_ui.live.panel import LivePanel
from wan_ui.parts.events import Updates, Values


@dataclass(frozen=True, kw_only=True)
class LiveHandlers:
    """The handlers of the live view."""

    desk: Desk
    panel: LivePanel

    @property
    def inputs(self) -> set[gr.Component]:
        return set()

    @property
    def outputs(self) -> list[gr.Component]:
        return [self.panel.view]

    @property
    def acts(self) -> Mapping[str, Callable[..., Updates]]:
        """None: the view has routes of its own. Looking at it needs no handler, but the page asks for one."""
        return {"look_live": self.look}

    def wire(self) -> None:
        """Nothing is wired."""

    def look(self, values: Values, request: gr.Request, event: gr.EventData) -> Updates:
        """Nothing: the view is drawn by its script."""
        return {self.panel.view: gr.skip()}

    def opened(self, visit: Visit, asked: Mapping[str, str], values: Values) -> Updates:
        """The visitor's words, and what they are making live: a page that is loaded again goes on with it."""
        presets = [preset for preset in list_presets() if preset.live and self.desk.offers(visit)(preset)]
        running = [job.id for job in self.desk.engine.library.unended(visit.owner) if job.request.is_open]
        return {self.panel.view: live_html(presets, running[0] if running else "", visit.texts)}

    def tick(self, visit: Visit, values: Values) -> Updates:
        """Nothing: frames and their state arrive over the view's own stream."""
        return {}
