"""A tiny checkpoint of Animate-2 with random weights in its makers' layout, and diffusers' modular pipelines for it."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import torch
from diffusers import (
    AutoencoderKLWan,
    ClassifierFreeGuidance,
    FlowMatchEulerDiscreteScheduler,
    UniPCMultistepScheduler,
    WanAnimate2Transformer3DModel,
)
from diffusers.modular_pipelines.wan_animate_2 import modular_blocks_wan_animate_2 as base_blocks
from diffusers.modular_pipelines.wan_animate_2 import modular_blocks_wan_animate_2_distilled as distilled_blocks
from transformers import AutoTokenizer, CLIPVisionConfig, CLIPVisionModel, UMT5EncoderModel

from backend.models.wan_animate.names import PICTURE_CHANNELS
from presets import Preset
from tests.parity.tiny_checkpoints import DEMO, HEAD_WIDTH, HEADS, HIDDEN, SHIFT, VAE_21, _vae
from tests.parity.tiny_preset import tiny_preset

KINDS = ("wan2.2-animate", "wan2.2-animate-fast")
LAYERS = 11  # more than the one that the branch without the prompt leaves out
SEGMENT = 9
WORDS = "reference video"
CLIP_SIDE, CLIP_PATCH = 224, 112


def unipc_with_generator(**options: Any) -> UniPCMultistepScheduler:
    class UniPC(UniPCMultistepScheduler):
        """A scheduler that accepts and ignores the pipeline's `generator`."""

        def step(self, *arguments: Any, generator: Any = None, **options: Any) -> Any:
            return super().step(*arguments, **options)

    return UniPC(**options)


def make_parts(kind: str) -> dict[str, Any]:
    """Return the checkpoint's parts, which are the same for both kinds."""
    torch.manual_seed(3)
    return {
        "vae": _vae(VAE_21),
        "text_encoder": UMT5EncoderModel.from_pretrained(DEMO / "text_encoder"),
        "tokenizer": AutoTokenizer.from_pretrained(DEMO / "tokenizer"),
        "image_encoder": CLIPVisionModel(_clip()),
        "transformer": _transformer(),
    }


def write_checkpoint(parts: dict[str, Any], folder: Path) -> Path:
    """Write the checkpoint to this folder."""
    for name, part in parts.items():
        part.save_pretrained(folder / name)
    index: dict[str, Any] = {name: [type(part).__module__.partition(".")[0], type(part).__name__] for name, part in parts.items()}
    index |= {"_class_name": "WanAnimate2Pipeline", "scheduler": ["diffusers", "DPMSolverMultistepScheduler"]}
    (folder / "model_index.json").write_text(json.dumps(index | {"segment_frame_length": SEGMENT}))
    return folder


def _clip() -> CLIPVisionConfig:
    return CLIPVisionConfig(
        hidden_size=PICTURE_CHANNELS,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=CLIP_SIDE,
        patch_size=CLIP_PATCH,
        projection_dim=16,
        hidden_act="gelu",
    )


def _transformer() -> WanAnimate2Transformer3DModel:
    model = WanAnimate2Transformer3DModel(
        dim=HEADS * HEAD_WIDTH, num_heads=HEADS, num_layers=LAYERS, ffn_dim=HIDDEN, text_dim=256, freq_dim=64
    )
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "norm" in name or name.startswith("img_emb.proj.4"):  # ones and zeros would hide a mix-up
                value.add_(0.2 * torch.randn_like(value))
        model.head.head.weight.mul_(2)
    return model.eval()


def make_preset(kind: str, folder: Path) -> Preset:
    """Return a preset for the checkpoint, guided or distilled."""
    return tiny_preset(
        kind,
        folder,
        64,
        series="wan2.2-animate",
        steps=3,
        size_multiple=16,
        vae_scale_spatial=8,
        frame_step=1,
        frame_counts=[9, 25],
        flow_shift=SHIFT,
        solver="euler" if kind.endswith("fast") else "unipc",
        tasks=["i2v"],
        guidance=[1.0] if kind.endswith("fast") else [3.0],
        takes={"drive": "must"},
        needs_prompt=False,
        segment_frames=SEGMENT,
        drive_prompt=WORDS,
        latent_spectrum=None,
    )


def make_pipeline(kind: str, folder: Path) -> Any:
    """Return diffusers' modular pipeline for the checkpoint."""
    is_fast = kind.endswith("fast")
    blocks = distilled_blocks.WanAnimate2DistilledBlocks() if is_fast else base_blocks.WanAnimate2Blocks()
    pipeline = blocks.init_pipeline()
    scheduler = (
        FlowMatchEulerDiscreteScheduler(shift=SHIFT)
        if is_fast
        else unipc_with_generator(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=SHIFT)
    )
    pipeline.update_components(
        vae=AutoencoderKLWan.from_pretrained(folder / "vae"),
        text_encoder=UMT5EncoderModel.from_pretrained(folder / "text_encoder"),
        tokenizer=AutoTokenizer.from_pretrained(folder / "tokenizer"),
        image_encoder=CLIPVisionModel.from_pretrained(folder / "image_encoder"),
        transformer=WanAnimate2Transformer3DModel.from_pretrained(folder / "transformer"),
        scheduler=scheduler,
        guider=ClassifierFreeGuidance(guidance_scale=1.0 if is_fast else 3.0),
    )
    return pipeline


@functools.cache
def uncompiled() -> None:
    """Run diffusers' attention without `torch.compile`, which torchax's devices do not support. PyTorch has a switch for it."""
    from diffusers.models.transformers import transformer_wan_animate_2 as module
    from torch.nn.attention import flex_attention

    flex_attention._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = True

    create = module.create_block_mask

    def plain(*arguments: Any, **options: Any) -> Any:
        return create(*arguments, **{**options, "_compile": False})

    module.create_block_mask = plain
