"""What differs between the demo models, for the one training, the one sampler and the one evaluation."""

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
    """How long each stage takes."""

    vae: float
    text: float
    transformer: float
    refine: float
    sound: float = 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """How one demo model is made.

    `pipeline` is what its model_index.json says; `has_speed` says whether its prompts may ask for a speed, `is_compiled` whether
    the transformer's layers are compiled for training. `make_tokenizer` writes to a folder; the text model is created from the
    tokenizer's folder, the networks from the text encoder's and the tokenizer's, or loaded from a checkpoint's and its
    tokenizer's; `schedule` gives diffusers' scheduler for a number of steps and a flow shift; `assemble` takes the folders of
    the parts, the autoencoder, the tokenizer and the checkpoint. A model that sounds has `train_sound`, which takes a folder, the
    seconds, the device, and, to train what comes after the latents further, the folder of networks that are trained.
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
