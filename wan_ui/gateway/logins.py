"""The password: who has given it, for how long that counts, and how often an address may be wrong.

After `FREE_TRIES` wrong passwords an address must pause, longer after each. This machine's own address stands for everybody
behind a tunnel or a proxy that hides its visitors: its pauses stay short, so that nobody can lock out the others. Each wrong
password is logged. All addresses together are limited too, because whoever can make them up has as many as they like. A login
ends by a POST from our own page, and ends nobody else's.
"""

import logging
import re
import secrets
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import dataclass
from http import HTTPStatus
from math import ceil

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from wan_ui.gateway.limits import WRONG_PASSWORDS
from wan_ui.gateway.refusals import refused
from wan_ui.gateway.rules import LOGIN, LOGOUT
from wan_ui.gateway.visitors import address_of, is_for_page
from wan_ui.i18n.languages import texts_for

FREE_TRIES = WRONG_PASSWORDS.of_address
SHORTEST_PAUSE, LONGEST_PAUSE = 5.0, 300.0  # seconds; each is twice the one before
SECONDS_OF_ALL = 60.0  # within which all addresses together have so many
LONGEST_SHARED_PAUSE = 20.0  # for this machine's own address
FORGET_SECONDS = 900.0  # after the last wrong password
MOST_ADDRESSES = 10_000  # that are remembered: the oldest are forgotten first
LOGIN_SECONDS = 7 * 86_400.0  # after its last use a login ends
MOST_LOGINS = 10_000  # beyond that those unused for longest end

_API_INFO = re.compile(rb"(window\.gradio_api_info = ).*?(;\s*</script>)", re.DOTALL)
_OTHER_SITES = re.compile(rb"SameSite=none", re.IGNORECASE)

log = logging.getLogger(__name__)


def needs_login(scope: Scope) -> bool:
    """Whether visitors need a password."""
    return getattr(scope.get("app"), "auth", None) is not None


def has_login(scope: Scope) -> bool:
    """Whether the sender of this request has given the password, or needs none."""
    if not needs_login(scope):
        return True
    return any(token in scope["app"].tokens for token in _tokens(scope).values())


def _tokens(scope: Scope) -> dict[str, str]:
    """What the request's login cookies hold, by their names; Gradio sets two."""
    cookies, number = Request(scope).cookies, scope["app"].cookie_id
    return {name: cookies[name] for name in (f"access-token-{number}", f"access-token-unsecure-{number}") if name in cookies}


def with_login(scope: Scope) -> Scope:
    """The scope of a program's request as if it had given the password: Gradio's own routes look for the login's cookie. Other
    cookies go, because the program is known by its key."""
    if not needs_login(scope):
        return scope
    app = scope["app"]
    cookie = f"access-token-{app.cookie_id}={app.tokens.of_programs}".encode()
    return {**scope, "headers": [*(pair for pair in scope["headers"] if pair[0] != b"cookie"), (b"cookie", cookie)]}


class Logins(MutableMapping[str, str]):
    """Users by the token that their login cookie holds, in place of Gradio's `App.tokens`, in which a login never ends.

    `of_programs` is the token of all programs that have a key. It never leaves the server: the door gives it to their requests.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now, self._lock = now, threading.Lock()
        self.of_programs = secrets.token_urlsafe(32)
        self._logins: OrderedDict[str, tuple[str, float]] = OrderedDict()  # with the last use, the oldest first

    def __getitem__(self, token: str) -> str:
        if token == self.of_programs:
            return "program"
        with self._lock:
            self._forget()
            user, _ = self._logins[token]
            self._use(token, user)
            return user

    def __setitem__(self, token: str, user: str) -> None:
        with self._lock:
            self._use(token, user)
            self._forget()

    def __delitem__(self, token: str) -> None:
        with self._lock:
            del self._logins[token]

    def __iter__(self) -> Iterator[str]:
        with self._lock:
            self._forget()
            return iter(list(self._logins))

    def __len__(self) -> int:
        with self._lock:
            self._forget()
            return len(self._logins)

    def _use(self, token: str, user: str) -> None:
        self._logins[token] = user, self._now()
        self._logins.move_to_end(token)

    def _forget(self) -> None:
        ended = self._now() - LOGIN_SECONDS
        while self._logins and (len(self._logins) > MOST_LOGINS or next(iter(self._logins.values()))[1] < ended):
            self._logins.popitem(last=False)


@dataclass
class _Tries:
    """The wrong passwords of one address, and those that are being checked."""

    count: int = 0
    last: float = 0.0


class LoginLimit:
    """ASGI middleware: slows down an address that gives wrong passwords, and all together (429); ends a login."""

    def __init__(self, app: ASGIApp, now: Callable[[], float] = time.monotonic) -> None:
        self.app, self._now = app, now
        self._tries: dict[str, _Tries] = {}
        self._of_all: deque[float] = deque()  # when wrong passwords were given lately, and those that are being checked

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].rstrip("/") == LOGOUT:
            await _logged_out(scope)(scope, receive, send)
            return
        if scope["type"] != "http" or scope["method"] != "POST" or scope["path"].rstrip("/") != LOGIN:
            await self.app(scope, receive, send)
            return
        address = address_of(scope)
        wait = max(self._pause(address), self._pause_of_all())
        if wait > 0:
            await _refusal(scope, wait)(scope, receive, send)
            return
        tries = self._begin(address)  # counted before the answer: two hundred at once must not all be free
        await self.app(scope, receive, _watched(_kept_at_home(send), lambda status: self._end(address, tries, status)))

    def _pause_of_all(self) -> float:
        """How many seconds everybody must still wait."""
        while self._of_all and self._of_all[0] <= self._now() - SECONDS_OF_ALL:
            self._of_all.popleft()
        return self._of_all[0] + SECONDS_OF_ALL - self._now() if len(self._of_all) >= WRONG_PASSWORDS.in_all else 0.0

    def _pause(self, address: str) -> float:
        """How many seconds the address must still wait."""
        tries = self._tries.get(address)
        if tries is None or tries.count < FREE_TRIES:
            return 0.0
        longest = LONGEST_PAUSE if address else LONGEST_SHARED_PAUSE
        pause = min(SHORTEST_PAUSE * 2 ** min(tries.count - FREE_TRIES, 30), longest)
        return tries.last + pause - self._now()

    def _begin(self, address: str) -> _Tries:
        now = self._now()
        for old in [one for one, tries in self._tries.items() if tries.last < now - FORGET_SECONDS]:
            del self._tries[old]
        while len(self._tries) >= MOST_ADDRESSES:
            del self._tries[next(iter(self._tries))]
        tries = self._tries.setdefault(address, _Tries())
        tries.count, tries.last = tries.count + 1, now
        self._of_all.append(now)
        return tries

    def _end(self, address: str, tries: _Tries, status: int) -> None:
        if status < HTTPStatus.BAD_REQUEST:
            self._tries.pop(address, None)
            if self._of_all:
                self._of_all.pop()  # it was right
            return
        log.warning("A wrong password from %s (%d in a row)", address or "this machine", tries.count)
        if (wait := self._pause(address)) > 0:
            log.warning("%s must wait %.0f s before the next password", address or "This machine", wait)


class LoginForm:
    """ASGI middleware: before the login the page holds the form only. Gradio's also describes the endpoints for programs."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not is_for_page(scope) or has_login(scope):
            await self.app(scope, receive, send)
            return
        headers = [(name, value) for name, value in scope["headers"] if name != b"accept-encoding"]
        start: Message = {}
        body = bytearray()

        async def send_form(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start":
                start = message
                return
            body.extend(message.get("body", b""))
            if not message.get("more_body", False):
                form = _API_INFO.sub(rb"\1{}\2", bytes(body))
                MutableHeaders(scope=start)["content-length"] = str(len(form))
                await send(start)
                await send({"type": "http.response.body", "body": form})

        await self.app({**scope, "headers": headers}, receive, send_form)


def _refusal(scope: Scope, wait: float) -> JSONResponse:
    texts = texts_for(Headers(scope=scope))
    text = texts.login_pause.format(seconds=ceil(wait))
    return refused(scope, HTTPStatus.TOO_MANY_REQUESTS, text, {"retry-after": str(ceil(wait))})


def _logged_out(scope: Scope) -> Response:
    """Ends the login of whoever asks, if one of our pages asks: a picture's address on another page is a GET without an origin,
    and the door has refused other origins already."""
    if scope["method"] != "POST" or "origin" not in Headers(scope=scope):
        texts = texts_for(Headers(scope=scope))
        return refused(scope, HTTPStatus.METHOD_NOT_ALLOWED, texts.logout_by_post, {"allow": "POST"})
    answer = RedirectResponse(scope.get("root_path", "") + "/", HTTPStatus.SEE_OTHER)
    if needs_login(scope):
        for name, token in _tokens(scope).items():
            if token != scope["app"].tokens.of_programs:
                scope["app"].tokens.pop(token, None)
            answer.delete_cookie(name, path="/")
    return answer


def _kept_at_home(send: Send) -> Send:
    """Sends login cookies that come with no request of another site; over https Gradio's would."""

    async def send_kept(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = [
                (name, _OTHER_SITES.sub(b"SameSite=lax", value) if name.lower() == b"set-cookie" else value)
                for name, value in message["headers"]
            ]
            message = {**message, "headers": headers}
        await send(message)

    return send_kept


def _watched(send: Send, on_status: Callable[[int], None]) -> Send:
    async def send_watched(message: Message) -> None:
        if message["type"] == "http.response.start":
            on_status(message["status"])
        await send(message)

    return send_watched
