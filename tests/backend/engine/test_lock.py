"""An engine that runs is never treated as dead."""

from backend.engine.lock import EngineLock


def test_the_living_are_told_from_the_dead(tmp_path):
    first, second = EngineLock(tmp_path), EngineLock(tmp_path)
    with second.lock_dead_engine(first.name) as is_dead:
        assert not is_dead
    first.release()
    with second.lock_dead_engine(first.name) as is_dead:
        assert is_dead
    second.release()
    assert list(tmp_path.iterdir()) == []


def test_two_cannot_inherit_at_once(tmp_path):
    first, second = EngineLock(tmp_path), EngineLock(tmp_path)
    with first.lock_dead_engine("gone") as is_dead, second.lock_dead_engine("gone") as is_dead_too:
        assert is_dead and not is_dead_too
    first.release(), second.release()
