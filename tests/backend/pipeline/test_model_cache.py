"""Check which models stay in the cache, where, and for how long. A cached model generates the same video as a fresh model."""

import gc
import os
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from backend.checkpoints.fingerprints import fingerprint_files
from backend.pipeline import model_cache as module
from backend.pipeline.generate import generate
from backend.pipeline.load import load
from backend.pipeline.loaded import LoadedModel
from backend.pipeline.model_cache import Bounds, ModelCache
from backend.pipeline.stage_files import read_latents
from backend.runtime.context import RuntimeContext
from backend.schemas.events import Finished
from backend.schemas.request import example_request
from backend.weights import cached_network
from backend.weights.cached_network import CachedNetwork, Content
from presets import Preset, load_preset

SIZE = 1000  # bytes of a network


def on_one_device() -> NamedSharding:
    return NamedSharding(Mesh(np.array(jax.devices()[:1]), ("x",)), P())


@pytest.fixture(scope="module", autouse=True)
def garbage_of_others_is_gone() -> None:
    """Freeze the objects of earlier tests, because each removal of a model collects garbage."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def as_on_a_chip(monkeypatch):
    """Treat arrays of CPU devices as arrays of a chip: they move to the host's memory and back."""
    monkeypatch.setattr(cached_network, "is_host", lambda leaf: False)


def network(path: Path) -> CachedNetwork:
    """Return a network of `SIZE` bytes from a file. A new file contains its own name."""
    if not path.exists():
        path.write_text(path.name)
    weights = {"w": jax.device_put(jnp.zeros(SIZE, jnp.uint8), on_one_device())}
    return CachedNetwork(Content(tensors=(), described=None, arranged=None, fingerprints=fingerprint_files([path])), weights)


class Shelf:
    """A cache of models of two networks each: an own transformer, and the text encoder in the file "text"."""

    def __init__(self, folder: Path, bounds: Bounds, free: int = 10**9):
        self.folder, self.model_cache = folder, ModelCache(lambda: bounds, lambda: free)

    def load(self, name: str) -> LoadedModel:
        paths = {"transformer": self.folder / name, "text_encoder": self.folder / "text"}
        contents = {part: network(path).content for part, path in paths.items()}
        found = {part: one for part, content in contents.items() if (one := self.model_cache.find_network(content))}
        self.model_cache.make_room_for(found.values(), SIZE * (2 - len(found)), SIZE * (2 - len(found)))
        networks = {part: found.get(part) or network(path) for part, path in paths.items()}
        loaded = LoadedModel(
            source=name,
            family=None,
            model=None,
            networks=networks,
            versions={},
            reserve_program_memory=None,
            runtime=RuntimeContext(),
        )
        self.model_cache.add((name, "bfloat16"), loaded, fingerprint_files(paths.values()))
        return loaded

    def use(self, name: str) -> LoadedModel:
        return self.model_cache.activate((name, "bfloat16")) or self.load(name)

    @property
    def places(self) -> dict[str, tuple[int, int]]:
        """The bytes on the devices and on the host by model, most recently used first."""
        return {model.model: (model.chip_bytes, model.host_bytes) for model in self.model_cache.list_models()}


def test_what_two_models_share_is_held_once(tmp_path):
    shelf = Shelf(tmp_path, Bounds())
    a, b = shelf.load("a"), shelf.load("b")
    assert a.networks["text_encoder"] is b.networks["text_encoder"]
    assert a.networks["transformer"] is not b.networks["transformer"]
    assert shelf.model_cache.count_bytes() == (3 * SIZE, 0)
    assert shelf.use("a") is a and list(shelf.places) == ["a", "b"]


def test_with_no_room_only_the_model_in_use_stays_and_keeps_what_it_shares(tmp_path):
    shelf = Shelf(tmp_path, module.NO_CACHE)
    first = shelf.load("a")
    second = shelf.load("b")
    assert shelf.places == {"b": (2 * SIZE, 0)}
    assert second.networks["text_encoder"] is first.networks["text_encoder"]  # it was loaded when "b" arrived


def test_the_one_used_longest_ago_goes_to_the_host_then_to_disk(tmp_path):
    """The devices have memory for five networks, the host for one."""
    shelf = Shelf(tmp_path, Bounds(host=SIZE, device_bytes=int(4.2 * SIZE)))
    for name in "abc":
        shelf.load(name)
    assert shelf.model_cache.count_bytes() == (4 * SIZE, 0)
    shelf.load("d")
    assert shelf.places == {"d": (2 * SIZE, 0), "c": (2 * SIZE, 0), "b": (2 * SIZE, 0), "a": (SIZE, SIZE)}
    shelf.load("e")
    assert "a" not in shelf.places and shelf.places["b"] == (SIZE, SIZE)
    back = shelf.use("b")
    assert shelf.places["b"] == (2 * SIZE, 0) and shelf.places["c"] == (SIZE, SIZE)
    assert back.weights["transformer"]["w"].sharding.memory_kind == "device"


def test_expected_models_go_later_and_pinned_ones_last(tmp_path):
    shelf = Shelf(tmp_path, Bounds(host=0, device_bytes=int(4.2 * SIZE)))
    for name in "abc":
        shelf.load(name)
    shelf.model_cache.set_expected(["a"])
    shelf.model_cache.pin("b", True)
    shelf.load("d")
    assert list(shelf.places) == ["d", "b", "a"]
    shelf.load("e")
    assert list(shelf.places) == ["e", "b", "a"]
    shelf.model_cache.pin("b", False)
    shelf.load("f")
    assert list(shelf.places) == ["f", "e", "a"]


def test_the_bound_on_the_devices_counts_what_is_not_in_use(tmp_path):
    shelf = Shelf(tmp_path, Bounds(chips=SIZE, host=10 * SIZE, device_bytes=10**9))
    for name in "abc":
        shelf.load(name)
    assert shelf.places == {"c": (2 * SIZE, 0), "b": (2 * SIZE, 0), "a": (SIZE, SIZE)}


def test_where_the_devices_memory_is_the_hosts_half_of_what_is_free_is_used(tmp_path):
    shelf = Shelf(tmp_path, Bounds(), free=2 * SIZE)
    for name in "abc":
        shelf.load(name)
    # Half of the cached and free memory may be used besides "c". With one cached network this is (2 + 1) / 2 networks. With two it
    # is (2 + 2) / 2, less the network that is being loaded.
    assert shelf.model_cache.count_bytes()[1] == 0 and len(shelf.places) < 3
    assert shelf.places["c"] == (2 * SIZE, 0)


def test_programs_that_need_more_push_others_out(tmp_path):
    shelf = Shelf(tmp_path, Bounds(host=10 * SIZE, device_bytes=int(6.2 * SIZE)))
    for name in "abc":
        current = shelf.load(name)
    assert shelf.model_cache.must_reserve_program_memory and shelf.model_cache.count_bytes() == (4 * SIZE, 0)
    shelf.model_cache.reserve_program_memory(current, lambda: int(2.5 * SIZE))
    assert shelf.places == {"c": (2 * SIZE, 0), "b": (2 * SIZE, 0), "a": (SIZE, SIZE)}
    shelf.use("b")
    shelf.use("a")
    assert shelf.model_cache.count_bytes() == (4 * SIZE, 0)  # the needs of its programs are unknown


def test_a_changed_file_is_seen_and_nothing_of_it_is_used(tmp_path):
    shelf = Shelf(tmp_path, Bounds())
    old, other = shelf.load("a"), shelf.load("b")
    (tmp_path / "a").write_text("x")
    new = shelf.use("a")
    assert new is not old and new.networks["transformer"] is not old.networks["transformer"]
    assert new.networks["text_encoder"] is other.networks["text_encoder"]
    (tmp_path / "text").unlink()
    assert shelf.model_cache.activate(("a", "bfloat16")) is None and shelf.model_cache.activate(("b", "bfloat16")) is None


def test_a_text_encoder_that_is_replaced_is_not_shared_with_the_old_one(tmp_path):
    shelf = Shelf(tmp_path, Bounds())
    old = shelf.load("a")
    (tmp_path / "text").write_text("new")
    assert shelf.load("b").networks["text_encoder"] is not old.networks["text_encoder"]


def test_a_model_comes_beside_the_one_in_use_if_it_has_room(tmp_path):
    shelf = Shelf(tmp_path, Bounds(host=0, device_bytes=int(4.2 * SIZE)))
    for name in "abc":
        current = shelf.load(name)
    assert not shelf.model_cache.try_make_room_beside([], 3 * SIZE, 3 * SIZE) and list(shelf.places) == ["c", "b", "a"]
    assert shelf.model_cache.try_make_room_beside([], SIZE, SIZE) and list(shelf.places) == ["c", "b"]
    coming = LoadedModel(
        source="d",
        family=None,
        model=None,
        networks={"t": network(tmp_path / "d")},
        versions={},
        reserve_program_memory=None,
        runtime=RuntimeContext(),
    )
    shelf.model_cache.add(("d", "bfloat16"), coming, fingerprint_files([tmp_path / "d"]), is_used=False)
    assert shelf.places["c"] == (2 * SIZE, 0) and shelf.use("c") is current
    assert shelf.model_cache.unload_idle("d")  # it is not the current model


def test_with_no_bound_to_spare_nothing_comes_beside(tmp_path):
    shelf = Shelf(tmp_path, module.NO_CACHE)
    shelf.load("a")
    assert not shelf.model_cache.try_make_room_beside([], SIZE, SIZE)
    assert Shelf(tmp_path, Bounds(), free=3 * SIZE).model_cache.try_make_room_beside([], SIZE, SIZE)
    assert not Shelf(tmp_path, Bounds(), free=SIZE).model_cache.try_make_room_beside([], SIZE, SIZE)


def test_idle_models_are_dropped_when_asked(tmp_path):
    shelf = Shelf(tmp_path, Bounds())
    for name in "abc":
        shelf.load(name)
    assert shelf.model_cache.unload_idle("a") and not shelf.model_cache.unload_idle("c")
    assert list(shelf.places) == ["c", "b"]
    assert shelf.model_cache.unload_idle() and not shelf.model_cache.unload_idle()
    assert list(shelf.places) == ["c"]


def make(loaded: LoadedModel, preset: Preset, folder: Path) -> dict[str, np.ndarray]:
    """Return a short video's latents."""
    folder.mkdir()
    request = example_request(preset).with_changes(num_frames=5, steps=2, seed=3)
    *_, final = generate(request, loaded, folder, lambda: False)
    assert isinstance(final, Finished)
    return {name: np.asarray(array) for name, array in read_latents(folder, request).items()}


@pytest.mark.parity
@pytest.mark.demo_model
def test_models_in_turn_make_the_videos_that_they_make_alone(tmp_path, monkeypatch):
    """Two demo models share a text encoder and a video autoencoder. Each moves to the host and back."""
    monkeypatch.setenv("STUDIO_DATA_DIR", str(tmp_path / "data"))
    presets = [load_preset("wan-tiny"), load_preset("wan-tiny-vace")]
    bounds = Bounds(chips=0, host=10**9, device_bytes=10**10)
    model_cache = ModelCache(lambda: bounds)
    alone = [make(load(preset, None, print), preset, tmp_path / f"alone-{preset.name}") for preset in presets]
    for turn in range(2):
        for preset, expected in zip(presets, alone, strict=True):
            resident = model_cache.activate((preset.model_source, preset.dtype))
            assert (resident is None) == (turn == 0)
            found = make(
                resident or load(preset, None, print, model_cache=model_cache), preset, tmp_path / f"{preset.name}-{turn}"
            )
            jax.tree.map(np.testing.assert_array_equal, expected, found)
    [used, idle] = model_cache.list_models()
    assert used.host_bytes == 0 and 0 < idle.host_bytes < used.chip_bytes


@pytest.mark.parity
@pytest.mark.demo_model
def test_a_checkpoint_that_is_replaced_on_disk_is_loaded_again(tmp_path, monkeypatch):
    monkeypatch.setenv("STUDIO_DATA_DIR", str(tmp_path / "data"))
    preset, folder = load_preset("wan-tiny"), tmp_path / "model"
    shutil.copytree(preset.model_source, folder)
    model_cache, key = ModelCache(Bounds.for_this_process), (str(folder), preset.dtype)
    loaded = load(preset, str(folder), print, model_cache=model_cache)
    assert model_cache.activate(key) is loaded
    os.utime(folder / "transformer" / "config.json", (1, 1))
    assert model_cache.activate(key) is None
    again = load(preset, str(folder), print, model_cache=model_cache)
    assert again is not loaded and model_cache.activate(key) is again


@pytest.mark.parity
@pytest.mark.demo_model
def test_a_file_that_changes_while_the_model_is_read_is_seen_afterwards(tmp_path, monkeypatch):
    monkeypatch.setenv("STUDIO_DATA_DIR", str(tmp_path / "data"))
    preset, folder = load_preset("wan-tiny"), tmp_path / "model"
    shutil.copytree(preset.model_source, folder)
    model_cache, key = ModelCache(Bounds.for_this_process), (str(folder), preset.dtype)

    def meddle(event) -> None:
        if event.what == "vae":
            os.utime(folder / "transformer" / "diffusion_pytorch_model.safetensors", (1, 1))

    load(preset, str(folder), meddle, model_cache=model_cache)
    assert model_cache.activate(key) is None
