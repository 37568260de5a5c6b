"""The interface of helpers that rewrite prompts, and their time limits. The operator chooses the helper."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Protocol

from backend.errors import StudioError, one_line
from backend.prompt_rewriting.request import LONGEST, RewriteRequest, extract_suggestion

SECONDS_OF_SILENCE = 120.0  # a large model on the host's processor may need this long to read its instructions and an image
SECONDS = 300.0
MOST_CHARACTERS = 16 * LONGEST  # longest answer, including the model's reasoning


def rewrite_error(reason: str) -> StudioError:
    return StudioError("the prompt could not be rewritten:", one_line(reason), "write it by hand")


class Helper(Protocol):
    """A program or model that rewrites prompts."""

    def prepare(self) -> None:
        """Start to load the model, if any, and return at once."""
        return

    def stream_answer(self, request: RewriteRequest) -> AsyncGenerator[str]:
        """Yield the answer in pieces. Closing the generator stops the answer. Raises: StudioError."""
        ...

    def close(self) -> None:
        """End what `prepare` started."""
        return


async def stream_suggestions(
    helper: Helper, request: RewriteRequest, *, silence: float = SECONDS_OF_SILENCE, longest: float = SECONDS
) -> AsyncGenerator[str]:
    """Yield the suggestion so far whenever it changes. The last suggestion is complete. `silence` limits the wait for each piece
    of the answer, `longest` the whole answer, in seconds. Raises: StudioError."""
    answer, suggestion, ends = "", "", asyncio.get_running_loop().time() + longest
    async with aclosing(helper.stream_answer(request)) as pieces:
        while True:
            left = ends - asyncio.get_running_loop().time()
            try:
                answer += await asyncio.wait_for(anext(pieces), min(silence, left))
            except StopAsyncIteration:
                break
            except TimeoutError:
                raise rewrite_error(f"the helper did not answer within {min(silence, longest):.3g} s") from None
            if len(answer) > MOST_CHARACTERS:
                raise rewrite_error("the helper does not stop talking")
            if (now := extract_suggestion(answer)) and now != suggestion:
                suggestion = now
                yield suggestion
    if not suggestion:
        raise rewrite_error("the helper wrote nothing")
