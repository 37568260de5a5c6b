"""Mends a leak in what Gradio keeps for each open page.

Gradio replaces a component that was updated for one page, stores the new one under the old one's id, and gives it an id of its
own. The next use of the component asks for that id, does not find it, and stores the component again: once for every update, with
all that it shows, for as long as the page is open (gradio 6.31, `Blocks.preprocess_data` and `postprocess_data`).
"""

from typing import Any

from gradio.blocks import Block
from gradio.state_holder import SessionState

_set_item = SessionState.__setitem__


def keep_ids() -> None:
    """Lets components keep their ids when they are replaced, from now on, for all apps of this process."""
    SessionState.__setitem__ = _set_with_id


def _set_with_id(state: SessionState, key: int, value: Any) -> None:
    if isinstance(value, Block):
        value._id = key
    _set_item(state, key, value)
