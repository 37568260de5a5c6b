"""Changes of a live video while it is generated: prompts and actions that take effect when a given block starts."""

from collections.abc import Iterable, Sequence

from backend.errors import RequestError
from backend.schemas.prompts import check_text
from backend.schemas.settings import Cue, VideoSettings
from presets import Preset

AND = "+"  # joins simultaneous actions
STAY = "stay"  # the action without movement, which every preset with actions has


def merge_cues(cues: Iterable[Cue]) -> tuple[Cue, ...]:
    """Return one cue per block, in the order of the blocks. Values of later cues replace values of earlier cues."""
    by_block: dict[int, Cue] = {}
    for cue in cues:
        given = {name: value for name, value in cue.model_dump().items() if value is not None}
        by_block[cue.block] = by_block.get(cue.block, cue).model_copy(update=given)
    return tuple(by_block[block] for block in sorted(by_block))


def parse_actions(text: str, blocks: int) -> tuple[Cue, ...]:
    """Read actions such as "right*8,up*8": eight blocks to the right, then eight blocks up. After these actions, all later blocks
    of the video get the action `STAY`. `blocks` is the video's number of blocks. An action without a number takes one block.
    Empty text gives no cues. Raises: RequestError."""
    cues, block = [], 0
    for part in text.split(",") if text else ():
        action, _, count = part.strip().partition("*")
        if not action or (count and not (count.isdecimal() and 0 < int(count) < 100_000)):
            rule = "must be actions, each with its number of blocks"
            raise RequestError(f"actions={text[:60]!r}", rule, 'such as "right*8,up*8"')
        cues.append(Cue(block=block, action=action))
        block += int(count or 1)
    if cues and block < blocks:
        cues.append(Cue(block=block, action=STAY))
    return tuple(cues)


def parse_prompts(texts: Sequence[str]) -> tuple[Cue, ...]:
    """Read texts such as "8:a blue square": the prompt from block 8 on. Raises: RequestError."""
    cues = []
    for text in texts:
        block, mark, prompt = text.partition(":")
        if not mark or not block.strip().isdecimal() or int(block) > 100_000:
            raise RequestError(f"prompts={text[:60]!r}", "must be a block's number and a prompt", 'such as "8:a blue square"')
        cues.append(Cue(block=int(block), prompt=prompt.strip()))
    return tuple(cues)


def check_cue(cue: Cue, preset: Preset) -> None:
    """Check that the preset supports the cue's action and prompt. Raises: RequestError."""
    words = [] if cue.action is None else cue.action.split(AND) if preset.combines_actions else [cue.action]
    if cue.action is not None and not (set(words) <= set(preset.actions) and len(set(words)) == len(words)):
        known = ", ".join(preset.actions)
        together = f", or several joined by {AND}" if preset.combines_actions else ""
        rule = f"must be one of {known}{together}" if known else f"is not supported by {preset.name}"
        raise RequestError(f"action={cue.action[:40]!r}", rule, "choose another" if preset.actions else "leave actions out")
    if cue.prompt is not None and not preset.reads_prompt:
        raise RequestError(f"a prompt for block {cue.block} was given", f"but {preset.name} reads no prompt", "leave it out")
    if cue.prompt is not None:
        check_text("prompt", cue.prompt, preset)
        if not cue.prompt.strip():
            raise RequestError(f"the prompt for block {cue.block} is empty and", "must say what the video shows", "give one")


def num_blocks(request: VideoSettings, preset: Preset) -> int:
    return 1 + (request.num_frames - preset.first_frames) // preset.frame_step


def check_cues(request: VideoSettings, preset: Preset) -> None:
    """Check the request's cues and action. Raises: RequestError."""
    if (request.cues or request.action or request.is_open) and not preset.live:
        raise RequestError("a live video was requested", f"but {preset.name} is not a live preset", "choose a live preset")
    if request.is_open and request.cues:
        raise RequestError("cues were given", "but an open video gets them while it is generated", "leave them out")
    blocks, last = num_blocks(request, preset), -1
    check_cue(Cue(block=0, action=request.action), preset)
    for cue in request.cues:
        if not last < cue.block < blocks:
            rule = f"must be in the video's {blocks} blocks, 0 to {blocks - 1}, each block once and in order"
            raise RequestError(f"the cue for block {cue.block}", rule, "choose a longer video, or leave that cue out")
        last = cue.block
        check_cue(cue, preset)
