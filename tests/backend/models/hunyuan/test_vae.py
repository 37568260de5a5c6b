"""Compare our autoencoder, latent frame by latent frame, with diffusers' on whole clips, and check its tensors from a saved
checkpoint.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from diffusers import AutoencoderKLHunyuanVideo15

from backend.models.hunyuan.vae import VideoAutoencoder
from backend.runtime.mesh import Layout, MeshPlan
from backend.weights.read import LoadProgress, Part, load_flat
from tests.backend.models.hunyuan.tiny_vae import CONFIG, LATENT_CHANNELS, random_vae

CLIPS = [(1, (2, 3)), (5, (2, 3)), (9, (3, 1)), (33, (3, 1))]  # frames, and the height and width of latents
ROOM = 9  # latent frames for every clip: shorter clips leave keys unwritten
TOLERANCE = 1e-4  # the required limit; float32 through some twenty convolutions


@pytest.fixture(scope="module")
def vae() -> AutoencoderKLHunyuanVideo15:
    return random_vae()


@pytest.fixture(scope="module")
def ours() -> VideoAutoencoder:
    return VideoAutoencoder(CONFIG, Layout.create(MeshPlan(), jax.devices()[:1]))


@pytest.fixture(scope="module")
def weights(vae, ours, tmp_path_factory) -> dict[str, jax.Array]:
    """Return the weights as our loader reads them from a checkpoint saved by diffusers."""
    folder = tmp_path_factory.mktemp("checkpoint")
    vae.save_pretrained(folder / "vae")
    part = Part(folder, "vae")
    return ours.arrange(
        load_flat(
            part,
            ours.describe_weights(jnp.float32),
            LoadProgress(sum(place.num_bytes for place in part.places.values()), lambda event: None),
        )
    )


@functools.cache
def programs(ours: VideoAutoencoder):
    return {name: jax.jit(getattr(ours, name)) for name in ("encode_first", "encode_next", "decode_first", "decode_next")}


def room(ours: VideoAutoencoder, way: str, size: tuple[int, int]) -> dict[str, jax.Array]:
    described = ours.describe_keys((1, LATENT_CHANNELS, ROOM, *size), jnp.float32)[way]
    return {name: jnp.zeros(leaf.shape, leaf.dtype) for name, leaf in described.items()}


@pytest.mark.parametrize(("num_frames", "size"), CLIPS)
def test_decoding_frame_by_frame_equals_the_whole_clip(vae, ours, weights, num_frames, size):
    latents = torch.randn(1, LATENT_CHANNELS, (num_frames + 3) // 4, *size, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = vae.decode(latents / vae.config.scaling_factor).sample.clamp(-1, 1).numpy()
    made, caches, kept = [], room(ours, "decoder", size), set()
    for index in range(latents.shape[2]):
        program = programs(ours)["decode_next" if index else "decode_first"]
        pixels, caches = program(weights, jnp.asarray(latents[:, :, index : index + 1].numpy()), caches)
        made.append(pixels)
        kept.add(tuple((name, cache.shape) for name, cache in caches.items()))
    assert len(kept) == 1  # else the decoder would be compiled again
    assert expected.shape[2] == num_frames and 0.05 < np.abs(expected).mean() < 0.95
    assert np.abs(np.concatenate(made, axis=2) - expected).max() <= TOLERANCE


@pytest.mark.parametrize(("num_frames", "size"), CLIPS)
def test_encoding_frame_by_frame_equals_the_whole_clip(vae, ours, weights, num_frames, size):
    scale = vae.config.spatial_compression_ratio
    pixels = 2 * torch.rand(1, 3, num_frames, *(scale * side for side in size), generator=torch.Generator().manual_seed(1)) - 1
    with torch.no_grad():
        expected = (vae.encode(pixels).latent_dist.mode() * vae.config.scaling_factor).numpy()
    pieces = [pixels[:, :, :1], *pixels[:, :, 1:].split(4, dim=2)] if num_frames > 1 else [pixels]
    made, caches = [], room(ours, "encoder", size)
    for index, piece in enumerate(pieces):
        latents, caches = programs(ours)["encode_next" if index else "encode_first"](weights, jnp.asarray(piece.numpy()), caches)
        made.append(latents)
    if num_frames == 1:
        assert np.abs(jax.jit(ours.encode_image)(weights, jnp.asarray(pixels.numpy())) - expected).max() <= TOLERANCE
    assert np.abs(np.concatenate(made, axis=2) - expected).max() <= TOLERANCE
