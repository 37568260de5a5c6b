"""The models that a worker keeps: on the devices while they fit, then in the host's memory, then only on disk.

A model is a list of networks. Networks of equal content are stored once and shared by models. The least recently used model is
unloaded first. Models that queued jobs need are unloaded after other models. Models that the operator keeps loaded are unloaded
last. Before a cached model is used again, its files are checked. A model whose files changed is unloaded.
"""

from __future__ import annotations

import dataclasses
import functools
import gc
import logging
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path

import jax

from backend.checkpoints.fingerprints import Fingerprint, is_unchanged
from backend.chips import memory_bytes
from backend.host_memory import free_memory
from backend.pipeline.loaded import LoadedModel
from backend.schemas.worker import CachedModel
from backend.weights.cached_network import CachedNetwork, Content

ROOM = 0.97  # share of a device's memory that models and programs may take; JAX's runtime needs the other 3 %
HOST_SHARE = 0.5  # share of the free host memory that cached models may take. Memory that they already use counts as free
_LARGE_BYTES = 2**20  # smaller arrays on the devices are not weights. Such arrays exist even without a model

Key = tuple[str, str]
"""The checkpoint that a model comes from, and its `Preset.weight_format`."""

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bounds:
    """Limits of the memory for models that are not in use, in bytes.

    `chips` limits all devices together; None allows all models that fit beside the current model. `host` limits the host's
    memory; None allows half of the free memory. `device_bytes` is the memory of one device, None if devices use the host's
    memory.
    """

    chips: int | None = None
    host: int | None = None
    device_bytes: int | None = None

    @classmethod
    def for_this_process(cls, chips: int | None = None, host: int | None = None, is_alone: bool = True) -> Bounds:
        """Return the limits for this process's devices. `is_alone` is False if several hosts work together. All these hosts must
        unload the same models, so their limits do not depend on the free memory of one host."""
        device = jax.local_devices()[0]
        size = (device.memory_stats() or {}).get("bytes_limit") or memory_bytes(device.device_kind)
        if not is_alone:
            chips = 0 if size is None and chips is None else chips
            host = 0
        return cls(chips=chips, host=host, device_bytes=size)


NO_CACHE = Bounds(chips=0, host=0)
"""Limits that keep only the model in use."""


@dataclasses.dataclass(eq=False, kw_only=True)
class _CachedModel:
    """A cached model. `needed` is the number of bytes of one device that the model's largest program uses besides the model's
    weights, 0 until that number is known."""

    key: Key
    loaded: LoadedModel
    fingerprints: tuple[Fingerprint, ...]
    on_host: bool = False
    is_pinned: bool = False
    needed: int = 0


class ModelCache:
    """All cached models, the most recently used last. One thread uses a model while another thread may load the next model."""

    def __init__(self, bounds: Callable[[], Bounds] = lambda: NO_CACHE, available: Callable[[], int] = free_memory) -> None:
        """Create an empty cache.

        `bounds` is called when the limits are first needed, because the devices are not known earlier. `available` returns the
        free bytes of the host's memory.
        """
        self._find_bounds, self._available = bounds, available
        self._lock = threading.RLock()
        self._models: dict[Key, _CachedModel] = {}
        self._current: Key | None = None
        self._expected: frozenset[str] = frozenset()

    @functools.cached_property
    def _bounds(self) -> Bounds:
        return self._find_bounds()

    def activate(self, key: Key) -> LoadedModel | None:
        """Return the cached model and make it the current model on the devices. None if it is not cached, or if its files
        changed."""
        with self._lock:
            model = self._models.get(key)
            if model is None:
                return None
            if not is_unchanged(model.fingerprints):
                logger.info("Loading %s again: its files have changed", Path(key[0]).name)
                self.unload(key)
                return None
            self._current = key
            self._models[key] = self._models.pop(key)
            self._make_room()
            return model.loaded

    def peek(self, key: Key) -> LoadedModel | None:
        """Return the cached model without moving its weights to the devices, for uses that need no weights. None if it is not
        cached."""
        with self._lock:
            model = self._models.get(key)
            return None if model is None else model.loaded

    def find_network(self, content: Content) -> CachedNetwork | None:
        """Return a cached network of this content whose files have not changed, None if there is no such network."""
        with self._lock:
            found = (network for network in self._distinct_networks() if network.content.equals(content))
            return next((network for network in found if is_unchanged(network.content.fingerprints)), None)

    def make_room_for(self, cached_networks: Collection[CachedNetwork], num_bytes: int, bytes_per_device: int) -> None:
        """Free memory for a model that becomes the current model.

        `cached_networks` are the networks of this model that are already cached. The model's other networks take `num_bytes` on
        all devices together and `bytes_per_device` on each device.
        """
        with self._lock:
            self._current = None
            self._make_room(cached_networks, num_bytes, bytes_per_device)
            if any(array.nbytes >= _LARGE_BYTES for array in jax.live_arrays()):
                gc.collect()  # frees the device memory of models that were removed from the cache

    def try_make_room_beside(self, cached_networks: Collection[CachedNetwork], num_bytes: int, bytes_per_device: int) -> bool:
        """Free memory for a model that is loaded while another model is in use. If the two models do not fit together, free
        nothing and return False. The arguments are as in `make_room_for`."""
        with self._lock:
            current = self._models.get(self._current)
            used = [*cached_networks, *(current.loaded.networks.values() if current else ())]
            if not self._would_fit(set(map(id, used)), num_bytes, bytes_per_device + (current.needed if current else 0)):
                return False
            self._make_room(used, 0, bytes_per_device, prefetched_bytes=num_bytes)
            return True

    def add(self, key: Key, loaded: LoadedModel, fingerprints: Sequence[Fingerprint], *, is_used: bool = True) -> None:
        """Add a loaded model. `fingerprints` describe the model's files before they were read. `is_used` makes the model the
        current model."""
        with self._lock:
            self._models[key] = _CachedModel(key=key, loaded=loaded, fingerprints=tuple(fingerprints))
            if is_used:
                self._current = key
            self._make_room()

    def reserve_program_memory(self, loaded: LoadedModel, count_bytes: Callable[[], int]) -> None:
        """Reserve memory of each device for this model's programs, besides the memory of its weights. `count_bytes` returns the
        bytes to reserve. It is called only if `must_reserve_program_memory`."""
        if not self.must_reserve_program_memory:
            return
        needed = count_bytes()
        with self._lock:
            for model in self._models.values():
                if model.loaded is loaded and needed > model.needed:
                    model.needed = needed
                    self._make_room()

    @property
    def must_reserve_program_memory(self) -> bool:
        """True if the memory of programs must be reserved: the device memory is known, and several models are cached."""
        return self._bounds.device_bytes is not None and len(self._models) > 1

    def set_expected(self, models: Iterable[str]) -> None:
        """Set the checkpoints that queued jobs need. Models of these checkpoints are unloaded after other models."""
        with self._lock:
            self._expected = frozenset(models)

    def pin(self, model: str, is_pinned: bool) -> None:
        """Set whether the operator wants to keep this model loaded. A pinned model is unloaded after all other models."""
        with self._lock:
            for cached in self._models.values():
                if cached.key[0] == model:
                    cached.is_pinned = is_pinned

    def unload(self, key: Key) -> None:
        """Unload a model, and the networks that no other model uses."""
        with self._lock:
            if self._models.pop(key, None) is not None:
                self._current = None if self._current == key else self._current
                gc.collect()

    def unload_idle(self, model: str | None = None) -> bool:
        """Unload all models that are not in use, or only `model`. Return whether any model was unloaded."""
        with self._lock:
            idle = [key for key in self._models if key != self._current and model in (None, key[0])]
            for key in idle:
                del self._models[key]
            gc.collect()
            return bool(idle)

    def list_models(self) -> tuple[CachedModel, ...]:
        """Describe the cached models, the most recently used first."""
        with self._lock:
            return tuple(_describe(model) for model in reversed(self._models.values()))

    def count_bytes(self) -> tuple[int, int]:
        """Return the bytes of cached models on the devices and in the host's memory. Shared networks count once."""
        with self._lock:
            sums = {False: 0, True: 0}
            for network in self._distinct_networks():
                sums[network.is_on_host] += network.num_bytes
            return sums[False], sums[True]

    def _distinct_networks(self) -> Iterator[CachedNetwork]:
        return iter(
            {id(network): network for model in self._models.values() for network in model.loaded.networks.values()}.values()
        )

    def _would_fit(self, used: Collection[int], num_bytes: int, bytes_per_device: int) -> bool:
        """Return whether a model of this size fits beside the networks in use, if all other networks are unloaded. `used` has the
        `id()` of each network in use."""
        if self._bounds.chips is not None and num_bytes > self._bounds.chips:
            return False
        if self._bounds.device_bytes is None:
            idle = sum(network.num_bytes for network in self._distinct_networks() if id(network) not in used)
            return num_bytes <= self._host_share(self._bounds.chips, idle, 0)
        used_bytes = sum(network.bytes_per_device for network in self._distinct_networks() if id(network) in used)
        return used_bytes + bytes_per_device <= ROOM * self._bounds.device_bytes

    def _make_room(
        self,
        cached_networks: Collection[CachedNetwork] = (),
        num_bytes: int = 0,
        bytes_per_device: int = 0,
        prefetched_bytes: int = 0,
    ) -> None:
        """Offload or unload idle models until the current model and a new model fit into memory.

        Args:
            cached_networks: networks that the new model shares.
            num_bytes: bytes of the other networks of a new model that is used immediately, on all devices together.
            bytes_per_device: bytes of the new model's other networks on each device.
            prefetched_bytes: replaces `num_bytes`, which is then 0, for a new model that is used later. These bytes count towards
                the limit of idle models.
        """
        current, is_dropped = self._models.get(self._current), False
        used = set(map(id, [*cached_networks, *(current.loaded.networks.values() if current else ())]))
        if current:
            current.on_host = False
            bytes_per_device += current.needed
        while (evicted := self._next_to_evict(on_host=False)) and self._exceeds_devices(
            used, num_bytes, bytes_per_device, prefetched_bytes
        ):
            evicted.on_host = True
        while (evicted := self._next_to_evict(on_host=True)) and self._offloaded_bytes(used) > self._max_host_bytes(num_bytes):
            logger.info("Unloading %s: the host's memory is needed", Path(evicted.key[0]).name)
            del self._models[evicted.key]
            is_dropped, evicted = True, None
        if is_dropped:
            gc.collect()  # free the memory of the dropped models before it is used again
        on_devices = self._network_ids_on_devices(used)
        networks = list(self._distinct_networks())
        for network in networks:
            if id(network) not in on_devices:
                network.move(to_host=True)
        for network in networks:
            if id(network) in on_devices:
                network.move(to_host=False)

    def _next_to_evict(self, *, on_host: bool) -> _CachedModel | None:
        """Return the idle model that is offloaded or unloaded next: a model on the host if `on_host`, otherwise a model on the
        devices. None if no such model is idle."""
        idle = [model for key, model in self._models.items() if key != self._current and model.on_host == on_host]
        return min(idle, key=lambda model: (model.is_pinned, model.key[0] in self._expected), default=None)

    def _network_ids_on_devices(self, used: Collection[int]) -> set[int]:
        models = (model for model in self._models.values() if not model.on_host)
        return {*used, *(id(network) for model in models for network in model.loaded.networks.values())}

    def _exceeds_devices(self, used: Collection[int], num_bytes: int, bytes_per_device: int, prefetched_bytes: int) -> bool:
        """Return whether the models on the devices exceed the device memory, or idle models exceed their limit (see `Bounds`).

        `used` has the `id()` of each network in use. See `_make_room` for the other arguments.
        """
        on_devices = self._network_ids_on_devices(used)
        networks_there = [network for network in self._distinct_networks() if id(network) in on_devices]
        idle = sum(network.num_bytes for network in networks_there if id(network) not in used)
        if self._bounds.device_bytes is None:
            return idle + prefetched_bytes > self._host_share(self._bounds.chips, idle, num_bytes)
        used_bytes = sum(network.bytes_per_device for network in networks_there) + bytes_per_device
        max_idle_bytes = self._bounds.chips
        return used_bytes > ROOM * self._bounds.device_bytes or (
            max_idle_bytes is not None and idle + prefetched_bytes > max_idle_bytes
        )

    def _offloaded_bytes(self, used: Collection[int]) -> int:
        on_devices = self._network_ids_on_devices(used)
        return sum(network.num_bytes for network in self._distinct_networks() if id(network) not in on_devices)

    def _max_host_bytes(self, num_bytes: int) -> int:
        if self._bounds.host is None and self._bounds.device_bytes is None:
            return 0  # the devices use the host's memory, so moving a network to the host would free no memory
        return self._host_share(
            self._bounds.host, sum(network.num_bytes for network in self._distinct_networks() if network.is_on_host), num_bytes
        )

    def _host_share(self, bound: int | None, kept: int, num_bytes: int) -> int:
        """Return the limit in bytes of host memory for cached models: `bound`, or else a share of the free memory.

        The share is `HOST_SHARE`. The `kept` bytes that cached models already use count as free. The `num_bytes` bytes that a
        model needs while it is loaded do not count as free.
        """
        return bound if bound is not None else int(HOST_SHARE * max(0, self._available() + kept - num_bytes))


def _describe(model: _CachedModel) -> CachedModel:
    networks = model.loaded.networks.values()
    return CachedModel(
        model=model.key[0],
        chip_bytes=sum(network.num_bytes for network in networks if not network.is_on_host),
        host_bytes=sum(network.num_bytes for network in networks if network.is_on_host),
        is_pinned=model.is_pinned,
    )
