"""Read LoRA files: find the tensors of a transformer that each key changes, and change a tensor. Keeps no weights in memory.

Key styles: diffusers and PEFT (`transformer.NAME.lora_A.weight`), kohya's trainers
(`lora_unet_NAME_WITH_UNDERSCORES.lora_down.weight`), LyCORIS (`lycoris_NAME_WITH_UNDERSCORES.hada_w1_a`). lightx2v and ComfyUI
use the original authors' names (`diffusion_model.NAME.lora_down.weight`, `.alpha`, `.diff`, `.diff_b`, `.diff_m`). One matrix may
change several tensors.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from backend.checkpoints.loras import LoraName
from backend.checkpoints.tensors import read_header, read_metadata
from backend.checkpoints.torch_file import SUFFIXES as TORCH_SUFFIXES
from backend.checkpoints.torch_file import TorchFile, read_torch_tensors
from backend.errors import ModelError
from backend.weights.lora_change import DIFFERENCE, LOHA, LOKR, MAGNITUDES, ROWS_MAGNITUDE, Change
from backend.weights.read import read_tensor

Shapes = Mapping[str, tuple[int, ...]]
Names = Callable[[str], Sequence[LoraName]]
PREFIXES = ("base_model.model.", "model.diffusion_model.", "diffusion_model.", "transformer_2.", "transformer.",
            "lora_unet__", "lora_unet_", "lora_transformer_", "lycoris_transformer_", "lycoris_")  # fmt: skip
SECOND_EXPERT = "transformer_2."
SUFFIXES = {
    ".lora_A.weight": "down", ".lora_A.default.weight": "down", ".lora_down.weight": "down", ".lora.down.weight": "down",
    ".lora_B.weight": "up", ".lora_B.default.weight": "up", ".lora_up.weight": "up", ".lora.up.weight": "up",
    ".alpha": "alpha", ".diff": DIFFERENCE, ".diff_b": "bias", ".lora_B.bias": "bias", ".diff_m": "modulation",
    **{f".{role}": role for role in (*LOHA, *LOKR, *MAGNITUDES)},
    **{f".{ROWS_MAGNITUDE}.{ending}": ROWS_MAGNITUDE for ending in ("weight", "default", "default.weight")},
}  # fmt: skip
ENDINGS = {"bias": ".bias", "modulation": ".modulation"}  # endings of the names of tensors that are not weights, by role
SHOWN_KEYS = 3


@dataclass(frozen=True, kw_only=True)
class LoraFile:
    """The changes of one file to one transformer.

    `changes` maps a tensor's name in the checkpoint to its change. `unused_keys` change no tensor, and `problem` states why a key
    that fits a tensor cannot change it. `control_downscale` is the factor by which control clips were smaller than the video in
    training, None if unknown.
    """

    name: str
    changes: dict[str, Change]
    used_keys: int
    unused_keys: tuple[str, ...] = field(default=())
    problem: str = ""
    control_downscale: int | None = None

    def describe_keys(self) -> str:
        text = f"LoRA {self.name}: {self.used_keys} keys change {len(self.changes)} tensors"
        if not self.unused_keys:
            return text
        some_keys = ", ".join(self.unused_keys[:SHOWN_KEYS]) + (", ..." if len(self.unused_keys) > SHOWN_KEYS else "")
        why = f": {self.problem}" if self.problem else ""
        return f"{text}; {len(self.unused_keys)} keys fit nothing ({some_keys}){why}"


def read_lora(path: Path, shapes: Shapes, expert: int = 0, names: Names = lambda stem: ()) -> LoraFile:
    """Read how a file changes a transformer whose tensors have these shapes. `expert` 1 is the low-noise expert. `names` returns
    the names of a module in LoRA files besides the checkpoint's name (see `Family.lora_names`).

    Raises: ModelError if the file changes nothing, or is not a complete safetensors, .pt or .pth file.
    """
    is_torch = path.suffix in TORCH_SUFFIXES
    try:
        header = read_torch_tensors(TorchFile(path=path)) if is_torch else read_header(path)
    except ModelError as error:
        raise ModelError(error.what, error.allowed, "copy or download the LoRA again") from None
    if any(key.startswith(SECOND_EXPERT) for key in header):
        header = {key: place for key, place in header.items() if key.startswith(SECOND_EXPERT) == (expert == 1)}
    metadata = {} if is_torch else read_metadata(path)
    (default_alpha, control_downscale), targets = _read_settings(metadata), _find_targets(shapes, names)
    changes: dict[str, Change] = {}
    keys_by_tensor: dict[str, list[str]] = {}
    for key, place in header.items():
        role, found_tensors = _parse_key(key, targets)
        for tensor, part, parts in found_tensors:
            change = changes.setdefault(tensor, Change(alpha=default_alpha, part=part, parts=parts))
            if role == "alpha":
                change.alpha = float(read_tensor(place).float())
            else:
                change.factors[DIFFERENCE if role in ENDINGS else role] = place
            keys_by_tensor.setdefault(tensor, []).append(key)
    problems = {name: problem for name, change in changes.items() if (problem := change.find_problem(shapes[name]))}
    for tensor in problems:
        del changes[tensor], keys_by_tensor[tensor]
    used = {key for keys in keys_by_tensor.values() for key in keys}
    unused = tuple(key for key in header if key not in used)
    problem = next((f"{name} {problem}" for name, problem in problems.items()), "")
    if not changes:
        what = f"The LoRA {path.name} changes nothing in this model: none of its {len(unused)} keys"
        example = f"such as {next(iter(unused), 'none')} fits"
        fix = "use a LoRA that was trained for this model"
        raise ModelError(what, f"{example} ({problem})" if problem else example, fix)
    return LoraFile(
        name=path.name,
        changes=changes,
        used_keys=len(used),
        unused_keys=unused,
        problem=problem,
        control_downscale=control_downscale,
    )


def _parse_key(key: str, targets: Mapping[str, list[LoraName]]) -> tuple[str, list[LoraName]]:
    """Return the role of the key's tensor, such as "up" or "alpha", "" if unknown, and the model's tensors that it changes."""
    suffix = max((suffix for suffix in SUFFIXES if key.endswith(suffix)), key=len, default="")
    if not suffix:
        return "", []
    role, stem = SUFFIXES[suffix], key.removesuffix(suffix)
    stems = [stem, *(stem.removeprefix(prefix) for prefix in PREFIXES if stem.startswith(prefix))]
    names = (f"{stem}{ENDINGS.get(role, '')}" for stem in stems)
    return role, next((targets[name] for name in names if name in targets), [])


def _find_targets(shapes: Shapes, names: Names) -> dict[str, list[LoraName]]:
    """Map each spelling of a module's name, with ".bias" for biases, to tensors of the model. Files may store several as one
    matrix."""
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


def _read_settings(metadata: Mapping[str, str]) -> tuple[float | None, int | None]:
    """Read alpha and `control_downscale` from the file's metadata, where diffusers and the authors of LTX-2 store them."""
    alpha = control_downscale = None
    with contextlib.suppress(ValueError):
        adapter = json.loads(metadata.get("lora_adapter_metadata", "{}"))
        alpha = next((value for key, value in adapter.items() if key.endswith("lora_alpha")), None)
    with contextlib.suppress(KeyError, TypeError, ValueError, OverflowError):
        control_downscale = round(float(metadata["reference_downscale_factor"]))
    return None if alpha is None else float(alpha), control_downscale


@dataclass(frozen=True, kw_only=True)
class ScaledLora:
    file: LoraFile
    scale: float


def apply_loras(loras: Sequence[ScaledLora], name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor with all changes of these LoRAs, summed in float32; the tensor itself if nothing changes."""
    changes = [(lora.file.changes[name], lora.scale) for lora in loras if name in lora.file.changes]
    if not changes:
        return tensor
    return sum((scale * change.compute_change(tensor) for change, scale in changes), tensor.float())
