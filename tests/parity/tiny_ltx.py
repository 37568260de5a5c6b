"""Tiny LTX-2 checkpoints with random weights in the real layout, with a tokenizer, and diffusers' pipelines for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from diffusers import (
    AutoencoderKLLTX2Audio,
    AutoencoderKLLTX2Video,
    FlowMatchEulerDiscreteScheduler,
    LTX2ConditionPipeline,
    LTX2ImageToVideoPipeline,
    LTX2InContextPipeline,
    LTX2Pipeline,
    LTX2VideoTransformer3DModel,
)
from diffusers.pipelines.ltx2 import LTX2TextConnectors, LTX2Vocoder, LTX2VocoderWithBWE
from diffusers.pipelines.ltx2.latent_upsampler import LTX2LatentUpsamplerModel
from transformers import (
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Gemma3TextConfig,
    Gemma4UnifiedAudioConfig,
    Gemma4UnifiedConfig,
    Gemma4UnifiedForConditionalGeneration,
    Gemma4UnifiedTextConfig,
    Gemma4UnifiedVisionConfig,
    SiglipVisionConfig,
)

from presets import Preset
from tests.parity.tiny_hunyuan import make_tokenizer
from tests.parity.tiny_preset import tiny_preset

KINDS = ("ltx-2.0", "ltx-2.3", "ltx-2.5")
SIDE = 64  # pixels of a video
WIDTH, SOUND_WIDTH, LAYERS = 32, 16, 3  # channels of the two streams' tokens


def make_parts(kind: str) -> dict[str, Any]:
    """Return the components of diffusers' pipeline."""
    torch.manual_seed(sum(map(ord, kind)))
    is_new, is_newest = kind != "ltx-2.0", kind == "ltx-2.5"
    parts = {
        "scheduler": FlowMatchEulerDiscreteScheduler(
            use_dynamic_shifting=True,
            base_shift=0.95,
            max_shift=2.05,
            base_image_seq_len=1024,
            max_image_seq_len=4096,
            shift_terminal=0.1,
        ),
        "vae": _vae(),
        "audio_vae": _sound_vae(),
        "tokenizer": make_tokenizer(),
        "connectors": _connectors(is_new),
        "transformer": _transformer(is_new, is_newest),
        "vocoder": _new_vocoder() if is_new else _vocoder(),
    }
    parts["text_encoder"] = (make_gemma4 if is_newest else make_gemma)(len(parts["tokenizer"]))
    return parts


def pipeline_of(parts: dict[str, Any], has_picture: bool = False) -> LTX2Pipeline | LTX2ImageToVideoPipeline:
    """Return diffusers' pipeline of these components."""
    return _quiet((LTX2ImageToVideoPipeline if has_picture else LTX2Pipeline)(**parts))


def condition_pipeline_of(parts: dict[str, Any]) -> LTX2ConditionPipeline:
    """Return diffusers' pipeline for keyframes. It pads on the side that its tokenizer states: Gemma pads on the left."""
    parts["tokenizer"].padding_side = "left"
    return _quiet(LTX2ConditionPipeline(**parts))


def in_context_pipeline_of(parts: dict[str, Any]) -> LTX2InContextPipeline:
    """Return diffusers' pipeline with control clips. Its padding is set as in `condition_pipeline_of`."""
    parts["tokenizer"].padding_side = "left"
    return _quiet(LTX2InContextPipeline(**parts))


def _quiet(pipeline: Any) -> Any:
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def write_checkpoint(parts: dict[str, Any], folder: Path) -> Path:
    """Write the components to this folder in the layout that the makers publish."""
    pipeline_of(parts).save_pretrained(folder)
    return folder


def make_preset(kind: str, folder: Path) -> Preset:
    """Return a preset for the kind's tiny checkpoint."""
    return tiny_preset(
        kind,
        folder,
        SIDE,
        fps=24,
        steps=2,
        size_multiple=32,
        vae_scale_spatial=32,
        vae_scale_temporal=8,
        frame_step=8,
        frame_counts=[9, 17],
        min_frames=9,
        flow_shift=1.0,
        solver="ltx",
        solvers=["ltx", "ltx-distilled", "ltx-ancestral"],
        tasks=["t2v", "i2v"],
        guidance=[3.0],
        negative_prompt="",
        max_prompt_tokens=1024,
        takes_last_image=True,
        takes={"control": "may", "keyframes": "may", "sound": "may", "video": "may"},
        continues=True,
        makes_sound=True,
    )


def make_upsampler() -> LTX2LatentUpsamplerModel:
    """Return a latent upsampler with random weights, built like the upsampler of LTX-2.5."""
    torch.manual_seed(7)
    model = LTX2LatentUpsamplerModel(in_channels=8, mid_channels=32, num_blocks_per_stage=1, use_rational_resampler=False)
    with torch.no_grad():
        for value in model.parameters():  # zeros and ones would hide a mix-up
            value.add_(0.05 * torch.randn_like(value))
    return model.eval()


def in_two_sizes(preset: Preset) -> Preset:
    """Return the preset of the distilled model, whose videos start at half their size. Add an upsampler to its checkpoint."""
    make_upsampler().save_pretrained(Path(preset.model) / "latent_upsampler")
    sides = dict.fromkeys(("width", "height", "max_width", "max_height"), 2 * SIDE)
    steps = dict(refines=True, steps=5, solver="ltx-distilled", guidance=[1.0])
    sizes = dict(size_multiple=64, min_width=64, min_height=64, sizes=[[2 * SIDE, 2 * SIDE]])
    return Preset(**preset.model_dump() | sides | steps | sizes)


def _transformer(is_new: bool, is_newest: bool) -> LTX2VideoTransformer3DModel:
    newer = dict(
        gated_attn=True,
        cross_attn_mod=True,
        audio_gated_attn=True,
        audio_cross_attn_mod=True,
        use_prompt_embeddings=False,
        perturbed_attn=True,
        ff_bias=not is_newest,
        use_keyframes_abs_pos_embedding=is_newest,
    )
    model = LTX2VideoTransformer3DModel(
        in_channels=8,
        out_channels=8,
        num_attention_heads=2,
        attention_head_dim=WIDTH // 2,
        cross_attention_dim=WIDTH,
        audio_in_channels=8,
        audio_out_channels=8,
        audio_num_attention_heads=2,
        audio_attention_head_dim=SOUND_WIDTH // 2,
        audio_cross_attention_dim=SOUND_WIDTH,
        num_layers=LAYERS,
        caption_channels=WIDTH,
        rope_type="split",
        **(newer if is_new else {}),
    )
    with torch.no_grad():
        for value in model.parameters():  # zeros and ones would hide a mix-up
            value.add_(0.05 * torch.randn_like(value))
    return model.eval()


def _connectors(is_new: bool) -> LTX2TextConnectors:
    newer = dict(
        video_gated_attn=True,
        audio_gated_attn=True,
        per_modality_projections=True,
        video_hidden_dim=WIDTH,
        audio_hidden_dim=SOUND_WIDTH,
        audio_connector_num_attention_heads=2,
        proj_bias=True,
    )
    return LTX2TextConnectors(
        **dict(
            caption_channels=WIDTH,
            text_proj_in_factor=5,
            video_connector_num_attention_heads=4,
            video_connector_attention_head_dim=8,
            video_connector_num_layers=2,
            audio_connector_num_attention_heads=4,
            audio_connector_attention_head_dim=8,
            audio_connector_num_layers=2,
            rope_type="split",
        )
        | (newer if is_new else {})
    ).eval()


def make_gemma(vocab_size: int) -> Gemma3ForConditionalGeneration:
    """Two sliding layers and two full ones."""
    text = Gemma3TextConfig(
        hidden_size=WIDTH,
        intermediate_size=48,
        num_hidden_layers=4,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        vocab_size=vocab_size,
        max_position_embeddings=2048,
        sliding_window=12,
        sliding_window_pattern=2,
        query_pre_attn_scalar=16,
        initializer_range=0.2,
    )
    vision = SiglipVisionConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=28, patch_size=14
    )
    return Gemma3ForConditionalGeneration(Gemma3Config(text_config=text.to_dict(), vision_config=vision.to_dict())).eval()


def make_gemma4(vocab_size: int, **changes: Any) -> Gemma4UnifiedForConditionalGeneration:
    """Two sliding layers and two full ones, whose heads are wider, with one head of keys, which are their values too; `changes`
    of its text's configuration."""
    text = dict(
        hidden_size=WIDTH,
        intermediate_size=48,
        num_hidden_layers=4,
        layer_types=["sliding_attention", "full_attention"] * 2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=16,
        global_head_dim=32,
        num_global_key_value_heads=1,
        attention_k_eq_v=True,
        vocab_size=vocab_size,
        max_position_embeddings=2048,
        sliding_window=12,
        initializer_range=0.2,
    )
    text = Gemma4UnifiedTextConfig(**text | changes)
    vision = Gemma4UnifiedVisionConfig(mm_embed_dim=WIDTH, mm_posemb_size=4, output_proj_dims=WIDTH, patch_size=2)
    sound = Gemma4UnifiedAudioConfig(audio_embed_dim=8)
    parts = {"text_config": text, "vision_config": vision, "audio_config": sound}
    config = Gemma4UnifiedConfig(**{name: part.to_dict() for name, part in parts.items()})
    model = Gemma4UnifiedForConditionalGeneration(config).eval()
    for index, layer in enumerate(model.model.language_model.layers):
        layer.layer_scalar.fill_(1 + 0.1 * index)  # ones would hide a mix-up
    return model


def _vae() -> AutoencoderKLLTX2Video:
    vae = AutoencoderKLLTX2Video(
        latent_channels=8,
        block_out_channels=(8, 8, 16, 16),
        decoder_block_out_channels=(8, 16, 32),
        layers_per_block=(1, 1, 1, 1, 1),
        decoder_layers_per_block=(1, 1, 1, 1),
        decoder_causal=False,
        spatial_compression_ratio=32,
        temporal_compression_ratio=8,
    )
    vae.latents_mean.copy_(0.1 * torch.randn(8))
    vae.latents_std.copy_(1 + 0.2 * torch.rand(8))
    return vae.eval()


def _sound_vae() -> AutoencoderKLLTX2Audio:
    vae = AutoencoderKLLTX2Audio(
        base_channels=8, output_channels=2, ch_mult=(1, 2, 4), num_res_blocks=1, resolution=32, latent_channels=2, mel_bins=16
    )
    vae.latents_mean.copy_(0.1 * torch.randn(8))
    vae.latents_std.copy_(1 + 0.2 * torch.rand(8))
    return vae.eval()


def _vocoder() -> LTX2Vocoder:
    return LTX2Vocoder(in_channels=32, hidden_channels=64, resnet_kernel_sizes=[3], resnet_dilations=[[1, 3]]).eval()


def _new_vocoder() -> LTX2VocoderWithBWE:
    vocoder = LTX2VocoderWithBWE(
        in_channels=32,
        hidden_channels=64,
        resnet_kernel_sizes=[3],
        resnet_dilations=[[1, 3]],
        bwe_in_channels=32,
        bwe_hidden_channels=64,
        bwe_resnet_kernel_sizes=[3],
        bwe_resnet_dilations=[[1, 3]],
        filter_length=128,
        window_length=128,
        num_mel_channels=16,
    )
    for name, value in vocoder.named_buffers():
        if "basis" in name:
            value.copy_(0.1 * torch.randn_like(value))
    return vocoder.eval()
