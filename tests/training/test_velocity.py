"""Tests that the fast forward pass and the padding of texts in training equal diffusers' class."""

from pathlib import Path

import pytest
import torch
from diffusers import WanTransformer3DModel
from transformers import PreTrainedTokenizerFast

from tests.gradients import without_gradients
from training.model_configs import TEXT_ENCODER, TRANSFORMER
from training.tokenizer import make_tokenizer
from training.velocity import predict_velocity
from training.wan_networks import WanNetworks, WanText


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("tokenizer")


@pytest.fixture(scope="module")
def tokenizer(folder) -> PreTrainedTokenizerFast:
    return make_tokenizer(folder, sentences=2000)


@pytest.fixture
def networks(folder, tokenizer, monkeypatch) -> WanNetworks:
    monkeypatch.setitem(TRANSFORMER, "num_layers", 2)
    torch.manual_seed(0)
    text = WanText.create(folder, "cpu")
    text.encoder.eval()
    made = WanNetworks.create(text, "cpu")
    torch.nn.init.normal_(made.learned.proj_out.weight, std=0.02)
    return made


@without_gradients
@pytest.mark.parametrize("first_frame_is_clean", [True, False])
def test_velocity_equals_the_class(networks, first_frame_is_clean):
    latents = torch.randn(2, TRANSFORMER["in_channels"], 5, 6, 6)
    prompts = ["a red circle moving left", ""]
    timestep = torch.tensor([500.0, 300.0])
    first = torch.zeros(2) if first_frame_is_clean else timestep
    text, bias = networks.text.encode(prompts)
    ours = predict_velocity(networks.learned, latents, timestep, first, text, bias, torch.float32)
    reference = _reference(networks.learned, networks.text, latents, timestep, first, prompts)
    torch.testing.assert_close(ours, reference, atol=1e-5, rtol=0)  # float32 sums in another order, values around 1


def _reference(transformer: WanTransformer3DModel, text: WanText, latents, timestep, first, prompts) -> torch.Tensor:
    tokens = text.tokenizer(prompts, padding="max_length", max_length=512, return_tensors="pt")
    text = text.encoder(**tokens).last_hidden_state * tokens.attention_mask[..., None]
    timesteps = torch.cat([first[:, None].expand(2, 9), timestep[:, None].expand(2, 36)], 1)
    return transformer(latents, timesteps, text, return_dict=False)[0]


def test_the_tokenizer_ignores_case_and_keeps_words_whole(tokenizer):
    tokens = tokenizer.convert_ids_to_tokens(tokenizer("A RED circle, moving Left.")["input_ids"])
    assert tokens == ["▁a", "▁red", "▁circle", ",", "▁moving", "▁left", ".", "</s>"]
    assert len(tokenizer) < 256
    assert TEXT_ENCODER["d_model"] == TRANSFORMER["text_dim"]
