"""Train a demo model's video autoencoder on the synthetic world.

It learns single images first and then short clips, mostly as small crops, because the network is convolutional. The noise on the
latents is fixed, so that decoding tolerates the denoiser's remaining noise, and the posterior's variance is trained to this
value. Where a video does not change, its latents are trained not to change. Otherwise they drift from frame to frame, which makes
motion hard to learn. At the end the latents' spread is adjusted as the class needs, so that no axis is lost in the denoiser's
noise. The training runs in float32: on a CPU, bfloat16 made the backward pass four times slower (1.10 s instead of 0.22 s for 48
images of 64 x 64).
"""

from __future__ import annotations

import dataclasses
import logging
import math
import random
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F

from training.fast_vae import speed_up
from training.latents import Vae
from training.optimizer import MuonAndAdamW
from training.world import render, sample_training_scene

logger = logging.getLogger(__name__)


IMAGES = ((64, 64, 1, 64),)  # width, height, frames, batch; used in turn
CLIPS = ((64, 64, 9, 8), (96, 96, 17, 3), (64, 64, 9, 8), (96, 96, 17, 3), (64, 64, 1, 32))
REFINING = ((96, 96, 17, 3), (64, 64, 9, 8), (96, 96, 17, 3), (128, 96, 17, 2))
REFINING_RATE = 1e-3
SNAPSHOT = "vae-snapshot"


@dataclasses.dataclass(frozen=True, kw_only=True)
class VaeTraining:
    """Settings of the training. `seconds` limits the run; the learning rate falls to zero over it."""

    seconds: float = 780.0
    learning_rate: float = 3e-3
    image_share: float = 0.05  # share of the time for single images at first, which have far more scenes per second
    latent_noise: float = 0.15
    latent_weight: float = 1e-4
    drift_weight: float = 0.05
    edge_weight: float = 4.0
    measured_clips: int = 96  # for measuring the latents' spread after training
    in_bfloat16: bool = False  # only products; on a CPU with AMX it halves the time of LTX-2's steps, and slows Wan's down
    spread_weight: float = 0.0  # weight of the distance of the latents' second moments from the identity matrix
    refining: tuple[tuple[int, int, int, int], ...] = REFINING  # clips of the decoder's own stage
    seed: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Autoencoder:
    """The differences between classes of autoencoders.

    `decode` returns pixels without a clamp, whose gradient would be zero outside [-1, 1]. `finish` adjusts the latents' spread at
    the end. It takes the autoencoder, latents [C, N] of random clips, and the noise on latents in training. `encoding` names the
    modules of the encoder.
    """

    create: Callable[[], Vae]
    load: Callable[[Path], Vae]
    decode: Callable[[Vae, torch.Tensor], torch.Tensor]
    finish: Callable[[Vae, torch.Tensor, float], None]
    encoding: tuple[str, ...]


def train_vae(autoencoder: Autoencoder, folder: Path, options: VaeTraining, device: str) -> Vae:
    """Train for `options.seconds`, measure the latent statistics, write the VAE to `folder`.

    The training continues from a snapshot that a stopped run has left beside `folder`.
    """
    torch.manual_seed(options.seed)
    snapshot = folder.with_name(SNAPSHOT)
    vae = (autoencoder.load(snapshot) if snapshot.exists() else autoencoder.create()).to(device)
    image_seconds = 0.0 if snapshot.exists() else options.image_share * options.seconds
    trained = _optimise(autoencoder, vae, folder, options, device, lambda spent: IMAGES if spent < image_seconds else CLIPS)
    latents = random_latents(trained, random.Random(options.seed), device, options.measured_clips)
    moments = torch.linalg.eigvalsh(latents @ latents.T / latents.shape[1])
    logger.info("latents: second moments along their axes from %.3f to %.3f", moments[0], moments[-1])
    autoencoder.finish(trained, latents, options.latent_noise)
    trained.save_pretrained(folder)
    return trained


def _optimise(autoencoder: Autoencoder, vae: Vae, folder: Path, options: VaeTraining, device: str, clips_at: Callable) -> Vae:
    """Train for `options.seconds` on `clips_at(seconds spent)` and return the averaged weights."""
    rng = random.Random(options.seed)
    average = torch.optim.swa_utils.AveragedModel(vae, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.997))
    speed_up(vae)
    learned = [parameter for parameter in vae.parameters() if parameter.requires_grad]
    optimizer, moments = MuonAndAdamW(vae), RunningMoments()
    started, step, running = time.monotonic(), 0, 0.0
    while (spent := time.monotonic() - started) < options.seconds:
        clips = clips_at(spent)
        video = _batch(rng, clips[step % len(clips)]).to(device)
        with torch.autocast(torch.device(device).type, torch.bfloat16, enabled=options.in_bfloat16):
            loss, error = _loss(autoencoder, vae, video, options, moments)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(learned, 1.0)
        optimizer.step(_learning_rate(options, step, spent))
        average.update_parameters(vae)
        running = error if step == 0 else 0.95 * running + 0.05 * error
        step += 1
        if step % 50 == 0:
            logger.info("vae step %d, %.0f s, PSNR %.2f dB", step, spent, _psnr(running))
        if step % 500 == 0:
            average.module.save_pretrained(folder.with_name(SNAPSHOT))
    return average.module.eval()


def refine_decoder(autoencoder: Autoencoder, vae: Vae, folder: Path, options: VaeTraining, device: str) -> None:
    """Train the decoder further for `options.seconds` with a fixed encoder, and write to `folder`."""
    vae = vae.to(device).train()
    for name in autoencoder.encoding:
        vae.get_submodule(name).requires_grad_(False)
    _optimise(autoencoder, vae, folder, options, device, lambda spent: options.refining).save_pretrained(folder)


def _learning_rate(options: VaeTraining, step: int, spent: float) -> float:
    return options.learning_rate * min(1.0, (step + 1) / 50) * max(0.01, 1 - spent / options.seconds)


def _batch(rng: random.Random, clip: tuple[int, int, int, int]) -> torch.Tensor:
    width, height, num_frames, batch = clip
    clips = torch.stack([_random_clip(rng, num_frames, width, height) for _ in range(batch)])
    return clips.contiguous(memory_format=torch.channels_last_3d)


def _random_clip(rng: random.Random, num_frames: int, width: int, height: int) -> torch.Tensor:
    """Draw a crop of a random scene at 96 to 128 pixels. Short clips are a random part of 17 or 33 frames."""
    side = max(width, height, rng.choice((96, 128)))
    whole = max(num_frames, rng.choice((17, 33)))
    video = render(sample_training_scene(rng), whole, side, side)
    left, top, first = (rng.randint(0, room) for room in (side - width, side - height, whole - num_frames))
    return video[:, first : first + num_frames, top : top + height, left : left + width]


def _loss(
    autoencoder: Autoencoder, vae: Vae, video: torch.Tensor, options: VaeTraining, moments: RunningMoments
) -> tuple[torch.Tensor, float]:
    """Return the loss, and the mean squared error of [-1, 1] pixels. Pixels unlike the border have more weight in the loss."""
    posterior = vae.encode(video).latent_dist
    noise = options.latent_noise * torch.randn_like(posterior.mean)
    decoded = autoencoder.decode(vae, posterior.mean + noise).float()
    difference = decoded - video
    background = video[:, :, :1, :1, :1]
    weight = 1 + options.edge_weight * (video - background).abs().amax(1, keepdim=True).clamp(max=1)
    reconstruction = (weight * (F.smooth_l1_loss(decoded, video, beta=0.1, reduction="none"))).mean()
    variance = (posterior.logvar - 2 * math.log(options.latent_noise)).square().mean()
    latent = options.latent_weight * posterior.mean.square().mean() + 1e-3 * variance
    drift = options.drift_weight * _drift(video, posterior.mean)
    spread = options.spread_weight * moments.distance(posterior.mean) if options.spread_weight else 0.0
    return reconstruction + latent + drift + spread, difference.detach().square().mean().item()


class RunningMoments:
    """The second moments of the latents about zero over recent steps. One batch has too few scenes to measure them."""

    def __init__(self, kept: float = 0.95) -> None:
        self._kept, self._moments = kept, None

    def distance(self, latents: torch.Tensor) -> torch.Tensor:
        """Return the mean squared distance per channel from the identity. Only this batch [B, C, F, H, W] has a gradient."""
        flat = latents.transpose(0, 1).flatten(1)
        identity = torch.eye(len(flat), device=flat.device)
        before = identity if self._moments is None else self._moments
        moments = self._kept * before + (1 - self._kept) * (flat @ flat.T) / flat.shape[1]
        self._moments = moments.detach()
        return (moments - identity).square().sum() / (len(flat) * (1 - self._kept))


def _drift(video: torch.Tensor, latents: torch.Tensor) -> torch.Tensor:
    """Return the mean squared change between neighbouring latent frames, over cells where the video does not change."""
    if latents.shape[2] == 1:
        return latents.new_zeros(())
    cell = video.shape[-1] // latents.shape[-1]
    change = (video[:, :, 1:] - video[:, :, :-1]).abs().amax(1, keepdim=True)
    change = F.max_pool3d(F.max_pool3d(change, (4, cell, cell)), (1, 3, 3), stride=1, padding=(0, 1, 1))
    resting = change < 0.02
    resting[:, :, 1:] &= resting[:, :, :-1].clone()
    square = (latents[:, :, 1:] - latents[:, :, :-1]).square() * resting
    return square.sum() / (resting.sum() * latents.shape[1]).clamp(min=1)


@torch.no_grad()
def random_latents(vae: Vae, rng: random.Random, device: str, clips: int) -> torch.Tensor:
    """Return latents [C, N] of random clips at different sizes."""
    latents = []
    for index in range(clips):
        side = (96, 128)[index % 2]
        video = render(sample_training_scene(rng), 17, side, side)[None].to(device)
        latents.append(vae.encode(video).latent_dist.mode()[0].flatten(1))
    return torch.cat(latents, 1)


def _psnr(mean_squared_error: float) -> float:
    """Return the PSNR in dB for pixels in [-1, 1]."""
    return 10 * math.log10(4 / max(mean_squared_error, 1e-12))
