"""How events are wired: past Gradio's queue, so that no click waits behind the followers, and private, as they are no API."""

from typing import Any

QUIET: dict[str, Any] = dict(queue=False, show_progress="hidden", api_visibility="private")

# For events that read what a person filled in: it is checked once, by the request, whose errors stand in their place.
RAW = QUIET | dict(preprocess=False)
EACH = RAW | dict(trigger_mode="multiple")  # for buttons that may be pressed faster than the server answers
