"""Assemble wan-tiny's trained networks in one folder in diffusers' layout."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import torch
from diffusers import AutoencoderKLWan, UniPCMultistepScheduler, WanPipeline, WanTransformer3DModel
from transformers import AutoTokenizer, UMT5EncoderModel

FLOAT32_PARTS = ("time_embedder", "scale_shift_table", "norm")  # parts that diffusers keeps in float32 in a bfloat16 model
LINKED = ("vae", "text_encoder", "tokenizer")  # parts of wan-tiny that other checkpoints link to
FLOW_SHIFT = 3.0


def assemble_wan(parts: Path, vae_folder: Path, tokenizer_folder: Path, target: Path) -> None:
    """Write `target` from the training's folders. The transformer's matrices become bfloat16, which halves their size."""
    transformer = WanTransformer3DModel.from_pretrained(parts / "transformer")
    round_matrices(transformer, torch.bfloat16, FLOAT32_PARTS)
    pipeline = WanPipeline(
        tokenizer=AutoTokenizer.from_pretrained(tokenizer_folder),
        text_encoder=UMT5EncoderModel.from_pretrained(parts / "text_encoder"),
        vae=AutoencoderKLWan.from_pretrained(vae_folder),
        scheduler=UniPCMultistepScheduler(
            prediction_type="flow_prediction", use_flow_sigmas=True, num_train_timesteps=1000, flow_shift=FLOW_SHIFT
        ),
        transformer=transformer,
        expand_timesteps=True,
    )
    pipeline.save_pretrained(target)


def write_beside(
    base: Path, network: torch.nn.Module, target: Path, pipeline: str, kept: tuple[str, ...] = FLOAT32_PARTS, **index: object
) -> None:
    """Write the checkpoint of a transformer that shares the other parts of `base`, wan-tiny's folder.

    The transformer's matrices become bfloat16, which halves their size. The other parts are links. The index names a pipeline's
    class and has the entries of `index`.
    """
    round_matrices(network, torch.bfloat16, kept)
    shutil.rmtree(target / "transformer", ignore_errors=True)
    network.save_pretrained(target / "transformer")
    for part in LINKED:
        link = target / part
        link.unlink(missing_ok=True)
        link.symlink_to(os.path.relpath(base / part, target))
    whole = {
        "_class_name": pipeline,
        "transformer": ["diffusers", type(network).__name__],
        "vae": ["diffusers", "AutoencoderKLWan"],
        "text_encoder": ["transformers", "UMT5EncoderModel"],
        "tokenizer": ["transformers", "T5TokenizerFast"],
        **index,
    }
    (target / "model_index.json").write_text(json.dumps(whole, indent=2) + "\n", "utf-8")


def round_matrices(network: torch.nn.Module, dtype: torch.dtype, kept: tuple[str, ...] = ()) -> None:
    """Convert a network's matrices and convolutions to `dtype` in place, except names with one of `kept`."""
    for name, parameter in network.named_parameters():
        if parameter.ndim >= 2 and not any(part in name for part in kept):
            parameter.data = parameter.data.to(dtype)
