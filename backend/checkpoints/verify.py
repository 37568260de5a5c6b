"""Whether a checkpoint's files are whole and belong together: sizes by their own headers, a few shapes by the configurations,
hashes where the Hub's cache knows them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from backend.checkpoints.checkpoint import AGAIN, Checkpoint, open_checkpoint
from backend.checkpoints.tensors import check_shapes, part_tensors
from backend.errors import ModelError
from backend.families.wan.family import Family, recognise, telling_shapes
from backend.files import hash_like

_SHA256, _GIT_SHA1 = re.compile(r"[0-9a-f]{64}"), re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, kw_only=True)
class Verification:
    """What was found in `folder`. `problems` are sentences, none where all is well; `hashed` files had a hash to compare."""

    folder: Path
    family: Family | None
    files: int
    hashed: int
    num_bytes: int
    problems: tuple[str, ...]


def verify(folder: Path, on_bytes: Callable[[int, int], None] | None = None) -> Verification:
    """Look at every file of the checkpoint. Never raises for what is wrong in it: that is the result."""
    problems, family = [], None
    try:
        checkpoint = open_checkpoint(folder)
        family = recognise(checkpoint.index, checkpoint.architecture)
        for part in checkpoint.parts:
            problems += _problems_of(lambda part=part: check_part(checkpoint, part))
        if not (folder / "tokenizer").is_dir():
            problems.append(f"tokenizer is missing: a checkpoint needs it; {AGAIN}")
    except ModelError as error:
        problems.append(str(error))
    paths = [path for path in folder.rglob("*") if path.is_file()]
    checked = list(_check_hashes(paths, on_bytes))
    problems += [problem for problem in checked if problem]
    sizes = sum(path.stat().st_size for path in paths)
    return Verification(
        folder=folder, family=family, files=len(paths), hashed=len(checked), num_bytes=sizes, problems=tuple(problems)
    )


def check_part(checkpoint: Checkpoint, part: str) -> None:
    """Raises: ModelError where a file is not whole, or is of a network that the part's configuration does not make."""
    check_shapes(part, part_tensors(checkpoint.folder, part), telling_shapes(checkpoint.architecture, part))


def _problems_of(look: Callable[[], object]) -> list[str]:
    try:
        look()
    except ModelError as error:
        return [str(error)]
    return []


def _check_hashes(paths: list[Path], on_bytes: Callable[[int, int], None] | None) -> Iterator[str]:
    """A sentence, empty where the hash is right, for every file whose name in the cache is its hash."""
    known = [(path, path.resolve().name) for path in paths if path.is_symlink()]
    known = [(path, name) for path, name in known if _SHA256.fullmatch(name) or _GIT_SHA1.fullmatch(name)]
    done, total = 0, sum(path.stat().st_size for path, _ in known)
    for path, expected in known:
        found = hash_like(path, expected)
        done += path.stat().st_size
        if on_bytes is not None:
            on_bytes(done, total)
        yield (
            ""
            if found == expected
            else (
                f"{path.parent.name}/{path.name} has the hash {found[:12]}... and must have {expected[:12]}...; "
                f"delete {path.resolve()}, then {AGAIN}"
            )
        )
