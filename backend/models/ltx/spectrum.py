"""The spectrum of audio for LTX-2's audio autoencoder. Source: Lightricks/LTX-2, ltx_core/model/audio_vae/ops.py."""

import functools

import numpy as np

WINDOW = 1024  # samples in a frame of the spectrum
FLOOR = 1e-5  # smallest magnitude before the logarithm


@functools.cache
def mel_filters(rate: int, bins: int) -> np.ndarray:
    """Return the weight of each frequency in each mel bin, [WINDOW / 2 + 1, bins]."""
    from transformers.audio_utils import mel_filter_bank  # imported late, because only requests with audio need it

    return mel_filter_bank(WINDOW // 2 + 1, bins, 0.0, rate / 2, rate, norm="slaney", mel_scale="slaney")


def log_mel(samples: np.ndarray, rate: int, hop: int, bins: int) -> np.ndarray:
    """Compute the logarithm of the mel spectrum of samples [C, N] float32 in [-1, 1]. `rate` is the number of samples per second.
    `hop` is the distance between two frames of the spectrum, in samples. Returns [C, T, bins] float32 with T = N // hop + 1."""
    from transformers.audio_utils import spectrogram, window_function

    window, filters = window_function(WINDOW, "hann"), mel_filters(rate, bins)
    made = [
        spectrogram(channel, window, WINDOW, hop, power=1.0, mel_filters=filters, mel_floor=FLOOR, log_mel="log")
        for channel in samples.astype(np.float64)
    ]
    return np.stack(made).swapaxes(1, 2).astype(np.float32)
