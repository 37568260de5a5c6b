"""The system view: devices, memory, model, compiled sizes, disk, versions, errors. Element id: `system`.

The view is rendered when it opens and every few seconds while it is open.
"""

from dataclasses import dataclass
from typing import cast, get_args

import gradio as gr

from backend.errors import StudioError
from backend.schemas.worker import CacheAction
from wan_ui.components.buttons import Act
from wan_ui.components.events import Updates, Values
from wan_ui.components.toast import Message
from wan_ui.services.panel import Acts, Panel
from wan_ui.services.studio_context import StudioContext
from wan_ui.system.html import freed_space_text, system_html
from wan_ui.view import Shell, View


@dataclass(frozen=True, kw_only=True)
class SystemHandlers(Panel):
    """Handlers of the system view. The operator can clean the disk and manage cached models."""

    context: StudioContext
    panel: gr.HTML
    message: gr.HTML

    @property
    def outputs(self) -> list[gr.blocks.Block]:
        return [self.panel, self.message]

    @property
    def acts(self) -> Acts:
        return {"look_system": self.render_panel, "clean": self.clean, "keep": self.keep}

    def render_panel(self, values: Values, request: gr.Request, event: gr.EventData) -> Updates:
        """Render the panel when the view opens, and repeatedly while it is open."""
        return {self.panel: system_html(self.context.engine, self.context.identify_caller(request))}

    def clean(self, values: Values, request: gr.Request, event: gr.EventData) -> Updates:
        """Run the hourly cleaning now, and show how much it deleted. For the operator only."""
        caller = self.context.identify_caller(request)
        if not caller.is_operator:
            return {self.panel: gr.skip()}
        try:
            message = Message(text=freed_space_text(self.context.engine.cleaner.clean(), caller.texts))
        except StudioError as error:
            message = Message.from_error(error)
        return {self.panel: system_html(self.context.engine, caller), self.message: message.html(caller.texts)}

    def keep(self, values: Values, request: gr.Request, event: gr.EventData) -> Updates:
        """Keep a cached model loaded, allow unloading, or unload it. For the operator only."""
        caller, act = self.context.identify_caller(request), Act.from_event(event)
        if caller.is_operator and act.what in get_args(CacheAction):
            self.context.engine.pool.manage_model(act.job, act.value, cast(CacheAction, act.what))
        return {self.panel: gr.skip()}


def build_system(shell: Shell) -> SystemHandlers:
    return SystemHandlers(
        context=shell.context, panel=gr.HTML("", elem_id="system", apply_default_css=False), message=shell.message
    )


SYSTEM = View(key="system", title="view_system", build=build_system)
