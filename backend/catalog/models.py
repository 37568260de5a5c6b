"""The models of this machine for the Models page: their state and needs, and their download and removal."""

import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from backend.catalog.catalog import Entry, list_entries
from backend.catalog.compatibility import Compatibility, is_estimate, judge_compatibility, recommend_preset
from backend.catalog.downloads import Download, Downloads
from backend.errors import RequestError, StudioError
from backend.schemas.request import GenerationRequest
from backend.schemas.worker import Device
from backend.settings import Settings
from presets.needs import find_needs

SCAN_SECONDS = 2.0  # time for which a scan of the files is reused, because every open Models page asks repeatedly


@dataclass(frozen=True, kw_only=True)
class ModelRow:
    """One model or LoRA on the Models page.

    Attributes:
        total_bytes: total size of the files as the Hub reported it, 0 if the Hub was never asked.
        weight_bytes: size of the networks' weights in memory, 0 if it is not known and for LoRAs.
        recommended: the preset of this model that is the best for this machine, "" for other models.
        estimated_from: the slice of another chip from which `recommended` was estimated, "" if it has figures for this chip.
    """

    entry: Entry
    download: Download | None
    total_bytes: int
    weight_bytes: int
    outlook: Compatibility | None
    recommended: str = ""
    estimated_from: str = ""


class Models:
    """The models of one server.

    `in_use` returns the sources that unfinished jobs need. `devices` returns the devices of one worker.
    """

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
        downloads, devices, rows = {one.source: one for one in self.downloads.all()}, self._devices(), []
        best, need = recommend_preset(devices) if devices else (None, None)
        estimated_from = need.slice if need is not None and is_estimate(need, devices) else ""
        for entry in self._scan_entries():
            is_model = entry.kind == "model"
            needs = find_needs(entry.source) if is_model else None
            rows.append(
                ModelRow(
                    entry=entry,
                    download=downloads.get(entry.source),
                    total_bytes=self.downloads.total(entry.source),
                    weight_bytes=needs.weight_bytes if needs else 0,
                    outlook=judge_compatibility(entry.presets, devices) if is_model else None,
                    recommended=best.name if is_model and best in entry.presets else "",
                    estimated_from=estimated_from,
                )
            )
        return rows

    def changes(self) -> int:
        """Return a number that grows when a model is installed or removed, and other presets can run."""
        with self._lock:
            return self._changes

    def fetch(self, source: str) -> None:
        """Queue a download, or resume a paused download. Raises: RequestError."""
        entry = self._find_entry(source)
        if not entry.is_on_hub:
            raise RequestError(source, "is part of the studio", "there is nothing to download")
        if entry.is_here:
            raise RequestError(source, "is on this machine already", "there is nothing to download")
        self.downloads.begin(source)

    def remove(self, source: str) -> int:
        """Delete a source from this machine and return the number of freed bytes.

        Raises: RequestError; StudioError while a job or a download needs the source; ModelError if a file cannot be deleted.
        """
        from backend.checkpoints.removal import remove

        entry = self._find_entry(source)
        if not entry.is_on_hub:
            raise RequestError(source, "is part of the studio", "it cannot be removed")
        if source in self._in_use():
            raise StudioError(f"{source} is needed by a queued or running video", "and was not removed", "remove it afterwards")
        if any(one.source == source and one.is_active for one in self.downloads.all()):
            raise StudioError(f"{source} is being downloaded", "and was not removed", "pause the download first")
        others = [one for one in self._scan_entries() if one.is_on_hub and one.source != source]
        # Keep the files that other models need, if these models are complete or their download has started.
        freed = remove(source, [one.source for one in others if one.is_here or self.downloads.total(one.source)])
        self.downloads.forget(source)
        self._notify_change()
        return freed

    def _find_entry(self, source: str) -> Entry:
        with self._lock:
            self._scan = -SCAN_SECONDS, self._scan[1]
        entry = next((entry for entry in self._scan_entries() if entry.source == source), None)
        if entry is None:
            raise RequestError(f"model={source[:80]!r}", "must be used by a preset", "choose a model from the list")
        return entry

    def _scan_entries(self) -> list[Entry]:
        with self._lock:
            if time.monotonic() - self._scan[0] > SCAN_SECONDS:
                self._scan = time.monotonic(), list_entries()
            return self._scan[1]

    def _notify_change(self) -> None:
        with self._lock:
            self._changes += 1
            self._scan = -SCAN_SECONDS, self._scan[1]
        self._on_change()


def required_sources(request: GenerationRequest) -> set[str]:
    """Return the ids of the checkpoint and the LoRA files that a request needs, without the checkpoint of a missing preset."""
    try:
        preset = request.resolved_preset
    except RequestError:
        return {lora.source for lora in request.loras}
    return {preset.model, *(lora.source for lora in (*preset.loras, *request.loras))}
