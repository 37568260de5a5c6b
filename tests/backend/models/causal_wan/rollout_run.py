"""Run by `test_rollout.py` in a process with eight CPU devices: a tiny random transformer generates videos block by block.

Prints one JSON object: for each case the largest difference of a block's velocity from a plain reference. Velocities are of
order 1. If no frame is dropped, the reference is diffusers' whole transformer with a mask. Otherwise it is diffusers' blocks
with an attention that lists every frame's keys and values, and selects the frames that a block may see.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import sys
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import torch
from diffusers import WanTransformer3DModel
from diffusers.models.transformers.transformer_wan import WanAttnProcessor

from backend.models.causal_wan.model import BlockStepState, CausalWanModel
from backend.models.causal_wan.transformer import BlockDenoiser, Window
from backend.models.wan.transformer import BLOCKS, Context
from backend.runtime.mesh import Layout, MeshPlan
from backend.runtime.program import Program
from backend.runtime.work import Zeros, run
from backend.weights.stacked import stack_weights
from tests.backend.models.causal_wan.masked import masked_velocity
from tests.gradients import without_gradients

CONFIG = dict(
    patch_size=(1, 2, 2),
    num_attention_heads=2,
    attention_head_dim=24,
    in_channels=4,
    out_channels=4,
    text_dim=8,
    freq_dim=16,
    ffn_dim=32,
    num_layers=2,
)
HEIGHT, WIDTH = 4, 6  # latent size
TOKENS = HEIGHT * WIDTH // 4  # per latent frame
TIME_CHANNELS = 8  # among the 24 channels of a head
TIMESTEP = 625.0


def make_model() -> WanTransformer3DModel:
    torch.manual_seed(0)
    model = WanTransformer3DModel(**CONFIG).eval()
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "norm" in name:  # ones and zeros would hide a mix-up
                value.add_(0.2 * torch.randn_like(value))
    return model


def make_blocks(block: int, blocks: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the text [1, L, D], and noisy and clean latents [blocks, 1, C, F, H, W]."""
    torch.manual_seed(1)
    shape = (blocks, 1, CONFIG["in_channels"], block, HEIGHT, WIDTH)
    return torch.randn(1, 5, CONFIG["text_dim"]), torch.randn(shape), torch.randn(shape)


def other_text() -> torch.Tensor:
    """Return the embeddings of the other prompt, [1, L, D]."""
    return torch.randn(1, 5, CONFIG["text_dim"], generator=torch.Generator().manual_seed(2))


def made_anew(denoiser: BlockDenoiser, layout: Layout, weights, text, window: Window, past, clean, number: int):
    """Return the past before block `number` with another text, computed like in the family's model."""
    block = clean[0].shape[2]
    settle = Program("settle", denoiser.commit_chunk, layout, donated=(3,), places=denoiser.past_sharding)
    spec = SimpleNamespace(window=window.frames, sink=window.sink)
    model = SimpleNamespace(spec=spec, _block_shape=lambda request, first: clean[0].shape)
    blocks = tuple((index * block, clean[index]) for index in range(number))
    carry = BlockStepState(past=past, first=number * block, positions=None, clean=blocks)
    programs = SimpleNamespace(denoiser=denoiser, settle=settle, layout=layout)
    return run(CausalWanModel._recache_past(model, {"transformer": weights}, None, programs, text, carry)).past


def ours(
    model: WanTransformer3DModel, window: Window, layout: Layout, block: int, blocks: int, switch: int | None
) -> list[np.ndarray]:
    """Compute each block's velocity. From block `switch` on, the blocks use the other prompt."""
    denoiser = BlockDenoiser(CONFIG, layout, window)
    state = {name: jnp.asarray(value.numpy()) for name, value in model.state_dict().items()}
    described = denoiser.describe_weights(jnp.dtype(jnp.float32))
    weights = jax.tree.map(lambda array, leaf: jax.device_put(array, leaf.sharding), stack_weights(state, [BLOCKS]), described)
    text, noisy, clean = (array.numpy() for array in make_blocks(block, blocks))
    prepared = jax.jit(denoiser.prepare_text)(weights, text, None)
    velocity, settled = jax.jit(denoiser.block_velocity), jax.jit(denoiser.commit_chunk)

    def zeros():
        return (yield Zeros(denoiser.describe_past(noisy[0].shape, jnp.dtype(jnp.float32))))

    past, found = run(zeros()), []
    for number in range(blocks):
        if number == switch:
            prepared = jax.jit(denoiser.prepare_text)(weights, other_text().numpy(), None)
            past = made_anew(denoiser, layout, weights, prepared, window, past, clean, number)
        positions = run(denoiser.block_positions(noisy[0].shape, number * block))
        context = Context(text=prepared, positions=positions, condition=None)
        made, ring = velocity(weights, noisy[number], jnp.float32(TIMESTEP), context, past)
        turn = denoiser.sink_rotation((number + 1) * block, block)
        past = settled(weights, clean[number], context, dataclasses.replace(past, ring=ring), turn)
        found.append(np.asarray(made))
    return found


def masked(model: WanTransformer3DModel, block: int, blocks: int) -> list[np.ndarray]:
    """Compute each block's velocity if no frame is dropped."""
    text, noisy, clean = make_blocks(block, blocks)
    return [
        masked_velocity(model, [*clean[:number]], noisy[number], TIMESTEP, [text] * (number + 1)).numpy()
        for number in range(blocks)
    ]


class ListedAttention:
    """Self-attention of one layer. `frames` are the numbers of the block's frames. `keeps` is true for a clean block.
    `seen_from` is the end of the block that determines the sink's place.
    """

    def __init__(self, window: Window) -> None:
        self.window, self.frames, self.keeps, self.seen_from = window, (), False, 0
        self.listed: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def __call__(self, attn, hidden_states, encoder_hidden_states=None, attention_mask=None, rotary_emb=None):
        project = functools.partial(torch.unflatten, dim=2, sizes=(attn.heads, -1))
        query, key = project(attn.norm_q(attn.to_q(hidden_states))), project(attn.norm_k(attn.to_k(hidden_states)))
        value = project(attn.to_v(hidden_states))
        parts = zip(key.split(TOKENS, 1), value.split(TOKENS, 1), strict=True)
        seen = {**self.listed, **dict(zip(self.frames, parts, strict=True))}
        if self.keeps:
            self.listed = seen
        end = self.frames[-1] + 1
        rolling = self.window.frames - self.window.sink
        stays = min(self.window.sink, end)
        seen = {number: pair for number, pair in seen.items() if number < stays or number >= end - rolling}
        turn = max(0, self.seen_from - self.window.trained)
        places = {number: number + (turn if number < self.window.sink else 0) for number in seen}
        keys = torch.cat([turned(pair[0], places[number]) for number, pair in seen.items()], 1)
        values = torch.cat([pair[1] for pair in seen.values()], 1)
        queries = torch.cat([turned(part, number) for part, number in zip(query.split(TOKENS, 1), self.frames, strict=True)], 1)
        scores = torch.einsum("bqhd,bkhd->bhqk", queries, keys) / query.shape[-1] ** 0.5
        attended = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), values).flatten(2)
        return attn.to_out[0](attended)


def turned(heads: torch.Tensor, frame: int) -> torch.Tensor:
    """Rotate one frame's queries or keys [1, T, H, D]: each pair of neighbours by its angle in time, rows or columns."""
    height, width = HEIGHT // 2, WIDTH // 2
    rest = (heads.shape[-1] - TIME_CHANNELS) // 2
    places = [(frame, row, column) for row in range(height) for column in range(width)]
    angles = [
        [place / 10000 ** (2 * pair / channels) for place, channels in zip(at, (TIME_CHANNELS, rest, rest), strict=True)
         for pair in range(channels // 2)]
        for at in places
    ]  # fmt: skip
    angle = torch.tensor(angles, dtype=torch.float64)[None, :, None]
    pairs = torch.view_as_complex(heads.double().unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angle), angle)).flatten(-2).float()


@without_gradients
def plain(model: WanTransformer3DModel, window: Window, block: int, blocks: int, switch: int | None) -> list[np.ndarray]:
    """Compute each block's velocity from lists of keys and values. At block `switch`, after a full window, only the sink's keys
    and values stay, and the blocks of the window run again.
    """
    text, noisy, clean = make_blocks(block, blocks)
    layers = [ListedAttention(window) for _ in model.blocks]
    for layer, attention in zip(model.blocks, layers, strict=True):
        layer.attn1.set_processor(attention)
        layer.attn2.set_processor(WanAttnProcessor())

    def velocity(latents: torch.Tensor, timestep: float, number: int, seen_from: int) -> np.ndarray:
        for attention in layers:
            attention.frames, attention.keeps = tuple(range(number * block, (number + 1) * block)), timestep == 0
            attention.seen_from = seen_from * block
        return model(latents, torch.tensor([timestep]), text).sample.numpy()

    found = []
    for number in range(blocks):
        if number == switch:
            text = other_text()
            for attention in layers:
                attention.listed = {frame: pair for frame, pair in attention.listed.items() if frame < window.sink}
            for earlier in range(number - (window.frames - window.sink) // block, number):
                velocity(clean[earlier], 0.0, earlier, number + 1)
        found.append(velocity(noisy[number], TIMESTEP, number, number + 1))
        velocity(clean[number], 0.0, number, number + 1)
    return found


def main() -> None:
    model, differences = make_model(), {}
    for words in sys.argv[1:]:
        sp, tp, block, frames, sink, trained, blocks, *switches = map(int, words.split(","))
        window, switch = Window(frames=frames, sink=sink, trained=trained), next(iter(switches), None)
        reference = masked(model, block, blocks) if frames >= block * blocks else plain(model, window, block, blocks, switch)
        layout = Layout.create(MeshPlan(sp=sp, tp=tp), jax.devices()[: sp * tp])
        pairs = zip(ours(model, window, layout, block, blocks, switch), reference, strict=True)
        differences[words] = max(float(np.abs(found - wanted).max()) for found, wanted in pairs)
    sys.stdout.write(json.dumps(differences) + "\n")


if __name__ == "__main__":
    main()
