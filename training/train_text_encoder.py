"""Teach the demo model's text encoder its world first: every token's embedding must show what the sentence states.

A linear reading of each token's embedding names the colour, shape, motion, background and size that the sentence states,
or that it states none. A few minutes of this save the transformer from learning English through the flow-matching loss.
"""

from __future__ import annotations

import logging
import random
import time

import torch
import torch.nn.functional as F
from transformers import PreTrainedTokenizerFast, UMT5Config, UMT5EncoderModel

from training.model_configs import TEXT_ENCODER
from training.optimizer import MuonAndAdamW
from training.prompts import compose
from training.world import BACKGROUNDS, COLOURS, MOTIONS, SHAPES, SIZES, sample_training_scene

logger = logging.getLogger(__name__)

TEXT_POSITIONS = 32  # the longest sentence of the world has fewer tokens
PROPERTIES = {
    "colour": tuple(COLOURS),
    "shape": SHAPES,
    "motion": MOTIONS,
    "background": tuple(BACKGROUNDS),
    "size": tuple(SIZES),
}
BATCH = 128
LEARNING_RATE = 2e-3
PARTIAL_SHARE = 0.3  # of the sentences leave clauses out


def train_text_encoder(
    tokenizer: PreTrainedTokenizerFast, seconds: float, device: str, seed: int = 2
) -> tuple[UMT5EncoderModel, dict[str, float]]:
    """An encoder trained for `seconds`, and the share of fresh sentences from which each property is read right."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    encoder = UMT5EncoderModel(UMT5Config(vocab_size=len(tokenizer), **TEXT_ENCODER)).to(device)
    readers = torch.nn.ModuleDict(
        {name: torch.nn.Linear(TEXT_ENCODER["d_model"], len(values) + 1) for name, values in PROPERTIES.items()}
    ).to(device)
    optimizer = MuonAndAdamW(torch.nn.ModuleList([encoder, readers]), adamw_names=("shared", "embed_tokens", "bias"))
    started, step = time.monotonic(), 0
    while (spent := time.monotonic() - started) < seconds:
        sentences, labels = _sentences(rng)
        logits, mask = _read(encoder, readers, tokenizer, sentences, device)
        loss = sum(_token_loss(logits[name], labels[name].to(device), mask) for name in PROPERTIES)
        loss.backward()
        optimizer.step(LEARNING_RATE * min(1.0, (step + 1) / 50) * (1 - spent / seconds))
        step += 1
        if step % 50 == 0:
            logger.info("text encoder step %d, %.0f s, loss %.4f", step, spent, loss.item())
    return encoder.eval(), _accuracy(encoder, readers, tokenizer, rng, device)


def _sentences(rng: random.Random) -> tuple[list[str], dict[str, torch.Tensor]]:
    """Sentences and, for each property, the index of what each of them states; the last index means nothing."""
    details = [0.5 if rng.random() < PARTIAL_SHARE else 1.0 for _ in range(BATCH)]
    composed = [compose(sample_training_scene(rng), rng, detail) for detail in details]
    labels = {
        name: torch.tensor([values.index(stated[name]) if name in stated else len(values) for _, stated in composed])
        for name, values in PROPERTIES.items()
    }
    return [sentence for sentence, _ in composed], labels


def _read(encoder, readers, tokenizer, sentences: list[str], device: str) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Logits [B, L, values + 1] of each property at every token, and the tokens' mask [B, L]."""
    tokens = tokenizer(sentences, padding="max_length", max_length=TEXT_POSITIONS - 1, return_tensors="pt").to(device)
    hidden = encoder(**tokens).last_hidden_state
    return {name: reader(hidden) for name, reader in readers.items()}, tokens.attention_mask


def _token_loss(logits: torch.Tensor, labels: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    expanded = labels[:, None].expand(mask.shape)
    return (F.cross_entropy(logits.transpose(1, 2), expanded, reduction="none") * mask).sum() / mask.sum()


@torch.no_grad()
def _accuracy(encoder, readers, tokenizer, rng: random.Random, device: str) -> dict[str, float]:
    """Share of fresh sentences whose last token names each property rightly."""
    sentences, labels = _sentences(rng)
    logits, mask = _read(encoder, readers, tokenizer, sentences, device)
    rows, last = torch.arange(len(sentences)), mask.sum(1).cpu() - 1
    return {name: (logits[name].cpu()[rows, last].argmax(-1) == labels[name]).float().mean().item() for name in PROPERTIES}
