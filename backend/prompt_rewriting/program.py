"""Rewrite prompts with a program of the operator: `serve --rewriter COMMAND`. The program reads one JSON object from standard
input, {"prompt", "preset", "instructions", "seconds", "starts_from_picture"}, and writes the new prompt to standard output, at
once or in pieces. It runs once for each suggestion, in a separate process, without a shell."""

import asyncio
import codecs
import contextlib
import json
import os
import shlex
import signal
from asyncio.subprocess import PIPE
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from backend.errors import StudioError
from backend.prompt_rewriting.helper import Helper, rewrite_error
from backend.prompt_rewriting.request import RewriteRequest

MOST_ERRORS = 20_000  # bytes kept from the end of standard error


@dataclass(frozen=True, kw_only=True)
class Program(Helper):
    """A program that suggests prompts."""

    command: tuple[str, ...]

    @classmethod
    def from_command_line(cls, words: str) -> "Program":
        """Split the command line. Raises: StudioError if it is invalid."""
        try:
            return cls(command=tuple(shlex.split(words)))
        except ValueError as error:
            raise StudioError(f"--rewriter {words[:60]!r}", f"is not a command line: {error}", "correct it") from None

    async def stream_answer(self, request: RewriteRequest) -> AsyncGenerator[str]:
        try:
            process = await asyncio.create_subprocess_exec(
                *self.command, stdin=PIPE, stdout=PIPE, stderr=PIPE, start_new_session=True
            )
        except OSError as error:
            raise rewrite_error(str(error)[-200:]) from None
        said = bytearray()
        assert process.stdout is not None and process.stderr is not None, "the process was started with pipes"
        errors = asyncio.ensure_future(_read_end(process.stderr, said))
        try:
            texts = {"prompt": request.prompt, "preset": request.preset.name, "instructions": request.instructions}
            given = {**texts, "seconds": request.seconds, "starts_from_picture": request.starts_from_picture}
            assert process.stdin is not None, "the process was started with pipes"
            with contextlib.suppress(ConnectionError):  # raised if the program ends without reading the request
                process.stdin.write(json.dumps(given).encode())
                await process.stdin.drain()
                process.stdin.close()
            decoder = codecs.getincrementaldecoder("utf-8")("replace")
            while data := await process.stdout.read(4096):
                yield decoder.decode(data)
            if await process.wait():
                await asyncio.wait({errors}, timeout=1.0)  # at most a second: the program's children may keep the pipe open
                last_line = said.decode("utf-8", "replace").strip().rpartition("\n")[2]  # a traceback ends with the error
                raise rewrite_error(last_line[-200:] or f"it ended with {process.returncode}")
        finally:
            with contextlib.suppress(ProcessLookupError):  # kills the program's children too
                os.killpg(process.pid, signal.SIGKILL)
            await process.stdout.read()  # `wait` returns only after both pipes were read to their end
            await process.wait()
            errors.cancel()


async def _read_end(stream: asyncio.StreamReader, said: bytearray) -> None:
    """Read the whole stream, so that its writer never waits. Keep the last `MOST_ERRORS` bytes in `said`."""
    while data := await stream.read(4096):
        said += data
        del said[:-MOST_ERRORS]
