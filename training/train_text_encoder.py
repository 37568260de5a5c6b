"""Teach the demo model's text encoder its world first: every token's embedding must show what the sentence states.

A linear reading of each token's embedding names the colour, shape, motion, background and size that the sentence states,
or that it states none. A few minutes of this save the transformer from learning English through the flow-matching loss.
Which tokens must show it is the text model's affair: all where attention looks both ways, those at the end where it is causal.
"""

from __future__ import annotations

import dataclasses
import logging
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import torch
import torch.nn.functional as F

from training.optimizer import MuonAndAdamW
from training.prompts import compose
from training.world import BACKGROUNDS, COLOURS, MOTIONS, SHAPES, SIZES, sample_training_scene

logger = logging.getLogger(__name__)

PROPERTIES = {
    "colour": tuple(COLOURS),
    "shape": SHAPES,
    "motion": MOTIONS,
    "background": tuple(BACKGROUNDS),
    "size": tuple(SIZES),
}
BATCH = 128
PARTIAL_SHARE = 0.3  # of the sentences leave clauses out


class TextModel(Protocol):
    """A tokenizer and an encoder, as a model's transformer reads them."""

    @property
    def encoder(self) -> torch.nn.Module: ...

    @property
    def width(self) -> int: ...

    def read(self, sentences: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
        """Embeddings [B, L, width], and a mask [B, L] of the tokens that must show what their sentence states."""

    def save(self, folder: Path) -> None:
        """Writes the encoder."""


def train_text_encoder(
    make_text: Callable[[], TextModel],
    seconds: float,
    device: str,
    learning_rate: float,
    has_speed: bool = False,
    has_sound: bool = False,
    seed: int = 2,
) -> tuple[TextModel, dict[str, float]]:
    """A text model trained for `seconds`, and the share of fresh sentences from which each property is read right."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    text, world = make_text(), _World(has_speed=has_speed, has_sound=has_sound)
    readers = {name: torch.nn.Linear(text.width, len(values) + 1) for name, values in world.properties.items()}
    readers = torch.nn.ModuleDict(readers).to(device)
    optimizer = MuonAndAdamW(torch.nn.ModuleList([text.encoder, readers]), adamw_names=("shared", "embed_tokens", "bias"))
    started, step = time.monotonic(), 0
    while (spent := time.monotonic() - started) < seconds:
        sentences, labels = world.sentences(rng)
        logits, mask = _read(text, readers, sentences)
        loss = sum(_token_loss(logits[name], labels[name].to(device), mask) for name in labels)
        loss.backward()
        optimizer.step(learning_rate * min(1.0, (step + 1) / 50) * (1 - spent / seconds))
        step += 1
        if step % 50 == 0:
            logger.info("text encoder step %d, %.0f s, loss %.4f", step, spent, loss.item())
    text.encoder.eval()
    return text, _accuracy(text, readers, rng, world)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _World:
    """What sentences may say."""

    has_speed: bool
    has_sound: bool

    @property
    def properties(self) -> dict[str, tuple[str, ...]]:
        return PROPERTIES | ({"sound": ("silent",)} if self.has_sound else {})

    def sentences(self, rng: random.Random) -> tuple[list[str], dict[str, torch.Tensor]]:
        """Sentences and, for each property, the index of what each of them states; the last index means nothing."""
        details = [0.5 if rng.random() < PARTIAL_SHARE else 1.0 for _ in range(BATCH)]
        scenes = [sample_training_scene(rng, self.has_speed, self.has_sound) for _ in details]
        composed = [compose(scene, rng, detail) for scene, detail in zip(scenes, details, strict=True)]
        labels = {
            name: torch.tensor([values.index(stated[name]) if name in stated else len(values) for _, stated in composed])
            for name, values in self.properties.items()
        }
        return [sentence for sentence, _ in composed], labels


def _read(text: TextModel, readers, sentences: list[str]) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Logits [B, L, values + 1] of each property at every token, and the mask [B, L] of those that count."""
    hidden, mask = text.read(sentences)
    return {name: reader(hidden) for name, reader in readers.items()}, mask


def _token_loss(logits: torch.Tensor, labels: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    expanded = labels[:, None].expand(mask.shape)
    return (F.cross_entropy(logits.transpose(1, 2), expanded, reduction="none") * mask).sum() / mask.sum()


@torch.no_grad()
def _accuracy(text: TextModel, readers, rng: random.Random, world: _World) -> dict[str, float]:
    """Share of fresh sentences whose last token names each property rightly."""
    sentences, labels = world.sentences(rng)
    logits, mask = _read(text, readers, sentences)
    rows, last = torch.arange(len(sentences)), mask.shape[1] - 1 - mask.cpu().flip(1).argmax(1)
    return {name: (logits[name].cpu()[rows, last].argmax(-1) == labels[name]).float().mean().item() for name in labels}
