"""Compile presets for TPU slices, store the compiler's figures, and write the tables of docs/performance.md and docs/tpu.md.

    python -m benchmarks.all_presets [--only PRESET ...] [--topology SLICE] [--again]      compile and store
    python -m benchmarks.all_presets --write-docs                                         write the tables of the documents
    python -m benchmarks.all_presets --check                                              check the documents

This needs libtpu and no TPU. A row takes one to fifteen minutes on two cores. Each finished row is stored in
benchmarks/all_presets.json, with the commit and the day. A row is skipped if no file that affects the programs has changed since
its commit. Programs whose figures are stored for any row are not compiled again. --only with a --topology that is not stored adds
a row.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from backend.cli.module_process import check_topology, compile_in_process
from backend.errors import StudioError
from backend.schemas.settings import find_preset
from backend.settings import PROJECT_FOLDER
from benchmarks.predicted import Figures, Row, figures_of, read_rows, write_rows
from benchmarks.predicted_tables import changed_files

COMPILED = ("backend", "kernels", "presets", ":!presets/needs.json", "benchmarks/all_presets_run.py")


def print_progress(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def commit_of_tree() -> str:
    """Return the current commit, with "+" if files that affect the programs have changes that are not committed."""
    head = _git("rev-parse", "--short=10", "HEAD").stdout.strip()
    return head + ("+" if _git("status", "--porcelain", "--", *COMPILED).stdout.strip() else "")


def commit_of(row: Row) -> str | None:
    """Return the commit at which the row was compiled, None without figures."""
    return row.figures.commit if row.figures else None


def is_current(row: Row, commit: str) -> bool:
    """Return whether the files that affect the programs are the same now, at `commit`, as when the row was compiled."""
    stored = commit_of(row)
    if stored is None or "+" in stored + commit:
        return False
    return _git("diff", "--quiet", stored, commit, "--", *COMPILED).returncode == 0


def compile_row(row: Row, commit: str, *, again: bool) -> Figures:
    """Compile the row and return its figures. Raises: StudioError.

    Unless `again` is True, programs that are stored for any row are reused: presets share text encoders and decoders.
    """
    stored = () if again else (one.figures for one in read_rows() if one.figures)
    programs = (program for figures in stored for program in figures.programs.values())
    with tempfile.NamedTemporaryFile("w", suffix=".json") as known:
        json.dump({program.fingerprint: program.model_dump() for program in programs}, known)
        known.flush()
        words = ["--preset", row.preset, "--topology", row.slice, "--known", known.name]
        return figures_of(compile_in_process("benchmarks.all_presets_run", words, for_tpu=True), commit)


def store(figures: Figures, key: tuple[str, str], new: Row) -> None:
    """Read the file again and store the figures of one row. Another process may have stored rows in the meantime."""
    rows = [row.model_copy(update={"figures": figures}) if row.key == key else row for row in read_rows()]
    if all(row.key != key for row in rows):
        rows.append(new.model_copy(update={"figures": figures}))
    write_rows(rows)


def selected(only: Sequence[str], topology: str | None) -> list[Row]:
    """Return the selected rows, in the order of `only`. Create a row for a preset and slice that is not stored."""
    rows = [row for row in read_rows() if topology in (None, row.slice)]
    if not only:
        return rows
    found = [row for preset in only for row in rows if row.preset == preset]
    missing = [preset for preset in only if all(row.preset != preset for row in found)]
    for preset in missing:
        if topology is None:
            raise StudioError(f"{preset} has no row", "a new row needs a slice", f"--only {preset} --topology v6e:2x4")
        found.append(Row(preset=find_preset(preset).name, slice=topology))
    return found


def run(rows: Sequence[Row], *, again: bool) -> bool:
    """Compile the rows one after the other. Return whether all compiled."""
    failed = False
    for row in rows:
        commit = commit_of_tree()
        if not again and is_current(row, commit):
            print_progress(f"{row.preset} on {row.slice}: stored at {commit_of(row)}, nothing has changed since")
            continue
        try:
            figures = compile_row(row, commit, again=again)
        except StudioError as error:
            failed = True
            print_progress(f"{row.preset} on {row.slice}: {error}")
            continue
        store(figures, row.key, row)
        print_progress(f"{row.preset} on {row.slice}: {_words(row.figures)} -> {_words(figures)}")
    return not failed


def _words(figures: Figures | None) -> str:
    if figures is None or figures.step_seconds is None:
        return "no step" if figures is None else f"{figures.gib:.1f} GiB, does not fit"
    whole = "" if figures.video_seconds is None else f", {figures.video_seconds:.4g} s a video"
    memory = "" if figures.gib is None else f"{figures.gib:.1f} GiB, "
    return f"{memory}{figures.step_seconds:.4g} s a step{whole}"


def write_documents(*, check: bool) -> bool:
    """Write the stored figures to the documents. If `check` is True, only return whether the documents have these figures."""
    changed = changed_files(read_rows())
    for path, text in changed.items():
        print_progress(f"{path.relative_to(PROJECT_FOLDER)} {'differs from what is stored' if check else 'written'}")
        if not check:
            path.write_text(text, "utf-8")
    return not (check and changed)


def _git(*words: str) -> subprocess.CompletedProcess:
    return subprocess.run(["git", *words], cwd=PROJECT_FOLDER, capture_output=True, text=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", default=(), metavar="PRESET", help="only these presets, in this order")
    parser.add_argument("--topology", metavar="SLICE", help="only this slice, such as v6e:2x4")
    parser.add_argument("--again", action="store_true", help="compile stored rows again")
    parser.add_argument("--write-docs", action="store_true", help="write the tables of the documents and presets/needs.json")
    parser.add_argument("--check", action="store_true", help="fail if they differ from what is stored")
    arguments = parser.parse_args()
    if arguments.write_docs or arguments.check:
        sys.exit(not write_documents(check=not arguments.write_docs))
    if arguments.topology:
        check_topology(arguments.topology)
    sys.exit(not run(selected(arguments.only, arguments.topology), again=arguments.again))


if __name__ == "__main__":
    main()
