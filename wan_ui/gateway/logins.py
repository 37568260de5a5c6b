"""Password logins: which browsers are logged in, until when, and how often an address may try wrong passwords.

After `FREE_TRIES` wrong passwords, each further one doubles the wait of its address. The wait of this machine's address stays
short, because the visitors of a tunnel or proxy share it, and must not lock each other out. All addresses together are limited
too, because an attacker may use many. Each wrong password is logged.
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
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from wan_ui.gateway.limits import WRONG_PASSWORDS
from wan_ui.gateway.refusals import refusal_response
from wan_ui.gateway.rules import LOGIN, LOGOUT
from wan_ui.gateway.visitors import is_for_page, sender_address
from wan_ui.i18n.languages import texts_for

FREE_TRIES = WRONG_PASSWORDS.of_address
SHORTEST_PAUSE, LONGEST_PAUSE = 5.0, 300.0  # seconds; each pause is twice the previous pause
SHARED_WINDOW_SECONDS = 60.0  # the limit for all addresses counts the tries in this time
LONGEST_PAUSE_OF_THIS_MACHINE = 20.0  # seconds; short, because all visitors of a proxy on this machine share the address
FORGET_SECONDS = 900.0  # the tries of an address are forgotten this long after its last try
MOST_ADDRESSES = 10_000  # remembered addresses; if there are more, the oldest are forgotten
LOGIN_SECONDS = 7 * 86_400.0  # seconds from a login's last use to its end
MOST_LOGINS = 10_000  # if there are more, the least recently used logins end

_API_INFO = re.compile(rb"(window\.gradio_api_info = ).*?(;\s*</script>)", re.DOTALL)
_OTHER_SITES = re.compile(rb"SameSite=none", re.IGNORECASE)

log = logging.getLogger(__name__)


def needs_login(scope: Scope) -> bool:
    return getattr(scope.get("app"), "auth", None) is not None


def has_login(scope: Scope) -> bool:
    """Return whether the sender is logged in, or whether no password is needed."""
    if not needs_login(scope):
        return True
    return any(token in scope["app"].tokens for token in _login_tokens(scope).values())


def _login_tokens(scope: Scope) -> dict[str, str]:
    """Return the tokens of the request's login cookies, by the cookies' names. Gradio sets two login cookies."""
    cookies, number = Request(scope).cookies, scope["app"].cookie_id
    return {name: cookies[name] for name in (f"access-token-{number}", f"access-token-unsecure-{number}") if name in cookies}


class Logins(MutableMapping[str, str]):
    """The names of users by the tokens of login cookies. It replaces Gradio's `App.tokens`, in which a login never ends.

    `program_token` is the token of all programs with a key. The gateway adds it to their requests. It never leaves the server.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now, self._lock = now, threading.Lock()
        self.program_token = secrets.token_urlsafe(32)
        self._logins: OrderedDict[str, tuple[str, float]] = OrderedDict()  # token -> (user, time of last use), oldest first

    def __getitem__(self, token: str) -> str:
        if token == self.program_token:
            return "program"
        with self._lock:
            self._remove_expired()
            user, _ = self._logins[token]
            self._logins[token] = user, self._now()
            self._logins.move_to_end(token)
            return user

    def __setitem__(self, token: str, user: str) -> None:
        with self._lock:
            self._logins[token] = user, self._now()
            self._logins.move_to_end(token)
            self._remove_expired()

    def __delitem__(self, token: str) -> None:
        with self._lock:
            del self._logins[token]

    def __iter__(self) -> Iterator[str]:
        with self._lock:
            self._remove_expired()
            return iter(list(self._logins))

    def __len__(self) -> int:
        with self._lock:
            self._remove_expired()
            return len(self._logins)

    def _remove_expired(self) -> None:
        ended = self._now() - LOGIN_SECONDS
        while self._logins and (len(self._logins) > MOST_LOGINS or next(iter(self._logins.values()))[1] < ended):
            self._logins.popitem(last=False)


@dataclass
class _Tries:
    """The wrong passwords of one address, and the time of the last. A password counts as wrong until it has been checked."""

    count: int = 0
    last: float = 0.0


class LoginLimit:
    """ASGI middleware that limits wrong passwords per address and in total (429), and handles logout."""

    def __init__(self, app: ASGIApp, now: Callable[[], float] = time.monotonic) -> None:
        self.app, self._now = app, now
        self._tries: dict[str, _Tries] = {}
        self._recent_tries: deque[float] = deque()  # times of recent tries that failed or are still being checked

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"].rstrip("/") if scope["type"] == "http" else ""
        if path == LOGOUT:
            await _log_out(scope)(scope, receive, send)
            return
        if path != LOGIN or scope["method"] != "POST":
            await self.app(scope, receive, send)
            return
        address, now = sender_address(scope), self._now()
        while self._recent_tries and self._recent_tries[0] <= now - SHARED_WINDOW_SECONDS:
            self._recent_tries.popleft()
        is_full = len(self._recent_tries) >= WRONG_PASSWORDS.in_all
        wait = max(self._seconds_to_wait(address), self._recent_tries[0] + SHARED_WINDOW_SECONDS - now if is_full else 0.0)
        if wait > 0:
            texts = texts_for(Headers(scope=scope))
            text = texts.login_pause.format(seconds=ceil(wait))
            headers = {"retry-after": str(ceil(wait))}
            await refusal_response(scope, HTTPStatus.TOO_MANY_REQUESTS, text, headers)(scope, receive, send)
            return
        for old in [known for known, tries in self._tries.items() if tries.last < now - FORGET_SECONDS]:
            del self._tries[old]
        while len(self._tries) >= MOST_ADDRESSES:
            del self._tries[next(iter(self._tries))]
        tries = self._tries.setdefault(address, _Tries())
        tries.count, tries.last = tries.count + 1, now  # counted before the check, so that simultaneous tries are limited too
        self._recent_tries.append(now)

        async def send_and_record(message: Message) -> None:
            if message["type"] == "http.response.start":
                # Over https, Gradio sets SameSite=none. Browsers would then send the cookies with the requests of other sites'
                # pages too.
                headers = [
                    (name, _OTHER_SITES.sub(b"SameSite=lax", value) if name.lower() == b"set-cookie" else value)
                    for name, value in message["headers"]
                ]
                message = {**message, "headers": headers}
                self._record_answer(address, tries, message["status"])
            await send(message)

        await self.app(scope, receive, send_and_record)

    def _seconds_to_wait(self, address: str) -> float:
        tries = self._tries.get(address)
        if tries is None or tries.count < FREE_TRIES:
            return 0.0
        longest = LONGEST_PAUSE if address else LONGEST_PAUSE_OF_THIS_MACHINE
        pause = min(SHORTEST_PAUSE * 2 ** min(tries.count - FREE_TRIES, 30), longest)
        return tries.last + pause - self._now()

    def _record_answer(self, address: str, tries: _Tries, status: int) -> None:
        if status < HTTPStatus.BAD_REQUEST:
            self._tries.pop(address, None)
            if self._recent_tries:
                self._recent_tries.pop()  # a correct password does not count
            return
        log.warning("Wrong password from %s (%d in a row)", address or "this machine", tries.count)
        if (wait := self._seconds_to_wait(address)) > 0:
            log.warning("%s must wait %.0f s before the next password", address or "This machine", wait)


@dataclass
class LoginForm:
    """ASGI middleware that removes the API description from Gradio's login page. Only the form remains."""

    app: ASGIApp

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


def _log_out(scope: Scope) -> Response:
    """End the sender's login. Accept only a POST with an Origin header, which the studio's page sends.

    Another site could embed the logout address as an image, for which browsers send a GET without an Origin header. The gateway
    has already refused requests whose origin is another site.
    """
    headers = Headers(scope=scope)
    if scope["method"] != "POST" or "origin" not in headers:
        texts = texts_for(headers)
        return refusal_response(scope, HTTPStatus.METHOD_NOT_ALLOWED, texts.logout_by_post, {"allow": "POST"})
    answer = RedirectResponse(scope.get("root_path", "") + "/", HTTPStatus.SEE_OTHER)
    if needs_login(scope):
        for name, token in _login_tokens(scope).items():
            if token != scope["app"].tokens.program_token:
                scope["app"].tokens.pop(token, None)
            answer.delete_cookie(name, path="/")
    return answer
