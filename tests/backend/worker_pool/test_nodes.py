"""Check which machines of a cluster become workers, and the errors without a cluster. `tests/test_cluster.py` uses real Ray."""

import importlib.util
import socket

import pytest

from backend.errors import RequestError, StudioError
from backend.worker_pool import nodes
from backend.worker_pool.nodes import Cluster, Host, find_slots


def node(name: str, *, alive: bool = True, labels: dict | None = None, **resources: float) -> dict:
    """Return a node in the form of `ray.nodes()`."""
    named = {key.replace("_", "-"): count for key, count in resources.items()}
    address = {"NodeManagerHostname": f"host-{name}", "NodeManagerAddress": "10.0.0.1"}
    return {"NodeID": name * 28, "Alive": alive, "Resources": named, "Labels": labels or {}, **address}


def host(name: str, slice_name: str, number: int, topology: str = "2x4", chips: int = 4) -> dict:
    """A host of a TPU slice."""
    labels = {
        nodes.SLICE_LABEL: slice_name,
        nodes.TOPOLOGY_LABEL: topology,
        nodes.HOST_LABEL: str(number),
    }
    head = {"TPU_v6e_8_head": 1} if number == 0 else {}
    return node(name, labels=labels, CPU=8, TPU=chips, **head)


def test_where_nobody_has_a_tpu_every_node_with_cpus_is_a_worker():
    found = find_slots([node("a", CPU=2), node("b", CPU=8, GPU=1), node("c"), node("d", alive=False, CPU=2)])
    assert [(one.name, one.hosts) for one in found] == [
        ("node-aaaaaaaa", (Host(node="a" * 28, address="10.0.0.1", cpus=2),)),
        ("node-bbbbbbbb", (Host(node="b" * 28, address="10.0.0.1", cpus=8, gpus=1),)),
    ]


def test_where_somebody_has_a_tpu_the_others_are_no_workers():
    [found] = find_slots([node("a", CPU=2), host("b", "s", 0, "2x2")])
    assert found.hosts == (Host(node="b" * 28, address="10.0.0.1", resources={"TPU": 4, "TPU-v6e-8-head": 1}),)


def test_single_hosts_of_one_name_are_slices_of_their_own():
    found = find_slots([host("a", "pool", 0, "2x4", chips=8), host("b", "pool", 0, "2x4", chips=8)])
    assert [one.nodes for one in found] == [{"a" * 28}, {"b" * 28}]


def test_a_slice_of_several_hosts_is_one_slot_once_all_are_there():
    assert find_slots([host("b", "s", 1)]) == []
    [found] = find_slots([host("b", "s", 1), host("a", "s", 0), host("c", "other", 1)])
    assert [one.node for one in found.hosts] == ["a" * 28, "b" * 28] and found.key == "s" and found.machine == "s, host-a"
    assert [one.resources for one in found.hosts] == [{"TPU": 4, "TPU-v6e-8-head": 1}, {"TPU": 4}]


def test_a_tpu_whose_slice_is_not_known_is_one():
    [found] = find_slots([node("a", TPU=4)])
    assert found.nodes == {"a" * 28} and found.machine == "host-a"


@pytest.mark.parametrize(
    "address", ["", "local", "ray://head:10001", "head", "head:", "http://x:1", "a b:1", "auto\n", "x:123456"]
)
def test_what_is_no_address_is_refused(address):
    with pytest.raises(RequestError, match="must be HOST:PORT of the cluster's head, or auto"):
        Cluster(address)


def test_without_ray_it_is_said_what_to_install(monkeypatch):
    monkeypatch.setattr(nodes, "find_spec", lambda name: None)
    with pytest.raises(StudioError, match="pip install -r requirements-cluster.txt") as caught:
        Cluster("head:6379")
    assert not isinstance(caught.value, RequestError)


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is an extra")
def test_where_nobody_answers_it_is_said_at_once():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with pytest.raises(StudioError, match=f"the cluster at 127.0.0.1:{port} cannot be joined .*ray start --address"):
        Cluster(f"127.0.0.1:{port}")
