"""Reads what is known of how much a checkpoint's layers add from step to step: MagCache's ratios, one JSON file a checkpoint.

Those in `presets/magnitudes` were published or belong to the demo models; a data folder may hold others, which were measured.
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
    """How many times as large as in the step before that is which all layers together add to a token, in the mean of all tokens,
    step by step, 1 for the first: in the branch with the prompt, and in the other one."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    prompt: Ratios
    other: Ratios

    @property
    def interleaved(self) -> tuple[float, ...]:
        """Those of both branches, step by step."""
        return tuple(ratio for pair in zip(self.prompt, self.other, strict=False) for ratio in pair)


class Magnitudes(BaseModel):
    """One file: the ratios by task, where they come from, and what goes with them.

    No step is reused in the first `retention` share of each expert's steps; with `late_only` none of the first expert's. A
    threshold of up to the first number of a pair in `longest` lets so many steps in a row reuse one; one above all, as the last.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: str
    licence: str = ""
    retention: Share = 0.2
    longest: tuple[tuple[float, int], ...] = ((0.12, 4), (0.24, 6))  # published for Wan 2.1 14B: E012K4R02, E024K6R02
    late_only: bool = False
    ratios: dict[str, BranchRatios]

    def max_reuses_in_a_row(self, threshold: float) -> int:
        """How many steps in a row may reuse one."""
        return next((count for most, count in self.longest if threshold <= most), self.longest[-1][1])


def magnitudes_file_name(model: str) -> str:
    """The name of a checkpoint's file, from its `Preset.model`."""
    return re.sub(r"[^\w.-]+", "--", model.removeprefix(EMBEDDED_PREFIX)).strip("-") + ".json"


@functools.cache
def published_magnitudes(model: str) -> Magnitudes | None:
    """What the project knows of this checkpoint; None if that is nothing."""
    return read_magnitudes(MAGNITUDES_FOLDER / magnitudes_file_name(model))


def read_magnitudes(path: Path) -> Magnitudes | None:
    """What the file says; None if it is missing, or is none of these."""
    try:
        return Magnitudes(**json.loads(path.read_text("utf-8")))
    except (OSError, ValueError, TypeError, ValidationError):
        return None


def write_magnitudes(magnitudes: Magnitudes, path: Path) -> None:
    """Writes the file, one line for each list of numbers."""
    text = json.dumps(magnitudes.model_dump(mode="json"), indent=2)
    on_one_line = re.sub(r"\[[^\[\]]*\]", lambda found: re.sub(r"\s+", " ", found[0]).replace("[ ", "[").replace(" ]", "]"), text)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(on_one_line + "\n", "utf-8")
