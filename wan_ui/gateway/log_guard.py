"""Limit and mark the text that the server prints while it answers a request, because it can contain text from the caller.

Control characters are escaped. Each line from a request starts with "| ", so that no caller can write a line that looks like the
server's own lines. The limits are in `wan_ui.gateway.limits`.
"""

import contextlib
import os
import re
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from wan_ui.gateway.limits import LOG_BYTES, LOG_FILE_BYTES, LOG_LINES

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")
_MARK, _CUT = "| ", " ...\n"
_LOOK_BYTES = 100_000  # bytes written between two checks of the log's size


@dataclass
class RequestLog:
    """The output of one request of the visitor `who`. `left` is the number of bytes that the request may still print."""

    who: str
    left: int = LOG_BYTES.of_visitor
    begins_line: bool = True  # the next text starts a new line


CURRENT: ContextVar[RequestLog | None] = ContextVar("request_log", default=None)
"""The current request, also in the threads that it starts."""


class GuardedStream:
    """Standard output or standard error, limited and marked. `log` is the file to which the stream is redirected, or None."""

    def __init__(self, stream: TextIO, log: Path | None = None, now: Callable[[], float] = time.time) -> None:
        self._stream, self._log, self._now = stream, log, now
        self._minute, self._lines = 0, Counter()
        self._since_look = 0

    def write(self, text: str) -> int:
        """Write the text to the stream, shortened if it exceeds a limit. Return the length of the whole text, as a file does."""
        request = CURRENT.get()
        shown = _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text[: 10 * LOG_BYTES.of_visitor])
        if request is None:
            shown = shown if len(text) <= 10 * LOG_BYTES.of_visitor else f"{shown} ...\n"
        else:
            shown = self._limit_text(shown, request)
        with contextlib.suppress(ValueError):  # the stream may be closed already, while the process exits
            self._stream.write(shown)
        self._since_look += len(shown)
        if self._log is not None and self._since_look >= _LOOK_BYTES:
            # A log that is too large is copied to a file with `.1` appended to its name, and emptied.
            self._since_look = 0
            with contextlib.suppress(OSError):
                if os.path.getsize(self._log) > LOG_FILE_BYTES.in_all:
                    self._stream.flush()
                    shutil.copyfile(self._log, f"{self._log}.1")
                    os.truncate(self._log, 0)
        return len(text)

    def _limit_text(self, text: str, request: RequestLog) -> str:
        minute = int(self._now() // 60)
        if minute != self._minute:
            self._minute, self._lines = minute, Counter()
        kept = []
        for line in text.splitlines(keepends=True):
            if request.begins_line:
                if self._lines[request.who] >= LOG_LINES.of_visitor or self._lines[""] >= LOG_LINES.in_all:
                    request.left = 0
                else:
                    self._lines.update((request.who, ""))
                line = _MARK + line
            request.begins_line = line.endswith("\n")
            size = len(line.encode("utf-8", "replace"))
            if size > request.left:
                if request.left > len(_CUT):
                    beginning = line.encode("utf-8", "replace")[: request.left - len(_CUT)].decode("utf-8", "ignore")
                    kept.append(beginning.rstrip("\n") + _CUT)
                request.left, request.begins_line = 0, True
                break
            request.left -= size
            kept.append(line)
        return "".join(kept)

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)


def guard_output(log: Path | None) -> None:
    """Replace standard output and standard error with a `GuardedStream` each.

    `log` is the file to which the output is redirected, None for a terminal. The file must have been opened in append mode.
    """
    if not isinstance(sys.stderr, GuardedStream):
        sys.stdout, sys.stderr = GuardedStream(sys.stdout, log), GuardedStream(sys.stderr, log)
