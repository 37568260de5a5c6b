"""Configurations of ltx-tiny's networks for diffusers' and transformers' classes."""

from __future__ import annotations

from typing import Any

LATENT_CHANNELS = 32
SPATIAL, TEMPORAL = 16, 4  # pixels per latent
SOUND_CHANNELS, SOUND_BINS = 2, 16  # sizes of an audio latent
TEXT_TOKENS = 64  # length of padded prompts; the connectors' registers replace the padding

VAE = dict(
    latent_channels=LATENT_CHANNELS,
    block_out_channels=(64, 128),
    down_block_types=("LTX2VideoDownBlock3D",) * 2,
    layers_per_block=(2, 1, 1),
    spatio_temporal_scaling=(True,) * 2,
    downsample_type=("spatiotemporal",) * 2,
    decoder_block_out_channels=(64, 128),
    decoder_layers_per_block=(2, 2, 1),
    decoder_spatio_temporal_scaling=(True,) * 2,
    decoder_inject_noise=(False,) * 3,
    upsample_type=("spatiotemporal",) * 2,
    upsample_residual=(True,) * 2,
    upsample_factor=(1, 2),
    patch_size=4,
    encoder_causal=True,
    decoder_causal=False,
    encoder_spatial_padding_mode="zeros",
    decoder_spatial_padding_mode="zeros",
    spatial_compression_ratio=SPATIAL,
    temporal_compression_ratio=TEMPORAL,
)

SOUND_VAE: dict[str, Any] = dict(
    base_channels=SOUND_CHANNELS * SOUND_BINS,  # the class has this number of statistics
    output_channels=2,
    ch_mult=(1, 2, 2),
    num_res_blocks=1,
    in_channels=2,
    latent_channels=SOUND_CHANNELS,
    norm_type="pixel",
    causality_axis="height",
    mid_block_add_attention=False,
    sample_rate=16_000,
    mel_hop_length=320,
    is_causal=True,
    mel_bins=64,
    double_z=True,
)

VOCODER = dict(
    in_channels=128,
    hidden_channels=192,
    out_channels=2,
    upsample_kernel_sizes=[16, 11, 8, 4],
    upsample_factors=[8, 5, 4, 2],
    resnet_kernel_sizes=[5],
    resnet_dilations=[[1, 3]],
    leaky_relu_negative_slope=0.1,
    final_bias=False,
    output_sampling_rate=16_000,
)

TEXT_ENCODER: dict[str, Any] = dict(
    hidden_size=192,
    intermediate_size=384,
    num_hidden_layers=2,
    num_attention_heads=3,
    num_key_value_heads=1,
    head_dim=64,
    max_position_embeddings=2048,
    sliding_window=64,
    sliding_window_pattern=2,
    query_pre_attn_scalar=64,
    initializer_range=0.05,
    pad_token_id=0,
    bos_token_id=None,
    eos_token_id=1,
)

WIDTH, SOUND_WIDTH = 256, 96  # channels of video and audio tokens

CONNECTORS = dict(
    caption_channels=TEXT_ENCODER["hidden_size"],
    text_proj_in_factor=TEXT_ENCODER["num_hidden_layers"] + 1,
    video_connector_num_attention_heads=4,
    video_connector_attention_head_dim=WIDTH // 4,
    video_connector_num_layers=1,
    video_connector_num_learnable_registers=TEXT_TOKENS,
    video_gated_attn=True,
    audio_connector_num_attention_heads=4,
    audio_connector_attention_head_dim=SOUND_WIDTH // 4,
    audio_connector_num_layers=1,
    audio_connector_num_learnable_registers=TEXT_TOKENS,
    audio_gated_attn=True,
    connector_rope_base_seq_len=4096,
    rope_type="split",
    per_modality_projections=True,
    video_hidden_dim=WIDTH,
    audio_hidden_dim=SOUND_WIDTH,
    proj_bias=True,
)

TRANSFORMER: dict[str, Any] = dict(
    in_channels=LATENT_CHANNELS,
    out_channels=LATENT_CHANNELS,
    num_attention_heads=2,
    attention_head_dim=WIDTH // 2,
    cross_attention_dim=WIDTH,
    vae_scale_factors=(TEMPORAL, SPATIAL, SPATIAL),
    pos_embed_max_pos=4,  # seconds; the real models have 20
    base_height=256,
    base_width=256,
    gated_attn=True,
    cross_attn_mod=True,
    audio_in_channels=SOUND_CHANNELS * SOUND_BINS,
    audio_out_channels=SOUND_CHANNELS * SOUND_BINS,
    audio_num_attention_heads=2,
    audio_attention_head_dim=SOUND_WIDTH // 2,
    audio_cross_attention_dim=SOUND_WIDTH,
    audio_pos_embed_max_pos=4,
    audio_sampling_rate=SOUND_VAE["sample_rate"],
    audio_hop_length=SOUND_VAE["mel_hop_length"],
    audio_gated_attn=True,
    audio_cross_attn_mod=True,
    num_layers=5,
    caption_channels=TEXT_ENCODER["hidden_size"],
    rope_type="split",
    rope_theta=16.0,  # at most half a turn between neighbouring latents: faster rotations contain no information about positions
    use_prompt_embeddings=False,
    perturbed_attn=True,
)
