"""Rewrite prompts with a language model on this machine's processor: `serve --rewriter-model ID`.

transformers runs in a separate process, `backend.cli.rewrite_run`. The studio and this process send JSON lines.
Requests are {"ask", "messages", "picture"} and {"stop"}. Answers are {"ask", "text"} for each piece, then {"ask", "end"} or
{"ask", "error"}. `ask` is the number of a request, `stop` the number of the request to stop. One answer is generated at a time.
"""

import asyncio
import contextlib
import itertools
import json
import subprocess
import threading
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

from backend.child_process import start_module
from backend.prompt_rewriting.helper import rewrite_error
from backend.prompt_rewriting.request import RewriteRequest
from backend.settings import PROJECT_FOLDER, module_environment

MODULE = "backend.cli.rewrite_run"
ENDED = {"error": "its process has ended"}


@dataclass
class _Running:
    """The process of the model. A thread appends its messages to the list `waiting`, and `next_message` removes them."""

    process: subprocess.Popen
    waiting: list[dict[str, Any]] = field(default_factory=list)
    arrived: threading.Condition = field(default_factory=threading.Condition)

    def read_messages(self) -> None:
        """Read messages until the process ends."""
        assert self.process.stdout is not None, "the process was started with pipes"
        with self.process.stdout as lines:
            for line in lines:
                self._put(json.loads(line))
        self._put(ENDED)

    def _put(self, message: dict[str, Any]) -> None:
        with self.arrived:
            self.waiting.append(message)
            self.arrived.notify_all()

    def next_message(self, seconds: float) -> dict[str, object] | None:
        """Return the next message, or None if no message arrives within `seconds`."""
        with self.arrived:
            self.arrived.wait_for(lambda: self.waiting, seconds)
            return self.waiting.pop(0) if self.waiting else None

    def send(self, message: dict[str, object]) -> None:
        """Write a line to the process, unless it has ended."""
        assert self.process.stdin is not None, "the process was started with pipes"
        with contextlib.suppress(OSError):
            self.process.stdin.write(json.dumps(message) + "\n")
            self.process.stdin.flush()


class LocalModel:
    """A language model, given by its Hub id or folder. If needed, it is downloaded when the studio starts. It stays loaded."""

    def __init__(self, model: str) -> None:
        self.model = model
        self._running: _Running | None = None
        self._turn = asyncio.Lock()
        self._numbers = itertools.count(1)

    def prepare(self) -> None:
        """Start the process, which loads the model."""
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        process = start_module(MODULE, [self.model], module_environment(), cwd=PROJECT_FOLDER, **pipes)
        self._running = _Running(process)
        threading.Thread(target=self._running.read_messages, name="rewriter", daemon=True).start()

    def close(self) -> None:
        """End the process."""
        if self._running is not None:
            process = self._running.process
            process.kill()
            process.wait()
            with contextlib.suppress(OSError):  # `close` fails if it cannot write unsent data to the killed process
                if process.stdin is not None:
                    process.stdin.close()
            self._running = None

    async def stream_answer(self, request: RewriteRequest) -> AsyncGenerator[str]:
        """Yield the model's answer in pieces, and an empty piece for each second without text. Raises: StudioError."""
        async with self._turn:
            if self._running is None or self._running.process.poll() is not None:
                self.close()
                self.prepare()
            running, number = self._running, next(self._numbers)
            assert running is not None, "`prepare` has started it"
            running.send({"ask": number, "messages": request.messages(sees=False), "picture": request.picture})
            has_ended = False
            try:
                while not has_ended:
                    message = await asyncio.to_thread(running.next_message, 1.0) or {"ask": number}
                    if message.get("ask", number) != number:
                        continue  # a message of an earlier answer that was stopped
                    has_ended = "end" in message or "error" in message
                    if "error" in message:
                        raise rewrite_error(str(message["error"])[:240])
                    yield str(message.get("text", ""))
            finally:
                if not has_ended:
                    running.send({"stop": number})
