"""Sizes of hunyuan-tiny's parts, in diffusers' and transformers' own terms. 40 MB on disk are the limit.

A third of the transformer is the projection of the quoted text, whose inner width diffusers' class fixes at 2048.
"""

from __future__ import annotations

LATENT_CHANNELS = 32
TEXT_WIDTH, QUOTED_WIDTH, PICTURE_WIDTH = 128, 64, 64
PICTURE_SIDE = 96  # pixels of the square that the image encoder sees

VAE = dict(
    latent_channels=LATENT_CHANNELS,
    block_out_channels=(8, 16, 32, 32, 64),
    layers_per_block=1,
    spatial_compression_ratio=16,
    temporal_compression_ratio=4,
)

TEXT_ENCODER = dict(
    hidden_size=TEXT_WIDTH,
    intermediate_size=384,
    num_attention_heads=2,
    num_key_value_heads=1,
    max_position_embeddings=2048,
    rope_parameters={"rope_type": "default", "rope_theta": 1e4, "mrope_section": [8, 12, 12]},
    use_sliding_window=False,
)
USED_LAYERS = 2  # of the text encoder; diffusers' pipelines take the state two layers before the last

QUOTED_ENCODER = dict(
    d_model=QUOTED_WIDTH,
    d_kv=32,
    d_ff=128,
    num_layers=1,
    num_heads=2,
    vocab_size=384,  # ByT5's
    feed_forward_proj="gated-gelu",
    dropout_rate=0.0,
    tie_word_embeddings=False,
)

IMAGE_ENCODER = dict(
    hidden_size=PICTURE_WIDTH,
    intermediate_size=128,
    num_hidden_layers=1,
    num_attention_heads=2,
    image_size=PICTURE_SIDE,
    patch_size=32,
    vision_use_head=False,
)

TRANSFORMER = dict(
    in_channels=2 * LATENT_CHANNELS + 1,
    out_channels=LATENT_CHANNELS,
    num_attention_heads=2,
    attention_head_dim=128,
    num_layers=5,
    num_refiner_layers=1,
    mlp_ratio=1.75,
    text_embed_dim=TEXT_WIDTH,
    text_embed_2_dim=QUOTED_WIDTH,
    image_embed_dim=PICTURE_WIDTH,
    target_size=PICTURE_SIDE,
    task_type="ti2v",  # the family knows by this that one transformer makes videos with and without a picture
)
