"""Sort waiting jobs. Pure: uses neither threads nor files.

Owners take turns: the first waiting job of each owner runs before any owner's second job. A running job counts as its
owner's turn. Interrupted jobs run before all others, and held jobs are last. Within a turn, jobs are grouped by model and shape:
first the shapes of running jobs, then the models of running jobs, then cached models. `place` orders the jobs of one owner. A
new job's place is after the owner's last job of the same shape.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from backend.engine.keys import has_key
from backend.errors import QueueFull
from backend.schemas.shape import Shape


@dataclass(frozen=True, kw_only=True)
class QueueEntry:
    """A waiting job. `place` orders the jobs of one owner: the job with the smallest `place` runs first.

    `address` is the sender's address, "" if addresses are not limited. `has_started` is True if the job was interrupted.
    `is_held` is True if the job waits until a visitor resumes it. `needed` is the disk space in bytes that the job needs.
    """

    job_id: str
    owner: str
    shape: Shape
    place: float
    preset: str = ""
    address: str = ""
    has_started: bool = False
    is_held: bool = False
    needed: int = 0


@dataclass(frozen=True, kw_only=True)
class QueueLimits:
    """The most jobs that may wait: per owner, per address, and in total.

    `address` is the requester's network address, or "" if it is not known. Without an address, no limit per address applies.
    Instead, `without_key` limits the jobs of all visitors without an address together. The other places are for programs with a
    key.
    """

    of_owner: int
    of_address: int
    in_all: int
    address: str = ""
    without_key: int | None = None

    def check(self, waiting: Sequence[QueueEntry], owner: str, more: int = 1) -> None:
        """Check that `more` jobs of this owner may wait. Raises: QueueFull."""
        own = sum(entry.owner == owner for entry in waiting)
        near = sum(entry.address == self.address for entry in waiting) if self.address else 0
        these = f"{more} more do not fit: " if more > 1 else ""
        if own + more > self.of_owner:
            fix = "wait for a video to finish, or remove one from the queue" if own else "leave some out"
            raise QueueFull(f"{these}you have {_queued_videos(own)} and", f"may have {self.of_owner}", fix)
        if near + more > self.of_address:
            fix = "wait for a video to finish"
            raise QueueFull(f"{these}your address has {_queued_videos(near)} and", f"may have {self.of_address}", fix)
        if len(waiting) + more > self.in_all:
            fix = "try again when some videos are finished"
            raise QueueFull(f"{these}the queue has {_queued_videos(len(waiting))} and", f"may have {self.in_all}", fix)
        visitors = sum(not (entry.address or has_key(entry.owner)) for entry in waiting)
        if self.without_key is not None and not (self.address or has_key(owner)) and visitors + more > self.without_key:
            fix = "try again when some videos are finished, or use a program's key"
            raise QueueFull(
                f"{these}visitors without a key have {_queued_videos(visitors)} and", f"may have {self.without_key}", fix
            )


def sort_queue(waiting: Sequence[QueueEntry], running: Sequence[QueueEntry], cached: Collection[str] = ()) -> list[QueueEntry]:
    """Return the waiting jobs in the order in which they will run. `cached` are the checkpoints whose models are in memory."""
    by_place = sorted(waiting, key=lambda entry: entry.place)
    held = [entry for entry in by_place if entry.is_held]
    begun = [entry for entry in by_place if entry.has_started and not entry.is_held]
    turns: dict[int, list[QueueEntry]] = defaultdict(list)
    taken = Counter(entry.owner for entry in [*running, *begun])
    for entry in (entry for entry in by_place if not entry.has_started and not entry.is_held):
        turns[taken[entry.owner]].append(entry)
        taken[entry.owner] += 1
    planned: list[QueueEntry] = []
    shapes = {entry.shape for entry in [*running, *begun]}
    for number in sorted(turns):
        planned += _group_by_model(turns[number], shapes, cached)
        shapes = {planned[-1].shape}
    return [*begun, *planned, *held]


def place_for_new_job(waiting: Sequence[QueueEntry], owner: str, shape: Shape, now: float) -> float:
    """Return the place of an owner's new job: after the owner's last job of this shape, else at the end."""
    own = sorted((entry for entry in waiting if entry.owner == owner), key=lambda entry: entry.place)
    same = [index for index, entry in enumerate(own) if entry.shape == shape]
    if same and same[-1] + 1 < len(own):
        return _midpoint(own[same[-1]].place, own[same[-1] + 1].place)
    return max(now, own[-1].place + 1.0) if own else now


def place_at_index(waiting: Sequence[QueueEntry], job_id: str, index: int) -> float:
    """Return the place that moves this job to position `index` (from 0) among its owner's waiting jobs."""
    entry = next(entry for entry in waiting if entry.job_id == job_id)
    others = sorted(other.place for other in waiting if other.owner == entry.owner and other.job_id != job_id)
    if not others:
        return entry.place
    index = min(max(index, 0), len(others))
    if index == 0:
        return others[0] - 1.0
    return others[-1] + 1.0 if index == len(others) else _midpoint(others[index - 1], others[index])


def _group_by_model(entries: list[QueueEntry], shapes: set[Shape], cached: Collection[str]) -> list[QueueEntry]:
    """Sort entries by shape and model: first `shapes`, then the models of these shapes, then cached models, then others.

    Entries with equal models or equal shapes are adjacent.
    """
    backwards = list(reversed(list(enumerate(entries))))
    first_of_shape = {entry.shape: number for number, entry in backwards}
    first_of_model = {entry.shape.model: number for number, entry in backwards}
    models = {shape.model for shape in shapes}

    def place(entry: QueueEntry) -> tuple[bool, bool, bool, int, int]:
        model = entry.shape.model
        near = entry.shape not in shapes, model not in models, model not in cached
        return *near, first_of_model[model], first_of_shape[entry.shape]

    return sorted(entries, key=place)


def _queued_videos(count: int) -> str:
    return f"{count} queued video" if count == 1 else f"{count} queued videos"


def _midpoint(low: float, high: float) -> float:
    return (low + high) / 2
