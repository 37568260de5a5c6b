"""Measure tone, side, kind of tone and loudness of the synthetic world's audio, without a learned part."""

from __future__ import annotations

import dataclasses
import math

import torch

from training.hum import LOWEST, NOTE, OCTAVES, OVERTONES

WINDOW = 1024  # samples of a spectrum
QUIET = -50.0  # dBFS; quieter audio counts as silence


@dataclasses.dataclass(frozen=True, kw_only=True)
class Heard:
    """The audio at F moments: the tone `pitch` [F] in Hz, and the `side` [F] from 0, left, to 1, right.

    `kind` is the kind of tone, one of `training.world.SHAPES`. `level` is the loudness of the whole audio in dBFS.
    """

    pitch: torch.Tensor
    side: torch.Tensor
    kind: str
    level: float


def hear(samples: torch.Tensor, rate: int, moments: torch.Tensor) -> Heard:
    """Measure samples [2, N] around these moments [F] in seconds."""
    samples = samples.double()
    level = 20 * math.log10(max(samples.square().mean().sqrt().item(), 1e-9))
    padded = torch.nn.functional.pad(samples, (WINDOW // 2, WINDOW))
    starts = (moments * rate).long().clamp(0, samples.shape[1] - 1)
    pieces = torch.stack([padded[:, start : start + WINDOW] for start in starts])  # [F, 2, WINDOW]
    spectrum = torch.fft.rfft(pieces * torch.hann_window(WINDOW, dtype=torch.float64)).abs()
    loud = spectrum.square().sum(-1).sqrt()
    side = torch.atan2(loud[:, 1], loud[:, 0]) * 2 / math.pi
    notes, kinds = _notes(), tuple(OVERTONES)
    scores = _scores(spectrum.square().sum(1).sqrt(), rate, notes)  # [F, kinds, notes]
    kind = scores.amax(2).sum(0).argmax().item()
    return Heard(pitch=notes[scores[:, kind].argmax(1)], side=side, kind=kinds[kind], level=level)


def semitones(heard: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Return the distance of tones in semitones, from Hz."""
    return 12 * (heard / wanted).log2().abs()


def _notes() -> torch.Tensor:
    """Return the tones of the world in Hz, and some tones beyond."""
    highest = LOWEST * 2**OCTAVES
    return torch.arange(round(LOWEST / NOTE) - 2, round(highest / NOTE) + 3, dtype=torch.float64) * NOTE


def _scores(spectrum: torch.Tensor, rate: int, notes: torch.Tensor) -> torch.Tensor:
    """Return scores [F, kinds, notes] of each kind's overtones on each note for spectra [F, bins], highest if both are right."""
    most = max(map(len, OVERTONES.values()))
    at = (notes[:, None] * torch.arange(1, most + 1) * WINDOW / rate).round().long()  # [notes, overtones]
    near = torch.stack([spectrum[:, at + offset] for offset in (-1, 0, 1)]).amax(0)  # [F, notes, overtones]
    patterns = torch.zeros(len(OVERTONES), most, dtype=torch.float64)
    for row, strengths in enumerate(OVERTONES.values()):
        patterns[row, : len(strengths)] = torch.tensor(strengths)
    patterns /= patterns.norm(dim=1, keepdim=True)
    return torch.einsum("fno,ko->fkn", near, patterns)
