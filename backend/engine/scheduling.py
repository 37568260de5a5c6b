"""Sort waiting jobs. Pure: uses neither threads nor files.

Owners take turns: the first waiting job of each owner runs before any owner's second job. A running job counts as its
owner's turn. Interrupted jobs run before all others, and held jobs are last. Within a turn, jobs are grouped by model and shape.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from backend.engine.keys import has_key
from backend.errors import QueueFull
from backend.schemas.shape import Shape


@dataclass(frozen=True, kw_only=True)
class QueueEntry:
    """A waiting job. The smallest `place` of an owner runs first. `needed` is the disk space in bytes that the job needs.

    `address` is the sender's address, "" if not limited. `has_started` is True if the job was interrupted.
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

    Without an `address` (""), no limit per address applies. Instead, `without_key` limits the jobs of all visitors without an
    address together. The other places are for programs with a key.
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
        own_fix = "wait for a video to finish, or remove one from the queue" if own else "leave some out"
        limits: list[tuple[str, int, int | None, str]] = [
            ("you have", own, self.of_owner, own_fix),
            ("your address has", near, self.of_address, "wait for a video to finish"),
            ("the queue has", len(waiting), self.in_all, "try again when some videos are finished"),
        ]
        if not (self.address or has_key(owner)):
            visitors = sum(not (entry.address or has_key(entry.owner)) for entry in waiting)
            fix = "try again when some videos are finished, or use a program's key"
            limits.append(("visitors without a key have", visitors, self.without_key, fix))
        for who, count, most, fix in limits:
            if most is not None and count + more > most:
                these = f"{more} more do not fit: " if more > 1 else ""
                videos = f"{count} queued video" if count == 1 else f"{count} queued videos"
                raise QueueFull(f"{these}{who} {videos} and", f"may have {most}", fix)


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
        entries = turns[number]
        backwards = list(reversed(list(enumerate(entries))))
        first_of_shape = {entry.shape: index for index, entry in backwards}
        first_of_model = {entry.shape.model: index for index, entry in backwards}
        models = {shape.model for shape in shapes}
        # First `shapes`, then the models of these shapes, then cached models. Equal models and equal shapes are adjacent.
        planned += sorted(
            entries,
            key=lambda entry: (
                entry.shape not in shapes,
                entry.shape.model not in models,
                entry.shape.model not in cached,
                first_of_model[entry.shape.model],
                first_of_shape[entry.shape],
            ),
        )
        shapes = {planned[-1].shape}
    return [*begun, *planned, *held]


def place_for_new_job(waiting: Sequence[QueueEntry], owner: str, shape: Shape, now: float) -> float:
    """Return the place of an owner's new job: after the owner's last job of this shape, else at the end."""
    own = sorted((entry for entry in waiting if entry.owner == owner), key=lambda entry: entry.place)
    same = [index for index, entry in enumerate(own) if entry.shape == shape]
    if same and same[-1] + 1 < len(own):
        return (own[same[-1]].place + own[same[-1] + 1].place) / 2
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
    return others[-1] + 1.0 if index == len(others) else (others[index - 1] + others[index]) / 2
