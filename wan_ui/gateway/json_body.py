"""Reads JSON that strangers send, and answers them in JSON. Whatever it holds, it costs little: `wan_ui.gateway.limits` says how
much there may be of it."""

import functools
import json
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from backend.errors import StudioError
from wan_ui.components.field_errors import sentence


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


def answers_json(endpoint: Callable[[Request], Awaitable[Response | dict[str, Any]]]) -> Callable[[Request], Awaitable[Response]]:
    """Decorates an endpoint: the values that it returns are sent as JSON, and a refusal as one sentence, `error`."""

    @functools.wraps(endpoint)
    async def answer(request: Request) -> Response:
        try:
            given = await endpoint(request)
        except StudioError as error:
            given = {"error": sentence(error)}
        return given if isinstance(given, Response) else JSONResponse(given)

    return answer
