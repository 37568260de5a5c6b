"""The checkpoints and LoRA files that presets use, and the bytes of each on this machine. Uses no network."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from presets import Preset, list_presets
from presets.licences import LICENCE_UNSEEN, UNSEEN

Kind = Literal["model", "lora"]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One checkpoint or LoRA file.

    Attributes:
        source: the id on the Hub, or "embedded:NAME" for a model that is installed with the studio.
        presets: the presets that use it.
        num_bytes: the bytes of its files on this machine, None if files are missing.
        begun_bytes: the received bytes of an incomplete download.
    """

    kind: Kind
    source: str
    presets: tuple[Preset, ...]
    num_bytes: int | None
    begun_bytes: int = 0

    @property
    def is_here(self) -> bool:
        return self.num_bytes is not None

    @property
    def is_on_hub(self) -> bool:
        """True if the files can be downloaded and removed. False for models that are installed with the studio."""
        return is_downloadable(self.source)


def list_entries() -> list[Entry]:
    """Return all checkpoints in the order of the presets, then all LoRAs of presets."""
    from backend.checkpoints.hub import find_cached_file, find_cached_folder, is_hub_id

    presets, entries = list_presets(), []
    for model in dict.fromkeys(preset.model for preset in presets):
        users = tuple(preset for preset in presets if preset.model == model)
        source = users[0].model_source
        folder = find_cached_folder(model) if is_hub_id(source) else Path(source)
        num_bytes = None if folder is None else count_bytes(model, folder)
        begun = _count_partial_bytes(model) if folder is None else 0
        entries.append(Entry(kind="model", source=model, presets=users, num_bytes=num_bytes, begun_bytes=begun))
    for source in dict.fromkeys(lora.source for preset in presets for lora in preset.loras):
        users = tuple(preset for preset in presets if any(lora.source == source for lora in preset.loras))
        path = find_cached_file(source)
        # `begun_bytes` stays 0, because a repository's incomplete files can belong to any of its LoRAs.
        num_bytes = None if path is None else count_bytes(source, path)
        entries.append(Entry(kind="lora", source=source, presets=users, num_bytes=num_bytes))
    return entries


def is_downloadable(source: str) -> bool:
    """Return whether `source` is the id of a checkpoint or of one file on the Hub."""
    from backend.checkpoints.hub import is_hub_id

    repository, _, name = source.partition(":")
    return is_hub_id(source) or (bool(name) and is_hub_id(repository))


def required_licences(source: str) -> tuple[str, ...]:
    """Return sentences about licences that the operator must know before downloading `source`, a checkpoint or a file.

    A preset's sentence applies to the repositories of its single-file transformers, otherwise to its checkpoint's repository.
    """
    given = _list_repositories(source)
    stated = [
        preset.licence
        for preset in list_presets()
        if preset.licence and not given.isdisjoint(_list_repositories(preset.model.partition("+")[2] or preset.model))
    ]
    unseen = [LICENCE_UNSEEN.format(repository=repository) for repository in UNSEEN if repository in given]
    return tuple(dict.fromkeys(stated + unseen))


def _list_repositories(source: str) -> set[str]:
    """Return the repository or folder of each part of "BASE+FILE", without the names of files and of the transformer's folder."""
    return {part.partition("#")[0].partition(":")[0] for part in source.split("+")}


def count_bytes(source: str, path: Path) -> int:
    """Return the bytes of the files at `path` that belong to `source`, and of its transformers in files outside the folder."""
    from backend.checkpoints.hub import find_cached_parts
    from backend.checkpoints.single_file import file_path, parse_file_source

    parsed = parse_file_source(source)
    files = find_cached_parts(parsed) if parsed is not None else None
    counted = (*_source_files(source, path), *map(file_path, (files or {}).values()))
    return sum(file.stat().st_size for file in counted)


def _count_partial_bytes(model: str) -> int:
    """Return the received bytes of an incomplete checkpoint.

    Files shared with another checkpoint count only after the download of the own transformer has started.
    """
    from backend.checkpoints.checkpoint import split_source
    from backend.checkpoints.hub import find_newest_snapshot
    from backend.checkpoints.hub_file import count_cached_bytes
    from backend.checkpoints.single_file import parse_file_source

    named, (base, transformer) = parse_file_source(model), split_source(model)
    if named is None:
        snapshot = find_newest_snapshot(base)
        if snapshot is None:
            return count_cached_bytes(base)
        own = {file.resolve() for file in _source_files(model, snapshot)}
        others = {file.resolve() for file in _list_files(snapshot)} - own
        if not (snapshot / transformer).is_dir():
            return 0
        return count_cached_bytes(base) - sum(file.stat().st_size for file in others)
    own = sum(map(count_cached_bytes, {file.partition(":")[0] for file in named.files}))
    return own + count_cached_bytes(named.base) if own else 0


def _source_files(source: str, path: Path) -> list[Path]:
    from huggingface_hub.utils import filter_repo_objects

    from backend.checkpoints.hub import file_patterns

    if path.is_file() or not is_downloadable(source):
        return _list_files(path)
    patterns, files = list(next(iter(file_patterns(source).values()))), _list_files(path)
    return list(filter_repo_objects(files, allow_patterns=patterns, key=lambda file: file.relative_to(path).as_posix()))


def _list_files(path: Path) -> list[Path]:
    return [file for file in (path.rglob("*") if path.is_dir() else [path]) if file.is_file()]
