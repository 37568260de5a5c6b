"""In which order waiting jobs run. Pure: knows neither threads nor files.

Everybody gets a turn: the first waiting job of each owner comes before anybody's second, and an owner whose job runs
has had a turn. Jobs whose work was interrupted go on before all others, and jobs that wait for a person come last. Within a
turn, jobs of one model and one compiled shape are together, those of the running shapes first, then those of cached models.
Among an owner's own jobs the owner decides: `place` gives the order, and a new job is put after the last one of its shape.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from backend.engine.keys import has_key
from backend.errors import QueueFull
from backend.schemas.shape import Shape


@dataclass(frozen=True, kw_only=True)
class QueueEntry:
    """A job in line, of this `preset`. `place` orders an owner's jobs, smaller first; `address` is where the request came from,
    if that counts; `has_started`: its work was interrupted; `is_held`: it waits until a person lets it go on; `needed`: bytes of
    the disk."""

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
    """How many jobs may wait: of one owner, from one `address` (an empty one is not counted), and in all. Where visitors have no
    address of their own, they have `without_key` places together, so that programs with a key find the others."""

    of_owner: int
    of_address: int
    in_all: int
    address: str = ""
    without_key: int | None = None

    def check(self, waiting: Sequence[QueueEntry], owner: str, more: int = 1) -> None:
        """Raises: QueueFull if there is no room for so many more of this owner."""
        own = sum(entry.owner == owner for entry in waiting)
        near = sum(entry.address == self.address for entry in waiting) if self.address else 0
        these = f"{more} more do not fit: " if more > 1 else ""
        if own + more > self.of_owner:
            fix = "wait for one of them, or take one out of the queue" if own else "leave some out"
            raise QueueFull(f"{these}you have {own} videos in line and", f"may have {self.of_owner}", fix)
        if near + more > self.of_address:
            fix = "wait for one of them"
            raise QueueFull(f"{these}{near} videos from your address are in line and", f"there may be {self.of_address}", fix)
        if len(waiting) + more > self.in_all:
            fix = "try again when some of them are done"
            raise QueueFull(f"{these}{len(waiting)} videos are in line and", f"there may be {self.in_all} in all", fix)
        strangers = sum(not (entry.address or has_key(entry.owner)) for entry in waiting)
        if self.without_key is not None and not (self.address or has_key(owner)) and strangers + more > self.without_key:
            fix = "try again when some of them are done, or use a program's key"
            raise QueueFull(f"{these}{strangers} videos of visitors are in line and", f"there may be {self.without_key}", fix)


def sort_queue(waiting: Sequence[QueueEntry], running: Sequence[QueueEntry], cached: Collection[str] = ()) -> list[QueueEntry]:
    """The waiting jobs in the order in which they will run, as far as is known now. `cached` are the checkpoints whose models a
    worker keeps."""
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
    """The place for an owner's new job: after the owner's last job of this shape, else at the end."""
    own = sorted((entry for entry in waiting if entry.owner == owner), key=lambda entry: entry.place)
    same = [index for index, entry in enumerate(own) if entry.shape == shape]
    if same and same[-1] + 1 < len(own):
        return _midpoint(own[same[-1]].place, own[same[-1] + 1].place)
    return max(now, own[-1].place + 1.0) if own else now


def place_at_index(waiting: Sequence[QueueEntry], job_id: str, index: int) -> float:
    """The place that makes this job number `index` (from 0) among its owner's waiting jobs."""
    entry = next(entry for entry in waiting if entry.job_id == job_id)
    others = sorted(other.place for other in waiting if other.owner == entry.owner and other.job_id != job_id)
    if not others:
        return entry.place
    index = min(max(index, 0), len(others))
    if index == 0:
        return others[0] - 1.0
    return others[-1] + 1.0 if index == len(others) else _midpoint(others[index - 1], others[index])


def _group_by_model(entries: list[QueueEntry], shapes: set[Shape], cached: Collection[str]) -> list[QueueEntry]:
    """Those of these shapes first, then those of the same models, then of cached ones; one model's together, and one shape's."""
    backwards = list(reversed(list(enumerate(entries))))
    first_of_shape = {entry.shape: number for number, entry in backwards}
    first_of_model = {entry.shape.model: number for number, entry in backwards}
    models = {shape.model for shape in shapes}

    def place(entry: QueueEntry) -> tuple[bool, bool, bool, int, int]:
        model = entry.shape.model
        near = entry.shape not in shapes, model not in models, model not in cached
        return *near, first_of_model[model], first_of_shape[entry.shape]

    return sorted(entries, key=place)


def _midpoint(low: float, high: float) -> float:
    return (low + high) / 2
