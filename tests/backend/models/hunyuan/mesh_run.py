"""Run by `test_transformer.py` in a process with eight CPU devices: a tiny random transformer on one mesh after the other.

Prints one JSON object: for every mesh the largest difference of the velocity from diffusers' own, which is of order 1. For sparse
attention, diffusers' transformer has the attention processor `PlainSsta`.
"""

from __future__ import annotations

import json
import math
import sys

import jax
import jax.numpy as jnp
import numpy as np
import torch
from diffusers import HunyuanVideo15Transformer3DModel

from backend.models.hunyuan.conditions import count_most_tokens, join_quoted_embeddings, make_context_tokens
from backend.models.hunyuan.transformer import BLOCKS, Context, Denoiser
from backend.runtime.mesh import Layout, MeshPlan
from backend.runtime.work import run
from backend.weights.stacked import stack_weights
from tests.gradients import without_gradients
from tests.parity.plain_ssta import SPARSE_CONFIG, TILE, PlainSsta

CONFIG = dict(
    in_channels=9,
    out_channels=4,
    num_attention_heads=2,  # 4 chips cannot share them out evenly: two exchange heads, and gather keys from the other two
    attention_head_dim=16,
    num_layers=2,
    mlp_ratio=2.0,
    text_embed_dim=12,
    text_embed_2_dim=10,
    image_embed_dim=8,
    rope_axes_dim=(4, 6, 6),
    use_meanflow=True,
)
PICTURE_TOKENS, QUOTED_TOKENS = 5, 6
SHAPE = (1, 4, 3, 4, 6)
TIMES = 700.0, 500.0


def make_inputs(has_picture: bool) -> dict[str, torch.Tensor]:
    """Return the inputs of two branches with different numbers of counted tokens. The second branch's text has no quotes."""
    torch.manual_seed(1)
    masks = {"prompt_embeds_mask": (9, 4), "prompt_embeds_mask_2": (3, 0)}
    lengths = {"prompt_embeds_mask": 1000, "prompt_embeds_mask_2": QUOTED_TOKENS}
    arrays = {name: (torch.arange(lengths[name]) < torch.tensor(counts)[:, None]).float() for name, counts in masks.items()}
    arrays["prompt_embeds"] = torch.randn(2, 1000, CONFIG["text_embed_dim"])
    arrays["prompt_embeds_2"] = torch.randn(2, QUOTED_TOKENS, CONFIG["text_embed_2_dim"])
    arrays["latents"] = torch.randn(SHAPE)
    if has_picture:
        arrays["image_embeds"] = torch.randn(1, PICTURE_TOKENS, CONFIG["image_embed_dim"])
        arrays["first_frame"] = torch.randn(1, 4, 1, *SHAPE[3:])
    return arrays


@without_gradients
def theirs(model: HunyuanVideo15Transformer3DModel, arrays: dict[str, torch.Tensor], branches: int) -> np.ndarray:
    """The velocity of diffusers' class."""
    channels = torch.zeros(1, 5, *SHAPE[2:])
    picture = torch.zeros(1, PICTURE_TOKENS, CONFIG["image_embed_dim"])
    if "first_frame" in arrays:
        channels[:, :4, :1], channels[:, 4, 0], picture = arrays["first_frame"], 1.0, arrays["image_embeds"]
    made = model(
        torch.cat([arrays["latents"], channels], 1).expand(branches, -1, -1, -1, -1),
        torch.full((branches,), TIMES[0]),
        arrays["prompt_embeds"][:branches],
        arrays["prompt_embeds_mask"][:branches],
        timestep_r=torch.full((branches,), TIMES[1]),
        encoder_hidden_states_2=arrays["prompt_embeds_2"][:branches],
        encoder_attention_mask_2=arrays["prompt_embeds_mask_2"][:branches],
        image_embeds=picture.expand(branches, -1, -1),
    )
    return made.sample.numpy()


def ours(
    model: HunyuanVideo15Transformer3DModel,
    arrays: dict[str, torch.Tensor],
    branches: int,
    layout: Layout,
    has_room: bool,
    is_sparse: bool,
) -> np.ndarray:
    """Compute the same with our transformer on this layout, with or without space for tokens next to the video tokens."""
    denoiser = Denoiser(CONFIG | (SPARSE_CONFIG if is_sparse else {}), layout)
    state = {name: jnp.asarray(value.numpy()) for name, value in model.state_dict().items()}
    described = denoiser.describe_weights(jnp.dtype(jnp.float32))
    weights = jax.tree.map(lambda array, leaf: jax.device_put(array, leaf.sharding), stack_weights(state, [BLOCKS]), described)
    host = {name: value.numpy() for name, value in arrays.items()}
    rows = [{name: host[name][row : row + 1] for name in host if name.startswith("prompt")} for row in range(branches)]
    picture = host.get("image_embeds")
    seen = 0 if picture is None else PICTURE_TOKENS
    tokens = make_context_tokens(
        np,
        *rows,
        num_seen=seen,
        length=count_most_tokens(*rows),
        dtype=np.dtype(np.float32),
        multiple=math.prod(TILE) if is_sparse else 1,
    )  # no padding after the counted tokens, except to fill a tile
    context = Context(
        tokens=tokens,
        still=jax.jit(denoiser.embed_still)(weights, join_quoted_embeddings(np, *rows), picture),
        positions=run(denoiser.positions(SHAPE, tokens.order.shape[1] if has_room else 0)),
        first_frame=host.get("first_frame"),
    )
    return np.asarray(jax.jit(denoiser.velocity)(weights, host["latents"], tuple(map(jnp.float32, TIMES)), context))


def main() -> None:
    torch.manual_seed(0)
    model = HunyuanVideo15Transformer3DModel(**CONFIG).eval()
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "norm" in name:  # ones and zeros would hide a mix-up
                value.add_(0.2 * torch.randn_like(value))
    usual_processors = [block.attn.processor for block in model.transformer_blocks]
    differences = {}
    for words in sys.argv[1:]:
        dp, sp, tp, branches, has_picture, has_room, is_sparse = map(int, words.split(","))
        plan = MeshPlan(dp=dp, sp=sp, tp=tp)
        layout = Layout.create(plan, jax.devices()[: plan.num_devices])
        arrays = make_inputs(bool(has_picture))
        for block, usual in zip(model.transformer_blocks, usual_processors, strict=True):
            block.attn.set_processor(PlainSsta(SHAPE[2:]) if is_sparse else usual)
        found = ours(model, arrays, branches, layout, bool(has_room), bool(is_sparse))
        differences[words] = float(np.abs(found - theirs(model, arrays, branches)).max())
    sys.stdout.write(json.dumps(differences) + "\n")


if __name__ == "__main__":
    main()
