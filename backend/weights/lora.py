"""LoRA files: finds which of a transformer's tensors each key changes, and changes a tensor. Keeps no weights in memory.

It reads the key styles of diffusers and PEFT (`transformer.NAME.lora_A.weight`), of lightx2v and ComfyUI, which write the
makers' own names (`diffusion_model.NAME.lora_down.weight`, `.alpha`, `.diff`, `.diff_b`, `.diff_m`), and of kohya's trainers
(`lora_unet_NAME_WITH_UNDERSCORES.lora_down.weight`). A model's family knows the names. One matrix of a file may stand for
several of ours.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from backend.checkpoints.loras import LoraName
from backend.checkpoints.tensors import TensorPlace, read_header, read_metadata
from backend.checkpoints.torch_file import SUFFIX as TORCH_SUFFIX
from backend.checkpoints.torch_file import TorchFile, torch_tensors
from backend.errors import ModelError
from backend.weights.read import read_tensor

Shapes = Mapping[str, tuple[int, ...]]
Names = Callable[[str], Sequence[LoraName]]
PREFIXES = ("base_model.model.", "model.diffusion_model.", "diffusion_model.", "transformer_2.", "transformer.",
            "lora_unet__", "lora_unet_", "lora_transformer_")  # fmt: skip
SECOND_EXPERT = "transformer_2."
SUFFIXES = {
    ".lora_A.weight": "down", ".lora_A.default.weight": "down", ".lora_down.weight": "down", ".lora.down.weight": "down",
    ".lora_B.weight": "up", ".lora_B.default.weight": "up", ".lora_up.weight": "up", ".lora.up.weight": "up",
    ".alpha": "alpha", ".diff": "diff", ".diff_b": "bias", ".lora_B.bias": "bias", ".diff_m": "modulation",
}  # fmt: skip
SHOWN_KEYS = 3


@dataclass(kw_only=True)
class _Change:
    """One tensor's change: low-rank (`up` times `down`, times `alpha` over the rank) or the difference itself. Where the file has
    `parts` tensors one above the other, this one is the `part`-th."""

    part: int = 0
    parts: int = 1
    down: TensorPlace | None = None
    up: TensorPlace | None = None
    alpha: float | None = None
    difference: TensorPlace | None = None

    @property
    def is_whole(self) -> bool:
        return self.difference is not None or (self.down is not None and self.up is not None)

    def of(self, shape: Sequence[int]) -> torch.Tensor:
        """The change at scale 1, float32."""
        total = torch.zeros(tuple(shape))
        if self.difference is not None:
            total += self._own_rows(read_tensor(self.difference).float()).reshape(shape)
        if self.down is not None and self.up is not None:
            down, up = (read_tensor(place).float().flatten(1) for place in (self.down, self.up))
            total += (self._own_rows(up) @ down).reshape(shape) * (1.0 if self.alpha is None else self.alpha / down.shape[0])
        return total

    def _own_rows(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.chunk(self.parts)[self.part]

    def fits(self, shape: Sequence[int]) -> bool:
        """Whether its tensors give a change of this shape."""
        size, rows = int(torch.Size(shape).numel()), shape[0] * self.parts
        if self.difference is not None and torch.Size(self.difference.shape).numel() != size * self.parts:
            return False
        if self.down is None or self.up is None:
            return True
        rank, width = self.down.shape[0], torch.Size(self.down.shape[1:]).numel()
        return len(self.up.shape) > 1 and self.up.shape[1] == rank and self.up.shape[0] == rows and shape[0] * width == size


@dataclass(frozen=True, kw_only=True)
class LoraFile:
    """What one file changes in one transformer: `changes` by the tensor's name in the checkpoint; `unused_keys` fit no tensor."""

    name: str
    changes: dict[str, _Change]
    used_keys: int
    unused_keys: tuple[str, ...] = field(default=())

    def report(self) -> str:
        """Which keys were used, in one sentence."""
        text = f"LoRA {self.name}: {self.used_keys} keys change {len(self.changes)} tensors"
        if not self.unused_keys:
            return text
        some_keys = ", ".join(self.unused_keys[:SHOWN_KEYS]) + (", ..." if len(self.unused_keys) > SHOWN_KEYS else "")
        return f"{text}; {len(self.unused_keys)} keys fit nothing ({some_keys})"


def read_lora(path: Path, shapes: Shapes, expert: int = 0, names: Names = lambda stem: ()) -> LoraFile:
    """What the file changes in a transformer whose tensors have these shapes; `expert` 1 is the low-noise one. `names` gives a
    module's other names (see `Family.lora_names`).

    Raises: ModelError if it changes nothing, or is no whole safetensors or .pt file.
    """
    header = _whole_header(path)
    if any(key.startswith(SECOND_EXPERT) for key in header):
        header = {key: place for key, place in header.items() if key.startswith(SECOND_EXPERT) == (expert == 1)}
    default_alpha, targets = _default_alpha(path), _targets(shapes, names)
    changes: dict[str, _Change] = {}
    keys_of: dict[str, list[str]] = {}
    for key, place in header.items():
        role, meant = _meaning(key, targets)
        for tensor, part, parts in meant:
            _add(changes.setdefault(tensor, _Change(alpha=default_alpha, part=part, parts=parts)), role, place)
            keys_of.setdefault(tensor, []).append(key)
    for tensor in [name for name, change in changes.items() if not (change.is_whole and change.fits(shapes[name]))]:
        del changes[tensor], keys_of[tensor]
    used = {key for keys in keys_of.values() for key in keys}
    unused = [key for key in header if key not in used]
    if not changes:
        raise ModelError(
            f"The LoRA {path.name} changes nothing in this model: none of its {len(header)} keys",
            f"such as {next(iter(header), 'none')} fits",
            "take one that was made for this model",
        )
    return LoraFile(name=path.name, changes=changes, used_keys=len(used), unused_keys=tuple(unused))


def _whole_header(path: Path) -> dict[str, TensorPlace]:
    try:
        return torch_tensors(TorchFile(path=path)) if path.suffix == TORCH_SUFFIX else read_header(path)
    except ModelError as error:
        raise ModelError(error.what, error.allowed, "copy or download the LoRA again") from None


def _add(change: _Change, role: str, place: TensorPlace) -> None:
    if role == "down":
        change.down = place
    elif role == "up":
        change.up = place
    elif role == "alpha":
        change.alpha = float(read_tensor(place).float())
    else:
        change.difference = place


def _meaning(key: str, targets: Mapping[str, list[LoraName]]) -> tuple[str, list[LoraName]]:
    """The role of the key's own tensor in a change, and the tensors that it changes."""
    suffix = max((suffix for suffix in SUFFIXES if key.endswith(suffix)), key=len, default="")
    if not suffix:
        return "", []
    role, stem = SUFFIXES[suffix], key.removesuffix(suffix)
    stem = next((stem.removeprefix(prefix) for prefix in PREFIXES if stem.startswith(prefix)), stem)
    ending = {"bias": ".bias", "modulation": ".modulation"}.get(role, "")
    return role, targets.get(stem + ending, [])


def _targets(shapes: Shapes, names: Names) -> dict[str, list[LoraName]]:
    """The tensors by each spelling of their module's name, several if files hold them as one; a bias has ".bias" after that."""
    targets: dict[str, list[LoraName]] = {}
    for name in shapes:
        stem, _, kind = name.rpartition(".")
        stem, ending = (stem, ".bias" if kind == "bias" else "") if kind in ("weight", "bias") else (name, "")
        for alias, part, parts in (LoraName(stem), *names(stem)):
            for spelling in (alias, alias.replace(".", "_")):
                found = targets.setdefault(spelling + ending, [])
                if LoraName(name, part, parts) not in found:
                    found.append(LoraName(name, part, parts))
    return targets


def _default_alpha(path: Path) -> float | None:
    """The alpha in the file's metadata, where diffusers writes it, or None."""
    if path.suffix == TORCH_SUFFIX:
        return None
    try:
        metadata = json.loads(read_metadata(path).get("lora_adapter_metadata", "{}"))
    except ValueError:
        return None
    return next((float(value) for key, value in metadata.items() if key.endswith("lora_alpha")), None)


@dataclass(frozen=True, kw_only=True)
class ScaledLora:
    """A LoRA file and how strongly it counts."""

    file: LoraFile
    scale: float


def adjusted(loras: Sequence[ScaledLora], name: str, tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with all changes that these LoRAs make to it, summed in float32; the tensor itself if there are none."""
    changes = [(lora.file.changes[name], lora.scale) for lora in loras if name in lora.file.changes]
    if not changes:
        return tensor
    return sum((scale * change.of(tensor.shape) for change, scale in changes), tensor.float())
