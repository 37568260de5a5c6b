"""The table of plans has the mesh and the copies. Layouts read the table, and each plan is at least as fast as its neighbours."""

import dataclasses
import json
from types import SimpleNamespace

import jax.numpy as jnp
import pytest

from backend.chips import CHIPS
from backend.models import plans
from backend.models.model import ModelPlan
from backend.models.plans import MOST_MEMORY, Subject, TriedPlan, TunedPlan, best_plan, describe_subject, read_table, write_table
from backend.runtime.mesh import MeshPlan
from backend.settings import PROJECT_FOLDER

TABLE = PROJECT_FOLDER / "backend/models/plans.json"
LINES = [(line["preset"], line["chip"], line["devices"]) for line in json.loads(TABLE.read_text())]
GIB = 2**30


def subject() -> Subject:
    return Subject(chip="v6e", devices=8, transformers=1, layers=40, layer_bytes=100)


def tried(copies: int, seconds: float | None, gib: float, mesh: MeshPlan | None = None) -> TriedPlan:
    return TriedPlan(mesh=mesh or MeshPlan(dp=2, sp=4), copies=copies, seconds=seconds, hbm_bytes=int(gib * GIB))


@pytest.fixture
def table(tmp_path, monkeypatch):
    monkeypatch.setattr(plans, "TABLE", tmp_path / "plans.json")
    read_table.cache_clear()
    yield lambda *lines: write_table(list(lines))
    read_table.cache_clear()


@pytest.mark.parametrize("index", range(len(LINES)), ids=["{}-{}x{}".format(*line) for line in LINES])
def test_no_plan_in_use_is_slower_than_its_neighbours(index):
    line = read_table()[index]
    best = line.best
    assert best is not None
    near = [one for one in line.tried if one.mesh == best.mesh and abs(one.copies - best.copies) == 1]
    assert near  # the search went to both sides, or to the end of the matrices
    room = MOST_MEMORY * CHIPS[line.subject.chip].hbm_bytes
    assert all(one.seconds is None or one.hbm_bytes > room or one.seconds >= best.seconds for one in near)


def test_the_fastest_that_leaves_room_is_best(table):
    table(
        TunedPlan(
            subject=subject(), preset="x", tried=(tried(0, 3.0, 10), tried(2, 2.5, 20), tried(4, 2.0, 25), tried(6, None, 40))
        )
    )
    assert best_plan(subject()) == tried(2, 2.5, 20)
    table(TunedPlan(subject=subject(), preset="x", tried=(tried(6, 2.5, 20), tried(5, 2.5, 18), tried(7, 2.5, 19))))
    assert best_plan(subject()) == tried(5, 2.5, 18)
    assert best_plan(dataclasses.replace(subject(), devices=4)) is None and best_plan(None) is None


def test_what_is_written_is_read_again(table):
    line = TunedPlan(subject=subject(), preset="x", tried=(tried(1, None, 40), tried(0, 1.5, 4, MeshPlan(sp=4, tp=2))))
    table(line)
    [again] = read_table()
    assert again.subject == line.subject and set(again.tried) == set(line.tried)


SIZES = {name: 2**20 for name in "abcdefgh"}


@dataclasses.dataclass(frozen=True)
class Placed:
    """The arguments of a layout over real devices."""

    mesh: MeshPlan
    copied: frozenset[str]
    copies_on_demand: bool
    quantize: str = "off"

    def regroup(self, mesh: MeshPlan) -> "Placed":
        return dataclasses.replace(self, mesh=mesh)


def planned(monkeypatch, **asked: int) -> tuple[MeshPlan, frozenset[str]]:
    """Return the mesh of guided steps and the copies, for a model of `subject` on eight v6e chips."""
    monkeypatch.setattr(
        plans.Layout,
        "create",
        staticmethod(lambda mesh, devices, *copies, runtime, **when: Placed(mesh, *copies, **when)),
    )
    monkeypatch.setattr(plans, "describe_subject", lambda *facts: subject())
    plan = ModelPlan(
        spec=SimpleNamespace(num_experts=1),
        configs={"transformer": {"num_attention_heads": 40, "num_layers": 40}},
        folder=None,
        devices=[SimpleNamespace(device_kind="TPU v6e")] * 8,
        mesh=asked,
        stages=frozenset(),
        dtype=jnp.dtype("bfloat16"),
        compiler=None,
        num_copies=asked.pop("num_copies", None),
    )
    guided, unguided = plans.plan_layouts(plan, lambda config, itemsize: SIZES)
    assert not guided.copies_on_demand
    assert unguided.copied == guided.copied and unguided.mesh.tp == guided.mesh.tp and unguided.mesh.dp == 1
    return guided.mesh, guided.copied


def test_a_model_lies_as_the_table_says_unless_another_mesh_is_asked_for(table, monkeypatch):
    table(TunedPlan(subject=subject(), preset="x", tried=(tried(3, 1.0, 10, MeshPlan(sp=4, tp=2)),)))
    assert planned(monkeypatch) == (MeshPlan(sp=4, tp=2), frozenset("abc"))
    # the rule: memory suffices for all copies
    assert planned(monkeypatch, dp=2) == (MeshPlan(dp=2, sp=4), frozenset("abcdefgh"))
    assert planned(monkeypatch, num_copies=5) == (MeshPlan(sp=4, tp=2), frozenset("abcde"))


def test_without_a_line_in_the_table_the_rule_says_it(table, monkeypatch):
    table()
    assert planned(monkeypatch) == (MeshPlan(dp=2, sp=4), frozenset("abcdefgh"))


def test_a_subject_is_a_chip_that_we_know():
    subject = describe_subject("TPU v6 lite", 8, SIZES, 40, 2)
    assert subject == Subject(chip="v6e", devices=8, transformers=2, layers=40, layer_bytes=8 * 2**20)
    assert describe_subject("cpu", 8, SIZES, 40, 2) is None
