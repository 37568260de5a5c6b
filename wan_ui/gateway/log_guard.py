"""What the server's process prints while it answers a request: a little, without control characters, and marked.

Gradio and Python print what a handler refuses, with whatever the caller sent in it. So a request writes so many bytes, a visitor
so many lines a minute (`wan_ui.gateway.limits`), and each line that comes from a request begins with "| ", so that nobody can
write one that looks like the server's own.
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
from typing import Any, TextIO

from wan_ui.gateway.limits import LOG_BYTES, LOG_FILE_BYTES, LOG_LINES

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")
_MARK, _CUT = "| ", " ...\n"
_LOOK_BYTES = 100_000  # written between two looks at the log's size


@dataclass
class RequestLog:
    """What one request may still write. `who` is its visitor."""

    who: str
    left: int = LOG_BYTES.of_visitor
    begins_line: bool = True


CURRENT: ContextVar[RequestLog | None] = ContextVar("request_log", default=None)
"""The request that is being answered; also in the threads that are started for it."""


class GuardedStream:
    """Stands before standard output or standard error. `log`, if given, is the file in which all of it ends up."""

    def __init__(self, stream: TextIO, log: Path | None = None, now: Callable[[], float] = time.time) -> None:
        self._stream, self._log, self._now = stream, log, now
        self._minute, self._lines = 0, Counter()
        self._since_look = 0

    def write(self, text: str) -> int:
        """As a file's."""
        request = CURRENT.get()
        shown = _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text[: 10 * LOG_BYTES.of_visitor])
        if request is None:
            shown = shown if len(text) <= 10 * LOG_BYTES.of_visitor else f"{shown} ...\n"
        else:
            shown = self._limited(shown, request)
        with contextlib.suppress(ValueError):  # closed: the process ends
            self._stream.write(shown)
        self._look(len(shown))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _limited(self, text: str, request: RequestLog) -> str:
        kept = []
        for line in text.splitlines(keepends=True):
            if request.begins_line:
                if not self._may_begin(request.who):
                    request.left = 0
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

    def _may_begin(self, who: str) -> bool:
        minute = int(self._now() // 60)
        if minute != self._minute:
            self._minute, self._lines = minute, Counter()
        if self._lines[who] >= LOG_LINES.of_visitor or self._lines[""] >= LOG_LINES.in_all:
            return False
        self._lines.update((who, ""))
        return True

    def _look(self, written: int) -> None:
        """Begins the log anew when it is large; the one before is kept under the same name with `.1`."""
        self._since_look += written
        if self._log is None or self._since_look < _LOOK_BYTES:
            return
        self._since_look = 0
        with contextlib.suppress(OSError):
            if os.path.getsize(self._log) > LOG_FILE_BYTES.in_all:
                self._stream.flush()
                shutil.copyfile(self._log, f"{self._log}.1")
                os.truncate(self._log, 0)


def guard_output(log: Path | None) -> None:
    """Guards all that this process prints from now on. `log` is the file where its output goes, if it is one; it must have been
    opened to append."""
    if not isinstance(sys.stderr, GuardedStream):
        sys.stdout, sys.stderr = GuardedStream(sys.stdout, log), GuardedStream(sys.stderr, log)
