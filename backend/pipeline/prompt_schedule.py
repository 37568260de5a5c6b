"""Encode the prompts of a video whose prompt or action changes, and select the conditions of each block.

Conditions of the first prompt and action keep their names. Each later pair of prompt and action has its own set of conditions,
with a prefix before their names. In this module, a text is such a pair.
"""

from bisect import bisect_right
from collections.abc import Collection, Generator, Iterable
from typing import Any

from backend.models.model import Conditions, Inputs, Model, Weights
from backend.runtime.work import Effect
from backend.schemas.prompt_cues import Cue
from backend.schemas.request import GenerationRequest

_LATER = "later_"


class Script:
    """The prompt schedule of a video. `texts` has a request for each different pair of prompt and action, in the order of first
    use. Such a request has no cues."""

    def __init__(self, request: GenerationRequest) -> None:
        self._request = request
        self._prompt, self._action = request.prompt, request.action
        self._known: dict[tuple[str, str | None], int] = {}
        self._blocks: list[int] = []
        self._numbers: list[int] = []
        self.texts: list[GenerationRequest] = []
        if not (request.cues and request.cues[0].block == 0):
            self.add_cue(Cue(block=0))
        for cue in request.cues:
            self.add_cue(cue)

    def add_cue(self, cue: Cue) -> bool:
        """Add a cue, whose block must not precede the blocks of earlier cues. Return whether the cue adds a new text."""
        self._prompt, self._action = cue.prompt or self._prompt, cue.action or self._action
        text = self._prompt, self._action
        is_new = text not in self._known
        self._known[text] = len(self.texts) if is_new else self._known.pop(text)  # moves the text to the end, as the latest
        if is_new:
            update = {"prompt": self._prompt, "action": self._action, "cues": (), "is_open": False}
            self.texts.append(self._request.model_copy(update=update))
        self._blocks.append(cue.block)
        self._numbers.append(self._known[text])
        return is_new

    def forget_oldest(self, most: int) -> list[int]:
        """Forget all texts except the `most` texts that were used last. Return the indices of the forgotten texts.

        A forgotten text counts as new when it is used again.
        """
        old = list(self._known)[:-most]
        return [self._known.pop(text) for text in old]

    def text_index_at(self, block: int) -> int:
        """Return the index in `texts` of the text that this block uses."""
        return self._numbers[bisect_right(self._blocks, block) - 1]


def encode_all_texts(
    model: Model, weights: Weights, request: GenerationRequest, inputs: Inputs
) -> Generator[Effect, Any, dict[str, Any]]:
    """Yield the work of encoding all texts of the video. The result maps names to the conditions of all texts."""
    first, *later = Script(request).texts
    conditions = dict((yield from model.encode(weights, first, inputs)))
    for number, text in enumerate(later, 1):
        conditions |= yield from encode_later_text(model, weights, text, number, inputs)
    return conditions


def encode_later_text(
    model: Model, weights: Weights, text: GenerationRequest, number: int, inputs: Inputs
) -> Generator[Effect, Any, dict[str, Any]]:
    """Yield the work of encoding text `number` of the script, which is not the first text (0). Its conditions' names get a
    prefix.

    Conditions that depend on the inputs alone (`from_inputs`) are not encoded again.
    """
    spec = model.spec
    later = {} if spec.from_inputs else {role: value for role, value in inputs.items() if role not in spec.first_only}
    own = yield from model.encode(weights, text, later)
    return {f"{_prefix(number)}{name}": value for name, value in own.items()}


def remove_conditions(conditions: dict[str, Any], numbers: Iterable[int], from_inputs: Collection[str] = ()) -> None:
    """Remove the conditions of the texts with these numbers, except conditions that all texts share."""
    for number in numbers:
        prefix = _prefix(number)
        for name in [name for name in conditions if (name.startswith(prefix) if number else not name.startswith(_LATER))]:
            if name not in from_inputs:
                del conditions[name]


def select_conditions(conditions: Conditions, number: int, from_inputs: Collection[str] = ()) -> Conditions:
    """Return the conditions of text `number`, without prefixes, and the conditions `from_inputs` that all texts share."""
    if not number:
        return {name: value for name, value in conditions.items() if not name.startswith(_LATER)}
    prefix = _prefix(number)
    shared = {name: conditions[name] for name in from_inputs if name in conditions}
    return shared | {name.removeprefix(prefix): value for name, value in conditions.items() if name.startswith(prefix)}


def _prefix(number: int) -> str:
    return f"{_LATER}{number}."
