"""The part of a model family that recognises checkpoints and describes them without loading. Imports neither jax nor torch.

A family is one folder in `backend/models` and one entry of `FAMILIES`. `Family.model` returns the part that imports jax.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

from backend.checkpoints.checkpoint import Checkpoint
from backend.checkpoints.loras import LoraName
from backend.chips import StepFlops
from backend.errors import ModelError
from backend.schemas.settings import VideoSettings
from presets import Preset

if TYPE_CHECKING:
    from backend.models.model import Model

Configs = Mapping[str, Mapping[str, Any]]
"""The config.json of each network of a checkpoint by folder, such as "transformer"."""

Need = Literal["may", "must"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kind:
    """The capabilities of a checkpoint. A family may add fields.

    Attributes:
        takes: the supported roles of inputs (`schemas.settings.INPUTS`). The value is "must" for required inputs, else "may".
        continues: a video can start with several frames of a clip.
        scales: pixels per latent position along each side, and pixel frames per latent frame.
        patch: a token covers `patch` x `patch` positions of the latents.
        num_experts: number of transformers.
        boundary: the noise level, 0 to 1, below which the second expert takes over.
        chunk: number of latent frames that are denoised together, None for the whole video.
        first_only: roles of inputs that only the first chunk uses.
        from_inputs: names of the conditions that depend only on the inputs. Later prompts do not recompute them.
        sound_rate: samples per second of the generated audio, None if the model generates no audio.
        other_series: series of presets that belong to other versions of the model.
        enlarges: the checkpoint has a network that doubles the size of latents.
        over_floor: time of a step, divided by the time of its arithmetic at the chip's peak (`chips.StepFlops`), for estimates.
    """

    name: str
    tasks: tuple[str, ...]
    takes: Mapping[str, Need] = dataclasses.field(default_factory=dict)
    continues: bool = False
    scales: tuple[int, int]
    patch: int = 2
    num_experts: int = 1
    boundary: float | None = None
    chunk: int | None = None
    first_only: tuple[str, ...] = ()
    from_inputs: frozenset[str] = frozenset()
    sound_rate: int | None = None
    other_series: tuple[str, ...] = ()
    enlarges: bool = False
    # The default follows from predictions: check-tpu predicts 1.12 (720p) to 1.31 (480p, small models) on v6e, see
    # docs/performance.md.
    over_floor: float = 1.2

    def needs(self, role: str) -> bool:
        """Return whether an input of this role must be given."""
        return self.takes.get(role) == "must"


class Family(Protocol):
    """The interface of a model family. Each family's folder has one such object."""

    name: str
    supports: str  # the supported checkpoints in words, for error messages

    def recognise(self, index: Mapping[str, Any], configs: Configs) -> Kind | None:
        """Return the kind of a checkpoint from its model_index.json and its configurations. None for another family.

        Raises: ModelError if the checkpoint is of this family but is not supported.
        """

    def complete_checkpoint(self, checkpoint: Checkpoint, preset: Preset | None) -> Checkpoint | None:
        """Complete a checkpoint with facts from its single-file transformers and the preset. None for files of another family.

        Raises: ModelError if a file has no transformer of this family, or a transformer that does not fit the checkpoint.
        """

    def kind_for_preset(self, preset: Preset, configs: Configs) -> Kind | None:
        """Return the kind of a preset's model without its checkpoint. None for another family."""

    def distinctive_shapes(self, configs: Configs, part: str) -> dict[str, tuple[int, ...]]:
        """Return the shapes of a few tensors that differ between networks of different sizes, without building a network.

        The caller compares them with a file's tensors, whose names may have a further prefix.
        """

    def step_flops(self, configs: Configs, request: VideoSettings, branches: int) -> StepFlops:
        """Return the floating-point operations of one denoising step, or of one context window in this step."""

    def lora_names(self, stem: str) -> tuple[LoraName, ...]:
        """Return other names of a transformer's module in LoRA files: the original authors' names and ComfyUI's names."""

    def model(self) -> type[Model]:
        """Import and return the family's `Model` class. This imports jax."""


def check_preset(kind: Kind, preset: Preset, source: str) -> None:
    """Check that a checkpoint can replace the preset's own model. Raises: ModelError if its kind does not fit the preset."""
    facts = {
        "tasks": (" and ".join(kind.tasks), " and ".join(preset.tasks), set(preset.tasks) <= set(kind.tasks)),
        "experts": _compare(kind.num_experts, preset.num_experts),
        "last image": _compare(kind.needs("last_image"), preset.needs_last_image),
        "clips of poses and faces": _compare("face" in kind.takes, "face" in preset.takes),
        "control clips": _compare_control(kind, preset),
        "pixels a latent": _compare(kind.scales[0], preset.vae_scale_spatial),
        "frames a latent": _compare(kind.scales[1], preset.vae_scale_temporal),
        "pixels a token": _compare(kind.scales[0] * kind.patch, preset.vae_scale_spatial * preset.patch),
        "enlarging latents": (kind.enlarges, preset.refines, kind.enlarges or not preset.refines),
        "sound": _compare(kind.sound_rate is not None, preset.makes_sound),
        "driving clips": _compare("drive" in kind.takes, "drive" in preset.takes),
        "extending clips": (kind.continues, preset.continues, kind.continues or not preset.continues),
        "version": (kind.name, preset.series, preset.series not in kind.other_series),
    }
    for name, (found, expected, fits) in facts.items():
        if not fits:
            raise ModelError(
                f"The model {source} is a {kind.name} ({name}: {found}),",
                f"and the preset {preset.name} is for another kind ({name}: {expected})",
                f"use a preset of {kind.name}, or another --model",
            )


def _compare_control(kind: Kind, preset: Preset) -> tuple[bool, bool, bool]:
    """Return whether the model supports control clips, whether the preset does, and whether the model fits the preset.

    The model must support control clips if the preset does. Either the model and the preset support masks, or neither does.
    """
    found, expected = "control" in kind.takes, "control" in preset.takes
    return found, expected, ("mask" in kind.takes) == ("mask" in preset.takes) and found >= expected


def _compare(found: Any, expected: Any) -> tuple[Any, Any, bool]:
    return found, expected, found == expected


def unsupported_checkpoint(what: str, supported: Sequence[str]) -> ModelError:
    """Return the error for a checkpoint that no family supports."""
    return ModelError(
        f"This checkpoint is not supported ({what}):",
        f"supported are {'; '.join(supported)}",
        "choose a supported checkpoint with --model",
    )
