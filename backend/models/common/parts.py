"""What the families' faces share: checks of a checkpoint's parts, names by patterns, a transformer's width. Light."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from backend.checkpoints.checkpoint import named_parts
from backend.checkpoints.json_files import AGAIN
from backend.errors import ModelError
from backend.models.spec import Configs, refusal


def width_of(transformer: Mapping[str, Any]) -> int:
    """Channels of a token in the transformer."""
    return transformer["num_attention_heads"] * transformer["attention_head_dim"]


def renamed(name: str, patterns: Iterable[tuple[str, str]]) -> str:
    """The name after each pattern was replaced in turn."""
    for pattern, replacement in patterns:
        name = re.sub(pattern, replacement, name)
    return name


def index_of(configs: Configs, **own: Any) -> dict[str, Any]:
    """A model_index.json that names the parts of these configurations, with `own` entries."""
    return {part: ["diffusers", part] for part in configs} | own


def t5_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Of a tensor in the last layer of a text encoder of T5's kind."""
    return {f"encoder.block.{config['num_layers'] - 1}.layer.1.DenseReluDense.wo.weight": (config["d_model"], config["d_ff"])}


def check_parts(index: Mapping[str, Any], configs: Configs, needed: Mapping[str, Sequence[str]], whole: str) -> None:
    """Raises: ModelError if the index does not name a part that is `needed`, or an entry of its configuration is missing; `whole`
    is what is to be given instead."""
    named = named_parts(index)
    for part, entries in needed.items():
        if part not in named or part not in configs:
            raise ModelError(f"model_index.json names no {part}:", f"a checkpoint needs {', '.join(needed)}", f"give {whole}")
        for name in entries:
            if name not in configs[part]:
                raise ModelError(f"{part}/config.json does not say {name}:", f"a {part} needs {', '.join(entries)}", AGAIN)


def check_classes(configs: Configs, classes: Mapping[str, Collection[str]], supported: str) -> None:
    """Raises: ModelError if the network of a part says that it is of none of the part's classes."""
    for part, allowed in classes.items():
        class_name = configs[part].get("_class_name")
        if class_name is not None and class_name not in allowed:
            raise refusal(f"it has a {class_name}", [supported])


def channels_refusal(configs: Configs, latents: int, supported: str) -> ModelError:
    """The error for a transformer that does not fit the latents' channels."""
    channels = configs["transformer"]["in_channels"]
    return refusal(f"its transformer takes {channels} channels and its VAE makes {latents}", [supported])
