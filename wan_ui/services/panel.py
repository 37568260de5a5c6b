"""The interface between the page and the handlers of each view."""

from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import gradio as gr

from wan_ui.components.events import Updates, Values
from wan_ui.services.caller import Caller

Acts = Mapping[str, Callable[..., Updates | Coroutine[Any, Any, Updates]]]


class Panel:
    """Base class of a view's handlers. Handlers of actions take (values of `inputs`, request, event) and return updates of
    `outputs`."""

    @property
    def inputs(self) -> set[gr.blocks.Block]:
        """The components whose values actions, `initial_updates` and `tick` read."""
        return set()

    @property
    def outputs(self) -> list[gr.blocks.Block]:
        """The components that actions, `initial_updates` and `tick` may change."""
        return []

    @property
    def acts(self) -> Acts:
        """The handlers of groups of buttons by group name (see `wan_ui.components.buttons`).

        The page's script also triggers the group `look_KEY` when the view KEY is shown, and every few seconds while it is shown.
        """
        return {}

    def wire(self) -> None:
        """Connect the panel's own components to their handlers."""

    def after_act(self, acted: gr.events.Dependency) -> None:
        """Connect handlers that run after an action of this panel was answered."""

    def initial_updates(self, caller: Caller, parameters: Mapping[str, str], values: Values) -> Updates:
        """Return the panel's content for a new page. `parameters` are the query parameters of the page's address."""
        return {}

    def tick(self, caller: Caller, values: Values) -> Updates:
        """Return the panel's content after a change in the engine. Only changed values are sent to the page."""
        return {}
