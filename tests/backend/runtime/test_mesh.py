"""Eight virtual devices give the result of one device: guidance, tokens and columns split, alone and together."""

import pytest

from backend.errors import RequestError
from backend.runtime.mesh import MeshPlan, legal_plans, plan_copies, plan_mesh
from tests.many_devices import asked, told_by

MESHES = ("1,8,1,0", "2,4,1,1,6", "2,2,2,1,8,1", "2,2,2,1,3 int8")
MORE_MESHES = ("2,1,1,1", "2,2,2,1", "1,1,3,0", "2,4,1,1", "1,2,1,0", "1,4,1,1", "1,1,2,1", "2,2,1,1", "1,2,2,0,8", "1,8,1,0 fp8")
"""dp, sp, tp, 1 with guidance, the number of a block's copied matrices, whether the copies exist only during steps, and the number
format of the matrices after a space. With six heads, sp=4 and sp=8 exchange in pairs and gather the rest."""


@pytest.fixture(scope="module")
def results(request) -> dict[str, dict[str, float]]:
    """Return the results of all meshes that this test run selects."""
    return told_by("tests.backend.runtime.mesh_run", *asked(request, "mesh"))


@pytest.mark.parametrize("mesh", [*MESHES, *(pytest.param(mesh, marks=pytest.mark.slow) for mesh in MORE_MESHES)])
def test_a_mesh_gives_the_one_device_result(results, mesh):
    # relative, float32: sums in another order, through three steps and two layers. Then a value near the middle of two 8-bit
    # values can round the other way. This changes one of 192 channels by 1/127 or 1/16, and a sum by up to 0.5 %.
    is_quantized = " " in mesh
    assert results[mesh]["latents"] <= (2e-2 if is_quantized else 2e-3)
    assert results[mesh]["psnr"] >= (40 if is_quantized else 60)


def test_copies_take_their_share_of_a_chip_and_no_more():
    names = tuple("abcdefgh")  # in the order of their worth as copies
    sizes = dict.fromkeys(names, 2**20)
    plan = MeshPlan(dp=2, sp=4)
    assert plan_copies(sizes, 40, plan, 320 * 2**20) == frozenset(names[:3])  # 3/8 of 320 MiB: three times 40
    # the other expert's weights take 40
    assert plan_copies(sizes, 40, plan, 320 * 2**20, num_transformers=2) == frozenset(names[:2])
    assert plan_copies(sizes, 40, MeshPlan(dp=2, sp=2, tp=2), 320 * 2**20) == frozenset(names[:6])  # half a matrix each
    assert plan_copies(sizes, 40, plan, None) == plan_copies(sizes, 40, MeshPlan(), 2**40) == frozenset()


def test_the_plan_uses_every_device_and_parts_the_guidance_branches():
    assert plan_mesh(8, heads=40, is_guided=True) == MeshPlan(dp=2, sp=4)
    assert plan_mesh(8, heads=40, is_guided=False) == MeshPlan(sp=8)
    assert plan_mesh(1, heads=12, is_guided=True) == MeshPlan()
    assert plan_mesh(8, heads=40, is_guided=True, fixed={"tp": 2}) == MeshPlan(dp=2, sp=2, tp=2)


@pytest.mark.parametrize(
    ("asked", "is_guided"), [({"tp": 3}, True), ({"dp": 2}, False), ({"sp": 3}, True), ({"dp": 2, "sp": 8}, True)]
)
def test_an_impossible_mesh_is_refused_with_the_legal_choices(asked, is_guided):
    with pytest.raises(RequestError, match="dp=1 sp=8 tp=1"):
        plan_mesh(8, heads=40, is_guided=is_guided, fixed=asked)


def test_every_legal_plan_uses_all_devices():
    for plan in legal_plans(16, heads=40, is_guided=True):
        assert plan.num_devices == 16 and 40 % plan.tp == 0
