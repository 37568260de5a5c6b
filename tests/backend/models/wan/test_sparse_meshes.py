"""Transformers with sparse attention: every mesh equals one device, and with all keys the attention is dense.

Sol-Attn equals the published formulas in all layers except the first.
"""

import pytest

from tests.many_devices import asked, told_by

CASES = ("vsa,1,1,1,2,1", "sol,1,1,1,1,0")
MESHES = ("vsa,2,4,1,2,1", "sol,1,4,2,1,0")
MORE_MESHES = ("vsa,1,8,1,2,1", "sol,1,8,1,1,0", "sla,2,2,2,2,0", "sla,1,8,1,1,0", "sla,1,4,2,1,0", "sla-map,1,4,1,1,0")
"""The method, dp, sp, tp, guidance branches, and 1 with a first frame. With two heads, sp=4 exchanges in pairs and gathers the
rest."""


@pytest.fixture(scope="module")
def differences(request) -> dict[str, list[float]]:
    """Return the differences of all cases that this test run selects."""
    return told_by("tests.backend.models.wan.sparse_mesh_run", *asked(request, "case"))


@pytest.mark.parametrize("case", CASES)
def test_sparse_attention_to_all_keys_is_dense(differences, case):
    difference, effect = differences[case]
    assert difference <= 1e-4  # float32 sums in another order
    assert effect > 1e-2, "with fewer keys, the attention differs"


@pytest.mark.parametrize("case", ["sol-one-layer"])
def test_the_first_layer_with_sol_attn_is_dense(differences, case):
    difference, count = differences[case]
    assert difference <= 1e-4  # float32 sums in another order
    assert count == 0


@pytest.mark.parametrize("case", ["sol-plain"])
def test_the_other_layers_with_sol_attn_equal_the_formulas(differences, case):
    difference, other_counts, effect = differences[case]
    assert difference <= 1e-4  # float32 sums in another order
    assert other_counts == 0
    assert effect > 1e-2, "dense attention differs"


@pytest.mark.parametrize("case", [*MESHES, *(pytest.param(mesh, marks=pytest.mark.slow) for mesh in MORE_MESHES)])
def test_a_mesh_equals_one_device(differences, case):
    (difference,) = differences[case]
    assert difference <= 1e-4  # float32 sums in another order
