"""A second oracle: the pixels that diffusers publishes in its own test of HunyuanVideo 1.5, against diffusers and against us.

Source: huggingface/diffusers, commit 071190daca865a4d04deac0e02cda5b8c5d6f6fa,
tests/pipelines/hunyuan_video1_5/test_hunyuan_1_5.py (sizes, seeds, settings, figures; text to video without guidance). Every
network is created right after torch.manual_seed(0). Its tokenizer is only on the Hub. Our prompt therefore replaces theirs,
with as many tokens: 114, found by trying. The meaning of the tokens moves these pixels by less than 3e-4, and one token more or
less by 1e-4 (measured).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import (
    AutoencoderKLHunyuanVideo15,
    ClassifierFreeGuidance,
    FlowMatchEulerDiscreteScheduler,
    HunyuanVideo15Transformer3DModel,
)
from transformers import ByT5Tokenizer, Qwen2_5_VLTextConfig, Qwen2_5_VLTextModel, T5Config, T5EncoderModel

from backend.pipeline import load as load_module
from backend.schemas.request import GenerationRequest
from presets import Preset
from tests.parity.tiny_hunyuan import KINDS, make_preset, make_tokenizer, pipeline_of, write_checkpoint
from tests.parity.tiny_preset import find_also
from tests.parity.tiny_runs import latents_of, video_of

pytestmark = [pytest.mark.parity, pytest.mark.demo_model]

SIDE, NUM_FRAMES, STEPS, SHIFT, TOKENS = 16, 9, 2, 7.0, 114
PIXELS = (
    0.4296, 0.5549, 0.3088, 0.9115, 0.5049, 0.7926, 0.5549, 0.8618, 0.5091, 0.5075, 0.7117, 0.5292, 0.7053, 0.4864, 0.5206, 0.3878,
)  # fmt: skip
"""The first eight and the last eight pixels of the video, [frames, 3, height, width] in [0, 1]."""
TOLERANCE = 1e-3  # like in their test


def make_parts() -> dict[str, Any]:
    """Return the components of their test, with our tokenizer."""
    parts = {"tokenizer": make_tokenizer(), "tokenizer_2": ByT5Tokenizer()}
    torch.manual_seed(0)
    parts["transformer"] = HunyuanVideo15Transformer3DModel(
        in_channels=9,
        out_channels=4,
        num_attention_heads=2,
        attention_head_dim=8,
        num_layers=1,
        num_refiner_layers=1,
        mlp_ratio=2.0,
        patch_size=1,
        patch_size_t=1,
        text_embed_dim=16,
        text_embed_2_dim=32,
        image_embed_dim=12,
        rope_axes_dim=(2, 2, 4),
        target_size=16,
        task_type="t2v",
    ).eval()
    torch.manual_seed(0)
    parts["vae"] = AutoencoderKLHunyuanVideo15(
        latent_channels=4,
        block_out_channels=(16, 16),
        layers_per_block=1,
        spatial_compression_ratio=4,
        temporal_compression_ratio=2,
        downsample_match_channel=False,
        upsample_match_channel=False,
    ).eval()
    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [1, 1, 2]}
    sizes = dict(hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2)
    text = Qwen2_5_VLTextConfig(**sizes, rope_parameters=rope, vocab_size=len(parts["tokenizer"]), bos_token_id=0, eos_token_id=2)
    quoted = T5Config(d_model=32, d_kv=8, d_ff=37, num_layers=2, num_heads=4, vocab_size=384)
    return parts | {
        "text_encoder": Qwen2_5_VLTextModel(text).eval(),
        "text_encoder_2": T5EncoderModel(quoted).eval(),
        "scheduler": FlowMatchEulerDiscreteScheduler(shift=SHIFT),
        "guider": ClassifierFreeGuidance(guidance_scale=1.0),
    }


def make_published_preset(folder: Path) -> Preset:
    own = dict(
        name="tiny-published",
        width=SIDE,
        height=SIDE,
        min_width=SIDE,
        min_height=SIDE,
        sizes=[[SIDE, SIDE]],
        steps=STEPS,
        flow_shift=SHIFT,
        guidance=[1.0],
        vae_scale_spatial=4,
        vae_scale_temporal=2,
        frame_step=2,
        size_multiple=4,
    )
    return Preset(**make_preset(KINDS[0], folder).model_dump() | own)


@pytest.fixture(scope="module")
def parts() -> dict[str, Any]:
    return make_parts()


@pytest.fixture(scope="module")
def prompt(parts) -> str:
    """A prompt of `TOKENS` tokens, including the tokens at the template's end."""
    pipeline, words = pipeline_of(parts), "monkey"
    while (count := pipeline.encode_prompt(words, device="cpu", dtype=torch.float32)[1].sum()) < TOKENS:
        words += "?"
    assert count == TOKENS
    return words


def ends(video: np.ndarray) -> np.ndarray:
    """Return the first and the last eight pixels of a video [frames, 3, height, width]."""
    flat = video.ravel()
    return np.concatenate([flat[:8], flat[-8:]])


def test_diffusers_still_gives_what_it_publishes(parts, prompt):
    """The models are rebuilt correctly, and the prompt's meaning does not matter."""
    video = pipeline_of(parts)(
        prompt,
        height=SIDE,
        width=SIDE,
        num_frames=NUM_FRAMES,
        num_inference_steps=STEPS,
        generator=torch.Generator().manual_seed(0),
        output_type="np",
    ).frames[0]
    np.testing.assert_allclose(ends(video.transpose(0, 3, 1, 2)), PIXELS, atol=TOLERANCE)


def test_we_give_what_diffusers_publishes(parts, prompt, tmp_path, monkeypatch):
    preset = make_published_preset(write_checkpoint(parts, tmp_path / "model"))
    find_also(monkeypatch, preset)
    loaded = load_module.load(preset, None, lambda event: None)
    request = GenerationRequest.from_preset(preset, prompt=prompt, seed=0)
    video = video_of(request, loaded, latents_of(request, loaded))
    np.testing.assert_allclose(ends(video.transpose(0, 3, 1, 2)), PIXELS, atol=TOLERANCE)
