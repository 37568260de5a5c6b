"""The outermost middleware. It checks every request before Gradio or the studio's routes, and before the login.

It refuses, in this order:

1. host names that are not served (421),
2. pages of other origins (403),
3. addresses without a rule (404),
4. too many open requests from one network address (503),
5. bodies that are too large (413) or too slow (408),
6. callers without the login or key that the address needs (401),
7. too many streams, wrong passwords or uploads (429),
8. files that were not uploaded to this server (400).

The headers of responses forbid other sites to read a response (CORS) or to show it in a frame.
"""

from collections import Counter
from collections.abc import Sequence
from http import HTTPStatus

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from backend.errors import StudioError
from wan_ui.components.field_errors import error_sentence
from wan_ui.gateway.access import Access, OperatorLink, bearer_key
from wan_ui.gateway.body_limit import BodyLimit
from wan_ui.gateway.hosts import Hosts
from wan_ui.gateway.limits import OPEN_REQUESTS
from wan_ui.gateway.log_guard import CURRENT, RequestLog
from wan_ui.gateway.logins import LoginForm, LoginLimit, add_program_login, has_login, needs_login
from wan_ui.gateway.refusals import refusal_response
from wan_ui.gateway.rules import ROUTES, Rules, RuleTable
from wan_ui.gateway.streams import StreamLimit, sender_name
from wan_ui.gateway.uploads import FileCheck, UploadLimit
from wan_ui.gateway.visitors import VisitorCookie, has_cookie, sender_address
from wan_ui.i18n.languages import texts_for

_HEADERS = {  # other sites may not show a response in a frame, and browsers may not guess its type
    "x-frame-options": "SAMEORIGIN",
    "content-security-policy": "frame-ancestors 'self'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
}


class Gateway:
    """ASGI middleware that checks every request.

    It must be the outermost middleware. Gradio's own middleware lets pages of other origins read responses with the visitor's
    cookies.
    """

    def __init__(
        self,
        app: ASGIApp,
        access: Access,
        hosts: Hosts,
        rules: Rules = ROUTES,
        streams: Sequence[str] = (),
        most_open: int = OPEN_REQUESTS.of_address,
    ) -> None:
        inner = FileCheck(OperatorLink(VisitorCookie(LoginForm(app)), access))
        self.app = StreamLimit(LoginLimit(UploadLimit(inner, access)), streams)
        self._limited = BodyLimit(self._pass_authorized)
        self.access, self.hosts, self.book, self.most_open = access, hosts, RuleTable(rules), most_open
        self._open: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        CURRENT.set(RequestLog(who=sender_name(scope)))

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        if (refusal := self._find_refusal(scope)) is not None:
            await refusal(scope, receive, send_with_headers)
            return
        address = sender_address(scope)
        self._open[address] += 1
        try:
            await self._limited(scope, receive, send_with_headers)
        finally:
            self._open[address] -= 1
            self._open += Counter()  # removes all counts of 0

    async def _pass_authorized(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on if the caller has the login or key that the address needs. Otherwise answer 401."""
        rule, headers = self.book.find_rule(scope["path"]), Headers(scope=scope)
        texts, missing = texts_for(headers), ""
        try:
            has_key = self.access.has_operator_key(headers) or await self.access.has_program_key(headers)
        except StudioError as error:
            await refusal_response(scope, HTTPStatus.SERVICE_UNAVAILABLE, error_sentence(error))(scope, receive, send)
            return
        match rule:
            case "login" if not (has_key or has_login(scope)):
                missing = texts.login_needed
            case "operator" if needs_login(scope) and not self.access.has_operator_key(headers):
                missing = texts.key_needed
            case "program" if needs_login(scope) and not has_key:
                missing = texts.program_key_needed
            case "owner" if not has_key and bearer_key(headers):
                missing = texts.key_unknown  # also if the visitor's cookie is valid
            case "owner" if not has_key and not (has_login(scope) and has_cookie(Request(scope).cookies)):
                missing = texts.program_key_needed
        if missing:
            challenge = None if rule == "login" else {"www-authenticate": "Bearer"}
            await refusal_response(scope, HTTPStatus.UNAUTHORIZED, missing, challenge)(scope, receive, send)
        else:
            await self.app(add_program_login(scope) if has_key and rule == "login" else scope, receive, send)

    def _find_refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        forwarded = [host.strip() for line in headers.getlist("x-forwarded-host") for host in line.split(",")]
        texts, hosts = texts_for(headers), [headers.get("host", ""), *filter(None, forwarded)]
        unknown = next((host for host in hosts if not self.hosts.serves(host)), None)
        if unknown is not None:
            return refusal_response(scope, HTTPStatus.MISDIRECTED_REQUEST, texts.host_refused.format(name=_to_ascii(unknown)))
        origin = headers.get("origin")
        if origin is not None and not self.hosts.is_own(origin, hosts):
            return refusal_response(scope, HTTPStatus.FORBIDDEN, texts.origin_refused.format(origin=_to_ascii(origin)))
        if self.book.find_rule(scope["path"]) == "refused" or "deep_link" in Request(scope).query_params:
            return refusal_response(scope, HTTPStatus.NOT_FOUND, texts.not_found)
        address = sender_address(scope)
        if address and self._open[address] >= self.most_open:
            return refusal_response(scope, HTTPStatus.SERVICE_UNAVAILABLE, texts.too_many_open, {"retry-after": "5"})
        return None


def _to_ascii(text: str) -> str:
    """Cut a caller's text to 80 characters, and replace each character that is not printable ASCII with a question mark."""
    return "".join(character if " " <= character <= "~" else "?" for character in text[:80])
