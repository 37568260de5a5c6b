"""Delete old files of the data folder, and measure the size of each part. Waiting and running jobs are never changed."""

import contextlib
import logging
import os
import shutil
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from backend.engine.disk import format_gigabytes
from backend.engine.job import EndedJob
from backend.engine.lock import EngineLock
from backend.engine.sizes import PREVIEWS, Size, files_below, folder_size, is_intermediate
from backend.engine.store import Store
from backend.errors import DataFolderError, JobNotFound, RequestError
from backend.schemas.events import VIDEO_FILE
from backend.settings import Settings

Category = Literal["videos", "intermediate", "bin", "uploads", "comparisons", "logs", "compiled", "store"]
CATEGORIES: tuple[Category, ...] = ("videos", "intermediate", "bin", "uploads", "comparisons", "logs", "compiled", "store")

_HOUR = 3600.0
_DAY = 24 * _HOUR
RECENT_SECONDS = _HOUR  # jobs that ended within this time may still be viewed, so their files are kept
BIN_SECONDS = 7 * _DAY  # a deleted video can be restored within this time
EXPORT_SECONDS = 30 * _DAY  # lifetime of a comparison's exported video, which can be generated again
KEPT_BYTES = 20_000_000_000  # quota of one visitor's videos with their inputs, including videos in the bin
BIN_BYTES_OF_OWNER, BIN_BYTES = 2_000_000_000, 10_000_000_000  # quotas of deleted videos, per owner and in total
# The most bytes of uploads that are kept per server. Uploads of the last hour are always kept.
MOST_UPLOADED = 5_000_000_000
MOST_COMPILED = 20_000_000_000  # bytes of compiled programs that are kept
MOST_LOG = 20_000_000  # the most bytes of one log file; of a longer file, the last 10 MB are kept
_EVERY_SECONDS = _HOUR
_USAGE_SECONDS = 30.0  # after this time, the sizes of all folders are measured again
_CLOSE_SECONDS = 10.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The operator's limits, None for no limit: the days that videos without a star are kept, and the gigabytes of all jobs."""

    days: float | None = None
    gigabytes: float | None = None


NO_LIMITS = Limits()


@dataclass(frozen=True, kw_only=True)
class Removal:
    """Files of a job to delete, `size` bytes: all files if `category` is "bin" or "videos", otherwise its intermediate files."""

    job: EndedJob
    category: Category
    size: int


def plan_removals(
    jobs: Sequence[EndedJob],
    sizes: Mapping[str, Size],
    limits: Limits,
    now: float,
    *,
    unended: int = 0,
    is_clock_trusted: bool = True,
) -> list[Removal]:
    """Return the files to delete, in this order:

    1. the intermediate files of jobs that ended more than `RECENT_SECONDS` ago;
    2. jobs that have been in the bin for more than `BIN_SECONDS`, also starred jobs;
    3. jobs without a star that ended more than `limits.days` ago.

    If the other jobs still take more than `limits.gigabytes`, more files follow until the limit is met:

    4. the intermediate files of jobs that ended within the last `RECENT_SECONDS`;
    5. jobs in the bin, then all other jobs, oldest first. Starred jobs and the jobs of group 4 are kept.

    Args:
        jobs: the ended jobs, oldest first.
        unended: the bytes in the folders of all jobs that have not ended.
        is_clock_trusted: if False, no video is deleted because of its age.
    """
    expired, kept = [], []
    for job in jobs:
        is_expired = job.deleted is not None and now - job.deleted > BIN_SECONDS
        if limits.days is not None and not job.is_starred:
            is_expired |= now - job.ended > max(limits.days * _DAY, RECENT_SECONDS)
        (expired if is_expired and is_clock_trusted else kept).append(job)
    stale, fresh = [], []
    for job in kept:
        if not job.is_cleaned:
            removal = Removal(job=job, category="intermediate", size=sizes[job.id].intermediate)
            (stale if now - job.ended > RECENT_SECONDS else fresh).append(removal)
    old_bin = [Removal(job=job, category="bin", size=sizes[job.id].total) for job in expired if job.deleted is not None]
    old = [Removal(job=job, category="videos", size=sizes[job.id].total) for job in expired if job.deleted is None]
    removals = [*stale, *old_bin, *old]
    if limits.gigabytes is None:
        return removals
    left = unended + sum(sizes[job.id].total for job in kept) - sum(removal.size for removal in stale)
    loose = [job for job in kept if not job.is_starred and now - job.ended > RECENT_SECONDS]
    in_bin = sorted((job for job in loose if job.deleted is not None), key=lambda job: job.deleted or 0.0)
    spare = [removal for removal in fresh if removal.size]
    spare += [Removal(job=job, category="bin", size=sizes[job.id].rest) for job in in_bin]
    spare += [Removal(job=job, category="videos", size=sizes[job.id].rest) for job in loose if job.deleted is None]
    for removal in spare:
        if left <= limits.gigabytes * 1e9:
            break
        removals.append(removal)
        left -= removal.size
    return removals


class Clock:
    """Decides whether ages can be computed from the system's clock, because a wrong date must not delete videos.

    The clock is not trusted for a day after it jumped by more than an hour. It is also not trusted for the first day if the last
    job ended more than a day before the server started.
    """

    def __init__(self) -> None:
        self._began = _steady_seconds()
        self._offset = time.time() - self._began
        self._jumped: float | None = None

    def is_trusted(self, newest: float) -> bool:
        """Return whether the clock is trusted now. `newest` is the time when the last job ended, in seconds since the epoch."""
        steady, offset = _steady_seconds(), time.time() - _steady_seconds()
        if abs(offset - self._offset) > _HOUR:
            logger.warning("The clock jumped by %.0f s: no video is deleted by age for a day", offset - self._offset)
            self._offset, self._jumped = offset, steady
        if self._jumped is not None:
            return steady - self._jumped > _DAY
        return time.time() - newest < _DAY or steady - self._began > _DAY


def _steady_seconds() -> float:
    """Return a clock that cannot be set. If the system supports it, the clock also runs while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class Cleaner:
    """Keeps the data folder within its limits: at the start, every hour, and on request. `on_removal` is called after videos were
    deleted. Safe to use from several threads and with other servers on the same folder.
    """

    def __init__(
        self,
        settings: Settings,
        store: Store,
        lock: EngineLock,
        limits: Limits = NO_LIMITS,
        on_removal: Callable[[], None] = lambda: None,
    ):
        self.limits = limits
        self._settings, self._store, self._lock, self._on_removal = settings, store, lock, on_removal
        self._clock = Clock()
        self._cleaning, self._counting, self._closing = threading.Lock(), threading.Lock(), threading.Event()
        self._trimming = threading.Lock()
        self._usage: tuple[float, dict[Category, int]] | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="cleaning", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread after the current removal."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join(_CLOSE_SECONDS)

    def clean(self) -> dict[Category, int]:
        """Delete files until each category is within its limits. Return the freed bytes by category. Raises: DataFolderError."""
        settings, files = self._settings, self._store.files
        try:
            with self._cleaning:
                freed = self._clean_jobs()
                files.measure_folder()
                # Folders of requests that were never queued, because the server ended. Folders with a video are kept.
                known = files.job_ids()
                for folder in list(settings.runs_dir.glob("*")):
                    if folder.name not in known and _age_seconds(folder) > _DAY and not (folder / VIDEO_FILE).exists():
                        freed["intermediate"] += self._remove_files(folder)
                # Comparisons whose jobs no longer exist go, and exported videos, whose names start with the comparison's id. An
                # export also goes after `EXPORT_SECONDS`, or if a job is in the bin. Unfinished files, with a dot, stay an hour.
                paths = list(settings.comparisons_dir.glob("*"))
                comparisons = {one.id: one for one in self._store.user_presets.comparisons()}
                there, in_library = files.job_ids(), files.job_ids(is_deleted=False)
                for comparison in comparisons.values():
                    if not there.intersection(comparison.jobs):
                        self._store.user_presets.forget_comparison(comparison.id)
                whole = {key for key, one in comparisons.items() if in_library.issuperset(one.jobs)}
                for path in paths:
                    age, is_unfinished = _age_seconds(path), path.name.startswith(".")
                    if age > EXPORT_SECONDS or not (path.name.partition(".")[0] in whole or (is_unfinished and age < _HOUR)):
                        freed["comparisons"] += _remove_file(path)
                freed["logs"] += sum(_truncate_log(path) for path in list(settings.logs_dir.glob("*.log")))
                freed["compiled"] += trim_folder(settings.compiled_dir, MOST_COMPILED)
                for folder in list(settings.uploads_dir.glob("*.uploads")):
                    freed["uploads"] += trim_folder(folder, MOST_UPLOADED, spare_seconds=_HOUR)
                self._lock.remove_dead()
        except (OSError, sqlite3.Error) as error:
            what = f"{settings.data_dir} could not be cleaned ({error}):"
            raise DataFolderError(what, "the server must be able to write to it", "check its permissions") from error
        self._usage = None
        freed_bytes = {part: freed[part] for part in CATEGORIES if freed[part]}
        if freed_bytes:
            parts = ", ".join(f"{part} {size / 1e6:.1f} MB" for part, size in freed_bytes.items())
            logger.warning("Cleaning freed %.1f MB: %s", sum(freed_bytes.values()) / 1e6, parts)
        return freed_bytes

    def trim_bin(self, owner: str, more: int = 0) -> None:
        """Permanently delete the oldest jobs in the bin until all quotas are met or the bin is empty.

        `KEPT_BYTES` limits all the owner's jobs plus `more` bytes, which are reserved for new videos. `BIN_BYTES_OF_OWNER` limits
        the owner's part of the bin, and `BIN_BYTES` the whole bin.
        """
        with self._trimming:
            stored_bytes = self._store.files.stored_bytes
            while stored_bytes(owner, is_deleted=True) > BIN_BYTES_OF_OWNER or stored_bytes(owner) + more > KEPT_BYTES:
                if not self._remove_oldest_deleted(owner):
                    break
            while stored_bytes(None, is_deleted=True) > BIN_BYTES and self._remove_oldest_deleted(None):
                pass

    def check_visitor_quota(self, owner: str, more: int = 0) -> None:
        """Call `trim_bin`, then check that the owner's quota has `more` bytes left for new videos. Raises: RequestError."""
        self.trim_bin(owner, more)
        kept = self._store.files.stored_bytes(owner)
        if kept + more > KEPT_BYTES:
            what = f"your videos and their inputs take {format_gigabytes(kept)} on the server and"
            raise RequestError(what, f"may take {format_gigabytes(KEPT_BYTES)}", "delete some of them")

    def _remove_oldest_deleted(self, owner: str | None) -> bool:
        """Permanently delete the job of the owner (None: of any owner) that is longest in the bin. Return whether one exists."""
        job_id = self._store.files.oldest_deleted(owner)
        if job_id is not None:
            self._remove_files(self._settings.runs_dir / job_id)
            self._store.jobs.forget(job_id)
        return job_id is not None

    def usage(self) -> dict[Category, int]:
        """Return the size in bytes of each part of the data folder. The sizes are at most 30 seconds old."""
        with self._counting:
            now, known = time.monotonic(), self._usage
            if known is not None and now - known[0] <= _USAGE_SECONDS:
                return known[1]
            settings, ended = self._settings, {job.folder.name: job for job in self._store.files.ended_jobs()}
            usage: Counter[Category] = Counter(dict.fromkeys(CATEGORIES, 0))
            for folder in list(settings.runs_dir.glob("*")):
                size, job = folder_size(folder), ended.get(folder.name)
                if job is not None and job.deleted is not None:
                    usage["bin"] += size.total
                elif job is not None and job.is_cleaned:
                    usage["videos"] += size.total
                else:
                    usage["intermediate"] += size.intermediate
                    usage["videos"] += size.rest
            usage["uploads"] = folder_size(settings.uploads_dir).total
            usage["comparisons"] = folder_size(settings.comparisons_dir).total
            usage["logs"] = folder_size(settings.logs_dir).total
            usage["compiled"] = folder_size(settings.cache_dir).total
            usage["store"] = sum(path.stat().st_size for path in list(settings.data_dir.glob("jobs.sqlite3*")))
            self._usage = now, dict(usage)
            return self._usage[1]

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                self.clean()
            except DataFolderError as error:
                if not self._closing.is_set():
                    logger.error("%s", error)
            self._closing.wait(_EVERY_SECONDS)

    def _clean_jobs(self) -> Counter[Category]:
        jobs, freed = self._store.files.ended_jobs(), Counter[Category]()
        sizes = {job.id: folder_size(job.folder) for job in jobs}
        # The intermediate files of cleaned jobs were deleted. The last preview, which may be kept, counts as `Size.rest`.
        sizes |= {job.id: Size(rest=sizes[job.id].total) for job in jobs if job.is_cleaned}
        unended = sum(folder_size(job.folder).total for job in self._store.library.unended())
        is_trusted = self._clock.is_trusted(max((job.ended for job in jobs), default=0.0))
        for removal in plan_removals(jobs, sizes, self.limits, time.time(), unended=unended, is_clock_trusted=is_trusted):
            if self._closing.is_set():
                break
            try:
                freed[removal.category] += self._remove(removal)
            except JobNotFound:  # another server has deleted the job
                continue
        if freed["videos"] or freed["bin"]:
            self._on_removal()
        return freed

    def _remove(self, removal: Removal) -> int:
        ended, job = removal.job, self._store.jobs.find(removal.job.id)
        if removal.category == "intermediate":
            # A job without a video keeps its last preview, which the page shows.
            kept = None if ended.has_video else self._store.events.last_preview(ended.id)
            names = [name for name, _ in files_below(ended.folder) if is_intermediate(name) and name != kept]
            is_here = ended.folder.parent == self._settings.runs_dir
            size = sum(_remove_file(ended.folder / name) for name in names) if is_here else 0
            with contextlib.suppress(OSError):  # the folder is not empty or does not exist
                (ended.folder / PREVIEWS).rmdir()
            self._store.files.mark_cleaned(ended.id)
            self._store.files.measure_folder(ended.id)
            return size
        # A visitor may have starred or restored the job after the list of removals was computed.
        if job.deleted is None and (job.is_starred or removal.category == "bin"):
            return 0
        size = self._remove_files(job.folder)
        if job.folder.parent == self._settings.runs_dir and job.folder.exists():
            logger.warning("%s could not be deleted", job.folder)
        else:
            self._store.jobs.forget(job.id)
        return size

    def _remove_files(self, folder: Path) -> int:
        if folder.parent != self._settings.runs_dir:  # a copied data folder can contain paths of the original data folder
            return 0
        before = folder_size(folder).total
        shutil.rmtree(folder, ignore_errors=True)
        return before - folder_size(folder).total


def trim_folder(folder: Path, most_bytes: int, spare_seconds: float = 0.0) -> int:
    """Delete the least recently used files until the rest take at most `most_bytes`. Return the freed bytes.

    Files that were read or written in the last `spare_seconds` are kept.
    """
    files = sorted(((max(status.st_atime, status.st_mtime), name, status.st_size) for name, status in files_below(folder)))
    left, freed = sum(size for _, _, size in files), 0
    for used, name, size in files:
        if left <= most_bytes or time.time() - used < spare_seconds:
            break
        freed += _remove_file(folder / name)
        left -= size
    return freed


def _truncate_log(path: Path) -> int:
    """Cut a log of more than `MOST_LOG` bytes to its end. A worker can continue to append to it. Return the freed bytes."""
    try:
        size = path.stat().st_size
        if size <= MOST_LOG:
            return 0
        with path.open("r+b") as file:
            file.seek(-MOST_LOG // 2, os.SEEK_END)
            end = file.read()
            file.seek(0)
            file.write(end)
            file.truncate()
        return size - len(end)
    except OSError:
        return 0


def _age_seconds(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except OSError:
        return 0.0


def _remove_file(path: Path) -> int:
    try:
        size = path.lstat().st_size
        path.unlink()
        return size
    except OSError:
        return 0
