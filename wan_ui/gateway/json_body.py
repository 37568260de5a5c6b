"""Read JSON from untrusted requests, and answer in JSON. `wan_ui.gateway.limits` has the limit for the size of a body."""

import functools
import json
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from backend.errors import StudioError
from wan_ui.components.field_errors import error_sentence


def parse_json(body: bytes) -> object:
    """Parse JSON. Raises: ValueError if `body` is not JSON or is nested too deeply."""
    try:
        return json.loads(body)
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None


async def read_json_object(request: Request) -> dict[str, Any]:
    """Return the JSON object in the request's body. Return {} if the body is not a JSON object."""
    try:
        value = parse_json(await request.body() or b"{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def json_endpoint(
    endpoint: Callable[[Request], Awaitable[Response | dict[str, object]]],
) -> Callable[[Request], Awaitable[Response]]:
    """Decorate an endpoint that returns a dict, so that it sends the dict as JSON. A StudioError becomes {"error": sentence}."""

    @functools.wraps(endpoint)
    async def answer(request: Request) -> Response:
        try:
            result = await endpoint(request)
        except StudioError as error:
            result = {"error": error_sentence(error)}
        return result if isinstance(result, Response) else JSONResponse(result)

    return answer
