"""Rewrite prompts with a language model on this machine's processor: `serve --rewriter-model ID`. transformers runs in a separate
process, `backend.cli.rewrite_run`. The studio and this process send JSON lines. Requests are {"ask", "messages", "picture"} and
{"stop"}. Answers are {"ask", "text"} for each piece, then {"ask", "end"} or {"ask", "error"}. `ask` is the number of a request,
`stop` the number of the request to stop. One answer is generated at a time."""

import asyncio
import contextlib
import itertools
import json
import queue
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
    """The process of the model. A thread appends its messages to `messages`."""

    process: subprocess.Popen
    messages: queue.SimpleQueue[dict[str, Any]] = field(default_factory=queue.SimpleQueue)

    def read_messages(self) -> None:
        assert self.process.stdout is not None, "the process was started with pipes"
        with self.process.stdout as lines:
            for line in lines:
                self.messages.put(json.loads(line))
        self.messages.put(ENDED)

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
        """Yield the answer in pieces, and an empty piece for each second without text."""
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
                    try:
                        message = await asyncio.to_thread(running.messages.get, timeout=1.0)
                    except queue.Empty:
                        message = {}
                    if message.get("ask", number) != number:
                        continue  # a message of an earlier answer that was stopped
                    has_ended = "end" in message or "error" in message
                    if "error" in message:
                        raise rewrite_error(str(message["error"])[:240])
                    yield str(message.get("text", ""))
            finally:
                if not has_ended:
                    running.send({"stop": number})
