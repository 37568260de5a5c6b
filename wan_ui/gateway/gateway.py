"""The one door: every request passes here before Gradio or a route of ours sees it, and before anybody has logged in.

In this order it refuses: host names that are not served (421), pages of other origins (403), addresses without a rule (404),
more requests at once than one address may have open (503), bodies that are too large (413) or too slow (408), callers without
the login or the key that the address needs (401), too many wrong passwords, uploads and streams (429), and files that were not
uploaded here (400). What is let in carries no leave for other sites: no CORS, no frames.
"""

from collections import Counter
from collections.abc import Sequence
from http import HTTPStatus

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from backend.errors import StudioError
from wan_ui.components.field_errors import sentence
from wan_ui.gateway.access import Access, OperatorLink, bearer
from wan_ui.gateway.body_limit import BodyLimit
from wan_ui.gateway.hosts import Hosts
from wan_ui.gateway.limits import OPEN_REQUESTS
from wan_ui.gateway.log_guard import CURRENT, RequestLog
from wan_ui.gateway.logins import LoginForm, LoginLimit, has_login, needs_login, with_login
from wan_ui.gateway.refusals import refused
from wan_ui.gateway.rules import ROUTES, Book, Rule, Rules
from wan_ui.gateway.streams import StreamLimit, sender
from wan_ui.gateway.uploads import FileCheck, UploadLimit
from wan_ui.gateway.visitors import VisitorCookie, address_of, has_cookie
from wan_ui.i18n.english import Texts
from wan_ui.i18n.languages import texts_for

_HEADERS = {
    "x-frame-options": "SAMEORIGIN",
    "content-security-policy": "frame-ancestors 'self'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
}


class Door:
    """ASGI middleware. Must be the outermost: Gradio's own allows pages of foreign origins to read with the visitor's cookies."""

    def __init__(
        self,
        app: ASGIApp,
        access: Access,
        hosts: Hosts,
        rules: Rules = ROUTES,
        streams: Sequence[str] = (),
        most_open: int = OPEN_REQUESTS.of_address,
    ) -> None:
        within = FileCheck(OperatorLink(VisitorCookie(LoginForm(app)), access))
        self.app = StreamLimit(LoginLimit(UploadLimit(within, access)), streams)
        self._limited = BodyLimit(self._known)
        self.access, self.hosts, self.book, self.most_open = access, hosts, Book(rules), most_open
        self._open: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            CURRENT.set(RequestLog(who=sender(scope)))
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
        elif (refusal := self._refusal(scope)) is not None:
            await refusal(scope, receive, _closed_to_others(send))
        else:
            await self._counted(scope, receive, _closed_to_others(send))

    async def _counted(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Lets the request in, and counts it while it is open."""
        address = address_of(scope)
        self._open[address] += 1
        try:
            await self._limited(scope, receive, send)
        finally:
            self._open[address] -= 1
            self._open += Counter()  # forgets those at 0

    async def _known(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Lets in those who have the login or the key that the address needs."""
        rule, headers = self.book.rule(scope["path"]), Headers(scope=scope)
        try:
            has_key = self.access.has_key(headers) or await self.access.knows(headers)
        except StudioError as error:
            await refused(scope, HTTPStatus.SERVICE_UNAVAILABLE, sentence(error))(scope, receive, send)
            return
        missing = self._missing(rule, scope, has_key)
        if missing:
            challenge = None if rule == "login" else {"www-authenticate": "Bearer"}
            await refused(scope, HTTPStatus.UNAUTHORIZED, missing, challenge)(scope, receive, send)
        else:
            await self.app(with_login(scope) if has_key and rule == "login" else scope, receive, send)

    def _missing(self, rule: Rule, scope: Scope, has_key: bool) -> str:
        """What this caller lacks for an address with this rule, in words; "" if nothing."""
        headers = Headers(scope=scope)
        texts = texts_for(headers)
        if rule == "login" and not (has_key or has_login(scope)):
            return texts.login_needed
        if rule == "operator" and needs_login(scope) and not self.access.has_key(headers):
            return texts.key_needed
        if rule == "program" and needs_login(scope) and not has_key:
            return texts.program_key_needed
        return _missing_owner(scope, texts) if rule == "owner" and not has_key else ""

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        texts, hosts = texts_for(headers), _hosts(headers)
        unknown = next((host for host in hosts if not self.hosts.serves(host)), None)
        if unknown is not None:
            return refused(scope, HTTPStatus.MISDIRECTED_REQUEST, texts.host_refused.format(name=_plain(unknown)))
        origin = headers.get("origin")
        if origin is not None and not self.hosts.is_own(origin, hosts):
            return refused(scope, HTTPStatus.FORBIDDEN, texts.origin_refused.format(origin=_plain(origin)))
        if self.book.rule(scope["path"]) == "refused" or "deep_link" in Request(scope).query_params:
            return refused(scope, HTTPStatus.NOT_FOUND, texts.not_found)
        address = address_of(scope)
        if address and self._open[address] >= self.most_open:
            return refused(scope, HTTPStatus.SERVICE_UNAVAILABLE, texts.too_many_open, {"retry-after": "5"})
        return None


def _missing_owner(scope: Scope, texts: Texts) -> str:
    """What a caller without a key lacks where everything is somebody's; a key that is not known is never passed over."""
    if bearer(Headers(scope=scope)):
        return texts.key_unknown
    is_visitor = has_login(scope) and has_cookie(Request(scope).cookies)
    return "" if is_visitor else texts.program_key_needed


def _hosts(headers: Headers) -> list[str]:
    """What the request calls this server: its Host, and what a proxy says that it was called."""
    outer = [host.strip() for line in headers.getlist("x-forwarded-host") for host in line.split(",")]
    return [headers.get("host", ""), *filter(None, outer)]


def _plain(text: str) -> str:
    """A caller's text, short and without anything but printable ASCII."""
    return "".join(character if " " <= character <= "~" else "?" for character in text[:80])


def _closed_to_others(send: Send) -> Send:
    """Sends each answer with headers that keep other sites from framing or guessing it."""

    async def send_closed(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in _HEADERS.items():
                headers.setdefault(name, value)
        await send(message)

    return send_closed
