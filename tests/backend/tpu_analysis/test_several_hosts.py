"""Slices of several hosts can be described without the hosts, and get a mesh that uses all their chips."""

import json
import subprocess
import sys

import pytest

from backend.runtime.mesh import MeshPlan, plan_mesh
from backend.settings import PROJECT_FOLDER, tpu_compiler_environment
from tests.many_devices import without_quick

DESCRIBE = """
import json
from backend.runtime.devices import described_devices
devices = {name: described_devices(name) for name in ("v6e:4x8", "v5p:4x4x4")}
print(json.dumps({name: [len(found), len({one.process_index for one in found})] for name, found in devices.items()}))
"""


@pytest.mark.tpu_compiler
def test_slices_of_several_hosts_are_described_with_all_their_chips():
    pytest.importorskip("libtpu")
    environment = tpu_compiler_environment(without_quick())
    done = subprocess.run(
        [sys.executable, "-c", DESCRIBE], cwd=PROJECT_FOLDER, env=environment, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout.splitlines()[-1]) == {"v6e:4x8": [32, 8], "v5p:4x4x4": [64, 16]}


@pytest.mark.parametrize(("chips", "mesh"), [(32, (2, 16)), (64, (2, 32))])
def test_the_guidance_branches_lie_apart_and_the_tokens_over_the_rest(chips, mesh):
    assert plan_mesh(chips, heads=40, is_guided=True) == MeshPlan(dp=mesh[0], sp=mesh[1])
