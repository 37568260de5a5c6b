"""The models of this machine as the page shows them: what there is, what each needs, and how it is fetched and removed."""

import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from backend.catalog.catalog import Entry, list_entries
from backend.catalog.compatibility import Compatibility, judge_compatibility
from backend.catalog.downloads import Download, Downloads
from backend.errors import RequestError, StudioError
from backend.schemas.request import GenerationRequest, find_preset
from backend.schemas.worker import Device
from backend.settings import Settings
from presets.needs import find_needs

SCAN_SECONDS = 2.0  # that the look at the files holds for; every page that shows them asks again and again


@dataclass(frozen=True, kw_only=True)
class ModelRow:
    """One model or LoRA: what of it is here, its download if there is one, and whether this machine can run it.

    `total_bytes` on the disk are as the Hub has said, 0 if it was never asked; `weight_bytes` are those of its networks as they
    run, 0 if they are not known, as for a LoRA.
    """

    entry: Entry
    download: Download | None
    total_bytes: int
    weight_bytes: int
    outlook: Compatibility | None


class Models:
    """The models of one server. `in_use` gives the sources that jobs which have not ended need, `devices` those of one worker."""

    def __init__(
        self,
        settings: Settings,
        *,
        in_use: Callable[[], Collection[str]],
        devices: Callable[[], Sequence[Device]],
        on_change: Callable[[], None],
    ):
        self._in_use, self._devices, self._on_change = in_use, devices, on_change
        self._lock = threading.Lock()
        self._changes = 0
        self._scan: tuple[float, list[Entry]] = (-SCAN_SECONDS, [])
        self.downloads = Downloads(settings, self._notify_change)

    def rows(self) -> list[ModelRow]:
        """All of them."""
        downloads, devices = {one.source: one for one in self.downloads.all()}, self._devices()
        return [self._row(entry, downloads.get(entry.source), devices) for entry in self._entries()]

    def changes(self) -> int:
        """A number that grows when a model has come or gone: while it stays the same, the same presets can run."""
        with self._lock:
            return self._changes

    def fetch(self, source: str) -> None:
        """Puts a download in line, or lets a paused one go on. Raises: RequestError for what no preset uses or is not on the
        Hub, or is here already."""
        entry = self._entry(source)
        if not entry.is_on_hub:
            raise RequestError(source, "came with the studio", "there is nothing to download")
        if entry.is_here:
            raise RequestError(source, "is on this machine already", "there is nothing to download")
        self.downloads.begin(source)

    def pause(self, source: str) -> None:
        """Ends a download for now; what has arrived stays. Does nothing if there is none."""
        self.downloads.pause(source)

    def remove(self, source: str) -> int:
        """Removes it from this machine and returns the bytes that were freed.

        Raises: RequestError for what no preset uses or what came with the studio, StudioError while a job or a download needs it,
        ModelError if it cannot be deleted.
        """
        from backend.checkpoints.removal import remove

        entry = self._entry(source)
        if not entry.is_on_hub:
            raise RequestError(source, "came with the studio", "it cannot be removed")
        if source in self._in_use():
            raise StudioError(f"{source} is needed by a video that waits or is being made and", "stays", "remove it afterwards")
        if any(one.source == source and one.is_active for one in self.downloads.all()):
            raise StudioError(f"{source} is being downloaded and", "stays", "pause the download first")
        freed = remove(source, self._sources_to_keep(source))
        self.downloads.forget(source)
        self._notify_change()
        return freed

    def close(self) -> None:
        """Ends the download that runs."""
        self.downloads.close()

    def _row(self, entry: Entry, download: Download | None, devices: Sequence[Device]) -> ModelRow:
        is_model = entry.kind == "model"
        needs = find_needs(entry.source) if is_model else None
        return ModelRow(
            entry=entry,
            download=download,
            total_bytes=self.downloads.total(entry.source),
            weight_bytes=needs.weight_bytes if needs else 0,
            outlook=judge_compatibility(entry.presets, devices) if is_model else None,
        )

    def _sources_to_keep(self, source: str) -> list[str]:
        """What must stay on this machine besides: all that is whole, or is being downloaded or was begun by a press here."""
        others = [entry for entry in self._entries() if entry.is_on_hub and entry.source != source]
        return [one.source for one in others if one.is_here or self.downloads.total(one.source)]

    def _entry(self, source: str) -> Entry:
        self._expire_scan()
        entry = next((entry for entry in self._entries() if entry.source == source), None)
        if entry is None:
            raise RequestError(f"model={source[:80]!r}", "must be one that a preset uses", "choose one of the list")
        return entry

    def _entries(self) -> list[Entry]:
        with self._lock:
            if time.monotonic() - self._scan[0] > SCAN_SECONDS:
                self._scan = time.monotonic(), list_entries()
            return self._scan[1]

    def _notify_change(self) -> None:
        with self._lock:
            self._changes += 1
        self._expire_scan()
        self._on_change()

    def _expire_scan(self) -> None:
        with self._lock:
            self._scan = -SCAN_SECONDS, self._scan[1]


def required_sources(request: GenerationRequest) -> set[str]:
    """The checkpoint and the LoRA files that a request needs, by their ids; only the LoRAs if its preset is no longer there."""
    try:
        preset = find_preset(request.preset)
    except RequestError:
        return {lora.source for lora in request.loras}
    return {preset.model, *(lora.source for lora in (*preset.loras, *request.loras))}
