"""The models that a worker keeps: on the devices while they fit, then in the host's memory, then on disk alone.

A model is a list of networks, and one network may belong to several models: what is of equal content is held once. The model that
was used longest ago goes first; one that a job in line needs goes later, one that the operator has pinned last. What is kept is
looked at before it is used again: if one of its files has changed, it is dropped.
"""

from __future__ import annotations

import dataclasses
import functools
import gc
import logging
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import ClassVar

import jax

from backend.checkpoints.fingerprints import Fingerprint, is_unchanged
from backend.chips import memory_bytes
from backend.host_memory import free_memory
from backend.pipeline.loaded import LoadedModel
from backend.runtime.hosts import HERE
from backend.schemas.worker import CachedModel
from backend.weights.cached_network import CachedNetwork, Content

ROOM = 0.97  # of a device's memory that models and programs may fill together: the runtime keeps some for itself
OF_MEMORY = 0.5  # of the host's memory that is free without the kept models: what they may take of it

Key = tuple[str, str]
"""The checkpoint that a model comes from, and the dtype that it is kept in."""

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bounds:
    """How many bytes of models that are not in use may lie on all devices together, and in the host's memory. None: on the
    devices as many as fit beside the model in use; on the host half of the memory that is free. `device_bytes` is the memory of
    one device, None if it is the host's."""

    chips: int | None = None
    host: int | None = None
    device_bytes: int | None = None

    @classmethod
    def here(cls, chips: int | None = None, host: int | None = None) -> Bounds:
        """Those of this process's devices. Several hosts must decide alike, so they keep nothing that depends on one host."""
        device = jax.local_devices()[0]
        size = (device.memory_stats() or {}).get("bytes_limit") or memory_bytes(device.device_kind)
        if not HERE.is_alone:
            chips = 0 if size is None and chips is None else chips
            host = 0
        return cls(chips=chips, host=host, device_bytes=size)


NOTHING = Bounds(chips=0, host=0)
"""Only the model in use stays."""


@dataclasses.dataclass(eq=False, kw_only=True)
class _CachedModel:
    """A kept model. `needed` are the bytes that its programs take of one device beside its weights, as far as is known."""

    key: Key
    loaded: LoadedModel
    fingerprints: tuple[Fingerprint, ...]
    on_host: bool = False
    is_pinned: bool = False
    needed: int = 0


class ModelCache:
    """All of them, those used last at the end. One thread uses a model; another may bring the next one meanwhile."""

    _was_used: ClassVar[bool] = False
    """Whether this process has had a model: before the first one there is nothing to free."""

    def __init__(self, bounds: Callable[[], Bounds] = lambda: NOTHING, available: Callable[[], int] = free_memory) -> None:
        """`bounds` is called once there is something to keep, when the devices are known; `available` gives the bytes of the
        host's memory that are free."""
        self._find_bounds, self._available = bounds, available
        self._lock = threading.RLock()
        self._models: dict[Key, _CachedModel] = {}
        self._current: Key | None = None
        self._expected: frozenset[str] = frozenset()

    @functools.cached_property
    def _bounds(self) -> Bounds:
        return self._find_bounds()

    def take(self, key: Key) -> LoadedModel | None:
        """The kept model, on the devices from now on and the one in use; None if there is none, or its files have changed."""
        with self._lock:
            resident = self._models.get(key)
            if resident is None:
                return None
            if not is_unchanged(resident.fingerprints):
                logger.info("The files of %s have changed; it is loaded anew", Path(key[0]).name)
                self.drop(key)
                return None
            self._current = key
            self._models[key] = self._models.pop(key)
            self._fit()
            return resident.loaded

    def look_at(self, key: Key) -> LoadedModel | None:
        """The kept model as it is, for what needs no weights; None if there is none."""
        with self._lock:
            resident = self._models.get(key)
            return None if resident is None else resident.loaded

    def find(self, content: Content) -> CachedNetwork | None:
        """A kept network of this content, whose files have not changed."""
        with self._lock:
            found = (network for network in self._networks() if network.content.is_that_of(content))
            return next((network for network in found if is_unchanged(network.content.fingerprints)), None)

    def make_room(self, found: Collection[CachedNetwork], num_bytes: int, bytes_per_device: int) -> None:
        """Prepares for a model whose other networks take so much, of all devices together and of each."""
        with self._lock:
            self._current = None
            self._fit(found, num_bytes, bytes_per_device)
            if ModelCache._was_used:
                gc.collect()  # frees the devices of a model that is used no longer
            ModelCache._was_used = True

    def make_room_beside(self, found: Collection[CachedNetwork], num_bytes: int, bytes_per_device: int) -> bool:
        """Prepares for a model that comes while another is in use, if it has room beside that one; whether it has."""
        with self._lock:
            current = self._models.get(self._current)
            used = [*found, *(current.loaded.networks.values() if current else ())]
            if not self._could_hold(set(map(id, used)), num_bytes, bytes_per_device + (current.needed if current else 0)):
                return False
            self._fit(used, 0, bytes_per_device, coming=num_bytes)
            return True

    def keep(self, key: Key, loaded: LoadedModel, fingerprints: Sequence[Fingerprint], *, is_used: bool = True) -> None:
        """The model has been loaded from these files, as they were before; it is the one in use, if it `is_used`."""
        with self._lock:
            self._models[key] = _CachedModel(key=key, loaded=loaded, fingerprints=tuple(fingerprints))
            if is_used:
                self._current = key
            self._fit()

    def reserve_program_memory(self, loaded: LoadedModel, needed: int) -> None:
        """Programs of this model are about to run, which take so many bytes of each device beside its weights."""
        with self._lock:
            for resident in self._models.values():
                if resident.loaded is loaded and needed > resident.needed:
                    resident.needed = needed
                    self._fit()

    @property
    def knows_devices(self) -> bool:
        """Whether what programs need is of interest."""
        return self._bounds.device_bytes is not None and len(self._models) > 1

    def expect(self, models: Iterable[str]) -> None:
        """Jobs in line need the models of these checkpoints: they give up their places after others."""
        with self._lock:
            self._expected = frozenset(models)

    def pin(self, model: str, is_pinned: bool) -> None:
        """The operator wants this model to stay, or no longer."""
        with self._lock:
            for resident in self._models.values():
                if resident.key[0] == model:
                    resident.is_pinned = is_pinned

    def drop(self, key: Key) -> None:
        """Forgets a model and what only it needs."""
        with self._lock:
            if self._models.pop(key, None) is not None:
                self._current = None if self._current == key else self._current
                gc.collect()

    def drop_idle(self, model: str | None = None) -> bool:
        """Forgets every model that is not in use, or this one; whether there was any."""
        with self._lock:
            idle = [key for key in self._models if key != self._current and model in (None, key[0])]
            for key in idle:
                del self._models[key]
            gc.collect()
            return bool(idle)

    def models(self) -> tuple[CachedModel, ...]:
        """What is kept, the model used last first."""
        with self._lock:
            return tuple(_described(resident) for resident in reversed(self._models.values()))

    def num_bytes(self) -> tuple[int, int]:
        """All bytes on the devices, and in the host's memory, of kept models; what models share is counted once."""
        with self._lock:
            sums = {False: 0, True: 0}
            for network in self._networks():
                sums[network.is_on_host] += network.num_bytes
            return sums[False], sums[True]

    def _networks(self) -> Iterator[CachedNetwork]:
        """Each network once."""
        return iter({id(one): one for model in self._models.values() for one in model.loaded.networks.values()}.values())

    def _could_hold(self, used: Collection[int], num_bytes: int, bytes_per_device: int) -> bool:
        """Whether a model of this size has room beside networks that are used, if all others go."""
        if self._bounds.chips is not None and num_bytes > self._bounds.chips:
            return False
        if self._bounds.device_bytes is None:
            idle = sum(one.num_bytes for one in self._networks() if id(one) not in used)
            return num_bytes <= self._share(self._bounds.chips, idle, 0)
        taken = sum(one.bytes_per_device for one in self._networks() if id(one) in used)
        return taken + bytes_per_device <= ROOM * self._bounds.device_bytes

    def _fit(self, found: Collection[CachedNetwork] = (), num_bytes: int = 0, bytes_per_device: int = 0, coming: int = 0) -> None:
        """Moves and drops models until those in use have room: the current one, these networks, and others of this size; so do
        idle ones of so many bytes that are `coming`."""
        current, is_dropped = self._models.get(self._current), False
        used = set(map(id, [*found, *(current.loaded.networks.values() if current else ())]))
        if current:
            current.on_host = False
            bytes_per_device += current.needed
        while (loser := self._next_to_leave(on_host=False)) and self._is_crowded(used, num_bytes, bytes_per_device, coming):
            loser.on_host = True
        while (loser := self._next_to_leave(on_host=True)) and self._host_bytes(used) > self._host_room(num_bytes):
            logger.info("%s is kept no longer", Path(loser.key[0]).name)
            del self._models[loser.key]
            is_dropped, loser = True, None
        if is_dropped:
            gc.collect()  # frees what only those models needed, before anything takes its place
        on_devices = self._on_devices(used)
        networks = list(self._networks())
        for network in networks:
            if id(network) not in on_devices:
                network.move_to_host()
        for network in networks:
            if id(network) in on_devices:
                network.move_back()

    def _next_to_leave(self, *, on_host: bool) -> _CachedModel | None:
        """The model that gives up its place first."""
        idle = [model for key, model in self._models.items() if key != self._current and model.on_host == on_host]
        return min(idle, key=lambda model: (model.is_pinned, model.key[0] in self._expected), default=None)

    def _on_devices(self, used: Collection[int]) -> set[int]:
        models = (model for model in self._models.values() if not model.on_host)
        return {*used, *(id(network) for model in models for network in model.loaded.networks.values())}

    def _is_crowded(self, used: Collection[int], num_bytes: int, bytes_per_device: int, coming: int) -> bool:
        """Whether the models on the devices are too many for them, or for the bound."""
        on_devices = self._on_devices(used)
        there = [network for network in self._networks() if id(network) in on_devices]
        idle = sum(network.num_bytes for network in there if id(network) not in used)
        if self._bounds.device_bytes is None:
            return idle + coming > self._share(self._bounds.chips, idle, num_bytes)
        taken = sum(network.bytes_per_device for network in there) + bytes_per_device
        most = self._bounds.chips
        return taken > ROOM * self._bounds.device_bytes or (most is not None and idle + coming > most)

    def _host_bytes(self, used: Collection[int]) -> int:
        on_devices = self._on_devices(used)
        return sum(network.num_bytes for network in self._networks() if id(network) not in on_devices)

    def _host_room(self, num_bytes: int) -> int:
        if self._bounds.host is None and self._bounds.device_bytes is None:
            return 0  # the devices' memory is the host's: a copy of it spares nothing
        return self._share(self._bounds.host, sum(one.num_bytes for one in self._networks() if one.is_on_host), num_bytes)

    def _share(self, bound: int | None, kept: int, num_bytes: int) -> int:
        """What kept models may take of the host's memory, of which they have so much already."""
        return bound if bound is not None else int(OF_MEMORY * max(0, self._available() + kept - num_bytes))


def _described(resident: _CachedModel) -> CachedModel:
    networks = resident.loaded.networks.values()
    return CachedModel(
        model=resident.key[0],
        chip_bytes=sum(network.num_bytes for network in networks if not network.is_on_host),
        host_bytes=sum(network.num_bytes for network in networks if network.is_on_host),
        is_pinned=resident.is_pinned,
    )
