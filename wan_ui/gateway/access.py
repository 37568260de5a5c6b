"""Who may see what. Every visitor sees their own jobs and videos; the operator sees everybody's.

The operator is whoever opened the operator link, which the server prints when it starts and shows nowhere else: it
carries a key of 256 random bits, kept in `operator.key` in the data folder. Opening it sets a cookie (HttpOnly,
SameSite=Strict) and redirects to the plain address, so that the key is not left in the address bar or in a link that is
passed on. An address or a loopback connection proves nothing: a share link's tunnel also comes from the loopback.

A program is known by the key that it sends as a bearer token (RFC 6750): the operator's, which makes it the operator, or one of
`app.py keys`, whose owner it then is, whatever cookies it sends too.
"""

import asyncio
import hashlib
import hmac
import logging
import os
import re
import secrets
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from pathlib import Path

from starlette.requests import Request
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from backend.engine.keys import Key, Keys, is_program_key
from backend.files import replacing
from wan_ui.gateway.visitors import is_for_page, is_secure, owner_of

OPERATOR_COOKIE = "studio_operator"
OPERATOR_PARAMETER = "operator"
KEY_FILE = "operator.key"
_YEAR_SECONDS = 365 * 24 * 3600
_WHOLE_KEY = re.compile(r"[!-~]{32,}")  # ours have 43 characters; an operator's own must be as hard to guess

log = logging.getLogger(__name__)

_FOUND: ContextVar[tuple[str, str, Key | None] | None] = ContextVar("program_key", default=None)
"""The key of the request that is being answered: the operator's, which tells one data folder from another, the key as it came,
and what is known of it."""


def within(scope: str | None, owner: str) -> bool:
    """The rule itself: whether something of this owner may be shown to a visitor with this scope."""
    return scope is None or scope == owner


def bearer(headers: Mapping[str, str]) -> str:
    """The key that a program's request carries (RFC 9110: the scheme in any case); "" if it has none."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""


class Access:
    """Knows the operator's key, and the programs' keys if there are any."""

    def __init__(self, key: str, keys: Keys | None = None) -> None:
        self.key, self._keys = key, keys
        self._thread = ThreadPoolExecutor(1, "keys")

    @classmethod
    def of(cls, data_dir: Path) -> "Access":
        """The key in the data folder, made at the first start and readable by its owner only.

        A file without a complete key, as after a full disk or a power cut, is replaced: everybody knows an empty key.
        """
        path = data_dir / KEY_FILE
        key = path.read_text("ascii", errors="replace").strip() if path.is_file() else ""
        if not _WHOLE_KEY.fullmatch(key):
            if path.is_file():
                log.warning("%s held no whole key and is made anew: use the operator link that is shown now", path)
            key = secrets.token_urlsafe(32)
            _write_key(key, path)
        return cls(key, Keys(data_dir))

    def is_operator(self, cookies: dict[str, str]) -> bool:
        """Whether these cookies are the operator's."""
        return hmac.compare_digest(cookies.get(OPERATOR_COOKIE, "").encode(), self._cookie().encode())

    def scope(self, cookies: dict[str, str], session_hash: str | None = None) -> str | None:
        """The owner whose jobs are shown to the sender of these cookies: the sender; for the operator None, which means all."""
        return None if self.is_operator(cookies) else owner_of(cookies, session_hash)

    def may_see(self, cookies: dict[str, str], owner: str) -> bool:
        """Whether the sender of these cookies may see what belongs to this owner."""
        return within(self.scope(cookies), owner)

    def is_key(self, key: str) -> bool:
        """Whether this is the operator's key."""
        return hmac.compare_digest(key.encode(), self.key.encode())

    def has_key(self, headers: Mapping[str, str]) -> bool:
        """Whether a program's request carries the operator's key as a bearer token."""
        return self.is_key(bearer(headers))

    def program(self, headers: Mapping[str, str]) -> Key | None:
        """The program's key that a request carries; None if it has none, or one that is not known, as after it was revoked.

        Raises: DataFolderError if the keys cannot be read.
        """
        found, key = _FOUND.get(), bearer(headers)
        if found is not None and found[:2] == (self.key, key):
            return found[2]
        return self._keys.find(key) if self._keys else None

    async def knows(self, headers: Mapping[str, str]) -> bool:
        """Whether a program's request carries a key that is known; what is found holds for the rest of the request. Asks in a
        thread of its own: another process may hold the file of keys for seconds, and nobody without a key must wait for it.

        Raises: DataFolderError.
        """
        key = bearer(headers)
        if self._keys is None or not is_program_key(key):
            return False
        found = await asyncio.get_running_loop().run_in_executor(self._thread, self._keys.find, key)
        _FOUND.set((self.key, key, found))
        return found is not None

    def ticket(self, job_id: str) -> str:
        """The part of a video's address that nobody can guess; it stays the same as long as the operator's key does."""
        return hmac.new(self.key.encode(), f"video {job_id}".encode(), hashlib.sha256).hexdigest()

    def is_ticket(self, ticket: str, job_id: str) -> bool:
        """Whether this is the job's ticket."""
        return hmac.compare_digest(ticket.encode(), self.ticket(job_id).encode())

    def link(self, address: str) -> str:
        """The address that makes a browser the operator's."""
        return f"{address.rstrip('/')}/?{OPERATOR_PARAMETER}={self.key}"

    def browser_secret(self) -> str:
        """The secret that encrypts the settings kept in browsers; the same after a restart."""
        return hashlib.sha256(f"browser {self.key}".encode()).hexdigest()[:16]

    def cookie_header(self, is_secure: bool) -> str:
        """The Set-Cookie header that makes a browser the operator's."""
        parts = [f"{OPERATOR_COOKIE}={self._cookie()}", "Path=/", f"Max-Age={_YEAR_SECONDS}", "HttpOnly", "SameSite=Strict"]
        return "; ".join(parts + ["Secure"] * is_secure)

    def _cookie(self) -> str:
        return hashlib.sha256(self.key.encode()).hexdigest()


def _write_key(key: str, path: Path) -> None:
    """Writes the whole key to the disk before it gets its name, so that no accident leaves a part of it."""
    with replacing(path) as part, os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(key)
        file.flush()
        os.fsync(file.fileno())


class OperatorLink:
    """ASGI middleware: the operator's link sets the cookie and redirects to the page; all other requests pass."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self.app, self.access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        key = Request(scope).query_params.get(OPERATOR_PARAMETER) if is_for_page(scope) else None
        if key is None:
            await self.app(scope, receive, send)
            return
        answer = RedirectResponse(scope.get("root_path", "") + "/", status_code=303)
        if self.access.is_key(key):
            answer.headers["set-cookie"] = self.access.cookie_header(is_secure(scope))
        await answer(scope, receive, send)
