"""The models that a worker keeps: on the devices while they fit, then in the host's memory, then only on disk. A model is a list
of networks. Networks of equal content are stored once and shared by models. The least recently used model is unloaded first,
models that queued jobs need later, and models that the operator keeps loaded last."""

from __future__ import annotations

import dataclasses
import functools
import gc
import logging
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
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
    """Limits of the memory for models that are not in use, in bytes. `chips` limits all devices together; None allows all models
    that fit beside the current model. `host` limits the host's memory; None allows half of the free memory. `device_bytes` is the
    memory of one device, None if devices use the host's memory."""

    chips: int | None = None
    host: int | None = None
    device_bytes: int | None = None

    @classmethod
    def for_this_process(cls, chips: int | None = None, host: int | None = None, is_alone: bool = True) -> Bounds:
        """Return the limits for this process's devices. If several hosts work together (not `is_alone`), all must unload the same
        models, so their limits do not depend on the free memory of one host."""
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
    """A cached model. Its largest program needs `needed` bytes of one device besides the weights, 0 until that is known."""

    key: Key
    loaded: LoadedModel
    fingerprints: tuple[Fingerprint, ...]
    on_host: bool = False
    is_pinned: bool = False
    needed: int = 0


class ModelCache:
    """All cached models, the most recently used last. One thread uses a model while another thread may load the next model."""

    def __init__(self, bounds: Callable[[], Bounds] = lambda: NO_CACHE, available: Callable[[], int] = free_memory) -> None:
        """`bounds` is called late, because the devices are not known earlier. `available` returns the host's free bytes."""
        self._bounds, self._available = functools.cache(bounds), available
        self._lock = threading.RLock()
        self._models: dict[Key, _CachedModel] = {}
        self._current: Key | None = None
        self._expected: frozenset[str] = frozenset()

    def activate(self, key: Key) -> LoadedModel | None:
        """Make the cached model the current model. Return None if it is not cached, or if its files changed."""
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
        """Return the cached model without moving its weights to the devices, None if it is not cached."""
        with self._lock:
            model = self._models.get(key)
            return None if model is None else model.loaded

    def find_network(self, content: Content) -> CachedNetwork | None:
        """Return a cached network of this content whose files have not changed, None if there is no such network."""
        with self._lock:
            found = (network for network in self._distinct_networks() if network.content.equals(content))
            return next((network for network in found if is_unchanged(network.content.fingerprints)), None)

    def make_room_for(self, cached_networks: Collection[CachedNetwork], num_bytes: int, bytes_per_device: int) -> None:
        """Free memory for a model that becomes the current model. Its networks that are not in `cached_networks` take `num_bytes`
        on all devices together and `bytes_per_device` on each device."""
        with self._lock:
            self._current = None
            self._make_room(cached_networks, num_bytes, bytes_per_device)
            if any(array.nbytes >= _LARGE_BYTES for array in jax.live_arrays()):
                gc.collect()  # frees the device memory of models that were removed from the cache

    def try_make_room_beside(self, cached_networks: Collection[CachedNetwork], num_bytes: int, bytes_per_device: int) -> bool:
        """Free memory as in `make_room_for`, beside the current model, or return False if the models do not fit together."""
        with self._lock:
            current, bounds = self._models.get(self._current), self._bounds()
            used = [*cached_networks, *(current.loaded.networks.values() if current else ())]
            ids = set(map(id, used))
            if bounds.device_bytes is None:
                idle = sum(network.num_bytes for network in self._distinct_networks() if id(network) not in ids)
                fits = num_bytes <= self._host_share(bounds.chips, idle, 0)
            else:
                bytes_in_use = sum(network.bytes_per_device for network in self._distinct_networks() if id(network) in ids)
                bytes_in_use += bytes_per_device + (current.needed if current else 0)
                fits = bytes_in_use <= ROOM * bounds.device_bytes
            if not fits or (bounds.chips is not None and num_bytes > bounds.chips):
                return False
            self._make_room(used, 0, bytes_per_device, prefetched_bytes=num_bytes)
            return True

    def add(self, key: Key, loaded: LoadedModel, fingerprints: Sequence[Fingerprint], *, is_used: bool = True) -> None:
        """Add a loaded model. `fingerprints` describe its files before they were read. `is_used` makes it the current model."""
        with self._lock:
            self._models[key] = _CachedModel(key=key, loaded=loaded, fingerprints=tuple(fingerprints))
            if is_used:
                self._current = key
            self._make_room()

    def reserve_program_memory(self, loaded: LoadedModel, count_bytes: Callable[[], int]) -> None:
        """Reserve `count_bytes()` of each device for this model's programs, if `must_reserve_program_memory`."""
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
        return self._bounds().device_bytes is not None and len(self._models) > 1

    def set_expected(self, models: Iterable[str]) -> None:
        """Set the checkpoints that queued jobs need. Their models are unloaded after other models."""
        with self._lock:
            self._expected = frozenset(models)

    def pin(self, model: str, is_pinned: bool) -> None:
        """Set whether the operator wants to keep this model loaded. A pinned model is unloaded last."""
        with self._lock:
            for cached in self._models.values():
                if cached.key[0] == model:
                    cached.is_pinned = is_pinned

    def unload(self, key: Key) -> None:
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
            models = []
            for model in reversed(self._models.values()):
                sums = _sum_bytes(model.loaded.networks.values())
                models.append(CachedModel(model=model.key[0], chip_bytes=sums[0], host_bytes=sums[1], is_pinned=model.is_pinned))
            return tuple(models)

    def count_bytes(self) -> tuple[int, int]:
        """Return the bytes of cached models on the devices and in the host's memory. Shared networks count once."""
        with self._lock:
            return _sum_bytes(self._distinct_networks())

    def _distinct_networks(self) -> Collection[CachedNetwork]:
        return {id(network): network for model in self._models.values() for network in model.loaded.networks.values()}.values()

    def _make_room(
        self,
        cached_networks: Collection[CachedNetwork] = (),
        num_bytes: int = 0,
        bytes_per_device: int = 0,
        prefetched_bytes: int = 0,
    ) -> None:
        """Offload or unload idle models until the current model and a new model fit into memory. The new model shares
        `cached_networks`. Its other networks take `num_bytes` on all devices together, and `bytes_per_device` on each. For a
        model that is used later, `prefetched_bytes` replace `num_bytes`, and count towards the limit of idle models."""
        current, is_dropped = self._models.get(self._current), False
        used = set(map(id, [*cached_networks, *(current.loaded.networks.values() if current else ())]))
        if current:
            current.on_host = False
            bytes_per_device += current.needed
        needed = num_bytes, bytes_per_device, prefetched_bytes
        while (evicted := self._next_to_evict(on_host=False)) and self._exceeds_devices(used, *needed):
            evicted.on_host = True
        while (evicted := self._next_to_evict(on_host=True)) and self._exceeds_host(used, num_bytes):
            logger.info("Unloading %s: the host's memory is needed", Path(evicted.key[0]).name)
            del self._models[evicted.key]
            is_dropped, evicted = True, None
        if is_dropped:
            gc.collect()  # free the memory of the dropped models before it is used again
        on_devices = self._network_ids_on_devices(used)
        networks = self._distinct_networks()
        for network in networks:
            if id(network) not in on_devices:
                network.move(to_host=True)
        for network in networks:
            if id(network) in on_devices:
                network.move(to_host=False)

    def _next_to_evict(self, *, on_host: bool) -> _CachedModel | None:
        """Return the next idle model to unload from the host, or else to offload from the devices."""
        idle = [model for key, model in self._models.items() if key != self._current and model.on_host == on_host]
        return min(idle, key=lambda model: (model.is_pinned, model.key[0] in self._expected), default=None)

    def _network_ids_on_devices(self, used: Collection[int]) -> set[int]:
        models = (model for model in self._models.values() if not model.on_host)
        return {*used, *(id(network) for model in models for network in model.loaded.networks.values())}

    def _exceeds_devices(self, used: Collection[int], num_bytes: int, bytes_per_device: int, prefetched_bytes: int) -> bool:
        """Return whether the models on the devices exceed the device memory, or idle models exceed their limit (see `Bounds`).
        `used` has the `id()` of each network in use. See `_make_room` for the other arguments."""
        on_devices, bounds = self._network_ids_on_devices(used), self._bounds()
        networks_there = [network for network in self._distinct_networks() if id(network) in on_devices]
        idle = sum(network.num_bytes for network in networks_there if id(network) not in used)
        if bounds.device_bytes is None:
            return idle + prefetched_bytes > self._host_share(bounds.chips, idle, num_bytes)
        used_bytes = sum(network.bytes_per_device for network in networks_there) + bytes_per_device
        is_idle_exceeded = bounds.chips is not None and idle + prefetched_bytes > bounds.chips
        return used_bytes > ROOM * bounds.device_bytes or is_idle_exceeded

    def _exceeds_host(self, used: Collection[int], num_bytes: int) -> bool:
        """Return whether the offloaded networks exceed the limit of the host's memory."""
        on_devices, networks = self._network_ids_on_devices(used), self._distinct_networks()
        if self._bounds().host is None and self._bounds().device_bytes is None:
            limit = 0  # the devices use the host's memory, so moving a network to the host would free no memory
        else:
            kept = sum(network.num_bytes for network in networks if network.is_on_host)
            limit = self._host_share(self._bounds().host, kept, num_bytes)
        return sum(network.num_bytes for network in networks if id(network) not in on_devices) > limit

    def _host_share(self, bound: int | None, kept: int, num_bytes: int) -> int:
        """Return the limit in bytes of host memory for cached models: `bound`, or else a share of the free memory. The `kept`
        bytes that cached models already use count as free, the `num_bytes` that a model needs while it is loaded do not."""
        return bound if bound is not None else int(HOST_SHARE * max(0, self._available() + kept - num_bytes))


def _sum_bytes(networks: Iterable[CachedNetwork]) -> tuple[int, int]:
    """Return the bytes of these networks on the devices and in the host's memory."""
    sums = {False: 0, True: 0}
    for network in networks:
        sums[network.is_on_host] += network.num_bytes
    return sums[False], sums[True]
