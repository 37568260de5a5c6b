"""Configurations of hunyuan-tiny's networks for diffusers' and transformers' classes. The limit is 40 MB on disk.

A third of the transformer is the projection of quoted text, because diffusers' class has a fixed inner width of 2048.
"""

from __future__ import annotations

LATENT_CHANNELS = 32
TEXT_WIDTH, QUOTED_WIDTH, PICTURE_WIDTH = 128, 64, 64
PICTURE_SIDE = 96  # side in pixels of the image encoder's input

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
USED_LAYERS = 2  # layers of the text encoder that are used; diffusers' pipelines use the state two layers before the last

QUOTED_ENCODER = dict(
    d_model=QUOTED_WIDTH,
    d_kv=32,
    d_ff=128,
    num_layers=1,
    num_heads=2,
    vocab_size=384,  # as in ByT5
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
    task_type="ti2v",  # marks a transformer for videos with and without a first frame
)
