"""Find checkpoints and LoRA files by their Hugging Face id in huggingface_hub's cache on this machine, or download them.

A download calls `on_bytes(done, total)` every second, in the thread that started the download. The total is 0 while it is
unknown. An error of `on_bytes` ends the download. Received bytes are kept.
"""

import contextlib
import errno
import functools
import glob
import os
import shutil
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import httpx2
from huggingface_hub import HfApi, RepoFile, constants, snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
from huggingface_hub.utils import filter_repo_objects, tqdm

from backend.checkpoints.checkpoint import (
    TRANSFORMER,
    Checkpoint,
    is_checkpoint,
    named_parts,
    open_checkpoint,
    part_folder,
    split_source,
)
from backend.checkpoints.hub_file import HubFile, blobs_folder, delete_unfinished, download_to_cache
from backend.checkpoints.single_file import FileSource, TransformerFile, assign_parts, is_on_hub, parse_file_source
from backend.checkpoints.tensors import weight_files
from backend.errors import ModelError
from presets import list_presets

PARTS = (
    *("transformer", "transformer_2", "vae", "text_encoder", "text_encoder_2", "image_encoder"),
    *("connectors", "audio_vae", "vocoder", "latent_upsampler"),
    *("image_processor", "feature_extractor", "scheduler", "guider"),
)
"""Folders of diffusers' checkpoints that are downloaded. Other folders, such as copies in other precisions, are not."""
CONFIGURATIONS = ("model_index.json", *(f"{part}/config.json" for part in PARTS))
PATTERNS = (
    *("model_index.json", "tokenizer/*", "tokenizer_2/*"),
    *(f"{part}/*.{kind}" for part in PARTS for kind in ("json", "safetensors")),
)
PATTERNS_BESIDE_FILES = tuple(
    pattern for pattern in PATTERNS if pattern not in (f"{TRANSFORMER}/*.safetensors", f"{TRANSFORMER}_2/*.safetensors")
)
OnBytes = Callable[[int, int], None]
Accept = Callable[[Checkpoint], object]
"""A function that raises ModelError for a checkpoint that cannot be run. It is called before the weights are downloaded."""
SECONDS_BETWEEN_LOOKS = 1.0
SECONDS_FOR_OTHERS = 10.0  # maximum wait for other downloads to end after a download has failed
FILES_AT_ONCE = 8  # maximum number of downloads at a time, as in huggingface_hub
HIDDEN_FROM_US = (401, 403, 404)


def ignore_progress(done: int, total: int) -> None:
    """Do nothing."""


def find_checkpoint(source: str, accept: Accept, on_bytes: OnBytes = ignore_progress) -> Checkpoint:
    """Open a checkpoint folder, or a Hub id, downloaded if needed. Raises: ModelError.

    `source` can also name the transformer: "BASE+FILE" for a single file, "BASE#FOLDER" for another folder of the checkpoint.
    """
    if (parsed := parse_file_source(source)) is not None:
        return open_cached_checkpoint(source) or _download_with_files(parsed, accept, on_bytes)
    base, transformer = split_source(source)
    folder = Path(base).expanduser()
    if folder.is_dir():
        if is_checkpoint(folder):
            return open_checkpoint(folder, transformer=transformer)
        rule = "must contain a model_index.json, as diffusers writes it"
        raise ModelError(f"{folder.name}", rule, "give a diffusers checkpoint folder")
    if not is_hub_id(source):
        raise ModelError(f"The model {folder.name}", "is not on this machine", _suggest_alternatives())
    if (checkpoint := open_cached_checkpoint(source)) is not None:
        return checkpoint
    return open_checkpoint(download_model(source, accept, on_bytes), transformer=transformer)


def _download_with_files(parsed: FileSource, accept: Accept, on_bytes: OnBytes) -> Checkpoint:
    """Download what is missing of a checkpoint with single-file transformers.

    The transformers and the base's configurations are checked before the base's weights are downloaded.
    """
    for file in parsed.files:
        if not is_on_hub(file) and not Path(file).is_file():
            raise ModelError(f"The transformer {Path(file).name}", "is not on this machine", "check the path of --transformer")
    folder = Path(parsed.base)
    if is_hub_id(parsed.base):
        folder = _download(parsed.base, CONFIGURATIONS, lambda done, total: on_bytes(0, 0))
    paths = [find_file(file, on_bytes) if is_on_hub(file) else Path(file) for file in parsed.files]
    checkpoint = open_checkpoint(folder, assign_parts(paths, parsed.tree))
    if is_hub_id(parsed.base):
        accept(checkpoint)
        # A newer commit may exist since the first download. The files of the newer commit are in another folder.
        checkpoint = open_checkpoint(_download(parsed.base, PATTERNS_BESIDE_FILES, on_bytes), checkpoint.transformer_files)
    return checkpoint


def find_cached_parts(parsed: FileSource) -> dict[str, TransformerFile] | None:
    """Return the transformers' files by names such as "transformer_2". None if a file is not on this machine."""
    local_paths = [find_cached_file(file) if is_on_hub(file) else Path(file) for file in parsed.files]
    paths = [path for path in local_paths if path is not None and path.is_file()]
    return assign_parts(paths, parsed.tree) if len(paths) == len(local_paths) else None


def _suggest_alternatives() -> str:
    return f"give its folder with --model, or take the preset {list_presets()[0].name}, which runs anywhere"


def find_file(source: str, on_bytes: OnBytes = ignore_progress) -> Path:
    """Return the path of "owner/repository:file", downloaded if needed. Raises: ModelError."""
    return find_cached_file(source) or download_file(source, on_bytes)


def is_hub_id(source: str) -> bool:
    """Return whether the source is "owner/name", with an optional "#FOLDER" or one or two "+owner/repository:file"."""
    if (parsed := parse_file_source(source)) is not None:
        return is_hub_id(parsed.base) and all(map(is_on_hub, parsed.files))
    return source.count("/") == 1 and not source.startswith(("/", ".", "~")) and ":" not in source


def open_cached_checkpoint(source: str) -> Checkpoint | None:
    """Open a checkpoint from the cache without the network. Return None if a file is missing."""
    if (parsed := parse_file_source(source)) is not None:
        files = find_cached_parts(parsed)
        folder = _find_cached_snapshot(parsed.base, PATTERNS_BESIDE_FILES) if is_hub_id(parsed.base) else Path(parsed.base)
        return None if folder is None or files is None else _open_if_complete(folder, files)
    base, transformer = split_source(source)
    folder = _find_cached_snapshot(base, _replace_transformer_folder(PATTERNS, transformer))
    return None if folder is None else _open_if_complete(folder, transformer=transformer)


def find_cached_folder(source: str) -> Path | None:
    checkpoint = open_cached_checkpoint(source)
    return None if checkpoint is None else checkpoint.folder


def find_cached_file(source: str) -> Path | None:
    """Return the path of "owner/repository:file" in the cache, None if it is missing."""
    repository, _, name = source.partition(":")
    folder = _find_cached_snapshot(repository, (glob.escape(name),))
    # os.path.isfile accepts names of any length, Path.is_file raises an error for a name that is too long.
    return folder / name if folder is not None and os.path.isfile(folder / name) else None


def find_newest_snapshot(source: str) -> Path | None:
    """Return the newest folder of a checkpoint in the cache, even if it is incomplete. None if no folder exists."""
    parsed = parse_file_source(source)
    base = parsed.base if parsed else split_source(source)[0]
    folders = (blobs_folder(base).parent / "snapshots").glob("*")
    return max(folders, key=lambda folder: folder.stat().st_mtime, default=None)


def _replace_transformer_folder(patterns: Sequence[str], transformer: str) -> tuple[str, ...]:
    folders = (pattern.partition("/") for pattern in patterns)
    return tuple(part_folder(part, transformer) + slash + name for part, slash, name in folders)


def _open_if_complete(
    folder: Path, transformer_files: Mapping[str, TransformerFile] | None = None, transformer: str = TRANSFORMER
) -> Checkpoint | None:
    """Open the checkpoint if all files in its indexes and all folders of tokenizers exist, otherwise return None."""
    try:
        checkpoint = open_checkpoint(folder, transformer_files, transformer)
        for part in checkpoint.parts:
            if part not in checkpoint.transformer_files:
                weight_files(folder, part_folder(part, transformer))
    except ModelError:
        return None
    tokenizers = [part for part in named_parts(checkpoint.index) if part.startswith("tokenizer")]
    return checkpoint if all((folder / name).is_dir() for name in tokenizers) else None


def download_model(source: str, accept: Accept, on_bytes: OnBytes = ignore_progress) -> Path:
    """Download the missing files, the weights after `accept` has checked the configurations. Raises: ModelError."""
    if (parsed := parse_file_source(source)) is not None:
        return (open_cached_checkpoint(source) or _download_with_files(parsed, accept, on_bytes)).folder
    base, transformer = split_source(source)
    folder = _download(base, _replace_transformer_folder(CONFIGURATIONS, transformer), lambda done, total: on_bytes(0, 0))
    accept(open_checkpoint(folder, transformer=transformer))
    return _download(base, _replace_transformer_folder(PATTERNS, transformer), on_bytes)


def download_file(source: str, on_bytes: OnBytes = ignore_progress) -> Path:
    """Download the file "owner/repository:file". Raises: ModelError."""
    repository, _, name = source.partition(":")
    path = _download(repository, (glob.escape(name),), on_bytes, of_lora=name) / name
    if not path.is_file():
        raise ModelError(f"{source}", f"names a file that {repository} does not have", "check the name")
    return path


def file_patterns(source: str) -> dict[str, tuple[str, ...]]:
    """Return, for each repository, the patterns of the files that belong to `source`: a checkpoint or a single file."""
    if (parsed := parse_file_source(source)) is not None:
        patterns = {parsed.base: PATTERNS_BESIDE_FILES}
        for repository, _, name in (file.partition(":") for file in parsed.files):
            patterns[repository] = (*patterns.get(repository, ()), glob.escape(name))
        return patterns
    base, transformer = split_source(source)
    repository, _, name = base.partition(":")
    return {repository: (glob.escape(name),) if name else _replace_transformer_folder(PATTERNS, transformer)}


def list_wanted_files(source: str) -> list[HubFile]:
    """List the files that downloading `source` needs, as they are on the Hub now. Raises: ModelError."""
    files = []
    for repository, patterns in file_patterns(source).items():
        with _convert_errors(repository, source.partition(":")[2] if not is_hub_id(source) else ""):
            files += filter_repo_objects(_list_files(repository), allow_patterns=list(patterns), key=lambda file: file.name)
    return files


def check_space(source: str, files: Sequence[HubFile]) -> None:
    """Check that the disk has space for the missing bytes of these files. Raises: ModelError if the space is too small."""
    needed = sum(file.num_bytes - file.arrived_bytes for file in files)
    there = next(folder for folder in (Path(constants.HF_HUB_CACHE), *Path(constants.HF_HUB_CACHE).parents) if folder.exists())
    free = shutil.disk_usage(there).free
    if needed > free:
        what, rule = f"{source} needs {needed / 1e9:.1f} GB more", f"and the disk has {free / 1e9:.1f} GB free"
        raise ModelError(what, rule, "free some, or set HF_HOME to a folder on a larger disk")


def _find_cached_snapshot(repository: str, patterns: Sequence[str]) -> Path | None:
    with contextlib.suppress(LocalEntryNotFoundError, HFValidationError):
        return Path(snapshot_download(repository, allow_patterns=list(patterns), local_files_only=True))
    return None


def _download(repository: str, patterns: Sequence[str], on_bytes: OnBytes, of_lora: str = "") -> Path:
    with _convert_errors(repository, of_lora):
        [everything] = _run_in_parallel([lambda stopped: _list_files(repository)], lambda: on_bytes(0, 0))
        if "model_index.json" in patterns and all(file.name != "model_index.json" for file in everything):
            what, rule = f"{repository} contains no model_index.json:", "a checkpoint must be in diffusers' layout"
            raise ModelError(what, rule, "authors often publish it under a name that ends in -Diffusers")
        files = list(filter_repo_objects(everything, allow_patterns=list(patterns), key=lambda file: file.name))
        delete_unfinished(repository, {file.content_hash for file in everything})
        check_space(repository, files)
        # Bytes of an earlier try count as received. Files too large for plain HTTP (50 GB) are downloaded with the links.
        total, small = sum(file.num_bytes for file in files), constants.MAX_HTTP_DOWNLOAD_SIZE
        fetches = [functools.partial(download_to_cache, file) for file in files if file.num_bytes <= small]
        _run_in_parallel(fetches, lambda: on_bytes(sum(file.arrived_bytes for file in files), total))
        on_bytes(total, total)
        links: dict[str, Any] = {"allow_patterns": list(patterns), "tqdm_class": _HiddenProgressBar}
        create_links = functools.partial(snapshot_download, repository, **links)
        return Path(*_run_in_parallel([lambda stopped: create_links()], lambda: on_bytes(0, 0)))


@contextlib.contextmanager
def _convert_errors(repository: str, of_lora: str) -> Generator[None]:
    try:
        yield
    except (HfHubHTTPError, HFValidationError, OSError, httpx2.TransportError) as error:
        cause = error if isinstance(error, HfHubHTTPError) else error.__cause__
        status = getattr(getattr(cause, "response", None), "status_code", None)
        source = f"{repository}:{of_lora}" if of_lora else repository
        if status in HIDDEN_FROM_US or isinstance(error, HFValidationError):
            rule = "is not on the Hugging Face Hub, or not public"
            what = f"{repository}", rule, "check the id, or log in with `hf auth login`"
        elif getattr(error, "errno", None) == errno.ENOSPC:
            what = f"The disk is full while {repository} is downloaded:", "the received bytes are kept", "free some space"
        elif isinstance(error, OSError) and error.filename:
            fix = "set HF_HOME to a folder that you can write to"
            what = f"{error.filename} cannot be written", f"({error.strerror})", fix
        else:
            is_begun = not of_lora and any(blobs_folder(repository).glob("*"))
            here = "is incomplete on this machine" if is_begun else "is not on this machine"
            fetch = f"run `python app.py models download {source}` where there is a network"
            other = "make the video without this file" if of_lora else _suggest_alternatives()
            reached = f"{source} {here}, and the Hugging Face Hub cannot be reached"
            what = reached, f"({type(cause or error).__name__})", f"{fetch}, or {other}"
        raise ModelError(*what) from error


class _HiddenProgressBar(tqdm):
    def __init__(self, *arguments: object, **options: object) -> None:
        super().__init__(*arguments, **options | {"disable": True})


def _list_files(repository: str) -> list[HubFile]:
    """List every file in the repository's newest commit."""
    hub = HfApi()
    commit = hub.model_info(repository).sha
    assert commit is not None, "every repository on the Hub has a commit"
    tree = hub.list_repo_tree(repository, recursive=True, revision=commit)
    return [
        HubFile(
            repository=repository,
            commit=commit,
            name=entry.path,
            num_bytes=entry.lfs.size if entry.lfs else entry.size,
            content_hash=entry.lfs.sha256 if entry.lfs else entry.blob_id,
        )
        for entry in tree
        if isinstance(entry, RepoFile)
    ]


def _run_in_parallel(works: Sequence[Callable[[threading.Event], object]], on_look: Callable[[], None]) -> list[Any]:
    """Call the functions `works` in parallel and return their results. Call `on_look` every second until all functions end.

    Each function receives an event, which is set after the first error, also of `on_look`. After an error of a function, the
    others get `SECONDS_FOR_OTHERS` to end. The threads belong to no executor, because Python waits for an executor's threads
    before a process ends.
    """
    stopped, futures, left = threading.Event(), [Future() for _ in works], SimpleQueue()
    for pair in zip(futures, works, strict=True):
        left.put(pair)
    for _ in works[:FILES_AT_ONCE]:
        threading.Thread(target=_work_through, args=(left, stopped), name="download", daemon=True).start()
    try:
        while True:
            unfinished = wait(futures, SECONDS_BETWEEN_LOOKS, FIRST_EXCEPTION).not_done
            failed = next((one for one in futures if one.done() and one.exception() is not None), None)
            if failed is not None or not unfinished:
                break
            on_look()
    finally:
        stopped.set()
        for future in futures:
            future.cancel()
    if failed is not None:
        wait(futures, SECONDS_FOR_OTHERS)
        failed.result()
    return [future.result() for future in futures]


def _work_through(left: SimpleQueue, stopped: threading.Event) -> None:
    while True:
        try:
            future, work = left.get_nowait()
        except Empty:
            return
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(work(stopped))
            except BaseException as error:
                future.set_exception(error)
