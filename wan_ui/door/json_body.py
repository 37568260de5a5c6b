"""Reads JSON that strangers send. Whatever it holds, it costs little: `wan_ui.door.limits` says how much there may be of it."""

import json
from typing import Any

from starlette.requests import Request


def parsed(body: bytes) -> Any:
    """The JSON value. Raises: ValueError for anything else, also for what is nested too deeply."""
    try:
        return json.loads(body)
    except RecursionError:
        raise ValueError("this is nested too deeply") from None


async def json_object(request: Request) -> dict[str, Any]:
    """What the page sent; nothing if it is no JSON object."""
    try:
        given = parsed(await request.body() or b"{}")
    except ValueError:
        return {}
    return given if isinstance(given, dict) else {}
