"""The outermost middleware. It checks every request before Gradio or the studio's routes, and before the login.

It first refuses host names that are not served (421), pages of other origins (403) and addresses without a rule (404). Then it
refuses too many open requests from one network address (503), and bodies that are too large (413) or too slow (408). Then it
refuses callers without the login or key that the address needs (401), and too many streams, wrong passwords or uploads (429). At
last it refuses files that were not uploaded here (400). The headers of responses forbid other sites to read a response (CORS) or
to show it in a frame.
"""

import hashlib
import ipaddress
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from http import HTTPStatus
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from backend.errors import StudioError
from wan_ui.components.field_errors import error_sentence
from wan_ui.gateway.access import Access, OperatorLink, bearer_key
from wan_ui.gateway.body_limit import BodyLimit
from wan_ui.gateway.limits import OPEN_REQUESTS, STREAMS, Limit
from wan_ui.gateway.log_guard import CURRENT, RequestLog
from wan_ui.gateway.logins import LoginForm, LoginLimit, has_login, needs_login
from wan_ui.gateway.refusals import refusal_response
from wan_ui.gateway.rules import API, ROUTES, UPLOAD, VIDEOS, Rules, RuleTable
from wan_ui.gateway.uploads import FileCheck, UploadLimit
from wan_ui.gateway.visitors import VisitorCookie, has_cookie, owner_name, sender_address
from wan_ui.i18n.languages import texts_for

_DEFAULT_PORTS = (None, 80, 443)


class Hosts:
    """The host names that the server answers to. The name of a share link is known only after the start."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names: set[str] = set()
        for name in names:
            self.add(name)

    def add(self, name: str) -> None:
        """Add a name. From a URL such as https://name/ only the name is used."""
        host = (_split_address(name) or (None, None))[0]
        if host:
            self._names.add(host)

    def serves(self, host: str) -> bool:
        name, _ = _split_address(host) or ("", None)
        if name in self._names or name == "localhost":
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True

    def is_own(self, origin: str, hosts: Iterable[str]) -> bool:
        """Return whether a page from `origin` belongs to the studio. `hosts` are the request's Host and X-Forwarded-Host.

        The page belongs to the studio if the name and port of `origin` equal the name and port of any of `hosts`. A proxy may
        forward neither header. Therefore a configured name with port 80 or 443 also belongs to the studio.
        """
        page = _split_address(origin) if origin.startswith(("http://", "https://")) else None
        if page is None:
            return False
        name, has_default_port = page[0], page[1] in _DEFAULT_PORTS
        if name in self._names and has_default_port:
            return True
        addresses = filter(None, map(_split_address, hosts))
        return any(
            address == page or (address[0] == name and has_default_port and address[1] in _DEFAULT_PORTS) for address in addresses
        )


def _split_address(address: str) -> tuple[str, int | None] | None:
    """Return the lower-case name and the port of a host or URL. Return None if the text cannot be parsed."""
    try:
        parts = urlsplit(address if "://" in address else f"//{address}")
        return ((parts.hostname or "").rstrip("."), parts.port) if parts.hostname and "@" not in parts.netloc else None
    except ValueError:
        return None


_ENDLESS = (
    *("/studio/changes", "/mcp", UPLOAD, VIDEOS, f"{VIDEOS}/[^/]+/events"),
    f"{API}/(queue/data|upload_progress|heartbeat/[^/]+|call/[^/]+/[^/]+)",
)


class StreamLimit:
    """ASGI middleware that refuses streams and uploads above the limits per visitor, per address and in total (429).

    They can last long, and without a limit they would use all connections. A caller without a cookie and without a key is limited
    only by address. `more` are regular expressions for further stream paths of the views.
    """

    def __init__(self, app: ASGIApp, more: Sequence[str] = (), limit: Limit = STREAMS) -> None:
        self.app, self.limit = app, limit
        self._endless = re.compile("|".join((*_ENDLESS, *more)))
        self._open: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not self._endless.fullmatch(scope["path"].rstrip("/")):
            await self.app(scope, receive, send)
            return
        who, address = sender_name(scope), f"address {sender_address(scope)}"
        # The address is empty if this machine sent the request, perhaps as a proxy for many visitors. The limit per address then
        # applies only to callers without a cookie and without a key.
        near = self._open[address] if address != "address " or who == address else 0
        of_visitor = self.limit.of_address if who == address else self.limit.of_visitor
        if self._open[who] >= of_visitor or near >= self.limit.of_address or self._open["all"] >= self.limit.in_all:
            texts = texts_for(Headers(scope=scope))
            refusal = refusal_response(scope, HTTPStatus.TOO_MANY_REQUESTS, texts.too_many_streams, {"retry-after": "5"})
            await refusal(scope, receive, send)
            return
        counted = {who, address, "all"}
        self._open.update(counted)
        try:
            await self.app(scope, receive, send)
        finally:
            self._open.subtract(counted)
            self._open += Counter()  # removes all counts of 0


def sender_name(scope: Scope) -> str:
    """Return a name for the sender: from the key, else from the cookie, else from the network address."""
    if key := bearer_key(Headers(scope=scope)):
        return f"key {hashlib.sha256(key.encode()).hexdigest()}"
    cookies = dict(Request(scope).cookies)
    return owner_name(cookies) if has_cookie(cookies) else f"address {sender_address(scope)}"


_HEADERS = {  # other sites may not show a response in a frame, and browsers may not guess its type
    "x-frame-options": "SAMEORIGIN",
    "content-security-policy": "frame-ancestors 'self'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
}


class Gateway:
    """ASGI middleware that checks every request.

    It must be outermost: Gradio's own middleware lets pages of other origins read responses with the visitor's cookies.
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
            return
        if has_key and rule == "login" and needs_login(scope):
            # Gradio's own routes require a login cookie. The program's other cookies are removed.
            cookie = f"access-token-{scope['app'].cookie_id}={scope['app'].tokens.program_token}".encode()
            others = (pair for pair in scope["headers"] if pair[0] != b"cookie")
            scope = {**scope, "headers": [*others, (b"cookie", cookie)]}
        await self.app(scope, receive, send)

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
