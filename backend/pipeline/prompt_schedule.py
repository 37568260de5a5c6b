"""Encode the texts of a video, pairs of prompt and action, and select the conditions of each block."""

import dataclasses
from bisect import bisect_right
from collections.abc import Collection, Iterable

from backend.models.model import Inputs, Model, PromptConditions, Weights
from backend.runtime.work import Effects
from backend.schemas.prompt_cues import Cue
from backend.schemas.request import GenerationRequest


class Script:
    """The prompt schedule of a video. `texts` has a request without cues for each different text, in the order of first use."""

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
        """Add a cue. Its block must not precede the blocks of earlier cues. Return whether the cue has a new text."""
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
        """Forget all texts except the `most` texts that were used last, and return the indices of the forgotten texts. A
        forgotten text counts as new when it is used again."""
        return [self._known.pop(text) for text in list(self._known)[:-most]]

    def text_index_at(self, block: int) -> int:
        return self._numbers[bisect_right(self._blocks, block) - 1]


@dataclasses.dataclass(frozen=True, kw_only=True)
class VideoConditions:
    """The conditions of all texts of a video, by their index in `Script.texts`. Callers may add the conditions of new texts."""

    by_text: dict[int, PromptConditions]

    def select(self, index: int, from_inputs: Collection[str] = ()) -> PromptConditions:
        """Return the conditions of text `index`, but of text 0 those in `from_inputs`, which depend only on the inputs."""
        own, first = self.by_text[index], self.by_text[0]
        shared = {name: first.full[name] for name in from_inputs if name in first.full}
        return dataclasses.replace(own, full={**shared, **own.full})

    def remove(self, indices: Iterable[int], from_inputs: Collection[str] = ()) -> None:
        """Remove the conditions of these texts, but keep what `from_inputs` names of text 0, because all texts use it."""
        for index in indices:
            full = self.by_text.pop(index).full
            if index == 0:
                self.by_text[0] = PromptConditions(full={name: full[name] for name in from_inputs if name in full})


def encode_all_texts(model: Model, weights: Weights, request: GenerationRequest, inputs: Inputs) -> Effects[VideoConditions]:
    first, *later = Script(request).texts
    by_text = {0: (yield from model.encode(weights, first, inputs))}
    for index, text in enumerate(later, 1):
        by_text[index] = yield from encode_later_text(model, weights, text, inputs)
    return VideoConditions(by_text=by_text)


def encode_later_text(model: Model, weights: Weights, text: GenerationRequest, inputs: Inputs) -> Effects[PromptConditions]:
    """Yield the work of encoding a text that is not the first. Conditions of the inputs alone are not encoded again."""
    spec = model.spec
    later = {} if spec.from_inputs else {role: value for role, value in inputs.items() if role not in spec.first_only}
    return (yield from model.encode(weights, text, later))
