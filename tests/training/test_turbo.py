"""Tests of the training of wan-tiny-turbo: its attention, its steps, its pairs and its checkpoint."""

import json
import random

import jax.numpy as jnp
import numpy as np
import pytest
import torch

from backend.models import find_family
from kernels.attention.sla import SparseHeads, select_key_blocks, sla_attention
from presets import Preset, load_preset
from tests.gradients import without_gradients
from training.latents import Bucket
from training.model_configs import TRANSFORMER
from training.sampling import Sampler, Settings, TurboSampler
from training.tokenizer import make_tokenizer
from training.train_transformer import TransformerTraining
from training.turbo import assemble_turbo
from training.turbo_networks import BLOCKS, KEEP, LEVELS, TurboNetworks, sparse_linear_attention, take_steps
from training.turbo_pairs import Asked, PairCache
from training.velocity import projected
from training.wan_networks import WanNetworks, WanText


@pytest.fixture(scope="module")
def networks(tmp_path_factory) -> TurboNetworks:
    """Return networks that were loaded from a checkpoint without SLA, and then got a random projection."""
    folder = tmp_path_factory.mktemp("dense")
    make_tokenizer(folder / "tokenizer", sentences=2000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(TRANSFORMER, "num_layers", 2)
        torch.manual_seed(0)
        dense = WanNetworks.create(WanText.create(folder / "tokenizer", "cpu"), "cpu")
    torch.nn.init.normal_(dense.learned.proj_out.weight, std=0.02)
    dense.save(folder)
    made = TurboNetworks.load(folder, folder / "tokenizer", "cpu")
    made.text.encoder.eval()
    for block in made.learned.blocks:
        assert block.attn1.proj_l.weight.abs().max() == 0  # a dense checkpoint starts without linear attention
        torch.nn.init.normal_(block.attn1.proj_l.weight, std=0.1)
    return made


@without_gradients
@pytest.mark.parametrize("frames", [5, 9])
def test_the_attention_is_the_engines(networks, frames):
    torch.manual_seed(1)
    attention = networks.learned.blocks[0].attn1
    cosine, sine = networks.learned.rope(torch.zeros(1, TRANSFORMER["in_channels"], frames, 6, 6))
    hidden = torch.randn(2, 9 * frames, attention.to_q.in_features)
    found = sparse_linear_attention(attention, hidden, cosine, sine, torch.float32)
    arrays = projected(attention, hidden, cosine, sine, torch.float32)
    query, key, value = (jnp.asarray(array.transpose(1, 2).numpy()) for array in arrays)
    heads = SparseHeads(query=query, key=key, value=value, num_keys=9 * frames, num_queries=9 * frames)
    blocks = select_key_blocks(heads, KEEP, *BLOCKS)
    projection = tuple(jnp.asarray(value.numpy()) for value in (attention.proj_l.weight, attention.proj_l.bias))
    attended = torch.from_numpy(np.array(sla_attention(heads, blocks, projection)))
    torch.testing.assert_close(found, attention.to_out[0](attended.flatten(2)), atol=2e-5, rtol=1e-4)


def test_four_steps_lead_from_noise_to_the_clean_latents_that_the_velocity_points_to():
    noise, clean = torch.randn(2, 4, 3, 2, 2), torch.randn(2, 4, 3, 2, 2)
    given = torch.zeros(2, 1, 3, 1, 1, dtype=torch.bool)
    given[1, :, 0] = True
    seen = []

    def velocity(point: torch.Tensor, step: int) -> torch.Tensor:
        seen.append(point)
        return (point - clean) / LEVELS[step]

    torch.testing.assert_close(take_steps(velocity, noise, clean, given), clean, atol=1e-5, rtol=0)
    assert len(seen) == 4
    torch.testing.assert_close(seen[0][0], LEVELS[0] * noise[0])
    assert all(torch.equal(point[1, :, 0], clean[1, :, 0]) for point in seen)


def test_a_batch_of_pairs_has_a_loss_for_all_weights(networks):
    torch.manual_seed(2)
    asked = [Asked(prompt="a red circle moves left", has_image=number == 1) for number in range(4)]
    bucket = Bucket(width=96, height=96, num_frames=17, share=1.0, batch=4, clips=4)
    cache = PairCache(bucket, torch.randn(4, 2 * TRANSFORMER["in_channels"], 5, 6, 6), asked)
    words = [networks.words_for(one, random.Random(1), TransformerTraining()) for one in asked]
    generator = torch.Generator().manual_seed(0)
    losses = [networks.loss(cache.latents, cache.scenes, words, TransformerTraining(), generator) for _ in range(4)]
    torch.stack(losses).sum().backward()
    assert all(loss.item() > 0 for loss in losses)
    for block in networks.learned.blocks:
        assert block.attn1.proj_l.weight.grad.abs().max() > 0 and block.attn1.to_q.weight.grad.abs().max() > 0


@pytest.mark.demo_model
def test_the_checkpoint_is_sparse_and_shares_wan_tinys_parts(networks, tmp_path):
    base = tmp_path / "wan-tiny"
    base.symlink_to(load_preset("wan-tiny").model_source)
    networks.save(tmp_path / "parts")
    assemble_turbo(tmp_path / "parts", base, tmp_path / "made")
    assert (tmp_path / "made/vae").is_symlink() and (tmp_path / "made/vae/config.json").is_file()
    turbo = load_preset("wan-tiny").model_dump() | {"model": str(tmp_path / "made")}
    assert find_family(Preset(**turbo))[1].sparse_attention == "sla"
    config = json.loads((tmp_path / "made/transformer/config.json").read_text())
    assert config["sparse_blocks"] == list(BLOCKS)
    sampler = Sampler.load(tmp_path / "made")
    assert isinstance(sampler, TurboSampler)
    settings = sampler.settings_for(Settings(num_frames=5))
    assert (settings.steps, settings.guidance) == (4, 1.0)
    video = sampler.sample(["a red circle moves left"], [1], settings, torch.zeros(1, 3, 1, 96, 96))
    assert video.shape == (1, 5, 96, 96, 3)
