"""Networks in the host's memory: which bytes count, when they are offloaded, and that the video stays the same."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from safetensors.numpy import load_file

from backend.chips import GIB
from backend.models.causal_wan import model as causal_model
from backend.models.common import networks
from backend.models.common.text import TIED
from backend.models.wan.vae import VideoAutoencoder
from backend.pipeline import denoising
from backend.pipeline import load as load_module
from backend.pipeline.generate import generate
from backend.pipeline.load import describe_model
from backend.pipeline.loaded import LoadedModel
from backend.pipeline.memory import unread_bytes, weight_bytes
from backend.pipeline.warm_up import calls
from backend.runtime import work
from backend.runtime.program import Compilation, Program
from backend.schemas.request import GenerationRequest, example_request
from backend.weights.host_offload import (
    HOST,
    MOST_WHILE_ENCODING,
    copy_to_devices,
    describe_offloaded,
    device_bytes,
    is_offloaded,
    load_onto_devices,
    move_to_host,
    should_offload,
)
from backend.weights.stacked import StackedWeights
from presets import load_preset

LAYERS = ["text_layer", "text_layer", "text_norm"]  # the programs that encode text on one device, if its encoder has two layers


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


def test_transformers_are_offloaded_if_all_weights_leave_too_little_memory():
    assert not should_offload(10**12, None, MOST_WHILE_ENCODING)
    assert should_offload(76, 100, MOST_WHILE_ENCODING) and not should_offload(75, 100, MOST_WHILE_ENCODING)


def test_arrays_move_to_the_host_and_back_and_leave_nothing_behind():
    weights = {
        "outer": jax.device_put(np.arange(4.0), on_one_device()),
        "stack": {"a": jax.device_put(np.ones(3), on_one_device())},
    }
    on_host = move_to_host(weights)
    assert weights["outer"].is_deleted() and weights["stack"]["a"].is_deleted() and is_offloaded(on_host)
    copies = copy_to_devices(on_host)
    assert not is_offloaded(copies) and copies["outer"].sharding == on_one_device()
    np.testing.assert_array_equal(copies["outer"], np.arange(4.0))
    assert copy_to_devices(copies)["outer"] is copies["outer"]


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

    def embedded(parks: bool) -> dict[str, np.ndarray]:
        monkeypatch.setattr(networks, "memory_bytes", lambda kind: 1 if parks else None)
        loaded = load_module.load(preset, None, lambda event: None)
        kinds = {array.sharding.memory_kind for array in loaded.weights["text_encoder"].values()}
        assert kinds == ({HOST} if parks else {"device"})
        encoding = loaded.model.encode(loaded.weights, request, {})
        assert [call.program.key for call in work.list_calls(encoding)] == (LAYERS if parks else ["text_encode"])
        return work.run(loaded.model.encode(loaded.weights, request, {})).full

    parked, plain = embedded(parks=True), embedded(parks=False)
    assert parked.keys() == plain.keys()
    for name, values in parked.items():
        np.testing.assert_array_equal(values, plain[name])


def describe_on_chip(monkeypatch, name: str, gib: int):
    """Describe the preset's model on one device with this memory."""
    monkeypatch.setattr(networks, "memory_bytes", lambda kind: gib * GIB)
    return describe_model(load_preset(name), jax.devices()[:1], lambda program, lowered: Compilation(None))


@pytest.mark.parametrize(("gib", "parked"), [(16, {"text_encoder", "transformer"}), (20, {"text_encoder"}), (32, set())])
def test_a_small_chip_keeps_more_networks_on_the_host(monkeypatch, gib, parked):
    """The weights are 10.6 GiB of the text encoder, 2.7 of the transformer and 0.2 of the decoder."""
    model = describe_on_chip(monkeypatch, "wan2.1-t2v-1.3b-480p", gib)
    assert {network.part for network in model.networks if is_offloaded(network.described)} == parked
    assert {part for part, size in weight_bytes(model).items() if size == 0} == parked


def test_a_model_without_a_text_encoder_stays_on_the_chip(monkeypatch):
    assert not any(is_offloaded(network.described) for network in describe_on_chip(monkeypatch, "matrix-game-2.0", 4).networks)


def test_only_the_expert_whose_steps_run_is_on_the_chip(monkeypatch):
    """List the programs' arguments: no text encoder's call has a transformer, each step has one, and no argument is on the host."""
    model = describe_on_chip(monkeypatch, "wan2.2-t2v-a14b-480p", 80)
    request = GenerationRequest.from_preset(load_preset("wan2.2-t2v-a14b-480p"), prompt="a circle", seed=1, steps=4)
    size, found = 28.6e9, {}
    for call in calls(model, request):
        assert all(getattr(leaf, "sharding", None) is None or not is_offloaded(leaf) for leaf in jax.tree.leaves(call.arguments))
        transformers = [one for one in call.arguments if isinstance(one, StackedWeights)]
        found.setdefault(call.program.key, set()).add(round(sum(map(device_bytes, transformers)) / size, 1))
    assert found["denoise_step"] == found["prompt_keys"] == {1.0}
    assert found["text_layer"] == found["text_norm"] == found["vae_decode_first"] == found["vae_decode_next"] == {0.0}
    unread = unread_bytes(model, request)  # the first frame's decoder makes the previews of the steps
    assert unread == {"vae_decode_first": pytest.approx(size, rel=0.01)}


def test_a_live_video_has_its_keys_beside_the_decoder_and_the_decoders_state_beside_its_steps(monkeypatch):
    """Compare with the sizes of the arrays: keys and values of 21 latent frames in 30 layers, and the decoder's cached frames."""
    model = describe_on_chip(monkeypatch, "wan2.1-live-1.3b-480p", 80)
    request = example_request(load_preset("wan2.1-live-1.3b-480p"))
    unread = unread_bytes(model, request)
    keys, state = unread["vae_decode_next"], unread["denoise_step"]
    assert keys > 2 * 30 * 21 * 30 * 52 * 1536 * 2
    assert 1e9 < state < keys
    assert unread["text_encode"] == keys + state and unread["settle"] == state
    assert unread_bytes(model, example_request(load_preset("wan2.1-t2v-1.3b-480p"))) == {}


@pytest.mark.parametrize(
    ("preset", "gib", "overwrites"),
    [
        ("wan2.1-live-1.3b-480p", 16, True),
        ("wan2.1-live-1.3b-480p", 32, False),
        ("wan2.1-t2v-1.3b-480p", 16, False),
        ("matrix-game-2.0", 16, False),
    ],
)
def test_only_a_live_video_on_one_small_chip_overwrites_the_decoders_caches(monkeypatch, preset, gib, overwrites):
    """Compare with the rule for layers of strips, whose caches cost a copy if a call overwrites them."""
    monkeypatch.setattr(VideoAutoencoder, "_uses_strips", lambda self, dtype: True)
    monkeypatch.setattr(causal_model, "memory_bytes", lambda kind: gib * GIB)
    model = describe_on_chip(monkeypatch, preset, gib)
    decoders = [
        call.program for call in calls(model, example_request(load_preset(preset))) if call.program.key == "vae_decode_next"
    ]
    assert {program._donated for program in decoders} == {(2,) if overwrites else ()}


def load_demo(monkeypatch, parks: bool) -> LoadedModel:
    monkeypatch.setattr(networks, "memory_bytes", lambda kind: 1 if parks else None)
    return load_module.load(load_preset("wan-tiny"), None, lambda event: None)


def latents_of(loaded: LoadedModel, folder) -> np.ndarray:
    """Generate a video, and return its latents."""
    folder.mkdir()
    request = example_request(load_preset("wan-tiny")).with_changes(steps=2, num_frames=5)
    list(generate(request, loaded, folder, lambda: False))
    return load_file(folder / "stage2_latents.safetensors")["latents"]


@pytest.mark.demo_model
def test_a_parked_transformer_is_on_the_devices_only_for_its_steps_and_makes_the_same_video(monkeypatch, tmp_path):
    others = jax.live_arrays()  # models that other tests keep
    ids = {id(array) for array in others}
    loaded = load_demo(monkeypatch, parks=True)
    assert is_offloaded(loaded.weights["transformer"]) and loaded.networks["transformer"].bytes_per_device == 0
    shapes = {leaf.shape for stack in loaded.weights["transformer"].stacks.values() for leaf in stack.values()}
    on_devices, run = {}, Program.__call__

    def count(program: Program, *arguments: object) -> object:
        own = (array for array in jax.live_arrays() if id(array) not in ids)
        live = [array for array in own if array.shape in shapes and array.sharding.memory_kind != HOST]
        on_devices.setdefault(program.key, set()).add(sum(array.nbytes for array in live))
        return run(program, *arguments)

    monkeypatch.setattr(Program, "__call__", count)
    monkeypatch.setattr(denoising, "should_warm_up", lambda model, request: True)
    parked = latents_of(loaded, tmp_path / "parked")
    stacks = sum(leaf.nbytes for stack in loaded.weights["transformer"].stacks.values() for leaf in stack.values())
    assert on_devices["denoise_step"] == {stacks} and on_devices["text_layer"] == on_devices["vae_decode_next"] == {0}
    monkeypatch.undo()
    np.testing.assert_array_equal(parked, latents_of(load_demo(monkeypatch, parks=False), tmp_path / "plain"))
