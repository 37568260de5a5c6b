"""A text encoder in the host's memory: which bytes count, when it is offloaded, and that it generates the same video."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from backend.models.common import networks
from backend.models.common.text import TIED
from backend.pipeline import load as load_module
from backend.runtime import work
from backend.schemas.request import GenerationRequest
from backend.weights.host_offload import HOST, describe_offloaded, device_bytes, load_onto_devices, should_offload
from presets import load_preset


def on_one_device() -> NamedSharding:
    return NamedSharding(Mesh(np.asarray(jax.devices()[:1]), ("x",)), PartitionSpec())


def described(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=on_one_device())


def test_bytes_are_counted_once_and_only_on_devices():
    network = {TIED[0]: described(10, 4), TIED[1]: described(10, 4), "other": described(3)}
    assert device_bytes(network, TIED) == 2 * (40 + 3)
    assert device_bytes({TIED[1]: described(10, 4)}, TIED) == 80
    assert device_bytes(describe_offloaded(network), TIED) == device_bytes({}, TIED) == 0
    assert device_bytes([described(2), {"inner": described(3)}]) == 10


def test_weights_among_arguments_are_those_themselves_and_not_others_like_them():
    own, other = described(10, 4), described(3)
    assert device_bytes({"own": own, "other": other}, among=([own], described(3), other)) == 86
    assert device_bytes({"own": own, "other": other}, among=(described(10, 4), other)) == 6
    assert device_bytes({TIED[0]: own, TIED[1]: other}, TIED, among=(own, other)) == 80


def test_it_is_parked_where_weights_take_most_of_a_known_memory():
    assert not should_offload(10**12, None)
    assert should_offload(61, 100) and not should_offload(60, 100)


def test_parked_arrays_come_to_the_devices_for_a_while_and_tied_ones_together():
    resting = jax.device_put(np.arange(4.0), on_one_device().with_memory_kind(HOST))
    staying = jax.device_put(np.ones(3), on_one_device())
    with load_onto_devices({TIED[0]: resting, TIED[1]: resting, "staying": staying}) as weights:
        assert weights[TIED[0]] is weights[TIED[1]] and weights["staying"] is staying
        assert weights[TIED[0]].sharding.memory_kind == "device"
        np.testing.assert_array_equal(weights[TIED[0]] + 1, np.arange(4.0) + 1)
    assert weights[TIED[0]].is_deleted() and not resting.is_deleted() and not staying.is_deleted()


@pytest.mark.demo_model
def test_a_model_with_a_parked_text_encoder_understands_the_same(monkeypatch):
    preset = load_preset("wan-tiny")
    request = GenerationRequest.from_preset(preset, prompt="a red circle moving right on a black background", seed=1)

    def embedded(parks: bool) -> np.ndarray:
        monkeypatch.setattr(networks, "memory_bytes", lambda kind: 1 if parks else None)
        loaded = load_module.load(preset, None, lambda event: None)
        kinds = {array.sharding.memory_kind for array in loaded.weights["text_encoder"].values()}
        assert kinds == ({HOST} if parks else {"device"})
        return work.run(loaded.model.encode(loaded.weights, request, {})).full["prompt_embeds"]

    np.testing.assert_array_equal(embedded(parks=True), embedded(parks=False))
