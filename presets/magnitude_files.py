"""Reads and writes MagCache's ratios: how much the output of a checkpoint's layers changes from step to step.

There is one JSON file per checkpoint. The files in `presets/magnitudes` were published by others or belong to the demo models. A
data folder can have more files, which were measured on this machine.
"""

import functools
import json
import re
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from presets.loader import EMBEDDED_PREFIX, PRESET_FOLDER, Share

MAGNITUDES_FOLDER = PRESET_FOLDER / "magnitudes"
MOST_STEPS = 1000

Ratios = Annotated[tuple[Annotated[float, Field(gt=0, le=100)], ...], Field(min_length=1, max_length=MOST_STEPS)]


class BranchRatios(BaseModel):
    """The ratios of both guidance branches: `prompt` with the prompt, `other` with the negative prompt.

    A ratio is the size of the output of all layers in a step, divided by its size in the previous step and averaged over all
    tokens. The first ratio is 1.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    prompt: Ratios
    other: Ratios

    @property
    def interleaved(self) -> tuple[float, ...]:
        """The ratios of both branches, alternating: prompt, other, prompt, other."""
        return tuple(ratio for pair in zip(self.prompt, self.other, strict=False) for ratio in pair)


class Magnitudes(BaseModel):
    """The content of a file: ratios by task, their source, and the rules for reuse.

    A step can reuse the output of an earlier step. The first steps of each expert, up to the share `retention`, never reuse
    output. With `late_only`, no step of the first expert reuses output. `longest` limits how many consecutive steps reuse the
    same output, by pairs (threshold, limit). A request uses the first pair whose threshold is at least its own threshold,
    otherwise the last pair.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: str
    licence: str = ""
    retention: Share = 0.2
    # The values published for Wan 2.1 14B, E012K4R02 and E024K6R02: threshold E = 0.12 with limit K = 4, and 0.24 with 6. The
    # retention R is 0.2 in both.
    longest: tuple[tuple[float, int], ...] = ((0.12, 4), (0.24, 6))
    late_only: bool = False
    ratios: dict[str, BranchRatios]

    def max_reuses_in_a_row(self, threshold: float) -> int:
        """Return how many consecutive steps may reuse the output of one step at this threshold."""
        return next((count for most, count in self.longest if threshold <= most), self.longest[-1][1])


def magnitudes_file_name(model: str) -> str:
    """Return the file name for a checkpoint, from its `Preset.model`."""
    return re.sub(r"[^\w.-]+", "--", model.removeprefix(EMBEDDED_PREFIX)).strip("-") + ".json"


@functools.cache
def published_magnitudes(model: str) -> Magnitudes | None:
    """Return the ratios in `presets/magnitudes` for this checkpoint, or None."""
    return read_magnitudes(MAGNITUDES_FOLDER / magnitudes_file_name(model))


def read_magnitudes(path: Path) -> Magnitudes | None:
    """Read the file. Return None if the file is missing or invalid."""
    try:
        return Magnitudes(**json.loads(path.read_text("utf-8")))
    except (OSError, ValueError, TypeError, ValidationError):
        return None


def write_magnitudes(magnitudes: Magnitudes, path: Path) -> None:
    """Write the file, with one line per list of numbers."""
    text = json.dumps(magnitudes.model_dump(mode="json"), indent=2)
    on_one_line = re.sub(r"\[[^\[\]]*\]", lambda found: re.sub(r"\s+", " ", found[0]).replace("[ ", "[").replace(" ]", "]"), text)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(on_one_line + "\n", "utf-8")
