"""What a model family knows about its checkpoints without loading them. Light: neither jax nor torch.

A family is one folder in `backend/models` and one entry of `FAMILIES`. This module describes
the light half; `Family.model` gives the heavy one.
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
"""The config.json of a checkpoint's networks by part, such as "transformer"."""

Need = Literal["may", "must"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kind:
    """What one checkpoint can do. A family may add fields of its own.

    `takes` says for each role of an input whether it may or must be given (`contract.settings.INPUTS`); `continues` if a video
    can begin with several frames of a clip; `scales` are pixels per latent, in space and in time; a token is `patch` x `patch`
    latents; `boundary` is the share of the noise below which the second of two experts works; `chunk` how many latent frames are
    made at once, None for the whole video. Inputs of the roles `first_only` are for the first chunk alone; `from_inputs` are the
    names of the denoiser's conditions that follow from the inputs alone, if texts that are said later need not make them again.
    `sound_rate` are the samples a second of the sound that it makes with a video, None for silent videos. `other_series`
    are those of presets that are for other versions of it. `enlarges` if it has a network that doubles the size of latents.
    `over_floor` says how many times the floor of its arithmetic a step takes (`chips.StepFlops`), for estimates.
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
    over_floor: float = 1.2  # derived: check-tpu on v6e says 1.12 (720p) to 1.31 (480p, small models), docs/performance.md

    def needs(self, role: str) -> bool:
        """Whether an input of this role must be given."""
        return self.takes.get(role) == "must"


class Family(Protocol):
    """One model family: an object with these methods, one in each family's folder."""

    name: str
    supports: str  # its checkpoints in words, for the error about an unsupported one

    def recognise(self, index: Mapping[str, Any], configs: Configs) -> Kind | None:
        """The kind of a checkpoint from its model_index.json and its configurations; None if it belongs to another family.

        Raises: ModelError if it is of this family but cannot be run.
        """

    def completed(self, checkpoint: Checkpoint, preset: Preset | None) -> Checkpoint | None:
        """The checkpoint, whose transformers lie in files of their own, with what those files and the preset say that nothing
        else does; None if they may be another family's.

        Raises: ModelError if a file holds no transformer of this family, or another than the checkpoint needs.
        """

    def of_preset(self, preset: Preset, configs: Configs) -> Kind | None:
        """The kind of a preset's model, without its checkpoint; None if it belongs to another family."""

    def distinctive_shapes(self, configs: Configs, part: str) -> dict[str, tuple[int, ...]]:
        """The shapes of a few tensors of a part that differ between networks of different sizes, without building one. Files may
        have more in front of a tensor's name."""

    def step_flops(self, configs: Configs, request: VideoSettings, branches: int) -> StepFlops:
        """The arithmetic of one denoising step of this request, or of one context window in it."""

    def lora_names(self, stem: str) -> tuple[LoraName, ...]:
        """Other names of a transformer's module in LoRA files: those that the model's makers give it, and ComfyUI."""

    def model(self) -> type[Model]:
        """The family's `Model` class; importing it imports jax."""


def check_preset(kind: Kind, preset: Preset, source: str) -> None:
    """Raises: ModelError if a checkpoint given in place of the preset's own is of a kind that does not fit the preset."""
    facts = {
        "tasks": (" and ".join(kind.tasks), " and ".join(preset.tasks), set(preset.tasks) <= set(kind.tasks)),
        "experts": _pair(kind.num_experts, preset.num_experts),
        "last image": _pair(kind.needs("last_image"), preset.needs_last_image),
        "clips of poses and faces": _pair("face" in kind.takes, "face" in preset.takes),
        "control clips": _control(kind, preset),
        "pixels a latent": _pair(kind.scales[0], preset.vae_scale_spatial),
        "frames a latent": _pair(kind.scales[1], preset.vae_scale_temporal),
        "pixels a token": _pair(kind.scales[0] * kind.patch, preset.vae_scale_spatial * preset.patch),
        "enlarging latents": (kind.enlarges, preset.refines, kind.enlarges or not preset.refines),
        "sound": _pair(kind.sound_rate is not None, preset.makes_sound),
        "driving clips": _pair("drive" in kind.takes, "drive" in preset.takes),
        "going on after clips": (kind.continues, preset.continues, kind.continues or not preset.continues),
        "version": (kind.name, preset.series, preset.series not in kind.other_series),
    }
    for name, (found, expected, fits) in facts.items():
        if not fits:
            raise ModelError(
                f"The model {source} is a {kind.name} ({name}: {found}),",
                f"and the preset {preset.name} is for another kind ({name}: {expected})",
                f"take a preset of {kind.name}, or another --model",
            )


def _control(kind: Kind, preset: Preset) -> tuple[bool, bool, bool]:
    """Models that edit clips, to which masks belong, are of another kind than those that may follow one."""
    found, expected = "control" in kind.takes, "control" in preset.takes
    return found, expected, ("mask" in kind.takes) == ("mask" in preset.takes) and found >= expected


def _pair(found: Any, expected: Any) -> tuple[Any, Any, bool]:
    return found, expected, found == expected


def refusal(what: str, supported: Sequence[str]) -> ModelError:
    """The error for a checkpoint that no family can run."""
    return ModelError(
        f"This checkpoint cannot be run ({what}):", f"supported are {'; '.join(supported)}", "give one of these with --model"
    )
