"""Check that a checkpoint's files are complete and belong together.

Sizes are compared with headers, a few shapes with the configurations, and hashes with the names in the Hub's cache.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
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
        """Return the shapes of a few tensors of a part that differ between networks of different sizes."""

    def lora_names(self, stem: str) -> tuple[LoraName, ...]:
        """Return the names that the authors use for a transformer's module."""


Recognise = Callable[[Checkpoint], tuple[FamilyChecks, Any]]
"""A function that returns the checkpoint's family, and its kind, which has a `name`. Raises: ModelError."""


@dataclass(frozen=True, kw_only=True)
class Verification:
    """The result of checking the checkpoint in `folder`.

    `kind` is the recognised kind of model, None if it is unknown. `problems` are sentences. `hashed` is the number of files whose
    hash was compared.
    """

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

    The transformers are in `transformer_files` if given, otherwise the first transformer is in the folder `transformer`.
    Some configurations are only in a single-file transformer. `complete(checkpoint)` adds these configurations to the checkpoint.
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
    checked = list(_check_hashes(paths, on_bytes))
    problems += [problem for problem in checked if problem]
    sizes = sum(path.stat().st_size for path in paths)
    return Verification(
        folder=folder, kind=kind, files=len(paths), hashed=len(checked), num_bytes=sizes, problems=tuple(problems)
    )


def check_part(checkpoint: Checkpoint, family: FamilyChecks, part: str) -> None:
    """Check the tensors of a part. Raises: ModelError if a file is incomplete, or does not fit the part's configuration."""
    tensors, expected = checkpoint.tensors(part), family.distinctive_shapes(checkpoint.configs, part)
    if part in checkpoint.transformer_files:
        expected = {_authors_name(name, tensors, family): shape for name, shape in expected.items()}
    check_shapes(part, tensors, {_full_name(name, tensors): shape for name, shape in expected.items()})


def _authors_name(name: str, tensors: Collection[str], family: FamilyChecks) -> str:
    """Return the tensor's name in diffusers if the single-file transformer uses this name, otherwise the authors' name."""
    stem, _, kind = name.rpartition(".")
    makers = next((f"{other.name}.{kind}" for other in family.lora_names(stem)), name)
    return name if _full_name(name, tensors) in tensors else makers


def _full_name(name: str, tensors: Collection[str]) -> str:
    """Return the tensor's name in the files. The name has a prefix if the files contain the network as a part of a larger
    network."""
    return next((full for full in tensors if full == name or full.endswith(f".{name}")), name)


def _check_hashes(paths: list[Path], on_bytes: Callable[[int, int], None] | None) -> Iterator[str]:
    """Check the hash of every file whose name in the cache is a hash. Yields "" for a correct file, otherwise a sentence."""
    named = [(path, path.resolve().name) for path in paths if path.is_symlink()]
    named = [(path, name) for path, name in named if _SHA256.fullmatch(name) or _GIT_SHA1.fullmatch(name)]
    done, total = 0, sum(path.stat().st_size for path, _ in named)
    for path, expected in named:
        actual = hash_file(path, expected)
        done += path.stat().st_size
        if on_bytes is not None:
            on_bytes(done, total)
        yield (
            ""
            if actual == expected
            else (
                f"{path.parent.name}/{path.name} has the hash {actual[:12]}... and must have {expected[:12]}...; "
                f"delete {path.resolve()}, then {AGAIN}"
            )
        )
