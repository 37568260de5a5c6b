"""Train a demo model's transformer by flow matching with prompt dropout, with a trained text encoder.

One network learns both tasks, as its networks' module describes. Clips are encoded during training: at intervals new clips
replace the oldest clips in the cache.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import random
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from training.latents import LatentCache
from training.optimizer import MuonAndAdamW
from training.prompts import describe
from training.world import Scene

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransformerTraining:
    """Settings of the training. `seconds` limits the run; the learning rate falls to zero over it."""

    seconds: float = 5400.0
    learning_rate: float = 2e-3
    warmup_steps: int = 200
    text_dropout: float = 0.1
    partial_prompt: float = 0.12
    image_to_video: float = 0.4
    noise_shift: float = 2.5
    average_decay: float = 0.999
    snapshot_seconds: float = 600.0
    refresh_every: int = 32  # steps between two encodings of the same number of new clips
    compiled: bool = False
    seed: int = 1


class Networks(Protocol):
    """A demo model's text encoder and transformer, for training.

    `learned` is the trained module. AdamW gets its parameters with one of `adamw_names` in their names.
    """

    @property
    def learned(self) -> torch.nn.Module: ...

    @property
    def adamw_names(self) -> tuple[str, ...]: ...

    @property
    def latent_channels(self) -> int: ...

    def compile(self) -> None:
        """Compile a layer for the first size that it gets."""

    def words_for(self, scene: Any, rng: random.Random, options: TransformerTraining) -> Any:
        """Draw a prompt for a clip, a new one each time. `loss` takes a batch of prompts."""

    def loss(
        self,
        latents: torch.Tensor,
        scenes: list[Any],
        prompts: list[Any],
        options: TransformerTraining,
        generator: torch.Generator,
    ) -> torch.Tensor:
        """Return the mean squared error of the predicted velocity (noise - data) of noised latents [B, C, F, H, W]."""

    def save(self, folder: Path) -> None:
        """Write each network to a separate folder."""


class SampledNetworks(Networks, Protocol):
    """Networks of a model without audio, which can also sample many clips at once."""

    def velocity_for(
        self, prompts: list[str], images: torch.Tensor | None, first: torch.Tensor | None
    ) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
        """Return the velocity as a function of latents [B, C, F, H, W] and timesteps [B], in float32.

        It is for B prompts and, for image to video, B images [B, 3, 1, H, W] and their latents [B, C, 1, H, W].
        """

    def finish(self, latents: torch.Tensor, first: torch.Tensor | None) -> torch.Tensor:
        """Return the latents to decode after the last step."""


def train_transformer(
    networks: Networks, caches: Sequence[LatentCache], folder: Path, options: TransformerTraining, device: str
) -> None:
    """Train for `options.seconds` on the caches and write the averaged weights to `folder`."""
    rng = random.Random(options.seed)
    generator = torch.Generator(device).manual_seed(options.seed)
    transformer = networks.learned
    average = {name: value.detach().clone() for name, value in transformer.state_dict().items()}
    optimizer = MuonAndAdamW(transformer, adamw_names=networks.adamw_names)
    if options.compiled:
        networks.compile()
    started, snapshot, running = time.monotonic(), 0.0, 1.0
    for step, (latents, scenes, prompts) in enumerate(_batches(networks, caches, rng, options)):
        spent = time.monotonic() - started
        if spent > options.seconds:
            break
        loss = networks.loss(latents.to(device), scenes, prompts, options, generator)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(transformer.parameters(), 1.0)
        optimizer.step(_learning_rate(options, step, spent))
        if (
            options.compiled and step == 0 and len(caches) > 1
        ):  # compile only the most frequent size; compiling the others takes too long
            torch.compiler.set_stance("eager_on_recompile")
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
    networks: Networks, caches: Sequence[LatentCache], rng: random.Random, options: TransformerTraining
) -> Iterator[tuple[torch.Tensor, list[Any], list[Any]]]:
    """Yield batches without end, with sizes by their shares. Every clip gets a new prompt each time."""
    for step in itertools.count(1):
        cache = rng.choices(caches, weights=[cache.bucket.share for cache in caches])[0]
        indices = rng.sample(range(len(cache.scenes)), cache.bucket.batch)
        scenes = [cache.scenes[index] for index in indices]
        yield cache.latents[indices], scenes, [networks.words_for(scene, rng, options) for scene in scenes]
        if step % options.refresh_every == 0:
            cache.refresh(options.refresh_every)


def prompt_for(scene: Scene, rng: random.Random, options: TransformerTraining) -> str:
    """Write a sentence for the scene, sometimes a shorter or an empty one."""
    draw = rng.random()
    if draw < options.text_dropout:
        return ""
    return describe(scene, rng, detail=0.5 if draw < options.text_dropout + options.partial_prompt else 1.0)


def noise_levels(batch: int, options: TransformerTraining, generator: torch.Generator, device: torch.device) -> torch.Tensor:
    """Draw noise levels [B], shifted towards more noise."""
    uniform = torch.rand(batch, generator=generator, device=device)
    return options.noise_shift * uniform / (1 + (options.noise_shift - 1) * uniform)


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


def _save_average(networks: Networks, average: dict[str, torch.Tensor], folder: Path) -> None:
    with _averaged(networks.learned, average):
        networks.save(folder)
