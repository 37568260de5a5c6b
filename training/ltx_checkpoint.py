"""Assemble ltx-tiny's trained networks in one folder in diffusers' layout."""

from __future__ import annotations

from pathlib import Path

import torch
from diffusers import (
    AutoencoderKLLTX2Audio,
    AutoencoderKLLTX2Video,
    FlowMatchEulerDiscreteScheduler,
    LTX2ImageToVideoPipeline,
    LTX2VideoTransformer3DModel,
)
from diffusers.pipelines.ltx2 import LTX2TextConnectors, LTX2Vocoder
from transformers import AutoTokenizer, Gemma3ForConditionalGeneration

from training.checkpoint import round_matrices

DEMO_TOKENS = 180  # tokens of 96 x 96 pixels and 17 frames
DEMO_MU = 0.95 + (DEMO_TOKENS - 1024) * (2.05 - 0.95) / (4096 - 1024)
FLOAT32_PARTS = ("time_embed", "scale_shift_table", "norm")  # parts that diffusers keeps in float32 in a bfloat16 model


def make_ltx_scheduler() -> FlowMatchEulerDiscreteScheduler:
    """Return a scheduler like LTX-2's published scheduler."""
    return FlowMatchEulerDiscreteScheduler(
        use_dynamic_shifting=True,
        base_shift=0.95,
        max_shift=2.05,
        base_image_seq_len=1024,
        max_image_seq_len=4096,
        shift_terminal=0.1,
    )


def assemble_ltx(parts: Path, vae_folder: Path, tokenizer_folder: Path, target: Path) -> None:
    """Write `target` from the training's folders.

    Matrices become bfloat16, and float16 in the autoencoders and the vocoder, which halves the size.
    """
    pipeline = LTX2ImageToVideoPipeline(
        scheduler=make_ltx_scheduler(),
        vae=AutoencoderKLLTX2Video.from_pretrained(vae_folder),
        audio_vae=AutoencoderKLLTX2Audio.from_pretrained(parts / "audio_vae"),
        text_encoder=Gemma3ForConditionalGeneration.from_pretrained(parts / "text_encoder"),
        tokenizer=AutoTokenizer.from_pretrained(tokenizer_folder),
        connectors=LTX2TextConnectors.from_pretrained(parts / "connectors"),
        transformer=LTX2VideoTransformer3DModel.from_pretrained(parts / "transformer"),
        vocoder=LTX2Vocoder.from_pretrained(parts / "vocoder"),
    )
    for network in (pipeline.transformer, pipeline.connectors, pipeline.text_encoder):
        round_matrices(network, torch.bfloat16, FLOAT32_PARTS)
    for network in (pipeline.vae, pipeline.audio_vae, pipeline.vocoder):
        round_matrices(network, torch.float16)
    pipeline.save_pretrained(target)
