"""Configurations of wan-tiny's networks for diffusers' and transformers' classes."""

from __future__ import annotations

from typing import Any

VAE: dict[str, Any] = dict(
    base_dim=32,
    decoder_base_dim=32,
    z_dim=16,
    dim_mult=[1, 2, 2],
    num_res_blocks=1,
    attn_scales=[],
    temperal_downsample=[True, True],
    is_residual=True,
    patch_size=4,  # with two halvings 16x in space; the finest convolutions run at a quarter of the image's size
    in_channels=48,
    out_channels=48,
    scale_factor_temporal=4,
    scale_factor_spatial=16,
)

TEXT_ENCODER: dict[str, Any] = dict(
    d_model=256,
    d_kv=64,
    d_ff=512,
    num_layers=2,
    num_heads=4,
    feed_forward_proj="gated-gelu",
    relative_attention_num_buckets=32,
    relative_attention_max_distance=128,
    layer_norm_epsilon=1e-6,
    dropout_rate=0.0,
    pad_token_id=0,
    eos_token_id=1,
    tie_word_embeddings=False,
)

TRANSFORMER = dict(
    patch_size=(1, 2, 2),
    num_attention_heads=2,
    attention_head_dim=128,
    in_channels=16,
    out_channels=16,
    text_dim=256,
    freq_dim=256,
    ffn_dim=1024,
    num_layers=6,
    cross_attn_norm=True,
    qk_norm="rms_norm_across_heads",
    eps=1e-6,
)

MAX_SEQUENCE_LENGTH = 512  # text tokens after padding, as in Wan
FPS = 16
