"""Tiny checkpoints with random weights in the real layout, one per family, written by diffusers and transformers themselves."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from diffusers import (
    AutoencoderKLWan,
    UniPCMultistepScheduler,
    WanImageToVideoPipeline,
    WanPipeline,
    WanTransformer3DModel,
    WanVACEPipeline,
    WanVACETransformer3DModel,
)
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer, CLIPImageProcessorPil, CLIPVisionConfig, CLIPVisionModel, UMT5EncoderModel

from backend.models.wan_vace.spec import INPUTS
from presets import Preset, load_preset
from tests.parity.tiny_preset import tiny_preset

DEMO = Path(load_preset("wan-tiny").model_source)
HEADS, HEAD_WIDTH, LAYERS = 2, 128, 2
HIDDEN = 256  # the width of a layer's feed-forward network, its longest sum
IMAGE_WIDTH, IMAGE_TOKENS = 32, 5  # the tiny CLIP encoder: 28 x 28 pixels, patches of 14
VAE_21 = dict(
    base_dim=8,
    z_dim=16,
    dim_mult=[1, 2, 2, 2],
    num_res_blocks=1,
    temperal_downsample=[False, True, True],
    scale_factor_spatial=8,
    scale_factor_temporal=4,
)
VAE_22 = dict(
    base_dim=8,
    decoder_base_dim=16,
    z_dim=48,
    dim_mult=[1, 2, 2, 2],
    num_res_blocks=1,
    temperal_downsample=[False, True, True],
    is_residual=True,
    in_channels=12,
    out_channels=12,
    patch_size=2,
    scale_factor_spatial=16,
    scale_factor_temporal=4,
)
VAE_ENTRIES_OF_2_1 = ("_class_name", "_diffusers_version", "attn_scales", "base_dim", "dim_mult", "dropout", "latents_mean",
                      "latents_std", "num_res_blocks", "temperal_downsample", "z_dim")  # fmt: skip
BOUNDARIES = {"wan2.2-t2v": 0.875, "wan2.2-i2v": 0.9, "wan2.2-vace": 0.875}
VACE_LAYERS = {"wan2.1-vace": (3, [0, 2]), "wan2.2-vace": (4, [0, 2])}
"""The number of layers, and the layers after which a control block adds its hint. The segments have two lengths, or one."""
SHIFT = 3.0


def make_checkpoint(family: str, folder: Path) -> Path:
    """Write the family's checkpoint to this folder."""
    torch.manual_seed(sum(map(ord, family)))
    takes_images = family.endswith(("-i2v", "flf2v"))
    parts = {
        "vae": _vae(VAE_22 if family == "wan2.2-ti2v" else VAE_21),
        "text_encoder": UMT5EncoderModel.from_pretrained(DEMO / "text_encoder"),
        "tokenizer": AutoTokenizer.from_pretrained(DEMO / "tokenizer"),
        "scheduler": UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=SHIFT),
        "transformer": _transformer(family),
        "transformer_2": _transformer(family) if family in BOUNDARIES else None,
    }
    if takes_images and family.startswith("wan2.1"):
        parts["image_encoder"] = CLIPVisionModel(_clip())
        size = {"shortest_edge": 28}
        parts["image_processor"] = CLIPImageProcessorPil(size=size, crop_size={"height": 28, "width": 28})
    kind = WanImageToVideoPipeline if takes_images else WanPipeline
    options = dict(boundary_ratio=BOUNDARIES.get(family), expand_timesteps=family == "wan2.2-ti2v")
    if family in VACE_LAYERS:
        kind, options = WanVACEPipeline, dict(boundary_ratio=BOUNDARIES.get(family))
    kind(**parts, **options).save_pretrained(folder)
    if "image_encoder" in parts:
        name_as_transformers_4(folder / "image_encoder" / "model.safetensors")
    if family != "wan2.2-ti2v":
        forget_newer_entries(folder / "vae" / "config.json")
    return folder


def forget_newer_entries(path: Path) -> None:
    """Leave in a VAE's config.json only the entries that diffusers 0.33 had, which wrote the files of Wan 2.1. Wan 2.2 A14B has
    the same VAE.
    """
    config = json.loads(path.read_text())
    path.write_text(json.dumps({name: value for name, value in config.items() if name in VAE_ENTRIES_OF_2_1}))


def name_as_transformers_4(path: Path) -> None:
    """Rename a CLIP encoder's tensors to the names of Wan's makers. transformers 5 omits this prefix."""
    save_file({f"vision_model.{name}": value for name, value in load_file(path).items()}, path, metadata={"format": "pt"})


def _transformer(family: str) -> WanTransformer3DModel:
    latents = 48 if family == "wan2.2-ti2v" else 16
    images = {}
    if family in ("wan2.1-i2v", "wan2.1-flf2v"):
        images = dict(image_dim=IMAGE_WIDTH, added_kv_proj_dim=HEADS * HEAD_WIDTH)
    if family == "wan2.1-flf2v":
        images["pos_embed_seq_len"] = 2 * IMAGE_TOKENS
    kind, num_layers = WanTransformer3DModel, LAYERS
    if family in VACE_LAYERS:
        kind, (num_layers, images["vace_layers"]) = WanVACETransformer3DModel, VACE_LAYERS[family]
    model = kind(
        num_attention_heads=HEADS,
        attention_head_dim=HEAD_WIDTH,
        num_layers=num_layers,
        ffn_dim=HIDDEN,
        text_dim=256,
        in_channels=2 * latents + 4 if family.endswith(("-i2v", "flf2v")) else latents,
        out_channels=latents,
        **images,
    )
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "norm" in name or "pos_embed" in name:  # ones and zeros would hide a mix-up
                value.add_(0.2 * torch.randn_like(value))
        model.proj_out.weight.mul_(2)
    return model


def _vae(config: dict) -> AutoencoderKLWan:
    statistics = {
        "latents_mean": torch.randn(config["z_dim"]).mul(0.3).tolist(),
        "latents_std": torch.rand(config["z_dim"]).add(0.7).tolist(),
    }
    return AutoencoderKLWan(**config, **statistics)


def _clip() -> CLIPVisionConfig:
    return CLIPVisionConfig(
        hidden_size=IMAGE_WIDTH,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=2,
        image_size=28,
        patch_size=14,
        projection_dim=16,
        hidden_act="gelu",
    )


def _takes(family: str) -> dict[str, str]:
    if family in VACE_LAYERS:
        return dict(INPUTS)
    return {"video": "may"} if "t2v" in family or "ti2v" in family else {}


def make_preset(family: str, folder: Path) -> Preset:
    """Return a preset for the family's tiny checkpoint."""
    scale = 16 if family == "wan2.2-ti2v" else 8
    return tiny_preset(
        family,
        folder,
        96,
        steps=4,
        size_multiple=2 * scale,
        vae_scale_spatial=scale,
        frame_counts=[5, 9],
        trained_frames=17,
        windows_above=17,
        sizes=[[96, 96], [64, 64]],
        flow_shift=SHIFT,
        tasks={"wan2.2-ti2v": ["t2v", "i2v"]}.get(family, ["t2v"] if family.endswith(("t2v", "vace")) else ["i2v"]),
        guidance=[4.0, 3.0] if family in BOUNDARIES else [4.0],
        boundary=BOUNDARIES.get(family),
        takes=_takes(family),
        continues=family == "wan2.2-ti2v",
        takes_nag=True,
        takes_last_image=family in ("wan2.1-flf2v", "wan2.2-i2v"),
        needs_last_image=family == "wan2.1-flf2v",
    )
