"""The specs of checkpoints, and the part of a model family that recognises checkpoints without loading them.

A family is one folder in `backend/models` and one entry of `FAMILIES`. Only `Family.model` imports jax.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pkgutil import resolve_name
from typing import TYPE_CHECKING, ClassVar, Literal

from backend.checkpoints.checkpoint import Checkpoint
from backend.checkpoints.json_files import Config
from backend.checkpoints.loras import LoraName
from backend.checkpoints.single_file import file_path
from backend.chips import StepFlops
from backend.errors import ModelError
from backend.imports import TORCHVISION, hide_library
from backend.schemas.settings import VideoSettings
from presets import Preset

if TYPE_CHECKING:
    from backend.models.model import Model

Configs = Mapping[str, Config]
"""The config.json of each network of a checkpoint by folder, such as "transformer"."""

Need = Literal["may", "must"]
SparseAttention = Literal["sla", "sla-map", "vsa", "ssta"]
"""The method of sparse attention that a transformer was trained with: SLA, only the block map of SLA, VSA, or SSTA."""
SPARSE = "sparse_attention"
"""The entry in a transformer's configuration with the method of sparse attention. This project adds the entry; published files
lack it. Without the entry the attention is dense."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """The capabilities of a checkpoint, derived from its configurations. A family may add fields.

    Some fields also exist in presets, with the same meaning (see `docs/presets.md`). `check_preset` compares their values.

    Attributes:
        inputs: the supported inputs by role (see `schemas.settings.INPUTS`), "must" if the input is required, else "may".
        scales: pixels per latent position along each side, and pixel frames per latent frame.
        patch: a token covers `patch` x `patch` positions of the latents.
        boundary: the noise level, 0 to 1, below which the second expert takes over.
        chunk: number of latent frames that are denoised together, None for the whole video.
        first_only: roles of inputs that only the first chunk uses.
        from_inputs: names of the conditions that depend only on the inputs. All prompts of a video share these conditions.
        sound_rate: samples per second of the generated audio, None if the model generates no audio.
        other_series: series of presets that belong to other versions of the model.
        refines: true if the checkpoint has a network that doubles the size of latents.
        has_control_blocks: true if additional layers (control blocks) read a clip with a mask.
        sparse_attention: the entry `sparse_attention` of the transformers' configurations, None for dense attention.
        takes_quantize: true if the large matrices of the transformers can be stored in 8 bits.
        over_floor: the expected time of a step, divided by the time that its operations (`chips.StepFlops`) need at the chip's
            peak speed. Used for estimates.
    """

    name: str
    tasks: tuple[str, ...]
    inputs: Mapping[str, Need] = dataclasses.field(default_factory=dict)
    continues: bool = False
    scales: tuple[int, int]
    patch: int = 2
    num_experts: int = 1
    boundary: float | None = None
    chunk: int | None = None
    live: bool = False
    actions: tuple[str, ...] = ()
    combines_actions: bool = False
    reads_prompt: bool = True
    segment_frames: int | None = None
    face_side: int | None = None
    first_only: tuple[str, ...] = ()
    from_inputs: frozenset[str] = frozenset()
    sound_rate: int | None = None
    other_series: tuple[str, ...] = ()
    refines: bool = False
    has_control_blocks: bool = False
    sparse_attention: SparseAttention | None = None
    takes_quantize: bool = False
    # The default is between check-tpu's predictions for v6e, 1.12 (720p) and 1.31 (480p, small models). See docs/performance.md.
    over_floor: float = 1.2

    @property
    def vae_scale_spatial(self) -> int:
        return self.scales[0]

    @property
    def vae_scale_temporal(self) -> int:
        return self.scales[1]

    @property
    def makes_sound(self) -> bool:
        return self.sound_rate is not None

    @property
    def frame_step(self) -> int:
        """The difference between two successive lengths of a video in pixel frames: a block (live models) or a latent frame.

        Models that generate segments support all lengths.
        """
        if self.segment_frames is not None:
            return 1
        return self.scales[1] * (self.chunk or 1 if self.live else 1)

    @property
    def first_frames(self) -> int:
        """The smallest length of a video in pixel frames: the first block for live models, else 1."""
        return self.frame_step - self.scales[1] + 1 if self.live else 1


FACTS: Mapping[str, Literal["same", "offered", "multiple"]] = {
    "tasks": "offered",
    "num_experts": "same",
    "vae_scale_spatial": "same",
    "vae_scale_temporal": "same",
    "patch": "same",
    "inputs": "offered",
    "has_control_blocks": "same",
    "continues": "offered",
    "refines": "offered",
    "takes_quantize": "offered",
    "makes_sound": "same",
    "live": "same",
    "frame_step": "multiple",
    "first_frames": "multiple",
    "actions": "offered",
    "combines_actions": "offered",
    "reads_prompt": "same",
    "segment_frames": "same",
    "face_side": "same",
}
"""The facts that specs and presets have in common, in the order of the check. A "same" fact must be equal. A preset must ask for
no more of an "offered" fact than the spec has: some of the tasks, or all required inputs and some of the optional inputs. A
"multiple" fact may differ by a multiple of the spec's `frame_step`, so the checkpoint can generate all lengths of the preset."""


def check_preset(spec: ModelSpec, preset: Preset, source: str) -> None:
    """Check that a checkpoint can replace the preset's own model: the spec fits the preset in all fields that `FACTS` lists.

    Raises: ModelError for the first fact that does not fit, and for a preset of another version of the model.
    """
    if preset.series in spec.other_series:
        raise _misfit(spec, preset, source, "series", spec.name, preset.series)
    for fact, rule in FACTS.items():
        found, asked = getattr(spec, fact), getattr(preset, fact)
        if isinstance(found, Mapping):  # compare each input separately, so that the error lists only inputs that do not fit
            roles = [role for role in {**found, **asked} if found.get(role) not in ("may", asked.get(role))]
            found, asked = (tuple(f"{role}={value.get(role, 'no')}" for role in roles) for value in (found, asked))
            fits = not roles
        elif isinstance(found, tuple):
            fits = set(asked) <= set(found)
        elif rule == "multiple":
            fits = (asked - found) % spec.frame_step == 0
        else:
            fits = found == asked if rule == "same" else found >= asked
        if not fits:
            raise _misfit(spec, preset, source, fact, found, asked)


def _misfit(spec: ModelSpec, preset: Preset, source: str, fact: str, found: object, asked: object) -> ModelError:
    found, asked = (" and ".join(value) or "none" if isinstance(value, tuple) else value for value in (found, asked))
    return ModelError(
        f"The model {source} is a {spec.name} ({fact}: {found}),",
        f"and the preset {preset.name} is for another kind ({fact}: {asked})",
        f"use a preset of {spec.name}, or another --model",
    )


class Family:
    """A model family. Each family's folder has one object of a subclass.

    Attributes:
        name: the family's name.
        supports: the supported checkpoints in words, for error messages.
        pipelines: the class names of pipelines in model_index.json (`_class_name`) by which `FAMILIES` finds the family.
        body: the family's `Model` as "module:Class".
    """

    name: ClassVar[str]
    supports: ClassVar[str]
    pipelines: ClassVar[tuple[str, ...]]
    body: ClassVar[str]

    def read_spec(self, index: Config, configs: Configs) -> ModelSpec:
        """Return the spec of a checkpoint from its model_index.json and its configurations.

        The pipeline that model_index.json names is one of `pipelines`. Raises: ModelError if the checkpoint is not supported.
        """
        raise NotImplementedError

    def complete_folder(self, checkpoint: Checkpoint) -> Checkpoint:
        """Add facts that only a checkpoint's tensors show to its configurations. By default, return the checkpoint unchanged.

        The weights may be missing, before they are downloaded. Raises: ModelError for broken files.
        """
        return checkpoint

    def complete_checkpoint(self, checkpoint: Checkpoint, preset: Preset | None) -> Checkpoint:
        """Complete a checkpoint with facts from its single-file transformers and the preset. By default, refuse single files.

        Raises: ModelError if a file has no transformer of this family, or a transformer that does not fit the checkpoint.
        """
        raise no_single_files(checkpoint)

    def distinctive_shapes(self, configs: Configs, part: str) -> dict[str, tuple[int, ...]]:
        """Return the expected shapes of a few tensors by name, without building a network.

        Networks of other sizes have other shapes. In the file with which the shapes are compared, names may have a prefix.
        """
        raise NotImplementedError

    def step_flops(self, configs: Configs, request: VideoSettings, branches: int) -> StepFlops:
        """Return the floating-point operations of one denoising step. With context windows, count one window only."""
        raise NotImplementedError

    def lora_names(self, stem: str) -> tuple[LoraName, ...]:
        """Return the names that LoRA files of the authors and of ComfyUI can have for the transformer's module `stem`."""
        return ()

    def model(self) -> type[Model]:
        """Import and return the family's `Model` class. This imports jax."""
        hide_library(TORCHVISION)  # so that transformers does not import it
        return resolve_name(self.body)


def unsupported_checkpoint(what: str, supported: Sequence[str]) -> ModelError:
    return ModelError(
        f"This checkpoint is not supported ({what}):",
        f"supported are {'; '.join(supported)}",
        "choose a supported checkpoint with --model",
    )


def no_single_files(checkpoint: Checkpoint) -> ModelError:
    names = " and ".join(file_path(file).name for file in checkpoint.transformer_files.values())
    return ModelError(
        f"--transformer was given for {names},",
        f"but a {checkpoint.index.get('_class_name')} has its transformer in its own folder",
        "leave it out",
    )
