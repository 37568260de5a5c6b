"""The denoiser's conditions where cues change a video's prompt or action: those of its beginning, and beside them a set for every
other pair of prompt and action that comes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Generator
from typing import Any

from backend.contract.request import GenerationRequest
from backend.families.model import Conditions, Inputs, Model, Weights
from backend.runtime.work import Effect

_LATER = "later_"


class Script:
    """What is said in each block of a video. `texts` are its pairs of prompt and action, as requests without cues, in the order
    in which they come; equal ones are one."""

    def __init__(self, request: GenerationRequest) -> None:
        numbers: dict[tuple[str, str | None], int] = {}
        self.texts: list[GenerationRequest] = []
        self._blocks, self._numbers = [], []
        prompt, action = request.prompt, request.action
        beginning = [] if request.cues and request.cues[0].block == 0 else [(0, None)]
        for block, cue in (*beginning, *((cue.block, cue) for cue in request.cues)):
            if cue is not None:
                prompt, action = cue.prompt or prompt, cue.action or action
            if (prompt, action) not in numbers:
                numbers[prompt, action] = len(numbers)
                self.texts.append(request.model_copy(update={"prompt": prompt, "action": action, "cues": ()}))
            self._blocks.append(block)
            self._numbers.append(numbers[prompt, action])

    def number_at(self, block: int) -> int:
        """Which of the `texts` holds in this block."""
        return self._numbers[bisect_right(self._blocks, block) - 1]


def encode(model: Model, weights: Weights, request: GenerationRequest, inputs: Inputs) -> Generator[Effect, Any, dict[str, Any]]:
    """Work: the conditions of all that is said in the video, in one mapping."""
    first, *later = Script(request).texts
    conditions = dict((yield from model.encode(weights, first, inputs)))
    for number, text in enumerate(later, 1):
        own = yield from model.encode(weights, text, inputs)
        conditions |= {f"{_prefix(number)}{name}": value for name, value in own.items()}
    return conditions


def conditions_of(conditions: Conditions, number: int) -> Conditions:
    """Those of one of the `Script`'s texts."""
    if not number:
        return {name: value for name, value in conditions.items() if not name.startswith(_LATER)}
    prefix = _prefix(number)
    return {name.removeprefix(prefix): value for name, value in conditions.items() if name.startswith(prefix)}


def _prefix(number: int) -> str:
    return f"{_LATER}{number}."
