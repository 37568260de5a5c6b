"""Check the order of waiting jobs: owners take turns, equal shapes run together, and each owner's order stays."""

from dataclasses import replace

import pytest

from backend.engine.scheduling import QueueEntry, QueueLimits, place_at_index, place_for_new_job, sort_queue
from backend.errors import QueueFull
from backend.schemas.shape import Shape


def shape(width: int = 96) -> Shape:
    return Shape(model="m", task="t2v", width=width, height=96, num_frames=17, is_guided=True)


def entry(job_id: str, place: float, owner: str = "ann", width: int = 96) -> QueueEntry:
    return QueueEntry(job_id=job_id, owner=owner, shape=shape(width), place=place)


def ids(waiting) -> list[str]:
    return [entry.job_id for entry in waiting]


def test_one_owners_jobs_run_in_their_places():
    assert ids(sort_queue([entry("b", 2), entry("a", 1), entry("c", 3)], [])) == ["a", "b", "c"]


def test_nobody_waits_behind_all_of_anothers_jobs():
    anns = [entry(f"a{number}", number) for number in range(3)]
    assert ids(sort_queue([*anns, entry("b0", 10, "bob")], [])) == ["a0", "b0", "a1", "a2"]


def test_whoever_runs_has_had_a_turn():
    planned = sort_queue([entry("a1", 1), entry("b0", 2, "bob")], [entry("a0", 0)])
    assert ids(planned) == ["b0", "a1"]


def test_within_a_turn_one_shape_stands_together_and_the_running_one_comes_first():
    waiting = [entry("b", 1, "bob", 128), entry("c", 2, "cat", 96), entry("d", 3, "dan", 128)]
    assert ids(sort_queue(waiting, [entry("a", 0, width=96)])) == ["c", "b", "d"]


def test_a_new_job_joins_the_last_of_its_shape():
    waiting = [entry("a", 1, width=96), entry("b", 2, width=128), entry("c", 3, width=128)]
    assert 1 < place_for_new_job(waiting, "ann", shape(96), now=9) < 2
    assert place_for_new_job(waiting, "ann", shape(128), now=9) == 9
    assert place_for_new_job(waiting, "bob", shape(96), now=9) == 9
    assert place_for_new_job([entry("a", 50)], "ann", shape(128), now=9) > 50


def test_a_job_moves_among_its_owners_jobs():
    waiting = [entry("a", 1), entry("b", 2), entry("c", 3), entry("x", 1.5, "bob")]
    assert place_at_index(waiting, "c", 0) < 1
    assert 1 < place_at_index(waiting, "c", 1) < 2
    assert place_at_index(waiting, "a", 99) > 3
    assert place_at_index(waiting, "x", 5) == 1.5


def test_within_a_turn_one_model_stands_together_and_kept_ones_come_first():
    """The running model's other shapes come first, then the cached model, then models that must be loaded."""

    def entry_of(job_id: str, owner: str, model: str, width: int = 96) -> QueueEntry:
        waiting = entry(job_id, float(ord(owner[0])), owner, width)
        return replace(waiting, shape=replace(waiting.shape, model=model))

    waiting = [
        entry_of("b", "bob", "cold"),
        entry_of("c", "cat", "kept"),
        entry_of("d", "dan", "m", 128),
        entry_of("e", "eve", "cold", 128),
    ]
    running = [entry("a", 0)]
    assert ids(sort_queue(waiting, running, {"kept", "m"})) == ["d", "c", "b", "e"]
    assert ids(sort_queue(waiting, running)) == ["d", "b", "e", "c"]


def test_everybody_whose_job_runs_has_had_a_turn():
    waiting = [entry("a1", 1), entry("b1", 2, "bob"), entry("c0", 3, "cat")]
    assert ids(sort_queue(waiting, [entry("a0", 0), entry("b0", 0, "bob")])) == ["c0", "a1", "b1"]


def test_the_shapes_of_all_that_run_come_first():
    waiting = [entry("b", 1, "bob", 160), entry("c", 2, "cat", 128), entry("d", 3, "dan", 96)]
    assert ids(sort_queue(waiting, [entry("a", 0, width=96), entry("e", 0, "eve", 128)])) == ["c", "d", "b"]


def test_there_is_room_by_owner_by_address_and_in_all():
    def line(*entries: tuple[str, str]) -> list[QueueEntry]:
        return [
            QueueEntry(job_id=str(number), owner=owner, shape=shape(), place=float(number), address=address)
            for number, (owner, address) in enumerate(entries)
        ]

    room = QueueLimits(of_owner=2, of_address=3, in_all=5, address="203.0.113.1")
    room.check(line(("ann", "203.0.113.1"), ("bob", "203.0.113.1"), ("eve", "203.0.113.2")), "ann")
    for waiting, words in (
        (line(("ann", ""), ("ann", "")), "you have 2 queued videos"),
        (line(*[(f"cookie {number}", "203.0.113.1") for number in range(3)]), "your address has 3 queued videos"),
        (line(*[(f"cookie {number}", f"203.0.113.{number + 5}") for number in range(5)]), "the queue has 5 queued videos"),
    ):
        with pytest.raises(QueueFull, match=words):
            room.check(waiting, "ann")
    with pytest.raises(QueueFull, match="2 more do not fit: you have 1 queued video and may have 2"):
        room.check(line(("ann", "")), "ann", 2)
    QueueLimits(of_owner=2, of_address=3, in_all=5).check(line(*[(f"cookie {number}", "") for number in range(4)]), "ann")


def test_visitors_without_an_address_leave_places_to_programs_with_keys():
    waiting = [
        QueueEntry(job_id=str(number), owner=f"visitor-{number}", shape=shape(), place=float(number)) for number in range(60)
    ]
    room = QueueLimits(of_owner=20, of_address=40, in_all=100, without_key=60)
    room.check(waiting[:59], "visitor-new")
    with pytest.raises(QueueFull, match="visitors without a key have 60 queued videos"):
        room.check(waiting, "visitor-new")
    room.check(waiting, "key-of-a-program")
