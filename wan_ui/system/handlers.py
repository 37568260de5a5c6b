"""Draws the system panel while a visitor looks at it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import gradio as gr

from wan_ui.desk.desk import Desk
from wan_ui.desk.view import Updates, Values
from wan_ui.desk.visit import Visit
from wan_ui.system.folder_sizes import FolderSizes
from wan_ui.system.html import system_html


@dataclass(frozen=True, kw_only=True)
class SystemHandlers:
    """Handlers of the system view."""

    desk: Desk
    panel: gr.HTML
    sizes: FolderSizes = field(default_factory=FolderSizes)

    @property
    def inputs(self) -> set[gr.Component]:
        return set()

    @property
    def outputs(self) -> list[gr.Component]:
        return [self.panel]

    @property
    def acts(self) -> Mapping[str, Callable[..., Updates]]:
        return {"look_system": self.look}

    def wire(self) -> None:
        """Nothing to wire: the page's script sends all presses."""

    def opened(self, visit: Visit, asked: Mapping[str, str], values: Values) -> Updates:
        """Nothing: the panel is drawn by `look`."""
        return {}

    def tick(self, visit: Visit, values: Values) -> Updates:
        """Nothing, as above."""
        return {}

    def look(self, values: Values, request: gr.Request, event: gr.EventData) -> Updates:
        """The panel, when it has come into view and while it stays there."""
        return {self.panel: system_html(self.desk.engine, self.sizes, self.desk.visit(request))}
