"""Train the demo model's transformer: flow matching with guidance dropout, on a text encoder that is already trained.

One network learns both tasks in the form of Wan 2.2 TI2V: every token carries its own timestep; for image-to-video the
first latent frame is given clean at timestep 0 and is not scored. Clips are encoded during training: at intervals the oldest in
the cache are replaced by new ones.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import logging
import random
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from diffusers import WanTransformer3DModel
from transformers import PreTrainedTokenizerFast, UMT5EncoderModel

from training.latents import LatentCache
from training.model_configs import MAX_SEQUENCE_LENGTH, TRANSFORMER
from training.optimizer import MuonAndAdamW
from training.prompts import describe
from training.train_text_encoder import TEXT_POSITIONS
from training.velocity import predict_velocity, run_one_block

logger = logging.getLogger(__name__)

ADAMW_NAMES = ("patch_embedding", "proj_out", "scale_shift_table", "time_embedder")
"""Parts of parameters' names: the ends of the network and parameters that are no matrices, which AdamW trains."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransformerTraining:
    """How long and how to train. `seconds` bounds the run; the learning rate falls to zero over it."""

    seconds: float = 5400.0
    learning_rate: float = 2e-3
    warmup_steps: int = 200
    text_dropout: float = 0.1
    partial_prompt: float = 0.12
    image_to_video: float = 0.4
    noise_shift: float = 2.5
    average_decay: float = 0.999
    snapshot_seconds: float = 600.0
    refresh_every: int = 32  # steps; as many clips are then encoded anew
    compiled: bool = True
    seed: int = 1


@dataclasses.dataclass(kw_only=True)
class TextAndTransformer:
    """The transformer, and the text encoder whose words it learns to follow."""

    text_encoder: UMT5EncoderModel
    transformer: WanTransformer3DModel
    tokenizer: PreTrainedTokenizerFast

    @classmethod
    def create(cls, text_encoder: UMT5EncoderModel, tokenizer: PreTrainedTokenizerFast, device: str) -> TextAndTransformer:
        transformer = WanTransformer3DModel(**TRANSFORMER).to(device)
        torch.nn.init.zeros_(transformer.proj_out.weight)
        torch.nn.init.zeros_(transformer.proj_out.bias)
        return cls(text_encoder=text_encoder, transformer=transformer, tokenizer=tokenizer)

    @classmethod
    def load(cls, folder: Path, tokenizer: PreTrainedTokenizerFast, device: str) -> TextAndTransformer:
        """The networks of a checkpoint or of a parts folder, in float32."""
        text_encoder = UMT5EncoderModel.from_pretrained(folder / "text_encoder").to(device)
        transformer = WanTransformer3DModel.from_pretrained(folder / "transformer", torch_dtype=torch.float32).to(device)
        return cls(text_encoder=text_encoder, transformer=transformer, tokenizer=tokenizer)

    def save(self, folder: Path) -> None:
        self.text_encoder.save_pretrained(folder / "text_encoder")
        self.transformer.save_pretrained(folder / "transformer")


def train_transformer(
    networks: TextAndTransformer, caches: list[LatentCache], folder: Path, options: TransformerTraining, device: str
) -> None:
    """Train for `options.seconds` on the caches and write the averaged weights to `folder`."""
    rng = random.Random(options.seed)
    generator = torch.Generator(device).manual_seed(options.seed)
    transformer = networks.transformer
    average = {name: value.detach().clone() for name, value in transformer.state_dict().items()}
    optimizer = MuonAndAdamW(transformer, adamw_names=ADAMW_NAMES)
    run_block = torch.compile(run_one_block, dynamic=False) if options.compiled else run_one_block
    velocity = functools.partial(predict_velocity, run_block=run_block)
    torch.compiler.set_stance("eager_on_recompile")  # only the first size is compiled; for the rarer ones it would take too long
    started, snapshot, running = time.monotonic(), 0.0, 1.0
    for step, (latents, prompts) in enumerate(_batches(caches, rng, options)):
        spent = time.monotonic() - started
        if spent > options.seconds:
            break
        loss = _loss(networks, velocity, latents.to(device), prompts, options, generator)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(transformer.parameters(), 1.0)
        optimizer.step(_learning_rate(options, step, spent))
        _update_average(average, transformer, min(options.average_decay, (step + 1) / (step + 20)))
        running = 0.98 * running + 0.02 * loss.item()
        if step % 100 == 0:
            logger.info("transformer step %d, %.0f s, loss %.4f", step, spent, running)
        if spent - snapshot > options.snapshot_seconds:
            snapshot = spent
            _save_average(networks, average, folder.with_name(folder.name + "-snapshot"))
    _save_average(networks, average, folder)


def _learning_rate(options: TransformerTraining, step: int, spent: float) -> float:
    left = max(0.0, 1 - spent / options.seconds)
    return options.learning_rate * min(1.0, (step + 1) / options.warmup_steps) * (0.02 + 0.98 * min(1.0, left / 0.6))


def _batches(
    caches: list[LatentCache], rng: random.Random, options: TransformerTraining
) -> Iterator[tuple[torch.Tensor, list[str]]]:
    """Endless batches, the sizes by their shares; every clip gets a fresh sentence each time."""
    for step in itertools.count(1):
        cache = rng.choices(caches, weights=[cache.bucket.share for cache in caches])[0]
        indices = rng.sample(range(len(cache.scenes)), cache.bucket.batch)
        yield cache.latents[indices], [_prompt(cache.scenes[index], rng, options) for index in indices]
        if step % options.refresh_every == 0:
            cache.refresh(options.refresh_every)


def _prompt(scene, rng: random.Random, options: TransformerTraining) -> str:
    draw = rng.random()
    if draw < options.text_dropout:
        return ""
    return describe(scene, rng, detail=0.5 if draw < options.text_dropout + options.partial_prompt else 1.0)


def _loss(networks, velocity, latents, prompts, options: TransformerTraining, generator) -> torch.Tensor:
    """Mean squared error of the predicted velocity (noise - data) over the latent frames that were noised."""
    batch, device = len(prompts), latents.device
    uniform = torch.rand(batch, generator=generator, device=device)
    sigma = options.noise_shift * uniform / (1 + (options.noise_shift - 1) * uniform)
    noise = torch.randn(latents.shape, generator=generator, device=device)
    mask = torch.ones(batch, 1, latents.shape[2], 1, 1, device=device)
    mask[:, :, 0] = (torch.rand(batch, 1, 1, 1, generator=generator, device=device) >= options.image_to_video).float()
    mixed = latents + mask * sigma.view(-1, 1, 1, 1, 1) * (noise - latents)
    with torch.no_grad(), torch.autocast(device.type, torch.bfloat16):
        text, bias = encode_text(networks, prompts)
    predicted = velocity(networks.transformer, mixed, 1000 * sigma, 1000 * sigma * mask[:, 0, 0, 0, 0], text.float(), bias)
    error = (predicted - (noise - latents)).square() * mask
    return error.sum() / (mask.sum() * error[0, :, 0].numel())


def encode_text(networks: TextAndTransformer, prompts: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
    """Embeddings [B, 32, D], zero from each prompt's end on, and the logit bias [B, 1, 1, 32]: the last position stands
    for all padded ones, the other padded ones are masked."""
    tokens = networks.tokenizer(prompts, padding="max_length", max_length=TEXT_POSITIONS - 1, return_tensors="pt")
    tokens = tokens.to(networks.transformer.device)
    hidden = networks.text_encoder(**tokens).last_hidden_state * tokens.attention_mask[..., None]
    lengths = tokens.attention_mask.sum(1)
    bias = torch.where(tokens.attention_mask.bool(), 0.0, float("-inf"))
    padding = torch.log((MAX_SEQUENCE_LENGTH - lengths).float())[:, None]
    return F.pad(hidden, (0, 0, 0, 1)), torch.cat([bias, padding], 1)[:, None, None, :]


@torch.no_grad()
def _update_average(average: dict[str, torch.Tensor], module: torch.nn.Module, decay: float) -> None:
    names = [name for name, value in module.state_dict().items() if value.is_floating_point()]
    current = module.state_dict()
    torch._foreach_lerp_([average[name] for name in names], [current[name] for name in names], 1 - decay)


@contextlib.contextmanager
def _averaged(module: torch.nn.Module, average: dict[str, torch.Tensor]):
    trained = {name: value.detach().clone() for name, value in module.state_dict().items()}
    module.load_state_dict(average)
    yield
    module.load_state_dict(trained)


def _save_average(networks: TextAndTransformer, average: dict[str, torch.Tensor], folder: Path) -> None:
    with _averaged(networks.transformer, average):
        networks.save(folder)
