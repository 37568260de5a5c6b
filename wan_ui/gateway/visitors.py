"""Identify the sender of a request. A visitor is a browser with a random cookie. No personal data is stored.

Only the browser and the server see the cookie. The engine stores its SHA-256 as the job's owner, so that a reader of the job
store cannot act as the visitor. The cookie is not signed: a browser that invents a cookie is a new visitor without videos.
Programs without cookies are identified by their key (`wan_ui.gateway.access`), else by Gradio's session hash.
"""

import hashlib
import ipaddress
import re
import secrets
from dataclasses import dataclass

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE = "studio_visitor"
_TOKEN = re.compile(r"[A-Za-z0-9_-]{43}")  # 32 bytes in URL-safe base64
_YEAR_SECONDS = 365 * 24 * 3600


def owner_name(cookies: dict[str, str], session_hash: str | None = None) -> str:
    """Return the owner's name: from the visitor cookie if it is valid, otherwise from `session_hash`."""
    if has_cookie(cookies):
        kind, secret = "visitor", cookies[COOKIE]
    else:
        kind, secret = "session", session_hash or secrets.token_urlsafe(32)
    return f"{kind}-{hashlib.sha256(secret.encode()).hexdigest()[:32]}"


def has_cookie(cookies: dict[str, str]) -> bool:
    """Return whether the cookies contain a valid visitor cookie."""
    return bool(_TOKEN.fullmatch(cookies.get(COOKIE, "")))


def sender_address(scope: Scope) -> str:
    return format_address((scope.get("client") or ("", 0))[0])


def format_address(host: str) -> str:
    """Return a network address as text. An IPv6 address becomes its /64 network, because each household has a /64 network.

    Return "" for this machine, so that limits per address do not apply. A tunnel or proxy without X-Forwarded-For sends the
    requests of many visitors from this machine. uvicorn trusts X-Forwarded-For only from this machine.
    """
    try:
        parsed = ipaddress.ip_address(host)
    except ValueError:
        return ""
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is None:
            return "" if parsed.is_loopback else str(ipaddress.ip_network((parsed, 64), strict=False))
        parsed = parsed.ipv4_mapped
    return "" if parsed.is_loopback else str(parsed)


@dataclass
class VisitorCookie:
    """ASGI middleware that sets the visitor cookie when a browser first opens the page."""

    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not is_for_page(scope) or has_cookie(Request(scope).cookies):
            await self.app(scope, receive, send)
            return

        async def send_with_cookie(message: Message) -> None:
            if message["type"] == "http.response.start":
                cookie = cookie_header(COOKIE, secrets.token_urlsafe(32), "Lax", scope)
                MutableHeaders(scope=message).append("set-cookie", cookie)
            await send(message)

        await self.app(scope, receive, send_with_cookie)


def is_for_page(scope: Scope) -> bool:
    return scope["type"] == "http" and scope["method"] == "GET" and scope["path"] == "/"


def cookie_header(name: str, value: str, same_site: str, scope: Scope) -> str:
    """Return a Set-Cookie header for a year. Only the server can read the cookie, and over https it is sent only over https."""
    parts = [f"{name}={value}", "Path=/", f"Max-Age={_YEAR_SECONDS}", "HttpOnly", f"SameSite={same_site}"]
    is_secure = scope.get("scheme") == "https" or Headers(scope=scope).get("x-forwarded-proto") == "https"
    return "; ".join(parts + ["Secure"] * is_secure)
