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
        """True if all files of the checkpoint or LoRA are on this machine."""
        return self.num_bytes is not None

    @property
    def is_on_hub(self) -> bool:
        """True if the files can be downloaded and removed. False for models that are installed with the studio."""
        return is_downloadable(self.source)

    @property
    def licences(self) -> tuple[str, ...]:
        """Sentences about licences that the operator must know before the download."""
        return required_licences(self.source)


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

    A preset's sentence applies to the repositories of its single-file transformers. Without such files, it applies to the
    repository of its checkpoint.
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
    """Return the bytes of the files that belong to `source`. `path` is the folder or file of the checkpoint or LoRA.

    Other files in the folder, such as another checkpoint's transformer, do not count. Transformers in separate files outside
    the folder count too.
    """
    from backend.checkpoints.hub import find_cached_parts
    from backend.checkpoints.single_file import file_path, parse_file_source

    parsed = parse_file_source(source)
    files = find_cached_parts(parsed) if parsed is not None else None
    return sum(map(_file_bytes, (*_source_files(source, path), *map(file_path, (files or {}).values()))))


def _count_partial_bytes(model: str) -> int:
    """Return the received bytes of an incomplete checkpoint.

    Files that this checkpoint shares with another checkpoint count only after the download of this checkpoint's own
    transformer has started. Transformers of other checkpoints never count.
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
        return count_cached_bytes(base) - sum(map(_file_bytes, others)) if (snapshot / transformer).is_dir() else 0
    own = sum(map(count_cached_bytes, {file.partition(":")[0] for file in named.files}))
    return own + count_cached_bytes(named.base) if own else 0


def _source_files(source: str, path: Path) -> list[Path]:
    """Return the files at `path` that belong to `source`. If `path` is a file, return only this file.

    A source that is not on the Hub uses all files of its folder.
    """
    from huggingface_hub.utils import filter_repo_objects

    from backend.checkpoints.hub import file_patterns

    if path.is_file() or not is_downloadable(source):
        return _list_files(path)
    patterns = next(iter(file_patterns(source).values()))
    return list(
        filter_repo_objects(_list_files(path), allow_patterns=list(patterns), key=lambda file: file.relative_to(path).as_posix())
    )


def _list_files(path: Path) -> list[Path]:
    return [file for file in (path.rglob("*") if path.is_dir() else [path]) if file.is_file()]


def _file_bytes(file: Path) -> int:
    return file.stat().st_size
