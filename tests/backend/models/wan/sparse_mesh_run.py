"""Run by `test_sparse_meshes.py` in a process with eight CPU devices: a tiny random transformer with sparse attention.

Prints one JSON object. A case with a mesh has the largest difference of the velocity between the mesh and one device. A case with
one device has the largest difference between sparse attention to all keys and dense attention, and between sparse attention to
some keys and dense attention.
"""

from __future__ import annotations

import functools
import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import torch
from diffusers import WanTransformer3DModel

from backend.models.wan.sparse_attention import make_sparse_plan
from backend.models.wan.sparse_weights import add_sparse_weights
from backend.models.wan.transformer import BLOCKS, Context, Denoiser, FirstFrames
from backend.runtime.mesh import Layout, MeshPlan
from backend.runtime.work import run
from backend.weights.stacked import stack_weights

CONFIG = dict(num_attention_heads=2, attention_head_dim=24, in_channels=4, out_channels=4, text_dim=12, freq_dim=16, ffn_dim=64,
              num_layers=2)  # fmt: skip
SPARSE = {"vsa": {"sparse_blocks": (2, 2, 4)}} | dict.fromkeys(("sla", "sla-map", "sol"), {"sparse_blocks": (16, 8)})
SHAPE = (1, 4, 5, 22, 14)  # 5 x 11 x 7 tokens: tiles at every border have fewer tokens
KEEP, TAU = 0.25, 0.3
TEXT, TIMESTEP = 6, 700.0


def random_state(method: str) -> dict[str, jax.Array]:
    """Return random weights. No norm is the identity, and the gate and the projection have effects of order 1."""
    torch.manual_seed(0)
    model = WanTransformer3DModel(**CONFIG)
    add_sparse_weights(model, method)
    state = model.state_dict()
    for name, value in state.items():
        if "norm" in name or "scale_shift" in name:
            value.add_(0.2 * torch.randn(value.shape))
        if "attn1.to_out" in name or "proj_out.weight" in name:
            value.mul_(4)  # lets the self-attention matter
    return {name: jnp.asarray(value.numpy()) for name, value in state.items()}


@functools.cache
def velocity(
    method: str | None, share: str, plan: MeshPlan, branches: int, still: bool, weights_of: str
) -> tuple[np.ndarray, ...]:
    """Compute the velocity on a mesh and the counts of blocks, with the random weights of the method `weights_of`.

    The method None is dense attention. With the share "all", a query sees all keys, and the weights of the method are 0.
    """
    layout = Layout.create(plan, jax.devices()[: plan.num_devices])
    changes = {} if method is None else SPARSE[method]
    if method not in (None, "sol"):
        changes = changes | {"sparse_attention": method}
    denoiser, state = Denoiser(CONFIG | changes, layout), random_state(weights_of)
    own = [name for name in state if "gate_compress" in name or "proj_l" in name]
    if share == "all":
        state |= {name: state[name] * 0 for name in own}
    state = {name: value for name, value in state.items() if method or name not in own}
    described = denoiser.describe_weights(jnp.dtype(jnp.float32))
    weights = jax.tree.map(lambda array, leaf: jax.device_put(array, leaf.sharding), stack_weights(state, [BLOCKS]), described)
    rng = np.random.default_rng(1)
    text = rng.standard_normal((branches, TEXT, CONFIG["text_dim"])).astype(np.float32)
    latents, first = (rng.standard_normal((*SHAPE[:2], frames, *SHAPE[3:])).astype(np.float32) for frames in (SHAPE[2], 1))
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


def main() -> None:
    found = {}
    for case in sys.argv[1:]:
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
