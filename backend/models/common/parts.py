"""Helpers for the families' `spec.py`: checks of a checkpoint's parts, renaming by patterns, a transformer's width.

Imports neither jax nor torch.
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
    """Return the number of channels of a token in the transformer."""
    return transformer["num_attention_heads"] * transformer["attention_head_dim"]


def apply_patterns(name: str, patterns: Iterable[tuple[str, str]]) -> str:
    """Apply the pairs of a regular expression and its replacement to the name, one pair after the other."""
    for pattern, replacement in patterns:
        name = re.sub(pattern, replacement, name)
    return name


def with_sparse_attention(checkpoint: Checkpoint, method: SparseAttention | None) -> Checkpoint:
    """Return the checkpoint with the method in the configurations of its transformers, unchanged without a method."""
    if method is None:
        return checkpoint
    configs = {
        part: {**config, SPARSE: method} if part.startswith(TRANSFORMER) else config
        for part, config in checkpoint.configs.items()
    }
    return dataclasses.replace(checkpoint, configs=configs)


def is_named_sparse(path: Path) -> bool:
    """Return whether the name of a file, its folder or its repository on the Hub has the word "sparse".

    Some methods of sparse attention have no weights, so that only the name shows them.
    """
    repositories = [part for part in path.parts if part.startswith("models--")]  # the Hub's cache names its folders so
    return any("sparse" in name.lower() for name in (path.name, path.parent.name, *repositories))


def t5_shapes(config: Config) -> dict[str, tuple[int, ...]]:
    """Return the name and shape of a tensor in the last layer of a T5 text encoder."""
    return {f"encoder.block.{config['num_layers'] - 1}.layer.1.DenseReluDense.wo.weight": (config["d_model"], config["d_ff"])}


def check_parts(index: Config, configs: Configs, needed: Mapping[str, Sequence[str]], whole: str) -> None:
    """Check that model_index.json, given as `index`, names all parts in `needed`.

    Also check that each part's configuration has the entries that `needed` lists for the part. The error message tells the user
    to give `whole`, such as "a whole LTX-2 checkpoint". Raises: ModelError if a part or entry is missing.
    """
    named = named_parts(index)
    for part, entries in needed.items():
        if part not in named or part not in configs:
            raise ModelError(f"model_index.json names no {part}:", f"a checkpoint needs {', '.join(needed)}", f"give {whole}")
        for name in entries:
            if name not in configs[part]:
                raise ModelError(f"{part}/config.json has no {name}:", f"a {part} needs {', '.join(entries)}", AGAIN)


def check_classes(configs: Configs, classes: Mapping[str, Collection[str]], supported: str) -> None:
    """Check the class names in the configurations. Raises: ModelError if a class is not allowed for its part."""
    for part, allowed in classes.items():
        class_name = configs[part].get("_class_name")
        if class_name is not None and class_name not in allowed:
            raise unsupported_checkpoint(f"it has a {class_name}", [supported])


def channel_mismatch(configs: Configs, latents: int, supported: str) -> ModelError:
    """Return the error for a transformer whose channels differ from the channels of the latents."""
    channels = configs["transformer"]["in_channels"]
    return unsupported_checkpoint(f"its transformer takes {channels} channels and its VAE makes {latents}", [supported])
