"""Access rights: a visitor sees their own jobs and videos, the operator sees all.

A browser gets the operator's rights from the operator link, which the server prints only when it starts. The link sets a cookie
and redirects to the plain address, so that an address copied from the browser does not contain the key. A connection from this
machine gives no rights, because the visitors of a share link also arrive from this machine, through the link's tunnel.

A program identifies itself with a key in a bearer token (RFC 6750), and its cookies are ignored. The operator's key gives the
operator's rights. Keys from `app.py keys` give the rights of their owner.
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
from dataclasses import dataclass
from pathlib import Path

from starlette.requests import Request
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from backend.engine.keys import PREFIX, Key, Keys
from backend.files import replace_file
from wan_ui.gateway.visitors import cookie_header, is_for_page, owner_name

OPERATOR_COOKIE = "studio_operator"
OPERATOR_PARAMETER = "operator"
KEY_FILE = "operator.key"
# Generated keys have 43 characters. A key that the operator chooses needs 32, because shorter keys could be guessed.
_WHOLE_KEY = re.compile(r"[!-~]{32,}")

log = logging.getLogger(__name__)

_CHECKED_KEY: ContextVar[tuple[str, str, Key | None] | None] = ContextVar("program_key", default=None)
"""The key of the current request, as `has_program_key` found it: (operator's key, key in the request, its record).

An unknown key has no record (None). The operator's key identifies the data folder whose keys were searched."""


def bearer_key(headers: Mapping[str, str]) -> str:
    """Return the key in the Authorization header, or "" if there is no key. The scheme is case-insensitive (RFC 9110)."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""


class Access:
    """Checks the operator's key, the operator's cookie, and the keys of programs."""

    def __init__(self, key: str, keys: Keys | None = None) -> None:
        self.key, self._keys = key, keys
        self._thread = ThreadPoolExecutor(1, "keys")

    @classmethod
    def load_or_create(cls, data_dir: Path) -> "Access":
        """Load the operator's key from the data folder, or create it at the first start.

        An incomplete key, for example after a full disk or a power cut, is replaced, because a short key could be guessed.
        """
        path = data_dir / KEY_FILE
        key = path.read_text("ascii", errors="replace").strip() if path.is_file() else ""
        if not _WHOLE_KEY.fullmatch(key):
            if path.is_file():
                log.warning("%s contained no complete key. It is replaced: use the operator link that is shown now", path)
            key = secrets.token_urlsafe(32)
            with replace_file(path) as part, os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(key)
                file.flush()
                os.fsync(file.fileno())
        return cls(key, Keys(data_dir))

    def is_operator(self, cookies: dict[str, str]) -> bool:
        return hmac.compare_digest(cookies.get(OPERATOR_COOKIE, "").encode(), self._cookie().encode())

    def visible_owner(self, cookies: dict[str, str], session_hash: str | None = None) -> str | None:
        """Return the owner whose jobs the sender of the cookies may see. Return None for the operator, who may see all jobs."""
        return None if self.is_operator(cookies) else owner_name(cookies, session_hash)

    def may_see(self, cookies: dict[str, str], owner: str) -> bool:
        return self.visible_owner(cookies) in (None, owner)

    def is_operator_key(self, key: str) -> bool:
        return hmac.compare_digest(key.encode(), self.key.encode())

    def has_operator_key(self, headers: Mapping[str, str]) -> bool:
        return self.is_operator_key(bearer_key(headers))

    def find_program_key(self, headers: Mapping[str, str]) -> Key | None:
        """Return the record of the program's key in the request, None without a known key. Raises: DataFolderError."""
        found, key = _CHECKED_KEY.get(), bearer_key(headers)
        if found is not None and found[:2] == (self.key, key):
            return found[2]
        return self._keys.find_by_secret(key) if self._keys else None

    async def has_program_key(self, headers: Mapping[str, str]) -> bool:
        """Return whether the request contains a known program key, and remember its record for the rest of the request.

        The keys are read in a thread: another process may lock the file for seconds, and other requests must not wait.
        Raises: DataFolderError.
        """
        key = bearer_key(headers)
        if self._keys is None or not key.startswith(PREFIX):
            return False
        found = await asyncio.get_running_loop().run_in_executor(self._thread, self._keys.find_by_secret, key)
        _CHECKED_KEY.set((self.key, key, found))
        return found is not None

    def ticket(self, job_id: str) -> str:
        """Return the secret part of the address of a job's video. It changes only if the operator's key changes."""
        return hmac.new(self.key.encode(), f"video {job_id}".encode(), hashlib.sha256).hexdigest()

    def is_ticket(self, ticket: str, job_id: str) -> bool:
        return hmac.compare_digest(ticket.encode(), self.ticket(job_id).encode())

    def link(self, address: str) -> str:
        """Return the operator link, which gives a browser the operator's rights."""
        return f"{address.rstrip('/')}/?{OPERATOR_PARAMETER}={self.key}"

    def browser_secret(self) -> str:
        """Return the secret that encrypts the settings stored in browsers. It is the same after a restart."""
        return hashlib.sha256(f"browser {self.key}".encode()).hexdigest()[:16]

    def _cookie(self) -> str:
        return hashlib.sha256(self.key.encode()).hexdigest()


@dataclass
class OperatorLink:
    """ASGI middleware that answers the operator link with a redirect to the page, and with the cookie if the key is right."""

    app: ASGIApp
    access: Access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        key = Request(scope).query_params.get(OPERATOR_PARAMETER) if is_for_page(scope) else None
        if key is None:
            await self.app(scope, receive, send)
            return
        answer = RedirectResponse(scope.get("root_path", "") + "/", status_code=303)
        if self.access.is_operator_key(key):
            answer.headers["set-cookie"] = cookie_header(OPERATOR_COOKIE, self.access._cookie(), "Strict", scope)
        await answer(scope, receive, send)
