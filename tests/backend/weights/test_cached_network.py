"""A network moves to the host's memory and back, bit for bit, and leaves nothing behind."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from backend.weights import cached_network
from backend.weights.cached_network import CachedNetwork, Content


def on_one_device() -> NamedSharding:
    return NamedSharding(Mesh(np.array(jax.devices()[:1]), ("x",)), P())


def no_content() -> Content:
    return Content(tensors=(), described=None, arranged=None, fingerprints=())


@pytest.fixture(autouse=True)
def as_on_a_chip(monkeypatch):
    """Treat arrays of CPU devices as arrays of a chip. They are in the host's memory, and would not move."""
    monkeypatch.setattr(cached_network, "is_host", lambda leaf: False)


def array(count: int, place: NamedSharding | None = None) -> jax.Array:
    return jax.device_put(jnp.arange(count, dtype=jnp.bfloat16), place or on_one_device())


def places(network: CachedNetwork) -> set[str]:
    return {leaf.sharding.memory_kind for leaf in jax.tree.leaves(network.weights)}


@pytest.mark.parametrize("at_once", [1, 300, 1 << 30])
def test_it_goes_and_comes_back(monkeypatch, at_once):
    monkeypatch.setattr(cached_network, "COPIED_AT_ONCE", at_once)
    weights = {"a": array(100), "b": {"c": array(50), "d": array(7)}}
    before, gone = jax.tree.map(np.asarray, weights), weights["a"]
    network = CachedNetwork(no_content(), weights)
    assert network.num_bytes == network.bytes_per_device == 2 * 157
    network.move(to_host=True)
    assert network.is_on_host and places(network) == {"pinned_host"} and gone.is_deleted()
    network.move(to_host=False)
    assert not network.is_on_host and places(network) == {"device"}
    jax.tree.map(np.testing.assert_array_equal, before, jax.tree.map(np.asarray, network.weights))
    assert all(leaf.sharding == on_one_device() for leaf in jax.tree.leaves(network.weights))


def test_what_is_tied_stays_one_array():
    shared = array(100)
    network = CachedNetwork(no_content(), {"a": shared, "b": shared})
    assert network.num_bytes == 200
    network.move(to_host=True)
    assert network.weights["a"] is network.weights["b"]
    network.move(to_host=False)
    assert network.weights["a"] is network.weights["b"]


def test_what_rests_on_the_host_anyway_stays_there():
    network = CachedNetwork(
        no_content(), {"describe_offloaded": array(10, on_one_device().with_memory_kind("pinned_host")), "other": array(10)}
    )
    assert (network.num_bytes, network.bytes_per_device) == (40, 20)
    network.move(to_host=True)
    network.move(to_host=False)
    assert network.weights["describe_offloaded"].sharding.memory_kind == "pinned_host"
    assert network.weights["other"].sharding.memory_kind == "device"


def test_on_cpu_devices_nothing_is_copied(monkeypatch):
    monkeypatch.undo()
    weights = {"a": array(100)}
    network = CachedNetwork(no_content(), weights)
    network.move(to_host=True)
    assert network.is_on_host and network.weights["a"] is weights["a"]
    network.move(to_host=False)
    assert not network.is_on_host and network.weights["a"] is weights["a"]
