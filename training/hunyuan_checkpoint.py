"""Assemble hunyuan-tiny's trained networks in one folder in diffusers' layout."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from diffusers import (
    AutoencoderKLHunyuanVideo15,
    ClassifierFreeGuidance,
    FlowMatchEulerDiscreteScheduler,
    HunyuanVideo15ImageToVideoPipeline,
    HunyuanVideo15Transformer3DModel,
)
from transformers import (
    AutoTokenizer,
    ByT5Tokenizer,
    Qwen2_5_VLTextModel,
    SiglipImageProcessorPil,
    SiglipVisionModel,
    T5EncoderModel,
)

from training.checkpoint import FLOW_SHIFT, round_matrices
from training.hunyuan_configs import PICTURE_SIDE

GUIDANCE = 4.0


def assemble_hunyuan(parts: Path, vae_folder: Path, tokenizer_folder: Path, target: Path) -> None:
    """Write `target` from the training's folders. Matrices become bfloat16, the autoencoder's float16, to halve the size."""
    processor = SiglipImageProcessorPil(size={"height": PICTURE_SIDE, "width": PICTURE_SIDE}, resample=3)
    pipeline = HunyuanVideo15ImageToVideoPipeline(
        tokenizer=AutoTokenizer.from_pretrained(tokenizer_folder),
        text_encoder=Qwen2_5_VLTextModel.from_pretrained(parts / "text_encoder"),
        tokenizer_2=ByT5Tokenizer(),
        text_encoder_2=T5EncoderModel.from_pretrained(parts / "text_encoder_2"),
        image_encoder=SiglipVisionModel.from_pretrained(parts / "image_encoder"),
        feature_extractor=processor,
        vae=AutoencoderKLHunyuanVideo15.from_pretrained(vae_folder),
        transformer=HunyuanVideo15Transformer3DModel.from_pretrained(parts / "transformer"),
        scheduler=FlowMatchEulerDiscreteScheduler(shift=FLOW_SHIFT),
        guider=ClassifierFreeGuidance(guidance_scale=GUIDANCE),
    )
    for network in (pipeline.transformer, pipeline.text_encoder, pipeline.text_encoder_2, pipeline.image_encoder):
        round_matrices(network, torch.bfloat16)
    round_matrices(
        pipeline.vae, torch.float16
    )  # float16's range suffices, and bfloat16's coarser steps would be visible in pixels
    pipeline.save_pretrained(target)
    index = json.loads((target / "model_index.json").read_text())
    index["feature_extractor"] = ["transformers", "SiglipImageProcessor"]  # the name for all backends
    (target / "model_index.json").write_text(json.dumps(index, indent=2) + "\n")
