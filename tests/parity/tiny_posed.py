"""A tiny checkpoint of Animate-1 with random weights, in the layout that diffusers writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from diffusers import UniPCMultistepScheduler, WanAnimatePipeline, WanAnimateTransformer3DModel
from transformers import AutoTokenizer, CLIPImageProcessorPil, CLIPVisionModel, UMT5EncoderModel

from presets import Preset
from tests.parity.tiny_checkpoints import (
    DEMO,
    HEAD_WIDTH,
    HEADS,
    HIDDEN,
    IMAGE_WIDTH,
    SHIFT,
    VAE_21,
    _clip,
    _vae,
    name_as_transformers_4,
)
from tests.parity.tiny_preset import tiny_preset

KINDS = ("wan2.2-animate-poses",)
LAYERS, EVERY, FACE, SEGMENT = 4, 2, 16, 9


def make_parts(kind: str) -> dict[str, Any]:
    """Return the pipeline's parts."""
    torch.manual_seed(4)
    return {
        "vae": _vae(VAE_21),
        "text_encoder": UMT5EncoderModel.from_pretrained(DEMO / "text_encoder"),
        "tokenizer": AutoTokenizer.from_pretrained(DEMO / "tokenizer"),
        "scheduler": UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=SHIFT),
        "transformer": _transformer(),
        "image_encoder": CLIPVisionModel(_clip()),
        "image_processor": CLIPImageProcessorPil(size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28}),
    }


def _transformer() -> WanAnimateTransformer3DModel:
    model = WanAnimateTransformer3DModel(
        num_attention_heads=HEADS,
        attention_head_dim=HEAD_WIDTH,
        num_layers=LAYERS,
        ffn_dim=HIDDEN,
        text_dim=256,
        in_channels=36,
        latent_channels=16,
        image_dim=IMAGE_WIDTH,
        added_kv_proj_dim=HEADS * HEAD_WIDTH,
        motion_encoder_channel_sizes={"4": 16, "8": 16, "16": 16},
        motion_encoder_size=FACE,
        motion_style_dim=8,
        motion_dim=4,
        motion_encoder_dim=16,
        face_encoder_hidden_dim=16,
        face_encoder_num_heads=2,
        inject_face_latents_blocks=EVERY,
    )
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "norm" in name or "padding_tokens" in name or name.endswith("act_fn.bias"):  # zeros would hide a mix-up
                value.add_(0.2 * torch.randn_like(value))
        model.proj_out.weight.mul_(2)
    return model.eval()


def write_checkpoint(parts: dict[str, Any], folder: Path) -> Path:
    """Write the checkpoint to this folder."""
    WanAnimatePipeline(**parts).save_pretrained(folder)
    name_as_transformers_4(folder / "image_encoder" / "model.safetensors")
    index = json.loads((folder / "model_index.json").read_text()) | {"segment_frame_length": SEGMENT}
    (folder / "model_index.json").write_text(json.dumps(index))
    return folder


def make_preset(kind: str, folder: Path) -> Preset:
    """Return a preset for the checkpoint."""
    return tiny_preset(
        kind,
        folder,
        64,
        steps=3,
        size_multiple=16,
        vae_scale_spatial=8,
        frame_step=1,
        min_width=16,
        min_height=16,
        frame_counts=[9, 25],
        flow_shift=SHIFT,
        tasks=["i2v"],
        guidance=[1.0],
        takes={"drive": "must", "face": "must", "video": "may", "mask": "may"},
        segment_frames=SEGMENT,
        face_side=FACE,
        latent_spectrum=None,
    )
