"""What changes while a live video is made: prompts and actions, each from one of its blocks on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pydantic import BaseModel, ConfigDict

from backend.errors import RequestError

AND = "+"  # between actions that are done together


class Cue(BaseModel):
    """From where block `block` begins, counted from 0, the video follows this `prompt` and this `action`; None leaves it as it
    is."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    block: int
    prompt: str | None = None
    action: str | None = None


def merge_cues(cues: Iterable[Cue]) -> tuple[Cue, ...]:
    """One cue for each block that has any, in order; of two for one block the later one counts."""
    by_block: dict[int, Cue] = {}
    for cue in cues:
        given = {name: value for name, value in cue.model_dump().items() if value is not None}
        by_block[cue.block] = by_block.get(cue.block, cue).model_copy(update=given)
    return tuple(by_block[block] for block in sorted(by_block))


def cues_of_actions(text: str) -> tuple[Cue, ...]:
    """From "right*8,up*8": eight blocks to the right, then eight up, and so on to the end; an action without a number takes one
    block. Nothing for "". Raises: RequestError."""
    cues, block = [], 0
    if not text:
        return ()
    for part in text.split(","):
        action, _, count = part.strip().partition("*")
        if not action or (count and not (count.isdecimal() and 0 < int(count) < 100_000)):
            raise RequestError(
                f"actions={text[:60]!r}", "must be actions with how many blocks each takes", 'such as "right*8,up*8"'
            )
        cues.append(Cue(block=block, action=action))
        block += int(count or 1)
    return tuple(cues)


def cues_of_prompts(texts: Sequence[str]) -> tuple[Cue, ...]:
    """From texts such as "8:a blue square": the prompt from block 8 on. Raises: RequestError."""
    cues = []
    for text in texts:
        block, mark, prompt = text.partition(":")
        if not mark or not block.strip().isdecimal() or int(block) > 100_000:
            raise RequestError(f"prompts={text[:60]!r}", "must be a block's number and a prompt", 'such as "8:a blue square"')
        cues.append(Cue(block=int(block), prompt=prompt.strip()))
    return tuple(cues)
