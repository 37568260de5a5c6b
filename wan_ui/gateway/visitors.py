"""Who a request comes from. A visitor is a browser that holds a random cookie; nothing is stored about people.

The cookie is 256 random bits that only this browser and this server see (HttpOnly, SameSite=Lax). What the engine
stores as a job's owner is its SHA-256, so that nobody who reads the job store can act as a visitor. The cookie is
not signed: a browser that invents one only gets an empty place of its own, and cannot guess another's.
Programs that call the API without cookies are known by their key (`wan_ui.gateway.access`), else by Gradio's session hash, with
names of their own.
"""

import hashlib
import ipaddress
import re
import secrets

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE = "studio_visitor"
_TOKEN = re.compile(r"[A-Za-z0-9_-]{43}")  # 32 bytes in URL-safe base64
_YEAR_SECONDS = 365 * 24 * 3600


def owner_of(cookies: dict[str, str], session_hash: str | None = None) -> str:
    """The owner's name for these cookies; for a caller without a valid cookie, for its session."""
    if has_cookie(cookies):
        return f"visitor-{_digest(cookies[COOKIE])}"
    return f"session-{_digest(session_hash or secrets.token_urlsafe(32))}"


def has_cookie(cookies: dict[str, str]) -> bool:
    """Whether these are the cookies of a browser that has opened the page."""
    return bool(_TOKEN.fullmatch(cookies.get(COOKIE, "")))


def address_of(scope: Scope) -> str:
    """The network address of a request's sender, as `address` writes it."""
    return address((scope.get("client") or ("", 0))[0])


def address(host: str) -> str:
    """A network address as text; of an IPv6 address the network, of which a household has a whole one.

    Empty for this machine itself: a tunnel or a proxy that does not say for whom it asks comes from there, so such an address
    stands for many people, and limits for one address do not count it. uvicorn believes X-Forwarded-For from loopback only.
    """
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        return ""
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is None:
            return "" if found.is_loopback else str(ipaddress.ip_network((found, 64), strict=False))
        found = found.ipv4_mapped
    return "" if found.is_loopback else str(found)


class VisitorCookie:
    """ASGI middleware: gives each browser that opens the page its cookie. Changes no other response."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not is_for_page(scope) or has_cookie(Request(scope).cookies):
            await self.app(scope, receive, send)
            return

        async def send_with_cookie(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).append("set-cookie", _new_cookie(is_secure=is_secure(scope)))
            await send(message)

        await self.app(scope, receive, send_with_cookie)


def is_for_page(scope: Scope) -> bool:
    """Whether this asks for the page itself."""
    return scope["type"] == "http" and scope["method"] == "GET" and scope["path"] == "/"


def is_secure(scope: Scope) -> bool:
    """Whether the browser speaks https, perhaps with a proxy before this server."""
    return scope.get("scheme") == "https" or Headers(scope=scope).get("x-forwarded-proto") == "https"


def _new_cookie(is_secure: bool) -> str:
    parts = [f"{COOKIE}={secrets.token_urlsafe(32)}", "Path=/", f"Max-Age={_YEAR_SECONDS}", "HttpOnly", "SameSite=Lax"]
    return "; ".join(parts + ["Secure"] * is_secure)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]
