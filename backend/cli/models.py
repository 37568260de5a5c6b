"""The command `models`: list, download or verify checkpoints."""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TextIO

from backend.catalog.catalog import count_bytes, list_entries, required_licences
from backend.checkpoints import hub
from backend.checkpoints.checkpoint import TRANSFORMER, split_source
from backend.checkpoints.loras import list_loras
from backend.checkpoints.single_file import parse_file_source
from backend.checkpoints.speed import Speed
from backend.checkpoints.verify import verify
from backend.errors import RequestError
from backend.models import complete_checkpoint, recognise
from backend.settings import from_environment
from presets import list_presets


def models(arguments: argparse.Namespace) -> bool:
    """Run the action. Return False if verification finds a problem. Raises: RequestError, ModelError."""
    if arguments.action == "list":
        _print_models(arguments)
        return True
    if arguments.action == "verify":
        return _verify_model(arguments)
    given, sources = arguments.id, [arguments.id]
    preset = next((preset for preset in list_presets() if preset.name == given), None)
    if preset is not None:
        sources = [preset.model] if hub.is_hub_id(preset.model_source) else []
        sources += [lora.source for lora in preset.loras if lora.is_on_hub]
    elif not hub.is_hub_id(given) and not hub.is_hub_id(given.partition(":")[0]):
        rule = "must be a preset's name, owner/name, or owner/name:file.safetensors"
        raise RequestError(f"id={given!r}", rule, "`python app.py models list` shows the models of the presets")
    print_licences(sources, sys.stderr)
    for source in sources:
        is_model = hub.is_hub_id(source)
        path = hub.find_cached_folder(source) if is_model else hub.find_cached_file(source)
        if path is None:
            line = _DownloadLine(sys.stderr, source)
            path = hub.download_model(source, recognise, line) if is_model else hub.download_file(source, line)
            sys.stderr.write("\n" if sys.stderr.isatty() else "")
        sys.stdout.write(f"{source} is at {path} ({_format_size(count_bytes(source, path))})\n")
    return True


def _print_models(arguments: argparse.Namespace) -> None:
    folder = from_environment(arguments.data_dir).loras_dir
    rows: list[dict[str, Any]] = [
        {
            "kind": entry.kind,
            "id": entry.source,
            "bytes": entry.num_bytes,
            "begun_bytes": entry.begun_bytes,
            "presets": [preset.name for preset in entry.presets],
        }
        for entry in list_entries()
    ]
    rows += [
        {"kind": "lora", "id": name, "bytes": (folder / name).stat().st_size, "begun_bytes": 0, "presets": []}
        for name in list_loras(folder)
    ]
    if arguments.json:
        sys.stdout.write(json.dumps(rows, indent=2) + "\n")
        return
    widest = max(len(row["id"]) for row in rows)
    for row in rows:
        where = f"{_format_size(row['begun_bytes'])} partly here" if row["begun_bytes"] else "not here"
        where = where if row["bytes"] is None else f"{_format_size(row['bytes'])} here"
        sys.stdout.write(f"{row['id']:{widest}}  {where:>18}  {', '.join(row['presets']) or 'your LoRA'}\n")


def _format_size(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.1f} MB"


def print_licences(sources: Sequence[str], stream: TextIO) -> None:
    """Print the licences of checkpoints and files before their download, each once. Leave out what is on this machine."""
    licences = dict.fromkeys(
        licence
        for source in sources
        for licence in required_licences(source)
        if hub.find_cached_folder(source) is None and hub.find_cached_file(source) is None
    )
    for licence in licences:
        stream.write(f"{licence}\n")
        stream.flush()


class _DownloadLine:
    """Shows bytes, speed and time left: one changing line on a terminal, otherwise a line after each tenth of the bytes."""

    def __init__(self, stream: TextIO, what: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._what, self._speed = stream, what, Speed(clock)
        self._last_tenth = -1

    def __call__(self, done: int, total: int) -> None:
        if not total:
            return
        speed = self._speed(done)
        left = f", {(total - done) / speed:.0f} s left" if speed > 0 else ""
        text = f"{self._what}: {done / 1e6:,.0f} of {total / 1e6:,.0f} MB, {speed / 1e6:.1f} MB/s{left}"
        tenth = 10 * done // total
        if self._stream.isatty():
            self._stream.write(f"\r\x1b[K{text}")
        elif tenth > self._last_tenth:
            self._stream.write(text + "\n")
        self._last_tenth = max(self._last_tenth, tenth)
        self._stream.flush()


def _verify_model(arguments: argparse.Namespace) -> bool:
    source = next((preset.model_source for preset in list_presets() if preset.name == arguments.id), arguments.id)
    parsed = parse_file_source(source)
    base, transformer = split_source(source) if parsed is None else (parsed.base, TRANSFORMER)
    files = None if parsed is None else hub.find_cached_parts(parsed)
    missing = base
    if parsed is not None and files is None:
        folder, missing = None, source
    elif Path(base).is_dir():
        folder = Path(base)
    else:  # the folder in the cache may be incomplete
        folder = hub.find_newest_snapshot(base) if hub.is_hub_id(base) else None
    if folder is None:
        rule = "is neither a folder nor a checkpoint in the cache of this machine"
        raise RequestError(f"id={missing!r}", rule, f"`python app.py models download {missing}` fetches it")
    result = verify(folder, recognise, _DownloadLine(sys.stderr, source), files, transformer, complete_checkpoint)
    if arguments.json:
        facts = {
            "folder": str(result.folder),
            "family": result.kind,
            "files": result.files,
            "hashed": result.hashed,
            "bytes": result.num_bytes,
            "problems": list(result.problems),
        }
        sys.stdout.write(json.dumps([facts], indent=2) + "\n")
    elif result.problems:
        sys.stdout.write("\n".join(result.problems) + "\n")
    else:
        hashes = f"{result.hashed} hashes match" if result.hashed else "sizes match; a plain folder has no known hashes"
        found = f"{result.files} files, {_format_size(result.num_bytes)}; {hashes}"
        sys.stdout.write(f"{result.folder}: a complete {result.kind}, {found}\n")
    return not result.problems
