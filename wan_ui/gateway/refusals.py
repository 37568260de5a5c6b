"""Responses to refused requests, in the format that the sender understands: Gradio's page and clients, or programs for OpenAI.

Source: openai-python 3.54.0, `_client.py` (`_make_status_error`) and `_exceptions.py` (`APIError`).
"""

from collections.abc import Mapping
from http import HTTPStatus

from starlette.responses import JSONResponse
from starlette.types import Scope

from wan_ui.gateway.rules import V1

_CODES = {
    HTTPStatus.UNAUTHORIZED: "invalid_api_key",
    HTTPStatus.NOT_FOUND: "not_found",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "request_too_large",
    HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_exceeded",
}


def refusal_response(
    scope: Scope,
    status: int,
    text: str,
    headers: Mapping[str, str] | None = None,
    *,
    param: str | None = None,
    code: str | None = None,
) -> JSONResponse:
    """Return the JSON response for a refused request, with a sentence for people.

    In OpenAI's format, `param` names the invalid field. If no `code` is given, the status determines it.
    """
    if not is_v1(scope):
        return JSONResponse({"error": text, "detail": text}, status_code=status, headers=headers)
    kind = "rate_limit_error" if status == HTTPStatus.TOO_MANY_REQUESTS else "invalid_request_error"
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        kind = "server_error"
    error = {"message": text, "type": kind, "param": param, "code": code or _CODES.get(HTTPStatus(status))}
    return JSONResponse({"error": error}, status_code=status, headers=headers)


def is_v1(scope: Scope) -> bool:
    """Return whether the request's address is below `/v1`, where senders expect OpenAI's format."""
    return scope["path"] == V1 or scope["path"].startswith(f"{V1}/")
