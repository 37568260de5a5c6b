"""Helpers for the families' `spec.py`: checks of a checkpoint's folders, renaming by patterns, sparse attention.

This module imports neither jax nor torch.
"""

import dataclasses
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from backend.checkpoints.checkpoint import TRANSFORMER, Checkpoint, named_parts
from backend.checkpoints.json_files import AGAIN, Config
from backend.errors import ModelError
from backend.models.spec import SPARSE, Configs, SparseAttention, unsupported_checkpoint


def transformer_width(transformer: Config) -> int:
    return transformer["num_attention_heads"] * transformer["attention_head_dim"]


def apply_patterns(name: str, patterns: Iterable[tuple[str, str]]) -> str:
    """Apply all patterns, which are regular expressions and their replacements, one after the other."""
    for pattern, replacement in patterns:
        name = re.sub(pattern, replacement, name)
    return name


def with_sparse_attention(checkpoint: Checkpoint, method: SparseAttention | None) -> Checkpoint:
    if method is None:
        return checkpoint
    configs = {
        part: {**config, SPARSE: method} if part.startswith(TRANSFORMER) else config
        for part, config in checkpoint.configs.items()
    }
    return dataclasses.replace(checkpoint, configs=configs)


def is_named_sparse(path: Path) -> bool:
    """Return whether the name of a file, its folder or its repository on the Hub contains the word "sparse".

    Some methods of sparse attention add no weights to a checkpoint.
    """
    repositories = [part for part in path.parts if part.startswith("models--")]  # folder names of the Hub's cache
    return any("sparse" in name.lower() for name in (path.name, path.parent.name, *repositories))


def check_parts(index: Config, configs: Configs, needed: Mapping[str, Sequence[str]], whole: str) -> None:
    """Check that a checkpoint has all folders in `needed`, and that each folder's config.json has the listed entries.

    `index` is the content of model_index.json. The error tells the user to give `whole`, such as "a whole LTX-2 checkpoint".
    Raises: ModelError if a folder or an entry is missing.
    """
    named = named_parts(index)
    for part, entries in needed.items():
        if part not in named or part not in configs:
            raise ModelError(f"model_index.json names no {part}:", f"a checkpoint needs {', '.join(needed)}", f"give {whole}")
        for name in entries:
            if name not in configs[part]:
                raise ModelError(f"{part}/config.json has no {name}:", f"a {part} needs {', '.join(entries)}", AGAIN)


def check_classes(configs: Configs, classes: Mapping[str, Collection[str]], supported: str) -> None:
    """Check the class names in the configurations. Raises: ModelError if `classes` does not allow a network's class name."""
    for part, allowed in classes.items():
        class_name = configs[part].get("_class_name")
        if class_name is not None and class_name not in allowed:
            raise unsupported_checkpoint(f"it has a {class_name}", [supported])


def channel_mismatch(configs: Configs, latents: int, supported: str) -> ModelError:
    channels = configs["transformer"]["in_channels"]
    return unsupported_checkpoint(f"its transformer takes {channels} channels and its VAE makes {latents}", [supported])
