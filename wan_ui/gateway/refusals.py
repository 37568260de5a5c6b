"""What a refused request is answered, in the shape that its sender reads.

Gradio's page and its clients show the fields `error` and `detail`; programs that use OpenAI's addresses expect an object with
`message`, `type`, `param` and `code`.
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


def refused(
    scope: Scope,
    status: int,
    text: str,
    headers: Mapping[str, str] | None = None,
    *,
    param: str | None = None,
    code: str | None = None,
) -> JSONResponse:
    """The answer to the request of this scope: a sentence for people; for programs also the wrong field, `param`, and a `code`,
    each None if there is nothing to say."""
    if not is_v1(scope):
        return JSONResponse({"error": text, "detail": text}, status_code=status, headers=headers)
    error = {"message": text, "type": _type(status), "param": param, "code": code or _CODES.get(HTTPStatus(status))}
    return JSONResponse({"error": error}, status_code=status, headers=headers)


def is_v1(scope: Scope) -> bool:
    """Whether the sender expects OpenAI's shape."""
    return scope["path"] == V1 or scope["path"].startswith(f"{V1}/")


def _type(status: int) -> str:
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        return "rate_limit_error"
    return "invalid_request_error" if status < HTTPStatus.INTERNAL_SERVER_ERROR else "server_error"
