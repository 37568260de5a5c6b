"""Videos generated block by block equal references that keep all frames, on one device and on several."""

import pytest

from tests.many_devices import asked, told_by

CASES = {
    "1,1,3,21,0,21,7": 1e-4,  # nothing is dropped: the reference is diffusers' whole transformer with a mask
    "1,1,1,8,0,8,8": 1e-4,
    "1,1,3,6,0,21,5": 1e-5,
    "1,1,3,12,3,21,6": 1e-5,
    "1,1,3,12,3,13,7": 1e-5,  # the sink is rotated on from the fifth block
    "1,1,1,4,1,6,9": 1e-5,
    "1,1,3,4,0,21,4": 1e-5,  # the window is no multiple of a block
    "8,1,3,12,3,13,7": 1e-5,
    "2,2,3,6,0,21,4": 1e-5,
    "2,1,3,12,3,13,8,6": 1e-5,  # a new prompt recomputes the past; the sink keeps its values but moves
}
"""Keys: sp, tp, frames per block, per window, of the sink and in training, the number of blocks, and optionally the block from
which a new prompt recomputes the past. Values: the allowed difference of velocities."""
SLOW = ("1,1,1,8,0,8,8", "1,1,3,6,0,21,5", "1,1,3,12,3,21,6", "1,1,1,4,1,6,9")
"""Cases whose features occur in other cases too: a rolling window, a sink, a rotated sink, one device or more."""


@pytest.fixture(scope="module")
def differences(request) -> dict[str, float]:
    """Return the differences of all cases that this test run selects."""
    return told_by("tests.backend.models.causal_wan.rollout_run", *asked(request, "case"))


@pytest.mark.parametrize("case", [pytest.param(case, marks=pytest.mark.slow) if case in SLOW else case for case in CASES])
def test_each_block_sees_what_it_should(differences, case):
    assert differences[case] <= CASES[case]
