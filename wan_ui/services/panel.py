"""What the page asks of each view's handlers."""

from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import gradio as gr

from wan_ui.components.events import Updates, Values
from wan_ui.services.caller import Caller

Acts = Mapping[str, Callable[..., Updates | Coroutine[Any, Any, Updates]]]


class Panel:
    """A view on the page, which by itself does nothing. Handlers of acts take (values of `inputs`, request, event) and return
    updates of `outputs`."""

    @property
    def inputs(self) -> set[gr.blocks.Block]:
        """What acts, `opened` and `tick` read."""
        return set()

    @property
    def outputs(self) -> list[gr.blocks.Block]:
        """What acts, `opened` and `tick` may change."""
        return []

    @property
    def acts(self) -> Acts:
        """The handler of each group of buttons (see `wan_ui.components.buttons`). The page's script triggers `look_KEY`, if there
        is one, when the view with that key comes into view, and every few seconds while it stays there."""
        return {}

    def wire(self) -> None:
        """Wires the panel's own components to their handlers."""

    def opened(self, caller: Caller, asked: Mapping[str, str], values: Values) -> Updates:
        """What the panel shows on a page that has just been opened; `asked` holds the parameters of the page's address."""
        return {}

    def tick(self, caller: Caller, values: Values) -> Updates:
        """What the panel shows now, after something has happened in the engine. Only what has changed is sent to the page."""
        return {}
