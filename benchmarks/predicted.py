"""The stored figures of `benchmarks.all_presets`: one row for each preset and slice in the tables of the documents.

This module has only data and arithmetic. Every time in it is predicted; no chip has run the programs.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

DATA_FILE = Path(__file__).with_name("all_presets.json")
GIB = 2**30
STEPS = ("denoise_step", "refining_step")  # the programs of a step; a video with refining steps has both
PARTS = {
    "denoise_step": "steps",
    "refining_step": "refining steps",
    "expert_copies": "experts' copies",
    "image_embed": "picture",
    "image_encode": "picture",
    "latent_upsampler": "upsampler",
    "prompt_keys": "text",
    "prompt_tokens": "text",
    "quoted_encode": "text",
    "settle": "finished blocks",
    "sound_decode": "sound",
    "text_encode": "text",
    "text_layer": "text",
    "text_norm": "text",
    "vae_decode": "decoder",
    "vae_decode_first": "decoder",
    "vae_decode_next": "decoder",
    "vae_encode_first": "encoder",
    "vae_encode_next": "encoder",
    "vocoder": "sound",
}
"""Names of programs in the documents, by key. Other programs are named by their keys."""


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ProgramCost(_Data):
    """One program of `check-tpu`'s report; `date` is the day on which it was compiled."""

    fingerprint: str
    date: str
    repeats: int
    fits: bool
    hbm_bytes_per_device: int
    argument_bytes: int | None
    temporary_bytes: int | None
    weight_argument_bytes: int
    compile_seconds: float
    predicted_seconds: float | None
    breakdown: dict[str, float] | None

    @property
    def costs(self) -> dict[str, Any]:
        """Return the costs in the form of `backend.tpu_analysis.report`."""
        return self.model_dump(exclude={"fingerprint", "date", "repeats", "weight_argument_bytes"})


class Figures(_Data):
    """The predictions of a row.

    `date` is the day of its newest program. `commit` is the last commit that was known to compile to the same programs.
    If `taken_over` is True, the figures come from documents that are older than stored rows. Such figures are rounded and have no
    programs and no commit.
    `gib` and `capacity_gib` are memory of a chip, None if unknown. `mfu` is a share of the peak. `parts` are seconds of a whole
    video, and `block_seconds` are seconds of a live video's block.
    """

    date: str
    commit: str | None = None
    taken_over: bool = False
    fits: bool
    gib: float | None
    capacity_gib: float
    step_seconds: float | None = None
    floor_seconds: float | None = None
    mfu: float | None = None
    video_seconds: float | None = None
    parts: dict[str, float] = Field(default_factory=dict)
    frames_per_second: float | None = None
    block_seconds: float | None = None
    programs: dict[str, ProgramCost] = Field(default_factory=dict)


class Row(_Data):
    """A preset on a slice.

    `of_preset`, `of_slice`, `of_memory` and `of_video` are notes that the tables print beside the preset, the slice, the memory
    and the parts of a whole video. `published` has published times of a step. `in_steps` and `in_videos` select the tables
    that contain the row.
    """

    preset: str
    slice: str
    in_steps: bool = True
    in_videos: bool = False
    of_preset: str = ""
    of_slice: str = ""
    of_memory: str = ""
    of_video: str = ""
    published: str = ""
    figures: Figures | None = None

    @property
    def key(self) -> tuple[str, str]:
        return self.preset, self.slice


def read_rows(path: Path = DATA_FILE) -> tuple[Row, ...]:
    """Read the stored rows, in the order of the tables."""
    return tuple(Row(**row) for row in json.loads(path.read_text("utf-8")))


def write_rows(rows: Iterable[Row], path: Path = DATA_FILE) -> None:
    """Write the rows. Omit fields that have their default values."""
    kept = [row.model_dump(exclude_defaults=True) for row in rows]
    path.write_text(json.dumps(kept, indent=1) + "\n", "utf-8")


def figures_of(report: dict[str, Any], commit: str) -> Figures:
    """Read figures from a report of `benchmarks.all_presets_run`."""
    programs = {name: ProgramCost(**cost) for name, cost in report["components"].items()}
    step = mean_step_seconds(programs)
    return Figures(
        date=max(program.date for program in programs.values()),
        commit=commit,
        fits=report["fits"],
        gib=report["hbm_bytes_per_device"] / GIB,
        capacity_gib=report["hbm_capacity_bytes"] / GIB,
        step_seconds=step,
        floor_seconds=report["mean_floor_seconds"],
        mfu=report["mean_roofline_seconds"] / step if step else None,
        video_seconds=report["predicted_total_seconds"],
        parts=parts_of(programs) if report["predicted_total_seconds"] else {},
        frames_per_second=report.get("predicted_frames_per_second"),
        block_seconds=report.get("predicted_delay_seconds"),
        programs=programs,
    )


def mean_step_seconds(programs: dict[str, ProgramCost]) -> float | None:
    """Return the mean seconds over all steps of a video, None if a step does not fit."""
    steps = [programs[key] for key in STEPS if key in programs]
    known = [step.predicted_seconds * step.repeats for step in steps if step.predicted_seconds is not None]
    if not steps or len(known) < len(steps):
        return None
    return sum(known) / sum(step.repeats for step in steps)


def parts_of(programs: dict[str, ProgramCost]) -> dict[str, float]:
    """Return the seconds of a whole video by part, the longest first."""
    found: defaultdict[str, float] = defaultdict(float)
    for key, program in programs.items():
        assert program.predicted_seconds is not None, "the video fits"
        found[PARTS.get(key, key.replace("_", " "))] += program.predicted_seconds * program.repeats
    return dict(sorted(found.items(), key=lambda part: -part[1]))
