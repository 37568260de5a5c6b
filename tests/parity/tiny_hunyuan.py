"""Tiny HunyuanVideo 1.5 checkpoints with random weights in the real layout, with tokenizers, and diffusers' pipelines for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from diffusers import (
    AutoencoderKLHunyuanVideo15,
    ClassifierFreeGuidance,
    FlowMatchEulerDiscreteScheduler,
    HunyuanVideo15ImageToVideoPipeline,
    HunyuanVideo15Pipeline,
    HunyuanVideo15Transformer3DModel,
)
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import (
    ByT5Tokenizer,
    Qwen2_5_VLTextConfig,
    Qwen2_5_VLTextModel,
    Qwen2Tokenizer,
    SiglipImageProcessorPil,
    SiglipVisionConfig,
    SiglipVisionModel,
    T5Config,
    T5EncoderModel,
)

from backend.models.hunyuan.text_encoder import SYSTEM_MESSAGE
from presets import Preset
from tests.parity.tiny_preset import tiny_preset

KINDS = ("hunyuanvideo-1.5-t2v", "hunyuanvideo-1.5-i2v", "hunyuanvideo-1.5-i2v-meanflow")
HEADS, HEAD_WIDTH, LAYERS = 2, 128, 2
SIDE = 64  # pixels of a video; with this target_size diffusers makes a square picture of the same size
SHIFT = 5.0
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_parts(kind: str) -> dict[str, Any]:
    """Return the components of diffusers' pipeline."""
    torch.manual_seed(sum(map(ord, kind)))
    parts = {
        "vae": _vae(),
        "tokenizer": make_tokenizer(),
        "tokenizer_2": ByT5Tokenizer(),
        "text_encoder_2": T5EncoderModel(_byt5()).eval(),
        "transformer": _transformer(kind),
        "scheduler": FlowMatchEulerDiscreteScheduler(shift=SHIFT),
        "guider": ClassifierFreeGuidance(guidance_scale=6.0),
    }
    parts["text_encoder"] = Qwen2_5_VLTextModel(_qwen(len(parts["tokenizer"]))).eval()
    if "i2v" in kind:
        parts["image_encoder"] = SiglipVisionModel(_siglip()).eval()
        parts["feature_extractor"] = SiglipImageProcessorPil(size={"height": 28, "width": 28}, resample=3)
    return parts


def pipeline_of(parts: dict[str, Any]) -> HunyuanVideo15Pipeline | HunyuanVideo15ImageToVideoPipeline:
    """Return diffusers' pipeline of these components."""
    made = (HunyuanVideo15ImageToVideoPipeline if "image_encoder" in parts else HunyuanVideo15Pipeline)(**parts)
    made.set_progress_bar_config(disable=True)
    return made


def write_checkpoint(parts: dict[str, Any], folder: Path) -> Path:
    """Write the components to this folder in the layout that the makers publish."""
    pipeline_of(parts).save_pretrained(folder)
    index = json.loads((folder / "model_index.json").read_text())
    if "feature_extractor" in parts:
        index["feature_extractor"] = ["transformers", "SiglipImageProcessor"]
    (folder / "model_index.json").write_text(json.dumps(index))
    return folder


def make_preset(kind: str, folder: Path) -> Preset:
    """Return a preset for the kind's tiny checkpoint."""
    return tiny_preset(
        kind,
        folder,
        SIDE,
        steps=4,
        size_multiple=16,
        vae_scale_spatial=16,
        frame_counts=[5, 9],
        flow_shift=SHIFT,
        solver="euler-distilled",
        tasks=["i2v" if "i2v" in kind else "t2v"],
        guidance=[6.0],
        negative_prompt="",
        max_prompt_tokens=1000,
        takes={},
        takes_last_image=False,
    )


def _transformer(kind: str) -> HunyuanVideo15Transformer3DModel:
    model = HunyuanVideo15Transformer3DModel(
        num_attention_heads=HEADS,
        attention_head_dim=HEAD_WIDTH,
        num_layers=LAYERS,
        mlp_ratio=2.0,
        text_embed_dim=32,
        text_embed_2_dim=24,
        image_embed_dim=16,
        target_size=SIDE,
        task_type="i2v" if "i2v" in kind else "t2v",
        use_meanflow=kind.endswith("meanflow"),
    )
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "norm" in name:  # ones and zeros would hide a mix-up
                value.add_(0.2 * torch.randn_like(value))
        model.proj_out.weight.mul_(2)
    return model.eval()


def _vae() -> AutoencoderKLHunyuanVideo15:
    return AutoencoderKLHunyuanVideo15(block_out_channels=(8, 8, 16, 32, 64), layers_per_block=1).eval()


def _qwen(vocab_size: int) -> Qwen2_5_VLTextConfig:
    return Qwen2_5_VLTextConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=4,
        num_attention_heads=2,
        num_key_value_heads=1,
        vocab_size=vocab_size,
        max_position_embeddings=2048,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6, "mrope_section": [2, 3, 3]},
        bos_token_id=0,
        eos_token_id=2,
        initializer_range=0.3,
    )


def _byt5() -> T5Config:
    return T5Config(
        d_model=24,
        d_kv=8,
        d_ff=48,
        num_layers=2,
        num_heads=2,
        vocab_size=384,
        feed_forward_proj="gated-gelu",
        tie_word_embeddings=False,
    )


def _siglip() -> SiglipVisionConfig:
    return SiglipVisionConfig(
        hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, image_size=28, patch_size=14
    )


def make_tokenizer() -> Qwen2Tokenizer:
    """Return a byte-level tokenizer trained on the system message, so that the message has about as many tokens as in the real
    tokenizer.
    """
    learned = Tokenizer(models.BPE())
    learned.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=600, initial_alphabet=sorted(alphabet), special_tokens=list(SPECIAL), show_progress=False
    )
    learned.train_from_iterator([SYSTEM_MESSAGE] * 2 + ["<|im_start|>system user assistant\n"] * 2, trainer)
    state = json.loads(learned.to_str())["model"]
    merges = [tuple(pair) for pair in state["merges"]]
    tokenizer = Qwen2Tokenizer(vocab=state["vocab"], merges=merges, extra_special_tokens=list(SPECIAL[1:]))
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer
