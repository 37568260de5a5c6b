"""Run by `test_vae_tpu.py` with four virtual devices: a tiny random autoencoder, both ways.

Arguments are cases DEVICES,HEIGHT,WIDTH of latents. Prints one JSON object: for each case the largest differences of three latent
frames' pixels, then of their latents.
"""

import dataclasses
import functools
import json
import sys
from collections.abc import Iterator, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import torch
from diffusers import AutoencoderKLHunyuanVideo15

from backend.models.hunyuan import vae_tpu as tpu_autoencoder
from backend.models.hunyuan.vae_stream import FRAMES_SEEN, KEYS_AND_VALUES
from backend.runtime.mesh import Layout, MeshPlan
from tests.backend.models.hunyuan.tiny_vae import LATENT_CHANNELS, random_vae
from tests.gradients import without_gradients

SMALLER = dict(block_out_channels=(8, 16, 16), layers_per_block=0, spatial_compression_ratio=4, temporal_compression_ratio=2)
"""One layer of each kind that shrinks or enlarges. The middle and the decoder have residual blocks nevertheless."""
PLANS = {1: MeshPlan(), 4: MeshPlan(dp=2, sp=2)}
FRAMES, ROOM = 3, 4  # latent frames, and the number of latent frames for which the keys have space


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """A tiny autoencoder, its weights from `arrange`, latents of `size` (height, width), and the layout of chips."""

    module: AutoencoderKLHunyuanVideo15
    weights: Mapping[str, jax.Array]
    size: tuple[int, int]
    layout: Layout


@without_gradients
def decode_both(case: Case) -> list[float]:
    """Return the largest differences of pixels per latent frame."""
    latents = 1.5 * torch.randn(1, LATENT_CHANNELS, FRAMES, *case.size) + 0.1
    reference = frames_of(case, case.module.decode(latents).sample.clamp(-1, 1))
    made = one_by_one(case, tpu_autoencoder.decode, "decoder", latents.split(1, dim=2))
    return [largest_difference(*pair) for pair in zip(made, reference, strict=True)]


@without_gradients
def encode_both(case: Case) -> list[float]:
    """Return the largest differences of latents per latent frame."""
    scale, times = case.module.config.spatial_compression_ratio, case.module.config.temporal_compression_ratio
    pixels = 2 * torch.rand(1, 3, 1 + times * (FRAMES - 1), *(scale * side for side in case.size)) - 1
    reference = case.module.encode(pixels).latent_dist.mode().split(1, dim=2)
    made = one_by_one(case, tpu_autoencoder.encode, "encoder", frames_of(case, pixels))
    return [largest_difference(ours[:, :LATENT_CHANNELS], other) for ours, other in zip(made, reference, strict=True)]


def one_by_one(case: Case, function, way: str, pieces: Sequence[torch.Tensor]) -> Iterator[jax.Array]:
    """Return the function's result for each latent frame."""
    program = jax.jit(functools.partial(function, case.module, layout=case.layout, interpret=True))
    width = case.module.config.block_out_channels[-1]
    widths = {f"{way}.mid_block.attentions.0.{kind}": width for kind in KEYS_AND_VALUES}
    described = tpu_autoencoder.describe_keys(case.layout, widths, (1, 0, ROOM, *case.size), jnp.float32)
    caches = {name: jnp.zeros(leaf.shape, device=leaf.sharding) for name, leaf in described.items()}
    caches[FRAMES_SEEN] = jnp.int32(0)
    kept = set()
    for piece in pieces:
        result, caches = program(case.weights, piece.numpy(), caches)
        kept.add(tuple((name, cache.shape) for name, cache in caches.items()))
        yield result
    assert len(kept) == 1, "the caches change their shapes, so more than two programs would be compiled"


def frames_of(case: Case, pixels: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the pixel frames of each latent frame: one, then as many as the temporal compression."""
    return pixels.split([1] + [case.module.config.temporal_compression_ratio] * (FRAMES - 1), dim=2)


def largest_difference(ours: jax.Array, reference: torch.Tensor) -> float:
    return float(np.abs(np.asarray(ours) - reference.numpy()).max())


def main() -> None:
    module = random_vae(**SMALLER)
    arrange = jax.jit(functools.partial(tpu_autoencoder.arrange, module))
    weights = arrange({name: value.detach().numpy() for name, value in module.state_dict().items()})
    found = {}
    for words in sys.argv[1:]:
        devices, *size = (int(word) for word in words.split(","))
        layout = Layout.create(PLANS[devices], jax.devices()[:devices])
        case = Case(module=module, weights=weights, size=tuple(size), layout=layout)
        found[words] = decode_both(case) + encode_both(case)
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
