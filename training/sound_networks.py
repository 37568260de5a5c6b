"""ltx-tiny's audio networks, trained together: the autoencoder of spectra, and the vocoder that turns spectra into samples.

The vocoder learns from the autoencoder's output, because it gets these spectra later too. The tones of `training.hum` are a
function of the spectrum, so the loss compares single samples, and also spectra of several lengths.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import random
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from diffusers import AutoencoderKLLTX2Audio
from diffusers.pipelines.ltx2 import LTX2Vocoder

from backend.models.ltx.spectrum import FLOOR, WINDOW, mel_filters
from training.hum import HOP, RATE, hum
from training.ltx_configs import SOUND_VAE, VOCODER
from training.optimizer import MuonAndAdamW
from training.world import sample_training_scene

logger = logging.getLogger(__name__)

FRAMES = 17  # video frames of each audio clip
LENGTHS = (256, 512, 1024)  # windows of the compared spectra, in samples


@dataclasses.dataclass(frozen=True, kw_only=True)
class SoundTraining:
    """Settings of the training. `seconds` limits the run; the learning rate falls to zero over it."""

    seconds: float
    learning_rate: float = 2e-3
    latent_noise: float = 0.1
    latent_weight: float = 1e-3
    batch: int = 12
    measured: int = 512  # audio clips for measuring the latents' spread
    seed: int = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class SoundNetworks:
    """The audio autoencoder and the vocoder."""

    vae: AutoencoderKLLTX2Audio
    vocoder: LTX2Vocoder

    @classmethod
    def create(cls, device: str) -> SoundNetworks:
        """Create the networks with random weights."""
        vae = AutoencoderKLLTX2Audio(**SOUND_VAE).to(device, memory_format=torch.channels_last)
        return cls(vae=vae, vocoder=LTX2Vocoder(**VOCODER).to(device))

    @classmethod
    def load(cls, folder: Path, device: str) -> SoundNetworks:
        """Load the networks from a folder of `save`, or a checkpoint, in float32."""
        vae = AutoencoderKLLTX2Audio.from_pretrained(folder / "audio_vae", torch_dtype=torch.float32)
        vocoder = LTX2Vocoder.from_pretrained(folder / "vocoder", torch_dtype=torch.float32)
        return cls(vae=vae.to(device).eval(), vocoder=vocoder.to(device).eval())

    def save(self, folder: Path) -> None:
        """Write each network to a separate folder."""
        self.vae.save_pretrained(folder / "audio_vae")
        self.vocoder.save_pretrained(folder / "vocoder")

    @torch.no_grad()
    def encode(self, samples: torch.Tensor) -> torch.Tensor:
        """Encode samples [B, 2, N] to normalised latents [B, C, L, M]."""
        return self._scaled(self.vae.encode(log_mel(samples)).latent_dist.mode(), is_back=False)

    @torch.no_grad()
    def decode(self, latents: torch.Tensor) -> torch.Tensor:
        """Decode normalised latents to samples [B, 2, N]."""
        return self.vocoder(self.vae.decode(self._scaled(latents, is_back=True)).sample)

    def _scaled(self, latents: torch.Tensor, *, is_back: bool) -> torch.Tensor:
        _, channels, _, bins = latents.shape
        mean, std = (value.view(channels, 1, bins) for value in (self.vae.latents_mean, self.vae.latents_std))
        return latents * std + mean if is_back else (latents - mean) / std


def log_mel(samples: torch.Tensor) -> torch.Tensor:
    """Compute the spectrum [B, 2, T, M] of ltx-tiny's audio samples [B, 2, N]."""
    return log_mel_of(samples, RATE, HOP, SOUND_VAE["mel_bins"])


def log_mel_of(samples: torch.Tensor, rate: int, hop: int, bins: int) -> torch.Tensor:
    """Compute spectra [B, C, T, bins] of samples [B, C, N], as `backend.models.ltx.spectrum` does for one clip."""
    batch, channels, _ = samples.shape
    window = torch.hann_window(WINDOW, device=samples.device)
    spectrum = torch.stft(samples.flatten(0, 1), WINDOW, hop, window=window, return_complex=True).abs()
    mel = torch.einsum("bft,fm->btm", spectrum, _filters(rate, bins).to(samples.device))
    return mel.clamp(min=FLOOR).log().unflatten(0, (batch, channels))


@functools.cache
def _filters(rate: int, bins: int) -> torch.Tensor:
    return torch.from_numpy(mel_filters(rate, bins).astype(np.float32))


def train_sound(folder: Path, options: SoundTraining, device: str, trained: Path | None = None) -> SoundNetworks:
    """Train for `options.seconds`, measure the latents' statistics, write both networks to `folder`.

    The training continues from a snapshot that a stopped run has left beside `folder`. With `trained`, a folder of trained
    networks, it trains these further without a change of the encoder, so the latents stay the same.
    """
    torch.manual_seed(options.seed)
    snapshot = folder.with_name(f"{folder.name}-snapshot")
    rng, begun = random.Random(options.seed), snapshot if snapshot.exists() else trained
    networks = SoundNetworks.load(begun, device) if begun else SoundNetworks.create(device)
    if trained:
        networks.vae.encoder.requires_grad_(False)
        _draw_apart(networks.vocoder)
    both = torch.nn.ModuleList([networks.vae, networks.vocoder]).train()
    average = torch.optim.swa_utils.AveragedModel(both, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.995))
    optimizer = MuonAndAdamW(both, adamw_names=("conv_in", "conv_out"))
    started, step = time.monotonic(), 0
    while (spent := time.monotonic() - started) < options.seconds:
        samples = random_sounds(rng, options.batch).to(device)
        parts = _losses(networks, samples, options)
        sum(parts.values()).backward()
        torch.nn.utils.clip_grad_norm_(both.parameters(), 1.0)
        optimizer.step(options.learning_rate * min(1.0, (step + 1) / 50) * max(0.01, 1 - spent / options.seconds))
        average.update_parameters(both)
        step += 1
        if step % 500 == 0:
            SoundNetworks(vae=average.module[0], vocoder=average.module[1]).save(snapshot)
        if step % 50 == 0:
            shown = {name: round(part.item(), 4) for name, part in parts.items()}
            logger.info("sound step %d, %.0f s, %s", step, spent, shown)
    vae, vocoder = average.module
    made = SoundNetworks(vae=vae.eval(), vocoder=vocoder.eval())
    if not trained:
        _measure(made, random_sounds(rng, options.measured).to(device), options.latent_noise)
    made.save(folder)
    return made


def random_sounds(rng: random.Random, count: int) -> torch.Tensor:
    """Return samples [B, 2, N] float32 of random scenes."""
    scenes = (sample_training_scene(rng, has_sound=True) for _ in range(count))
    return torch.stack([hum(scene, FRAMES, 96, 96) for scene in scenes]).float()


def _losses(networks: SoundNetworks, samples: torch.Tensor, options: SoundTraining) -> dict[str, torch.Tensor]:
    mel = log_mel(samples)
    with torch.autocast(samples.device.type, torch.bfloat16):  # twice as fast, measured on a CPU with AMX
        posterior = networks.vae.encode(mel.contiguous(memory_format=torch.channels_last)).latent_dist
        mean = posterior.mean.float()
        decoded = networks.vae.decode(mean + options.latent_noise * torch.randn_like(mean)).sample
        made = networks.vocoder(decoded).float()
    truth, heard = _with_sides(samples[..., : made.shape[-1]]), decoded.float()
    made, wanted = _with_sides(made), mel[:, :, : decoded.shape[2]]
    spectra = sum(_spectral_distance(made, truth, length) for length in LENGTHS) / len(LENGTHS)
    return {
        "mel": 0.1 * F.l1_loss(heard, wanted) + 0.2 * F.l1_loss(heard[:, 0] - heard[:, 1], wanted[:, 0] - wanted[:, 1]),
        "samples": 5 * F.l1_loss(made, truth),
        "spectra": spectra,
        "latents": options.latent_weight * mean.square().mean(),
    }


@torch.no_grad()
def _draw_apart(vocoder: LTX2Vocoder) -> None:
    """Push the weights of both sides' samples apart, because a vocoder with equal sides hardly separates them by itself."""
    weight = vocoder.conv_out.weight
    weight.add_(weight.std() * torch.randn_like(weight))


def _with_sides(samples: torch.Tensor) -> torch.Tensor:
    """Return left, right, and twice their difference [B, 3, N] of samples [B, 2, N]. It keeps both sides from becoming equal."""
    return torch.cat([samples, 2 * (samples[:, :1] - samples[:, 1:])], 1)


def _spectral_distance(made: torch.Tensor, truth: torch.Tensor, length: int) -> torch.Tensor:
    """Return the mean distance of magnitudes, plus a small part of their logarithms, which are sensitive to silence."""
    window = torch.hann_window(length, device=made.device)
    ours, theirs = (
        torch.stft(one.flatten(0, 1), length, length // 4, window=window, return_complex=True).abs() for one in (made, truth)
    )
    scale = window.sum() / 2
    logs = F.l1_loss((ours / scale).clamp(min=1e-4).log(), (theirs / scale).clamp(min=1e-4).log())
    return 10 * F.l1_loss(ours / scale, theirs / scale) + 0.05 * logs


@torch.no_grad()
def _measure(networks: SoundNetworks, samples: torch.Tensor, noise: float) -> None:
    """Store the statistics of each channel and bin. The spread is at least the training's noise."""
    latents = torch.cat([networks.vae.encode(log_mel(part)).latent_dist.mode() for part in samples.split(64)])
    packed = latents.permute(0, 2, 1, 3).flatten(2).flatten(0, 1)
    networks.vae.latents_mean.copy_(packed.mean(0))
    networks.vae.latents_std.copy_(packed.std(0).clamp(min=noise))
