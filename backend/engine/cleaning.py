"""What is removed from the data folder, when and in which order, and how much each part of it takes.

`plan` decides about jobs, from values alone; `Cleaner` does it, hourly and when it is asked. Jobs that wait or run are never
touched.
"""

import contextlib
import logging
import os
import shutil
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from backend.engine.disk import format_gigabytes
from backend.engine.job import EndedJob
from backend.engine.lock import EngineLock
from backend.engine.sizes import PREVIEWS, Size, files_below, folder_size, is_intermediate
from backend.engine.store import Store
from backend.engine.user_presets import UserPresets
from backend.errors import DataFolderError, JobNotFound, RequestError
from backend.settings import Settings

Part = Literal["videos", "intermediate", "bin", "uploads", "comparisons", "logs", "compiled", "store"]
PARTS: tuple[Part, ...] = ("videos", "intermediate", "bin", "uploads", "comparisons", "logs", "compiled", "store")

_HOUR = 3600.0
_DAY = 24 * _HOUR
RECENT_SECONDS = _HOUR  # somebody may still look at what ended within this time
BIN_SECONDS = 7 * _DAY  # a deleted video can be restored this long
EXPORT_SECONDS = 30 * _DAY  # a comparison as one video; it is made again when it is asked for
KEPT_BYTES = 20_000_000_000  # of one visitor's videos with their inputs, deleted ones included
BIN_BYTES_OF_OWNER, BIN_BYTES = 2_000_000_000, 10_000_000_000  # of deleted videos that can be restored, of one owner and in all
MOST_UPLOADED = 5_000_000_000  # bytes; as much as all visitors may send within an hour
MOST_COMPILED = 20_000_000_000
MOST_LOG = 20_000_000  # of one worker's start; a longer one keeps its last half
_EVERY_SECONDS = _HOUR
_USAGE_SECONDS = 30.0  # after this the folders are counted again
_CLOSE_SECONDS = 10.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How long videos without a star are kept, in days, and how much all jobs may take, in gigabytes of 10^9 bytes. None: no
    limit."""

    days: float | None = None
    gigabytes: float | None = None


NO_LIMITS = Limits()


@dataclass(frozen=True, kw_only=True)
class Removal:
    """What is removed of one job: its intermediate files, or all of it, from the bin or from the videos. `size` in bytes."""

    job: EndedJob
    part: Part
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
    """What to remove, in this order: intermediate files, what is long in the bin, what is too old; then, while all jobs take more
    than the limit, younger intermediate files, the bin, and the oldest videos. Starred videos stay, unless their week in the bin
    is over; whole jobs that ended within `RECENT_SECONDS` stay, too.

    `jobs` have ended, oldest first; `sizes` are theirs by id; `unended` are the bytes of all others. While the clock may be wrong
    no video goes because of its age.
    """
    expired = [job for job in jobs if is_clock_trusted and _is_expired(job, limits, now)]
    going = {job.id for job in expired}
    kept = [job for job in jobs if job.id not in going]
    stale = [job for job in kept if not job.is_cleaned and now - job.ended > RECENT_SECONDS]
    fresh = [job for job in kept if not job.is_cleaned and now - job.ended <= RECENT_SECONDS]
    removals = [_intermediate_removal(job, sizes) for job in stale]
    removals += [_job_removal(job, sizes[job.id].total) for job in sorted(expired, key=lambda job: job.deleted is None)]
    if limits.gigabytes is None:
        return removals
    left = unended + sum(sizes[job.id].total for job in kept) - sum(sizes[job.id].intermediate for job in stale)
    for removal in _removals_for_space(fresh, kept, sizes, now):
        if left <= limits.gigabytes * 1e9:
            break
        removals.append(removal)
        left -= removal.size
    return removals


def _is_expired(job: EndedJob, limits: Limits, now: float) -> bool:
    if job.deleted is not None and now - job.deleted > BIN_SECONDS:
        return True
    return limits.days is not None and not job.is_starred and now - job.ended > max(limits.days * _DAY, RECENT_SECONDS)


def _removals_for_space(
    fresh: Iterable[EndedJob], kept: Sequence[EndedJob], sizes: Mapping[str, Size], now: float
) -> Iterator[Removal]:
    """What may go for more room; of whole jobs the intermediate files have gone before."""
    yield from (_intermediate_removal(job, sizes) for job in fresh if sizes[job.id].intermediate)
    loose = [job for job in kept if not job.is_starred and now - job.ended > RECENT_SECONDS]
    in_bin = sorted(((job.deleted, job) for job in loose if job.deleted is not None), key=lambda one: one[0])
    for job in (*(job for _, job in in_bin), *(job for job in loose if job.deleted is None)):
        yield _job_removal(job, sizes[job.id].rest)


def _intermediate_removal(job: EndedJob, sizes: Mapping[str, Size]) -> Removal:
    return Removal(job=job, part="intermediate", size=sizes[job.id].intermediate)


def _job_removal(job: EndedJob, size: int) -> Removal:
    return Removal(job=job, part="videos" if job.deleted is None else "bin", size=size)


class Clock:
    """Whether ages can be reckoned by the system's clock.

    It is not trusted for a day after it has jumped by more than an hour, nor at a start where it is more than a day ahead of all
    that the store knows: after a long pause that costs a day, after a wrong date nothing.
    """

    def __init__(self) -> None:
        self._began = _steady_seconds()
        self._offset = time.time() - self._began
        self._jumped: float | None = None

    def is_trusted(self, newest: float) -> bool:
        """Whether it is trusted now; `newest` is the last moment that the store knows."""
        steady, offset = _steady_seconds(), time.time() - _steady_seconds()
        if abs(offset - self._offset) > _HOUR:
            logger.warning("The clock has jumped by %.0f s: no video goes because of its age for a day", offset - self._offset)
            self._offset, self._jumped = offset, steady
        if self._jumped is not None:
            return steady - self._jumped > _DAY
        return time.time() - newest < _DAY or steady - self._began > _DAY


def _steady_seconds() -> float:
    """Seconds that no setting of the clock changes and that go on while the machine sleeps, where the system counts them."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class Cleaner:
    """Keeps the data folder within its limits: at its start, every hour, and when it is asked. Safe to use from several threads
    and beside other servers on the same folder. Calls `on_removal` after videos have gone."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        user_presets: UserPresets,
        lock: EngineLock,
        limits: Limits = NO_LIMITS,
        on_removal: Callable[[], None] = lambda: None,
    ):
        self.limits = limits
        self._settings, self._store, self._user_presets, self._lock, self._on_removal = (
            settings,
            store,
            user_presets,
            lock,
            on_removal,
        )
        self._clock = Clock()
        self._cleaning, self._counting, self._closing = threading.Lock(), threading.Lock(), threading.Event()
        self._trimming = threading.Lock()
        self._usage: tuple[float, dict[Part, int]] | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Cleans from now on, in a thread of its own."""
        self._thread = threading.Thread(target=self._run, name="cleaning", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the thread, after the job that it is removing."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join(_CLOSE_SECONDS)

    def clean(self) -> dict[Part, int]:
        """Removes what should go now; returns the bytes that each part lost. Raises: DataFolderError."""
        try:
            with self._cleaning:
                freed = self._clean_all()
        except (OSError, sqlite3.Error) as error:
            raise DataFolderError(
                f"{self._settings.data_dir} could not be cleaned ({error}):",
                "it must be a folder that the server may change",
                "look at its permissions",
            ) from error
        self._usage = None
        found = {part: freed[part] for part in PARTS if freed[part]}
        if found:
            parts = ", ".join(f"{part} {size / 1e6:.1f} MB" for part, size in found.items())
            logger.warning("Cleaning freed %.1f MB: %s", sum(found.values()) / 1e6, parts)
        return found

    def trim_bin(self, owner: str, more: int = 0) -> None:
        """Remove for good what was deleted first while the bin holds too much, or while the owner's videos and so many `more`
        bytes are too many."""
        with self._trimming:
            while self._is_bin_too_full(owner, more) and self._remove_oldest_deleted(owner):
                pass
            while self._store.stored_bytes(None, is_deleted=True) > BIN_BYTES and self._remove_oldest_deleted(None):
                pass

    def check_visitor_quota(self, owner: str, more: int = 0) -> None:
        """Raises: RequestError if the owner's videos with so many more bytes take more than a visitor may keep."""
        self.trim_bin(owner, more)
        kept = self._store.stored_bytes(owner)
        if kept + more > KEPT_BYTES:
            what = f"your videos and what they are made from take {format_gigabytes(kept)} on the server and"
            raise RequestError(what, f"may take {format_gigabytes(KEPT_BYTES)}", "delete some of them")

    def _is_bin_too_full(self, owner: str, more: int) -> bool:
        in_bin = self._store.stored_bytes(owner, is_deleted=True)
        return in_bin > BIN_BYTES_OF_OWNER or self._store.stored_bytes(owner) + more > KEPT_BYTES

    def _remove_oldest_deleted(self, owner: str | None) -> bool:
        """Removes it with its files; whether there was any."""
        job_id = self._store.oldest_deleted(owner)
        if job_id is not None:
            self._remove_files(self._settings.runs_dir / job_id)
            self._store.forget(job_id)
        return job_id is not None

    def usage(self) -> dict[Part, int]:
        """The bytes that each part takes, at most half a minute old."""
        with self._counting:
            if self._usage is None or time.monotonic() - self._usage[0] > _USAGE_SECONDS:
                self._usage = time.monotonic(), self._count()
            return self._usage[1]

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                self.clean()
            except DataFolderError as error:
                if not self._closing.is_set():
                    logger.error("%s", error)
            self._closing.wait(_EVERY_SECONDS)

    def _clean_all(self) -> Counter[Part]:
        settings, freed = self._settings, self._clean_jobs()
        for job_id in self._store.unmeasured_jobs():
            self._store.measure_folder(job_id)
        freed["intermediate"] += self._remove_unqueued_folders()
        freed["comparisons"] += self._clean_comparisons()
        freed["logs"] += sum(_truncate_log(path, MOST_LOG) for path in _paths(settings.logs_dir, "*.log"))
        freed["compiled"] += trim(settings.compiled_dir, MOST_COMPILED)
        uploads = _paths(settings.uploads_dir, "*.uploads")
        freed["uploads"] += sum(trim(folder, MOST_UPLOADED, spare_seconds=_HOUR) for folder in uploads)
        self._lock.remove_dead()
        return freed

    def _count(self) -> dict[Part, int]:
        settings, ended = self._settings, {job.folder.name: job for job in self._store.ended_jobs()}
        usage: Counter[Part] = Counter(dict.fromkeys(PARTS, 0))
        for folder in _paths(settings.runs_dir, "*"):
            size, job = folder_size(folder), ended.get(folder.name)
            if job is not None and job.deleted is not None:
                usage["bin"] += size.total
                continue
            is_cleaned = job is not None and job.is_cleaned
            usage["intermediate"] += 0 if is_cleaned else size.intermediate
            usage["videos"] += size.total if is_cleaned else size.rest
        usage["uploads"] = folder_size(settings.uploads_dir).total
        usage["comparisons"] = folder_size(settings.comparisons_dir).total
        usage["logs"] = folder_size(settings.logs_dir).total
        usage["compiled"] = folder_size(settings.cache_dir).total
        usage["store"] = sum(path.stat().st_size for path in _paths(settings.data_dir, "jobs.sqlite3*"))
        return dict(usage)

    def _clean_jobs(self) -> Counter[Part]:
        jobs, freed = self._store.ended_jobs(), Counter[Part]()
        sizes = {job.id: _size_for_plan(job) for job in jobs}
        unended = sum(folder_size(job.folder).total for job in self._store.unended())
        is_trusted = self._clock.is_trusted(max((job.ended for job in jobs), default=0.0))
        for removal in plan_removals(jobs, sizes, self.limits, time.time(), unended=unended, is_clock_trusted=is_trusted):
            if self._closing.is_set():
                break
            try:
                freed[removal.part] += self._remove(removal)
            except JobNotFound:  # another server has removed it
                continue
        if freed["videos"] or freed["bin"]:
            self._on_removal()
        return freed

    def _remove(self, removal: Removal) -> int:
        """Returns the bytes that are free now."""
        job = self._store.job(removal.job.id)
        if removal.part == "intermediate":
            return self._remove_intermediates(removal.job)
        if job.deleted is None and (job.is_starred or removal.part == "bin"):  # somebody was faster
            return 0
        size = self._remove_files(job.folder)
        if self._is_in_runs_folder(job.folder) and job.folder.exists():
            logger.warning("%s could not be removed", job.folder)
        else:
            self._store.forget(job.id)
        return size

    def _remove_intermediates(self, job: EndedJob) -> int:
        """Removes them and the events that nobody needs; a job without a video keeps its last preview, which the page shows."""
        kept = None if job.has_video else self._store.last_preview(job.id)
        names = [name for name, _ in files_below(job.folder) if is_intermediate(name) and name != kept]
        freed = sum(_remove_file(job.folder / name) for name in names) if self._is_in_runs_folder(job.folder) else 0
        with contextlib.suppress(OSError):  # not empty, or not there
            (job.folder / PREVIEWS).rmdir()
        self._store.mark_cleaned(job.id)
        self._store.measure_folder(job.id)
        return freed

    def _remove_files(self, folder: Path) -> int:
        if not self._is_in_runs_folder(folder):
            return 0
        before = folder_size(folder).total
        shutil.rmtree(folder, ignore_errors=True)
        return before - folder_size(folder).total

    def _remove_unqueued_folders(self) -> int:
        """Removes folders of requests that were never queued, because the server ended meanwhile. A folder with a video stays,
        whatever the store knows of it."""
        known = self._store.job_ids()
        folders = [
            folder for folder in _paths(self._settings.runs_dir, "*") if folder.name not in known and _age_seconds(folder) > _DAY
        ]
        return sum(self._remove_files(folder) for folder in folders if not (folder / "video.mp4").exists())

    def _is_in_runs_folder(self, folder: Path) -> bool:
        """A store that was moved here must not delete files elsewhere."""
        return folder.parent == self._settings.runs_dir

    def _clean_comparisons(self) -> int:
        """Removes comparisons of which no job is left, and the videos of those of which one is missing, or which are old."""
        paths = _paths(self._settings.comparisons_dir, "*")
        comparisons = {one.id: one for one in self._user_presets.comparisons()}
        there, in_library = self._store.job_ids(), self._store.job_ids(is_deleted=False)
        for comparison in comparisons.values():
            if not there.intersection(comparison.jobs):
                self._user_presets.forget_comparison(comparison.id)
        whole = {key for key, one in comparisons.items() if in_library.issuperset(one.jobs)}
        return sum(_remove_file(path) for path in paths if _age_seconds(path) > EXPORT_SECONDS or not _is_export(path, whole))


def _is_export(path: Path, whole: Collection[str]) -> bool:
    """Whether this file is a video of one of these comparisons, silent or with a sound, or is being written."""
    return path.name.partition(".")[0] in whole or (path.name.startswith(".") and _age_seconds(path) < _HOUR)


def _size_for_plan(job: EndedJob) -> Size:
    """As `folder_size`; what a cleaned job has left is no longer intermediate."""
    size = folder_size(job.folder)
    return Size(rest=size.total) if job.is_cleaned else size


def trim(folder: Path, most_bytes: int, spare_seconds: float = 0.0) -> int:
    """Removes files, those first that were used longest ago, until all take at most so many bytes; returns the bytes that are
    free now. Files younger than `spare_seconds` stay. A disk that does not note when files are read counts when they were
    written."""
    found = sorted(((max(status.st_atime, status.st_mtime), name, status.st_size) for name, status in files_below(folder)))
    left, freed = sum(size for _, _, size in found), 0
    for used, name, size in found:
        if left <= most_bytes or time.time() - used < spare_seconds:
            break
        freed += _remove_file(folder / name)
        left -= size
    return freed


def _truncate_log(path: Path, most_bytes: int) -> int:
    """Leaves the last half of a log that is too long; a worker that writes to it goes on at its new end."""
    try:
        size = path.stat().st_size
        if size <= most_bytes:
            return 0
        with path.open("r+b") as file:
            file.seek(-most_bytes // 2, os.SEEK_END)
            end = file.read()
            file.seek(0)
            file.write(end)
            file.truncate()
        return size - len(end)
    except OSError:
        return 0


def _paths(folder: Path, pattern: str) -> list[Path]:
    return list(folder.glob(pattern)) if folder.is_dir() else []


def _age_seconds(path: Path) -> float:
    """The seconds since it was written."""
    try:
        return time.time() - path.stat().st_mtime
    except OSError:
        return 0.0


def _remove_file(path: Path) -> int:
    """Removes a file; returns the bytes that are free now."""
    try:
        size = path.lstat().st_size
        path.unlink()
        return size
    except OSError:
        return 0
