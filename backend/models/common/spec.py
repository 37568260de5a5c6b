"""The base of the families: it recognises a checkpoint by the class names of its pipeline and transformer.

Imports neither jax nor torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, ClassVar

from backend.checkpoints.checkpoint import Checkpoint
from backend.imports import TORCHVISION, hide_library
from backend.models.common.parts import model_index
from backend.models.spec import Configs, Kind
from presets import Preset

if TYPE_CHECKING:
    from backend.models.model import Model


class FamilyBase:
    """The methods of a `Family` that depend only on class names.

    Attributes:
        pipelines: class names of pipelines. A preset's model counts as the first of these classes.
        transformers: class names of transformers.
        body: the family's `Model` as "module:Class".
    """

    pipelines: ClassVar[tuple[str, ...]]
    transformers: ClassVar[tuple[str, ...]]
    body: ClassVar[str]

    def recognise(self, index: Mapping[str, Any], configs: Configs) -> Kind | None:
        """See `Family`."""
        return self._kind(index, configs) if index.get("_class_name") in self.pipelines else None

    def _kind(self, index: Mapping[str, Any], configs: Configs) -> Kind:
        """Return the kind of a checkpoint of this family. Raises: ModelError if the checkpoint is not supported."""
        raise NotImplementedError

    def complete_checkpoint(self, checkpoint: Checkpoint, preset: Preset | None) -> Checkpoint | None:
        """Return None, because the family has no single-file transformers."""

    def kind_for_preset(self, preset: Preset, configs: Configs) -> Kind | None:
        """See `Family`."""
        if configs["transformer"].get("_class_name") not in self.transformers:
            return None
        return self._kind(model_index(configs, _class_name=self.pipelines[0]), configs)

    def model(self) -> type[Model]:
        """See `Family`. Hides torchvision first, so that transformers does not import it."""
        hide_library(TORCHVISION)
        return resolve_name(self.body)
