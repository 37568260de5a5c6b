"""Our transformer equals diffusers' class, on one device and on every kind of mesh."""

import pytest

from tests.many_devices import asked, told_by

MESHES = ("1,1,1,1,1,1,0", "2,4,1,2,0,1,0", "2,2,2,2,0,0,0", "1,8,1,1,0,0,0", "2,2,1,2,1,1,0")
SPARSE_MESHES = ("1,1,1,1,1,0,1", "1,8,1,2,1,1,1", "2,2,2,2,1,0,1")
MORE_MESHES = ("1,1,1,2,0,0,0", "2,4,1,2,1,0,0", "1,4,2,2,1,1,0", "2,4,1,2,1,1,1", "1,2,1,1,1,1,1")
"""dp, sp, tp, guidance branches, 1 with a picture, 1 with padding for the other tokens next to the video tokens, and 1 with sparse
attention. With two heads, sp=4 and sp=8 exchange in pairs and gather the rest."""


@pytest.fixture(scope="module")
def differences(request) -> dict[str, float]:
    """Return the differences of all meshes that this test run selects."""
    return told_by("tests.backend.models.hunyuan.mesh_run", *asked(request, "mesh"))


@pytest.mark.parametrize("mesh", [*MESHES, *SPARSE_MESHES, *(pytest.param(mesh, marks=pytest.mark.slow) for mesh in MORE_MESHES)])
def test_the_velocity_is_diffusers_own(differences, mesh):
    assert differences[mesh] <= 1e-4  # float32 sums in another order leave about 3e-6
