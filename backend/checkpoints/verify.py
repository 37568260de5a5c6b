"""Check a checkpoint's files: sizes with headers, shapes with configurations, hashes with names in the Hub's cache."""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from backend.checkpoints.checkpoint import TRANSFORMER, Checkpoint, named_parts, open_checkpoint
from backend.checkpoints.json_files import AGAIN, Config
from backend.checkpoints.loras import LoraName
from backend.checkpoints.single_file import TransformerFile, file_path
from backend.checkpoints.tensors import check_shapes
from backend.errors import ModelError
from backend.files import hash_file

_SHA256, _GIT_SHA1 = re.compile(r"[0-9a-f]{64}"), re.compile(r"[0-9a-f]{40}")


class FamilyChecks(Protocol):
    """The methods of `models.spec.Family` that this module needs."""

    def distinctive_shapes(self, configs: Mapping[str, Config], part: str) -> dict[str, tuple[int, ...]]:
        """Return a few shapes of a part that differ between networks of different sizes."""

    def lora_names(self, stem: str) -> tuple[LoraName, ...]:
        """Return the names that the authors use for a transformer's module."""


Recognise = Callable[[Checkpoint], tuple[FamilyChecks, Any]]
"""A function that returns the checkpoint's family, and its kind, which has a `name`. Raises: ModelError."""


@dataclass(frozen=True, kw_only=True)
class Verification:
    """The result for a checkpoint of this `kind`, None if unknown. `hashed` is the number of files whose hash was compared."""

    folder: Path
    kind: str | None
    files: int
    hashed: int
    num_bytes: int
    problems: tuple[str, ...]


def verify(
    folder: Path,
    recognise: Recognise,
    on_bytes: Callable[[int, int], None] | None = None,
    transformer_files: Mapping[str, TransformerFile] | None = None,
    transformer: str = TRANSFORMER,
    complete: Callable[[Checkpoint], Checkpoint] = lambda checkpoint: checkpoint,
) -> Verification:
    """Check every file of the checkpoint. The result lists the problems: no ModelError is raised.

    `complete(checkpoint)` adds configurations that are only in a single-file transformer.
    """
    problems, kind = [], None
    try:
        checkpoint = complete(open_checkpoint(folder, transformer_files, transformer))
        family, recognised = recognise(checkpoint)
        kind = recognised.name
        for part in checkpoint.parts:
            try:
                check_part(checkpoint, family, part)
            except ModelError as error:
                problems.append(str(error))
        for name in named_parts(checkpoint.index):
            if name.startswith("tokenizer") and not (folder / name).is_dir():
                problems.append(f"{name} is missing: a checkpoint needs it; {AGAIN}")
    except ModelError as error:
        problems.append(str(error))
    paths = [path for path in folder.rglob("*") if path.is_file()]
    paths += map(file_path, (transformer_files or {}).values())
    # In the Hub's cache, files are named by their hashes.
    named = [(path, path.resolve().name) for path in paths if path.is_symlink()]
    named = [(path, name) for path, name in named if _SHA256.fullmatch(name) or _GIT_SHA1.fullmatch(name)]
    done, total = 0, sum(path.stat().st_size for path, _ in named)
    for path, wanted in named:
        actual = hash_file(path, wanted)
        done += path.stat().st_size
        if on_bytes is not None:
            on_bytes(done, total)
        if actual != wanted:
            what = f"{path.parent.name}/{path.name} has the hash {actual[:12]}... and must have {wanted[:12]}...; "
            problems.append(f"{what}delete {path.resolve()}, then {AGAIN}")
    sizes = sum(path.stat().st_size for path in paths)
    found = tuple(problems)
    return Verification(folder=folder, kind=kind, files=len(paths), hashed=len(named), num_bytes=sizes, problems=found)


def check_part(checkpoint: Checkpoint, family: FamilyChecks, part: str) -> None:
    """Check the tensors of a part. Raises: ModelError if a file is incomplete, or does not fit the part's configuration."""
    tensors, expected = checkpoint.tensors(part), family.distinctive_shapes(checkpoint.configs, part)
    named = {}
    for name, shape in expected.items():
        full = _full_name(name, tensors)
        if part in checkpoint.transformer_files and full not in tensors:  # the file has the authors' names
            stem, _, kind = name.rpartition(".")
            full = _full_name(next((f"{other.name}.{kind}" for other in family.lora_names(stem)), name), tensors)
        named[full] = shape
    check_shapes(part, tensors, named)


def _full_name(name: str, tensors: Collection[str]) -> str:
    """Return the tensor's name in the files, which may contain a larger network, whose names have a prefix."""
    return next((full for full in tensors if full == name or full.endswith(f".{name}")), name)
