"""What the families' faces share: a checkpoint is told by the classes that its pipeline and its transformer have. Light."""

from __future__ import annotations

from collections.abc import Mapping
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, ClassVar

from backend.checkpoints.checkpoint import Checkpoint
from backend.imports import TORCHVISION, hide
from backend.models.common.parts import index_of
from backend.models.spec import Configs, Kind
from presets import Preset

if TYPE_CHECKING:
    from backend.models.model import Model


class Face:
    """The part of a `Family` that follows from the names of classes, the first of which are those of presets' models. `body` is
    the family's `Model` as "module:Class"."""

    pipelines: ClassVar[tuple[str, ...]]
    transformers: ClassVar[tuple[str, ...]]
    body: ClassVar[str]

    def recognise(self, index: Mapping[str, Any], configs: Configs) -> Kind | None:
        """See `Family`."""
        return self._kind(index, configs) if index.get("_class_name") in self.pipelines else None

    def _kind(self, index: Mapping[str, Any], configs: Configs) -> Kind:
        """The kind of a checkpoint of this family. Raises: ModelError naming what is missing or does not fit, and what is
        supported."""
        raise NotImplementedError

    def completed(self, checkpoint: Checkpoint, preset: Preset | None) -> Checkpoint | None:
        """None: its transformer lies in the checkpoint's folder."""

    def of_preset(self, preset: Preset, configs: Configs) -> Kind | None:
        """See `Family`."""
        if configs["transformer"].get("_class_name") not in self.transformers:
            return None
        return self._kind(index_of(configs, _class_name=self.pipelines[0]), configs)

    def model(self) -> type[Model]:
        """Imported late, because it imports jax and torch; transformers, which comes with it, does not see torchvision."""
        hide(TORCHVISION)
        return resolve_name(self.body)
