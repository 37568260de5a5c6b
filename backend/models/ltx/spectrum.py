"""The spectrum of a sound as LTX-2's autoencoder of sound sees it. Source: Lightricks/LTX-2, ltx_core/model/audio_vae/ops.py."""

import functools

import numpy as np

WINDOW = 1024  # samples that a frame of the spectrum sees
FLOOR = 1e-5  # the least magnitude, before the logarithm


@functools.cache
def mel_filters(rate: int, bins: int) -> np.ndarray:
    """How strongly each mel bin hears each frequency, [WINDOW / 2 + 1, bins]."""
    from transformers.audio_utils import mel_filter_bank  # late: only those who bring a sound need it

    return mel_filter_bank(WINDOW // 2 + 1, bins, 0.0, rate / 2, rate, norm="slaney", mel_scale="slaney")


def log_mel(samples: np.ndarray, rate: int, hop: int, bins: int) -> np.ndarray:
    """Logarithms of the mel spectrum [C, T, bins] float32, T = N // hop + 1, of samples [C, N] float32 in [-1, 1]."""
    from transformers.audio_utils import spectrogram, window_function

    window, filters = window_function(WINDOW, "hann"), mel_filters(rate, bins)
    made = [
        spectrogram(channel, window, WINDOW, hop, power=1.0, mel_filters=filters, mel_floor=FLOOR, log_mel="log")
        for channel in samples.astype(np.float64)
    ]
    return np.stack(made).swapaxes(1, 2).astype(np.float32)
