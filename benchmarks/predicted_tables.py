"""Write the stored figures of `benchmarks.all_presets` to the documents, between markers, and to presets/needs.json."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from pathlib import Path

from backend.schemas.settings import find_preset
from backend.settings import PROJECT_FOLDER
from benchmarks.predicted import Figures, Row
from presets.needs import NEEDS_FILE

LEAST_PART = 0.005  # seconds of a whole video; shorter parts are not listed
_MARKED = re.compile(r"(<!-- table (\w+):[^\n]*-->\n)(.*?)(<!-- end -->)", re.DOTALL)


def changed_files(rows: Sequence[Row]) -> dict[Path, str]:
    """Return the new text of each file whose tables or slices differ from the rows."""
    tables = {"steps": steps_table(rows), "videos": videos_table(rows), "slices": slices_table(rows)}
    wanted = {PROJECT_FOLDER / "docs" / name: tables for name in ("performance.md", "tpu.md")}
    texts = {path: _filled(path.read_text("utf-8"), tables) for path, tables in wanted.items()}
    texts[NEEDS_FILE] = _needs(rows)
    return {path: text for path, text in texts.items() if path.read_text("utf-8") != text}


def steps_table(rows: Iterable[Row]) -> list[str]:
    """Return the table with the time of a step, one line for each preset and slice."""
    lines = [
        "| preset | slice | HBM, GiB a chip of | seconds | floor | MFU | published | day |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        if row.in_steps and (figures := row.figures):
            seconds = (number(figures.step_seconds), number(figures.floor_seconds), _share(figures.mfu))
            lines.append(_line(*_subject(row), _memory(row), *seconds, row.published, day(figures)))
    return lines


def videos_table(rows: Iterable[Row]) -> list[str]:
    """Return the table of whole videos and live videos."""
    lines = ["| preset, slice | seconds | of it | day |", "|---|---|---|---|"]
    for row in rows:
        if row.in_videos and (figures := row.figures):
            cells = _live(figures) if figures.frames_per_second else _video(row, figures)
            lines.append(_line(f"{row.preset}, {row.slice}", *cells, day(figures)))
    return lines


def slices_table(rows: Iterable[Row]) -> list[str]:
    """Return the table of slices on which each preset fits, with one line for each preset and kind of chip."""
    fitting = [row for row in rows if row.figures and row.figures.fits]
    lines = ["| preset | slices that were found to fit | HBM, GiB a chip of | a step, s |", "|---|---|---|---|"]
    for (preset, _), group in groupby(sorted(fitting, key=_place(fitting)), key=lambda row: (row.preset, _chip(row))):
        own = list(group)
        slices, memory = ("; ".join(filter(None, map(words, own))) for words in (lambda row: _subject(row)[1], _memory))
        lines.append(_line(f"`{preset}`", slices, memory, "; ".join(map(_step, own))))
    return lines


def number(value: float | None) -> str:
    """Format a number with three significant digits, four from 100 on, and as an integer from 1000 on."""
    if value is None:
        return ""
    return f"{value:.0f}" if value >= 1000 else f"{value:.4g}" if value >= 100 else f"{value:.3g}"


def figures_in(row: Row) -> Figures:
    """Return the figures of a compiled row."""
    assert row.figures is not None, f"{row.preset} on {row.slice} was not compiled"
    return row.figures


def day(figures: Figures) -> str:
    """Return month and day, in italics for figures that come from earlier documents."""
    short = figures.date.partition("-")[2]
    return f"*{short}*" if figures.taken_over else short


def _line(*cells: str) -> str:
    return re.sub(r"\|  (?=\|)", "| ", "| " + " | ".join(cells) + " |")


def _subject(row: Row) -> tuple[str, str]:
    of_preset, of_slice = (", ".join(filter(None, pair)) for pair in ((row.preset, row.of_preset), (row.slice, row.of_slice)))
    return of_preset, of_slice


def _memory(row: Row) -> str:
    figures = figures_in(row)
    if figures.gib is None:
        return row.of_memory
    if not figures.fits:
        return f"does not fit: {figures.gib:.0f} of {figures.capacity_gib:.0f}"
    return ", ".join(filter(None, (f"{figures.gib:.1f} of {figures.capacity_gib:.0f}", row.of_memory)))


def _step(row: Row) -> str:
    figures = figures_in(row)
    return number(figures.step_seconds) if figures.block_seconds is None else f"a block {number(figures.block_seconds)}"


def _share(mfu: float | None) -> str:
    return "" if mfu is None else f"{mfu:.0%}".replace("%", " %")


def _live(figures: Figures) -> tuple[str, str]:
    return f"{number(figures.frames_per_second)} frames per second", f"a block {number(figures.block_seconds)}"


def _video(row: Row, figures: Figures) -> tuple[str, str]:
    parts = [f"{name} {number(seconds)}" for name, seconds in figures.parts.items() if seconds >= LEAST_PART]
    return number(figures.video_seconds), "; ".join(filter(None, (", ".join(parts), row.of_video)))


def _chip(row: Row) -> str:
    return row.slice.partition(":")[0]


def _place(rows: Iterable[Row]) -> Callable[[Row], tuple[int, int, int]]:
    """Return a sort key for rows: by preset, then by kind of chip, both in the order of `rows`, then the smallest slice first."""
    presets = list(dict.fromkeys(row.preset for row in rows))
    chips = list(dict.fromkeys((row.preset, _chip(row)) for row in rows))

    def place(row: Row) -> tuple[int, int, int]:
        size = math.prod(map(int, row.slice.partition(":")[2].split("x")))
        return presets.index(row.preset), chips.index((row.preset, _chip(row))), size

    return place


def _filled(text: str, tables: dict[str, list[str]]) -> str:
    """Return the document's text with the tables between markers replaced."""
    return _MARKED.sub(lambda found: found[1] + "\n".join(tables[found[2]]) + "\n" + found[4], text)


def _needs(rows: Iterable[Row]) -> str:
    """Return presets/needs.json with the slices on which the step of a preset fits."""
    stored = json.loads(NEEDS_FILE.read_text("utf-8"))
    for model in stored.values():
        model.pop("slices", None)
    fitting = [row for row in rows if row.in_steps and row.figures and row.figures.fits]
    for row in sorted(fitting, key=_place(fitting)):
        stored[find_preset(row.preset).model].setdefault("slices", []).append(_need(row))
    return json.dumps(stored, indent=1, sort_keys=True) + "\n"


def _need(row: Row) -> dict[str, str | float]:
    gib, step = figures_in(row).gib, figures_in(row).step_seconds
    assert gib is not None, "it fits"
    return {"preset": row.preset, "slice": row.slice, "gib": round(gib, 1), "step_seconds": float(number(step))}
