"""The differences between the demo models. Training, sampler and evaluation are shared."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from training.latents import Bucket
from training.train_text_encoder import TextModel
from training.train_transformer import Networks
from training.train_vae import Autoencoder, VaeTraining


@dataclasses.dataclass(frozen=True, kw_only=True)
class StageSeconds:
    """The time limits of the stages in seconds."""

    vae: float
    text: float
    transformer: float
    refine: float
    sound: float = 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """The training of a demo model.

    `pipeline` is the class in its model_index.json. `has_speed` is true if its prompts can contain a speed. `is_compiled` is true
    if the transformer's layers are compiled for training. `make_tokenizer` writes to a folder. The text model is created from the
    tokenizer's folder. The networks are created from the folders of text encoder and tokenizer, or loaded from the folders of a
    checkpoint and its tokenizer. `schedule` returns diffusers' scheduler for a number of steps and a flow shift. `assemble` takes
    the folders of the networks, the autoencoder, the tokenizer and the checkpoint. `train_sound`, for a model with audio, takes a
    folder, the seconds, the device, and optionally a folder of trained networks, whose decoder and vocoder it trains further.
    """

    pipeline: str
    has_speed: bool
    is_compiled: bool
    seconds: StageSeconds
    buckets: tuple[Bucket, ...]
    text_learning_rate: float
    autoencoder: Autoencoder
    vae_training: VaeTraining
    make_tokenizer: Callable[[Path], Any]
    create_text: Callable[[Path, str], TextModel]
    create: Callable[[Path, Path, str], Networks]
    load: Callable[[Path, Path, str], Networks]
    schedule: Callable[[int, float], Any]
    assemble: Callable[[Path, Path, Path, Path], None]
    train_sound: Callable[[Path, float, str, Path | None], Any] | None = None
