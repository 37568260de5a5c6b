"""The stand-in pipeline with a model cache: two cached models besides the current model.

A prompt with "crowded" runs out of memory while the cache has a second model.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from backend.schemas.events import Event
from backend.schemas.request import GenerationRequest
from backend.schemas.worker import CachedModel
from presets import Preset
from tests import fake_pipeline
from tests.fake_pipeline import FakeModel

__getattr__ = functools.partial(getattr, fake_pipeline)  # other names come from the stand-in pipeline

MOST = 3
Key = tuple[str, str]


class FakeModelCache:
    """Cache of the `MOST` models that were used last. Pinned models are removed last."""

    def __init__(self) -> None:
        self._models: dict[Key, FakeModel] = {}
        self._pinned: set[str] = set()

    def activate(self, key: Key) -> FakeModel | None:
        if key not in self._models:
            return None
        self._models[key] = self._models.pop(key)
        return self._models[key]

    def peek(self, key: Key) -> FakeModel | None:
        return self._models.get(key)

    def add(self, key: Key, model: FakeModel, is_used: bool) -> None:
        used = next(reversed(self._models), None)
        self._models[key] = model
        if used is not None and not is_used:
            self._models[used] = self._models.pop(used)
        while len(self._models) > MOST:
            del self._models[min(self._models, key=lambda kept: (kept[0] in self._pinned, list(self._models).index(kept)))]

    def set_expected(self, models: Sequence[str]) -> None:
        pass

    def pin(self, model: str, is_pinned: bool) -> None:
        self._pinned = self._pinned | {model} if is_pinned else self._pinned - {model}

    def unload(self, key: Key) -> None:
        self._models.pop(key, None)

    def unload_idle(self, model: str | None = None) -> bool:
        idle = [key for key in list(self._models)[:-1] if model in (None, key[0])]
        for key in idle:
            del self._models[key]
        return bool(idle)

    def list_models(self) -> tuple[CachedModel, ...]:
        names = [name for name, _ in reversed(self._models)]
        return tuple(CachedModel(model=name, chip_bytes=4, host_bytes=0, is_pinned=name in self._pinned) for name in names)

    def count_bytes(self) -> tuple[int, int]:
        return 4 * len(self._models), 0


model_cache, keeps_models = FakeModelCache(), True


def load(preset: Preset, model: str | None, on_event: Callable[[Event], None], is_used: bool = True, **rest: object) -> FakeModel:
    """Load a model with the stand-in pipeline and add it to the cache."""
    loaded = fake_pipeline.load(preset, model, on_event, **rest)
    model_cache.add((model or preset.model_source, preset.dtype), loaded, is_used)
    return loaded


def generate(request: GenerationRequest, loaded: FakeModel, folder: Path, is_cancelled: Callable[[], bool]) -> Iterator[Event]:
    """Generate with the stand-in pipeline, unless a crowded prompt finds a second model in the cache."""
    if "crowded" in request.prompt and len(model_cache.list_models()) > 1:
        raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate")
    yield from fake_pipeline.generate(request, loaded, folder, is_cancelled)
