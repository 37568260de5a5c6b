"""Run by `test_sparse_meshes.py` in a process with eight CPU devices: a tiny random transformer with sparse attention.

Prints one JSON object. A case with a mesh has the largest difference of the velocity between the mesh and one device. A case with
one device has the largest difference between sparse attention to all keys and dense attention, and between sparse attention to
some keys and dense attention. The cases `sol-one-layer` and `sol-plain` are functions below.
"""

from __future__ import annotations

import functools
import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from diffusers import WanTransformer3DModel
from diffusers.models.transformers import transformer_wan

from backend.models.wan.sparse_attention import add_sparse_weights, make_sparse_plan
from backend.models.wan.transformer import BLOCKS, Context, Denoiser, FirstFrames
from backend.runtime.mesh import Layout, MeshPlan
from backend.runtime.work import run
from backend.weights.stacked import stack_weights
from tests.kernels.sparse_reference import sol_attention

CONFIG = dict(num_attention_heads=2, attention_head_dim=24, in_channels=4, out_channels=4, text_dim=12, freq_dim=16, ffn_dim=64,
              num_layers=2)  # fmt: skip
SPARSE = {"vsa": {"sparse_blocks": (2, 2, 4)}} | dict.fromkeys(("sla", "sla-map", "sol"), {"sparse_blocks": (16, 8)})
SHAPE = (1, 4, 5, 22, 14)  # 5 x 11 x 7 tokens: tiles at every border have fewer tokens
KEEP, TAU = 0.25, 0.3
TEXT, TIMESTEP = 6, 700.0
GRID = (5, 11, 7)  # tokens along time, height and width


def random_state(method: str, num_layers: int = CONFIG["num_layers"]) -> dict[str, jax.Array]:
    """Return random weights. No norm is the identity, and the gate and the projection have effects of order 1."""
    torch.manual_seed(0)
    model = WanTransformer3DModel(**CONFIG | {"num_layers": num_layers})
    add_sparse_weights(model, method)
    state = model.state_dict()
    for name, value in state.items():
        if "norm" in name or "scale_shift" in name:
            value.add_(0.2 * torch.randn(value.shape))
        if "attn1.to_out" in name or "proj_out.weight" in name:
            value.mul_(4)  # lets the self-attention matter
    return {name: jnp.asarray(value.numpy()) for name, value in state.items()}


def make_inputs(branches: int) -> list[np.ndarray]:
    """Return random text embeddings for each guidance branch, latents, and latents of a first frame, float32."""
    rng, (batch, channels, frames, *sides) = np.random.default_rng(1), SHAPE
    shapes = (branches, TEXT, CONFIG["text_dim"]), (batch, channels, frames, *sides), (batch, channels, 1, *sides)
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


@functools.cache
def velocity(
    method: str | None,
    share: str,
    plan: MeshPlan,
    branches: int,
    still: bool,
    weights_of: str,
    num_layers: int = CONFIG["num_layers"],
) -> tuple[np.ndarray, ...]:
    """Compute the velocity on a mesh and the counts of blocks, with the random weights of the method `weights_of`.

    The method None is dense attention. With the share "all", a query sees all keys, and the weights of the method are 0.
    """
    layout = Layout.create(plan, jax.devices()[: plan.num_devices])
    changes = {"num_layers": num_layers} | ({} if method is None else SPARSE[method])
    if method not in (None, "sol"):
        changes = changes | {"sparse_attention": method}
    denoiser, state = Denoiser(CONFIG | changes, layout), random_state(weights_of, num_layers)
    own = [name for name in state if "gate_compress" in name or "proj_l" in name]
    if share == "all":
        state |= {name: state[name] * 0 for name in own}
    state = {name: value for name, value in state.items() if method or name not in own}
    described = denoiser.describe_weights(jnp.dtype(jnp.float32))
    weights = jax.tree.map(lambda array, leaf: jax.device_put(array, leaf.sharding), stack_weights(state, [BLOCKS]), described)
    text, latents, first = make_inputs(branches)
    tau = (-1e4 if share == "all" else TAU) if method == "sol" else 0.0
    context = Context(
        text=jax.jit(denoiser.prepare_text)(weights, text, None),
        positions=run(denoiser.positions(SHAPE, sparse=make_sparse_plan(denoiser.config, 1.0 if share == "all" else KEEP, tau))),
        condition=FirstFrames(latents=jnp.asarray(first)) if still else None,
    )
    if method == "sol":
        found, counts = jax.jit(denoiser.sparse_velocity)(weights, latents, (jnp.float32(TIMESTEP),), context)
        return np.asarray(found), np.asarray(counts)
    return np.asarray(jax.jit(denoiser.velocity)(weights, latents, (jnp.float32(TIMESTEP),), context)), np.zeros(2)


def compare_one_layer() -> list[float]:
    """Return the difference of Sol-Attn from dense attention in a transformer with one layer, and the largest count."""
    (ours, counts), (dense, _) = (velocity(method, "some", MeshPlan(), 1, False, "sol", 1) for method in ("sol", None))
    return [float(np.abs(ours - dense).max()), float(counts.max())]


class PlainSol(transformer_wan.WanAttnProcessor):
    """A processor of diffusers' `WanAttention` that computes Sol-Attn by the formulas. Counts the exact blocks."""

    num_exact = 0

    def __call__(self, *arguments: object) -> torch.Tensor:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(transformer_wan, "dispatch_attention_fn", self._attend)
            return super().__call__(*arguments)

    def _attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: object) -> torch.Tensor:
        """Attend along the Morton curve, all arrays [B, S, H, D]. The bits of frame, row and column alternate in a token's code."""
        codes = [
            sum((side >> bit & 1) << 3 * bit + axis for bit in range(4) for axis, side in enumerate(place))
            for place in np.ndindex(GRID)
        ]
        order = np.argsort(codes)
        block_q, block_kv = SPARSE["sol"]["sparse_blocks"]
        attended, margins = sol_attention(*(array.numpy()[:, order] for array in (query, key, value)), TAU, block_q, block_kv)
        assert np.abs(margins).min() > 1e-6, "no score is near the threshold"
        first, index = np.arange(margins.shape[2])[:, None] * block_q, np.arange(margins.shape[3])
        is_near = (index >= first // block_kv - 1) & (index <= (first + block_q - 1) // block_kv + 1)
        self.num_exact += int(((margins > 0) | is_near).sum())
        return torch.from_numpy(attended[:, np.argsort(order)]).float()


def compare_plain(num_layers: int = 3) -> list[float]:
    """Return the difference of Sol-Attn from diffusers' transformer with the plain formulas in all layers except the first.

    Also return the difference of the number of exact blocks, and the difference of the plain formulas from dense attention.
    """
    model = WanTransformer3DModel(**CONFIG | {"num_layers": num_layers})
    model.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in random_state("sol", num_layers).items()})
    processors = [PlainSol() for _ in model.blocks[1:]]
    for block, processor in zip(model.blocks[1:], processors, strict=True):
        block.attn1.set_processor(processor)
    text, latents, _ = map(torch.from_numpy, make_inputs(1))
    with torch.no_grad():
        expected = model(latents, torch.tensor([TIMESTEP]), text, return_dict=False)[0].numpy()
    (ours, counts), (dense, _) = (velocity(method, "some", MeshPlan(), 1, False, "sol", num_layers) for method in ("sol", None))
    off = abs(float(counts[0]) - sum(processor.num_exact for processor in processors)) + float(counts[1])
    return [float(np.abs(ours - expected).max()), off, float(np.abs(expected - dense).max())]


SPECIAL = {"sol-one-layer": compare_one_layer, "sol-plain": compare_plain}


def main() -> None:
    found = {}
    for case in sys.argv[1:]:
        if case in SPECIAL:
            found[case] = SPECIAL[case]()
            continue
        method, *numbers = case.split(",")
        dp, sp, tp, branches, still = map(int, numbers)
        one, plan, rest = MeshPlan(), MeshPlan(dp=dp, sp=sp, tp=tp), (branches, bool(still), method)
        sparse = velocity(method, "some", one, *rest)
        if plan == one:
            pairs = [(velocity(method, "all", one, *rest), velocity(None, "all", one, *rest))]
            pairs.append((sparse, pairs[0][1]))
        else:
            pairs = [(velocity(method, "some", plan, *rest), sparse)]
            assert (pairs[0][0][1] == sparse[1]).all(), "a mesh counts the same blocks"
        found[case] = [float(np.abs(first - second).max()) for (first, _), (second, _) in pairs]
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
