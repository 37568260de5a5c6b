"""Run by `test_actions.py` in a process with eight CPU devices: a tiny random Matrix-Game 2.0 generates videos block by block.

Prints one JSON object: for each case the largest difference of a block's velocity from a plain reference. Velocities are of
order 1. The reference, `plain_actions`, computes all frames again for every block.
"""

from __future__ import annotations

import dataclasses
import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import torch
from diffusers import WanTransformer3DModel

from backend.models.causal_wan.action_spec import ACTIONS, ActionShape
from backend.models.causal_wan.action_transformer import ActionDenoiser, SteeredContext
from backend.models.causal_wan.actions import parameter_shapes
from backend.models.causal_wan.transformer import Window
from backend.models.wan.transformer import BLOCKS, ImageChannels
from backend.runtime.mesh import Layout, MeshPlan
from backend.runtime.work import Zeros, run
from backend.weights.stacked import stack_weights
from tests.backend.models.causal_wan.plain_actions import PlainActions, plain_velocity, random_weights

CONFIG = dict(
    patch_size=(1, 2, 2),
    num_attention_heads=2,
    attention_head_dim=24,
    in_channels=12,
    out_channels=4,
    freq_dim=16,
    ffn_dim=32,
    num_layers=2,
)
SHAPE = ActionShape(layers=1, heads=2, width=16, keys=4, key_width=6, mouse_width=2, stride=4, reach=12, time_width=4, theta=256)
HEIGHT, WIDTH, CHANNELS = 4, 6, 4  # latent size
PICTURE_TOKENS, PICTURE_WIDTH = 5, 8
TIMESTEP = 908.84


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scene:
    """A tiny model and its inputs for some blocks. `noisy` and `clean` are latents [blocks, 1, C, F, H, W]. `done` has the
    actions of each block.
    """

    model: WanTransformer3DModel
    actions: dict[str, torch.Tensor]
    noisy: torch.Tensor
    clean: torch.Tensor
    channels: torch.Tensor
    picture: torch.Tensor
    done: torch.Tensor


def make_scene(block: int, blocks: int) -> Scene:
    torch.manual_seed(0)
    model = WanTransformer3DModel(**CONFIG, text_dim=1, image_dim=PICTURE_WIDTH).eval()
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "norm" in name:  # ones and zeros would hide a mix-up
                value.add_(0.2 * torch.randn_like(value))
    width = CONFIG["num_attention_heads"] * CONFIG["attention_head_dim"]
    shapes = {name: shape[::-1] for name, shape in parameter_shapes(SHAPE, width).items()}
    shape = (blocks, 1, CHANNELS, block, HEIGHT, WIDTH)
    return Scene(
        model=model,
        actions=random_weights(shapes, torch.Generator().manual_seed(1)),
        noisy=torch.randn(shape),
        clean=torch.randn(shape),
        channels=torch.randn(1, 4 + CHANNELS, block * blocks, HEIGHT, WIDTH),
        picture=torch.randn(1, PICTURE_TOKENS, PICTURE_WIDTH),
        done=torch.randn(blocks, SHAPE.keys + SHAPE.mouse_width),
    )


def pixel_frames(done: torch.Tensor, block: int) -> torch.Tensor:
    """Return the action in each pixel frame from the action in each block."""
    counts = torch.full([len(done)], SHAPE.stride * block)
    counts[0] -= SHAPE.stride - 1
    return done.repeat_interleave(counts, dim=0)


def ours(scene: Scene, window: Window, layout: Layout) -> list[np.ndarray]:
    """Compute each block's velocity with our denoiser."""
    blocks, _, _, block, _, _ = scene.noisy.shape
    denoiser = ActionDenoiser(CONFIG, layout, window, SHAPE, PICTURE_WIDTH)
    described = denoiser.describe_weights(jnp.dtype(jnp.float32))
    state = {name: value for name, value in scene.model.state_dict().items() if "text_embedder" not in name}
    state |= {f"{ACTIONS}0.{name}": value for name, value in scene.actions.items()}
    arrays = {name: jnp.asarray(value.numpy()) for name, value in state.items()}
    stacked = stack_weights(arrays, [BLOCKS, ACTIONS])
    weights = jax.tree.map(lambda array, leaf: jax.device_put(array, leaf.sharding), stacked, described)
    text = jax.jit(denoiser.prepare_text)(weights, None, None, scene.picture.numpy())
    velocity, settled = jax.jit(denoiser.block_velocity), jax.jit(denoiser.commit_chunk)
    frames = pixel_frames(scene.done, block).numpy()
    frames = np.concatenate([np.tile(frames[0], (SHAPE.reach, 1)), frames])

    def context(number: int):
        first = number * block
        positions = yield from denoiser.block_positions(scene.noisy[0].shape, first)
        # the first pixel frame that the block sees; the array starts with padding before the video
        begin = SHAPE.stride * first
        count = SHAPE.reach + SHAPE.stride * (block - 1)
        steering = yield from denoiser.block_steering(frames[begin : begin + count], first, block)
        channels = ImageChannels(values=scene.channels[:, :, first : first + block].numpy())
        return SteeredContext(text=text, positions=positions, condition=channels, steering=steering)

    def zeros():
        return (yield Zeros(denoiser.describe_past(scene.noisy[0].shape, jnp.dtype(jnp.float32))))

    past, found = run(zeros()), []
    for number in range(blocks):
        given = run(context(number))
        made, ring = velocity(weights, scene.noisy[number].numpy(), jnp.float32(TIMESTEP), given, past)
        turn = denoiser.sink_rotation((number + 1) * block, block)
        past = settled(weights, scene.clean[number].numpy(), given, dataclasses.replace(past, ring=ring), turn)
        found.append(np.asarray(made))
    return found


def plain(scene: Scene, window: Window) -> list[np.ndarray]:
    """Compute each block's velocity with the reference."""
    blocks, _, _, block, _, _ = scene.noisy.shape
    module = PlainActions(
        weights=scene.actions,
        heads=SHAPE.heads,
        time_width=SHAPE.time_width,
        theta=SHAPE.theta,
        block=block,
        window=window.frames,
    )
    done = pixel_frames(scene.done, block)
    given = (scene.channels, scene.picture, (done[:, : SHAPE.keys], done[:, SHAPE.keys :]))
    return [
        plain_velocity(scene.model, [module], [*scene.clean[:number]], scene.noisy[number], TIMESTEP, *given).numpy()
        for number in range(blocks)
    ]


def main() -> None:
    differences = {}
    for words in sys.argv[1:]:
        sp, tp, block, frames, blocks = map(int, words.split(","))
        scene, window = make_scene(block, blocks), Window(frames=frames, trained=frames)
        layout = Layout.create(MeshPlan(sp=sp, tp=tp), jax.devices()[: sp * tp])
        pairs = zip(ours(scene, window, layout), plain(scene, window), strict=True)
        differences[words] = max(float(np.abs(found - wanted).max()) for found, wanted in pairs)
    sys.stdout.write(json.dumps(differences) + "\n")


if __name__ == "__main__":
    main()
