"""Tests that the documents' tables and presets/needs.json match the figures that `benchmarks.all_presets` stored."""

import json

import pytest

from backend.errors import StudioError
from backend.settings import PROJECT_FOLDER
from benchmarks import all_presets, predicted_tables
from benchmarks.predicted import Figures, ProgramCost, Row, figures_of, read_rows, write_rows
from presets import list_presets

ROWS = read_rows()


def cost(seconds: float | None, repeats: int, fits: bool = True) -> dict:
    """Return one program of a report."""
    return {
        "fingerprint": "f",
        "date": "2026-11-25",
        "repeats": repeats,
        "fits": fits,
        "hbm_bytes_per_device": 2**30,
        "argument_bytes": 1,
        "temporary_bytes": 1,
        "weight_argument_bytes": 1,
        "compile_seconds": 1.0,
        "predicted_seconds": seconds,
        "breakdown": None,
    }


def report(**programs: dict) -> dict:
    """Return a report of `all_presets_run` with these programs."""
    total = None if any(one["predicted_seconds"] is None for one in programs.values()) else 25.2
    return {
        "fits": total is not None,
        "hbm_bytes_per_device": 3 * 2**29,
        "hbm_capacity_bytes": 32 * 2**30,
        "components": programs,
        "predicted_total_seconds": total,
        "mean_floor_seconds": 0.5,
        "mean_roofline_seconds": 0.25,
    }


def test_the_documents_say_what_is_stored():
    """Compare the documents with the stored figures. `python -m benchmarks.all_presets --write-docs` updates them."""
    assert list(predicted_tables.changed_files(ROWS)) == []


def test_each_table_is_in_a_document_once():
    texts = [(PROJECT_FOLDER / "docs" / name).read_text("utf-8") for name in ("performance.md", "tpu.md")]
    assert [sum(text.count(f"<!-- table {name}:") for text in texts) for name in ("steps", "videos", "slices")] == [1, 1, 1]


def test_rows_are_of_presets_and_each_stands_once():
    assert {row.preset for row in ROWS} <= {preset.name for preset in list_presets()}
    assert len({row.key for row in ROWS}) == len(ROWS) > 30


@pytest.mark.parametrize("row", [row for row in ROWS if row.figures], ids=lambda row: f"{row.preset} {row.slice}")
def test_a_figure_has_a_commit_and_programs_or_was_taken_over(row):
    figures = row.figures
    assert figures.taken_over == (figures.commit is None) == (figures.programs == {})
    if not figures.taken_over:
        assert "+" not in figures.commit and figures.step_seconds == pytest.approx(mean_of(figures.programs))


def mean_of(programs: dict[str, ProgramCost]) -> float | None:
    """Compute the seconds of a step from the programs."""
    steps = [programs[key] for key in ("denoise_step", "refining_step") if key in programs]
    if any(step.predicted_seconds is None for step in steps):
        return None
    return sum(step.predicted_seconds * step.repeats for step in steps) / sum(step.repeats for step in steps)


def test_figures_are_those_of_the_report():
    programs = {"denoise_step": cost(1.0, 20), "refining_step": cost(2.5, 2), "prompt_keys": cost(0.1, 2)}
    figures = figures_of(report(**programs), "abc")
    assert (figures.gib, figures.capacity_gib, figures.commit, figures.taken_over) == (1.5, 32, "abc", False)
    assert figures.step_seconds == pytest.approx(25 / 22) and figures.mfu == pytest.approx(0.25 / (25 / 22))
    assert figures.parts == pytest.approx({"steps": 20.0, "refining steps": 5.0, "text": 0.2})


def test_what_does_not_fit_has_no_seconds():
    figures = figures_of(report(denoise_step=cost(None, 20, fits=False), text_encode=cost(0.1, 1)), "abc")
    assert (figures.fits, figures.step_seconds, figures.mfu, figures.parts) == (False, None, None, {})


def test_taken_over_days_are_in_italics():
    figures = Figures(date="2026-11-21 to 24", taken_over=True, fits=True, gib=1.0, capacity_gib=32.0)
    assert predicted_tables.day(figures) == "*11-21 to 24*"
    assert predicted_tables.day(figures.model_copy(update={"taken_over": False, "date": "2026-11-25"})) == "11-25"


@pytest.mark.parametrize(
    ("value", "text"), [(None, ""), (2.8704, "2.87"), (0.04, "0.04"), (143.52, "143.5"), (1234.5, "1234"), (12.04, "12")]
)
def test_numbers_have_three_digits_or_four(value, text):
    assert predicted_tables.number(value) == text


def test_a_preset_is_one_line_for_each_chip_the_smallest_slice_first():
    def row_on(name: str) -> Row:
        figures = Figures(date="2026-11-25", fits=True, gib=9.0, capacity_gib=32.0, step_seconds=1.0)
        return Row(preset="one", slice=name, figures=figures)

    lines = predicted_tables.slices_table([row_on("v6e:4x4"), row_on("tpu7x:2x2x1"), row_on("v6e:2x4")])[2:]
    assert lines == [
        "| `one` | v6e:2x4; v6e:4x4 | 9.0 of 32; 9.0 of 32 | 1; 1 |",
        "| `one` | tpu7x:2x2x1 | 9.0 of 32 | 1 |",
    ]


def test_rows_are_read_as_they_were_written(tmp_path):
    write_rows(ROWS, tmp_path / "rows.json")
    assert read_rows(tmp_path / "rows.json") == ROWS


def test_a_row_is_current_at_its_own_commit_alone():
    figures = Figures(date="2026-11-25", commit="HEAD", fits=True, gib=1.0, capacity_gib=32.0)
    row = Row(preset="wan-tiny", slice="v6e:1x1", figures=figures)
    assert all_presets.is_current(row, "HEAD")
    assert not all_presets.is_current(row, "HEAD+")  # files that are not committed
    assert not all_presets.is_current(row.model_copy(update={"figures": None}), "HEAD")


def test_each_row_runs_though_another_cannot_be_compiled(monkeypatch, capsys):
    """The rows: one without recorded memory, one that was never compiled, and one that the compiler refuses."""

    def compile_in_process(module, words, *, for_tpu):
        if "v6e:4x4" in words:
            raise StudioError("The compiler stopped")
        return report(denoise_step=cost(1.0, 20))

    taken = Figures(date="2026-11-21 to 24", taken_over=True, fits=True, gib=None, capacity_gib=32.0, step_seconds=2.0)
    rows = [Row(preset="wan-tiny", slice=name) for name in ("v6e:4x4", "v6e:1x1")]
    rows.append(Row(preset="wan-live-tiny", slice="v6e:1x1", figures=taken))
    stored = {}
    monkeypatch.setattr(all_presets, "compile_in_process", compile_in_process)
    monkeypatch.setattr(all_presets, "store", lambda figures, key, new: stored.update({key: figures}))
    assert not all_presets.run(rows, again=False)
    assert stored.keys() == {("wan-tiny", "v6e:1x1"), ("wan-live-tiny", "v6e:1x1")}
    assert "2 s a step -> 1.5 GiB, 1 s a step" in capsys.readouterr().out


def test_known_programs_are_given_to_the_compiling_process(monkeypatch):
    given = {}

    def compile_in_process(module, words, *, for_tpu):
        with open(words[-1], encoding="utf-8") as file:
            given[module] = json.load(file)
        return report(denoise_step=cost(1.0, 20))

    monkeypatch.setattr(all_presets, "compile_in_process", compile_in_process)
    row = Row(preset="wan-tiny", slice="v6e:1x1")
    other = Row(preset="wan-tiny", slice="v6e:2x4", figures=figures_of(report(denoise_step=cost(1.0, 20)), "abc"))
    monkeypatch.setattr(all_presets, "read_rows", lambda: (row, other))
    for again, kept in ((False, {"f"}), (True, set())):
        all_presets.compile_row(row, "abc", again=again)
        assert set(given["benchmarks.all_presets_run"]) == kept
