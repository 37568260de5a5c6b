"""LTX-2's vocoders, which convert a spectrum to audio samples. They compute the same as diffusers' classes. The TPU's compiler
takes minutes for the many narrow convolutions of a vocoder. Therefore large matrix products replace them. A level is one
upsampling layer with the residual blocks after it. One product computes the convolutions of all blocks of a level. Smaller
kernels are padded with zeros. A loop runs over the dilations. Arrays are [..., C, N]: channels and samples. N' is the number of
output channels of a convolution."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from backend.checkpoints.json_files import Config
from backend.models.common.modules import module_parameters

Weights = Mapping[str, jax.Array]
SNAKE_EPS = 1e-9  # source: diffusers, SnakeBeta
LAST_SLOPE = 0.01  # negative slope of the last leaky ReLU; source: diffusers, LTX2Vocoder
QUIETEST = 1e-5  # smallest magnitude before the logarithm; source: diffusers, MelSTFT
RESAMPLER_WIDTH, RESAMPLER_ROLLOFF = 6, 0.99  # source: diffusers, UpSample1d with a Hann window


def vocode(weights: Weights, settings: Config, spectrum: jax.Array) -> jax.Array:
    """Convert a spectrum [channels, T, bins] to samples [channels, N], as diffusers' `LTX2Vocoder` does with these `settings`."""
    values = spectrum.swapaxes(1, 2).reshape(-1, spectrum.shape[1])
    values = _convolve(weights, "conv_in", values)
    is_ramp, kinds = settings["act_fn"] == "leaky_relu", len(settings["resnet_kernel_sizes"])
    for place, stride in enumerate(settings["upsample_factors"]):
        values = _leaky_relu(values, settings["leaky_relu_negative_slope"]) if is_ramp else values
        # A transposed convolution, whose weight is [C, N', taps].
        weight = weights[f"upsamplers.{place}.weight"]
        size, parts = weight.shape[2], -(-weight.shape[2] // stride)
        matrix = jnp.pad(weight, ((0, 0), (0, 0), (0, parts * stride - size))).reshape(weight.shape[0], -1).T
        spread = _matmul(matrix, values).reshape(-1, parts, stride, values.shape[1])
        first, count = (size - stride) // 2, (values.shape[1] - 1) * stride + size
        values = _interleave([spread[:, part] for part in range(parts)])[:, first : count - first]
        values = values + weights[f"upsamplers.{place}.bias"][:, None]
        blocks = [module_parameters(weights, f"resnets.{place * kinds + kind}") for kind in range(kinds)]
        values = _run_level(blocks, settings, values)
    values = (
        _leaky_relu(values, LAST_SLOPE)
        if is_ramp
        else _antialiased_snake(module_parameters(weights, "act_out"), values, settings["antialias_ratio"])
    )
    values = _convolve(weights, "conv_out", values)
    ends = {"tanh": jnp.tanh, "clamp": lambda samples: samples.clip(-1, 1)}
    return ends.get(settings["final_act_fn"], lambda samples: samples)(values)


def vocode_with_bandwidth_extension(weights: Weights, settings: Config, spectrum: jax.Array) -> jax.Array:
    """Convert a spectrum [channels, T, bins] to samples [channels, N], as diffusers' `LTX2VocoderWithBWE` does."""
    first = {name: settings[name] for name in settings if not name.startswith("bwe_")}
    second = {name.removeprefix("bwe_"): settings[name] for name in settings if name.startswith("bwe_")}
    samples = vocode(module_parameters(weights, "vocoder"), first, spectrum)
    count, hop = samples.shape[1], settings["hop_length"]
    samples = jnp.pad(samples, ((0, 0), (0, -count % hop)))
    # The logarithm of the mel spectrum [channels, T, bins]. Only the start is padded, so that a frame sees no later samples.
    spectral = module_parameters(weights, "mel_stft")
    basis = spectral["stft_fn.forward_basis"][:, 0]
    size, parts = basis.shape[1], -(-basis.shape[1] // hop)
    padded = jnp.pad(samples, ((0, 0), (max(0, settings["window_length"] - hop), 0)))
    frames = (padded.shape[1] - size) // hop + 1
    padded = jnp.pad(padded, ((0, 0), (0, (frames + parts - 1) * hop - padded.shape[1])))
    cut = padded.reshape(len(samples), -1, hop).swapaxes(1, 2)
    seen = jnp.concatenate([cut[..., part : part + frames] for part in range(parts)], axis=1)
    waves = _matmul(jnp.pad(basis, ((0, 0), (0, parts * hop - size))), seen)
    real, imaginary = jnp.split(waves, 2, axis=1)
    mel = _matmul(spectral["mel_basis"].astype(samples.dtype), jnp.sqrt(real**2 + imaginary**2))
    mel = jnp.log(mel.clip(QUIETEST)).swapaxes(1, 2)
    made = vocode(module_parameters(weights, "bwe_generator"), second, mel)
    rate, wanted = settings["input_sampling_rate"], settings["output_sampling_rate"]
    ratio = wanted // rate
    # Resample with a Hann-windowed sinc filter, which checkpoints do not contain.
    width = int(np.ceil(RESAMPLER_WIDTH / RESAMPLER_ROLLOFF))
    size = 2 * width * ratio + 1
    time = (np.arange(size) / ratio - width) * RESAMPLER_ROLLOFF
    window = np.cos(time.clip(-RESAMPLER_WIDTH, RESAMPLER_WIDTH) * np.pi / RESAMPLER_WIDTH / 2) ** 2
    kernel = jnp.asarray((np.sinc(time) * window * RESAMPLER_ROLLOFF / ratio).reshape(1, 1, -1), samples.dtype)
    padded = jnp.pad(samples, ((0, 0), (width, width)), mode="edge")
    phases = _transposed_phases(padded, kernel, ratio, 2 * width * ratio, samples.shape[-1])
    made = made + ratio * _interleave([jnp.stack(phases, axis=-2)])
    return made.clip(-1, 1)[:, : count * wanted // rate]


def _run_level(blocks: Sequence[Weights], settings: Config, values: jax.Array) -> jax.Array:
    taps, (dilations, *others) = max(settings["resnet_kernel_sizes"]), settings["resnet_dilations"]
    assert all(other == dilations for other in others), "the blocks of a level have equal dilations"
    reach = (taps - 1) // 2 * max(dilations)
    stacked = {}
    for name in (key for key in blocks[0] if key.startswith(("acts1.0.", "convs1.0."))):
        sort, rest = name.split("1.0.", 1)
        wide, places = taps if sort == "convs" else 0, range(len(dilations))
        pairs = [
            [[_pad_kernel(block[f"{sort}{part}.{place}.{rest}"], wide) for block in blocks] for part in "12"] for place in places
        ]
        stacked[f"{sort}.{rest}"] = jnp.stack([jnp.stack([jnp.stack(one) for one in pair]) for pair in pairs])

    def convolved(hidden: jax.Array, one: tuple[jax.Array, Weights]) -> tuple[jax.Array, None]:
        apart, own = one
        acts = module_parameters(own, "acts")
        if settings["act_fn"] == "leaky_relu":
            hidden = _leaky_relu(hidden, settings["leaky_relu_negative_slope"])
        elif settings["antialias"]:
            hidden = _antialiased_snake(acts, hidden, settings["antialias_ratio"])
        else:
            hidden = _snake(acts, hidden)
        hidden = _product(jnp.pad(hidden, ((0, 0), (0, 0), (reach, reach))), own["convs.weight"], apart, reach)
        return hidden + own["convs.bias"][..., None], None

    start = jnp.broadcast_to(values, (len(blocks), *values.shape))
    apart = jnp.array([[dilation, 1] for dilation in dilations])

    def block(now: jax.Array, own: tuple[jax.Array, Weights]) -> tuple[jax.Array, None]:
        return now + jax.lax.scan(convolved, now, own)[0], None

    return jax.lax.scan(block, start, (apart, stacked))[0].mean(0)


def _pad_kernel(value: jax.Array, taps: int) -> jax.Array:
    """Pad a kernel [N', C, k] with zeros on both sides to [N', C, taps]. Other arrays stay unchanged."""
    missing = (taps - value.shape[-1]) // 2 if taps and value.ndim == 3 else 0
    return jnp.pad(value, ((0, 0), (0, 0), (missing, missing))) if missing else value


def _leaky_relu(values: jax.Array, slope: float) -> jax.Array:
    return jnp.where(values > 0, values, values * slope)


def _antialiased_snake(own: Weights, values: jax.Array, ratio: int) -> jax.Array:
    """Apply the activation `_snake` at `ratio` times the sample rate, to avoid aliasing."""
    kernel = own["upsample.filter"]  # [..., 1, 1, taps] with an even number of taps
    size, count = kernel.shape[-1], values.shape[-1]
    more = size // ratio - 1
    padded = jnp.pad(values, [(0, 0)] * (values.ndim - 1) + [(more, more)], mode="edge")
    # Array i has the values with the indices i, i + `ratio`, i + 2 * `ratio` and so on. The arrays are not interleaved, because
    # a TPU pads each row of `ratio` values to 128 lanes.
    phases = _transposed_phases(padded, kernel, ratio, more * ratio + (size - ratio) // 2, count)
    phases = [ratio * phase for phase in phases]
    phases = [_snake(module_parameters(own, "act"), phase) for phase in phases]
    kernel = own["downsample.filter"]
    size = kernel.shape[-1]
    # The filter also reads values before the first value and after the last value. Padding repeats the first and the last value.
    # `room` padding values at each end of each array are enough, because an array has only every `ratio`-th value.
    left, room = size // 2 + size % 2 - 1, -(-size // ratio)
    begin, end = (jnp.broadcast_to(one, (*one.shape[:-1], room)) for one in (phases[0][..., :1], phases[-1][..., -1:]))
    made: Any = 0
    for phase, part in enumerate(phases):
        taps = range((phase + left) % ratio, size, ratio)
        starts = [room + (tap - left - phase) // ratio for tap in taps]
        made += _weighted_sum(jnp.concatenate([begin, part, end], axis=-1), kernel, taps, starts, count)
    return made


def _snake(own: Weights, values: jax.Array) -> jax.Array:
    steepness = jnp.exp(own["alpha"])[..., None]
    height = jnp.exp(own["beta"])[..., None] if "beta" in own else steepness
    return values + jnp.sin(values * steepness) ** 2 / (height + SNAKE_EPS)


def _convolve(weights: Weights, name: str, values: jax.Array) -> jax.Array:
    weight = weights[f"{name}.weight"]
    reach = (weight.shape[2] - 1) // 2
    made = _product(jnp.pad(values, ((0, 0), (reach, reach))), weight, 1, reach)
    return made + weights[f"{name}.bias"][:, None] if f"{name}.bias" in weights else made


def _product(padded: jax.Array, weight: jax.Array, dilation: Any, reach: int) -> jax.Array:
    """Convolve `padded` values [..., C, N + 2 * reach] with a dilated weight [..., N', C, taps]. Returns [..., N', N]. `reach` is
    the number of padding values on each side."""
    taps, count = weight.shape[-1], padded.shape[-1] - 2 * reach
    starts = [reach + (tap - (taps - 1) // 2) * dilation for tap in range(taps)]
    seen = jnp.concatenate([jax.lax.dynamic_slice_in_dim(padded, start, count, axis=-1) for start in starts], axis=-2)
    return _matmul(weight.swapaxes(-1, -2).reshape(*weight.shape[:-2], -1), seen)


def _matmul(matrix: jax.Array, values: jax.Array) -> jax.Array:
    return jnp.matmul(matrix, values, preferred_element_type=jnp.float32).astype(values.dtype)


def _interleave(parts: Sequence[jax.Array]) -> jax.Array:
    """Add the arrays of `parts`, each [..., s, N], and interleave the s rows of the sum."""
    last = len(parts) - 1
    wide: Any = sum(jnp.pad(one, [(0, 0)] * (one.ndim - 1) + [(part, last - part)]) for part, one in enumerate(parts))
    swapped = wide.swapaxes(-1, -2)
    return swapped.reshape(*swapped.shape[:-2], -1)


def _transposed_phases(padded: jax.Array, kernel: jax.Array, ratio: int, first: int, count: int) -> list[jax.Array]:
    """Compute the next `ratio` * `count` values of a transposed convolution, starting with the value at index `first`. Returns
    `ratio` arrays of `count` values. Array i has the values at `first` + i, `first` + i + `ratio` and so on."""
    size, phases = kernel.shape[-1], []
    for place in range(first, first + ratio):
        taps = range(place % ratio, size, ratio)
        starts = [(place - tap) // ratio for tap in taps]
        phases.append(_weighted_sum(padded, kernel, taps, starts, count))
    return phases


def _weighted_sum(values: jax.Array, kernel: jax.Array, taps: Iterable[int], starts: Iterable[int], count: int) -> jax.Array:
    """Return the sum of kernel[tap] * values[start : start + count] over all taps. `starts` has one start for each tap."""
    kernel = kernel[..., 0, :].astype(values.dtype)  # [..., 1, taps]
    parts = (
        kernel[..., tap, None] * jax.lax.slice_in_dim(values, start, start + count, axis=-1)
        for tap, start in zip(taps, starts, strict=True)
    )
    return cast(jax.Array, sum(parts))  # `sum` is an array, because there is at least one tap
