"""Train the demo model's text encoder before the transformer: each token's embedding must represent the sentence's content.

A linear layer reads from each token's embedding the colour, shape, motion, background and size of the sentence, or that the
sentence has none. After a few minutes of this, the transformer need not learn English through the flow-matching loss. The text
model selects the tokens: all tokens with bidirectional attention, the last tokens with causal attention.
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
PARTIAL_SHARE = 0.3  # share of the sentences without some clauses


class TextModel(Protocol):
    """The tokenizer and text encoder of a model."""

    @property
    def encoder(self) -> torch.nn.Module: ...

    @property
    def width(self) -> int: ...

    def read(self, sentences: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return embeddings [B, L, width], and a mask [B, L] of the tokens that must represent their sentence."""

    def save(self, folder: Path) -> None:
        """Write the encoder."""


def train_text_encoder(
    make_text: Callable[[], TextModel],
    seconds: float,
    device: str,
    learning_rate: float,
    has_speed: bool = False,
    has_sound: bool = False,
    seed: int = 2,
) -> tuple[TextModel, dict[str, float]]:
    """Train a text model for `seconds`. Return it with the share of new sentences from which each property is read correctly."""
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
    """The possible content of sentences."""

    has_speed: bool
    has_sound: bool

    @property
    def properties(self) -> dict[str, tuple[str, ...]]:
        return PROPERTIES | ({"sound": ("silent",)} if self.has_sound else {})

    def sentences(self, rng: random.Random) -> tuple[list[str], dict[str, torch.Tensor]]:
        """Return sentences and, for each property, the index of each sentence's value. The last index means no value."""
        details = [0.5 if rng.random() < PARTIAL_SHARE else 1.0 for _ in range(BATCH)]
        scenes = [sample_training_scene(rng, self.has_speed, self.has_sound) for _ in details]
        composed = [compose(scene, rng, detail) for scene, detail in zip(scenes, details, strict=True)]
        labels = {
            name: torch.tensor([values.index(stated[name]) if name in stated else len(values) for _, stated in composed])
            for name, values in self.properties.items()
        }
        return [sentence for sentence, _ in composed], labels


def _read(text: TextModel, readers, sentences: list[str]) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Return logits [B, L, values + 1] of each property at every token, and the mask [B, L] of the tokens to score."""
    hidden, mask = text.read(sentences)
    return {name: reader(hidden) for name, reader in readers.items()}, mask


def _token_loss(logits: torch.Tensor, labels: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    expanded = labels[:, None].expand(mask.shape)
    return (F.cross_entropy(logits.transpose(1, 2), expanded, reduction="none") * mask).sum() / mask.sum()


@torch.no_grad()
def _accuracy(text: TextModel, readers, rng: random.Random, world: _World) -> dict[str, float]:
    """Return the share of new sentences whose last token gives each property correctly."""
    sentences, labels = world.sentences(rng)
    logits, mask = _read(text, readers, sentences)
    rows, last = torch.arange(len(sentences)), mask.shape[1] - 1 - mask.cpu().flip(1).argmax(1)
    return {name: (logits[name].cpu()[rows, last].argmax(-1) == labels[name]).float().mean().item() for name in labels}
