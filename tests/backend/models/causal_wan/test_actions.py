"""Compare the action module of Matrix-Game 2.0 with a plain module, alone and in the transformer, on one device and on several."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from backend.models.causal_wan.action_spec import ActionShape
from backend.models.causal_wan.actions import (
    ActionPlace,
    Steering,
    action_windows,
    apply_actions,
    describe_action_ring,
    parameter_shapes,
)
from backend.models.common.flat_attention import rotary_angles
from tests.backend.models.causal_wan.plain_actions import PlainActions, random_weights
from tests.many_devices import asked, told_by

UNIVERSAL = ActionShape(
    layers=2, heads=4, width=48, keys=4, key_width=10, mouse_width=2, stride=4, reach=12, time_width=4, theta=256
)
KEYS_ALONE = ActionShape(
    layers=1, heads=3, width=24, keys=7, key_width=6, mouse_width=0, stride=4, reach=12, time_width=2, theta=256
)
CHANNELS, TOKENS = 20, 5
CASES = {  # the frames per block and per window, and the number of blocks
    "nothing is dropped": (UNIVERSAL, 3, 9, 3),
    "the window rolls": (UNIVERSAL, 3, 6, 4),
    "a window of blocks and a part": (UNIVERSAL, 3, 4, 3),
    "keys alone": (KEYS_ALONE, 2, 4, 3),
}


def by_blocks(shape: ActionShape, weights: dict, hidden, done, block: int, window: int, dtype) -> np.ndarray:
    """Return all frames' tokens after the last action module, computed block by block with a ring."""
    parameters = {name: jnp.asarray(value.numpy().T, dtype) for name, value in weights.items()}
    described = describe_action_ring(shape, window, TOKENS, dtype)
    ring = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), described)
    step = jax.jit(lambda *arguments: apply_actions(shape, parameters, *arguments))
    done, found = np.concatenate([np.tile(done[0], (shape.reach, 1)), done]), []
    for first in range(0, len(hidden), block):
        seen = action_windows(done[shape.stride * first :], block, shape.stride, shape.reach)
        angles = rotary_angles(np.arange(first, first + block), shape.time_width, shape.theta)
        steering = Steering(
            keyboard=seen[..., : shape.keys],
            mouse=seen[..., shape.keys :].reshape(block, -1) if shape.mouse_width else None,
            cosine=np.cos(angles).astype(np.float32),
            sine=np.sin(angles).astype(np.float32),
        )
        places = (first + np.arange(block)) % window
        place = ActionPlace(
            layer=np.int32(shape.layers - 1), places=places.astype(np.int32), count=np.int32(min(first + block, window))
        )
        tokens = jnp.asarray(hidden[first : first + block].numpy(), dtype).reshape(block * TOKENS, -1)
        after, ring = step(tokens, steering, ring, place)
        found.append(np.asarray(after, np.float32).reshape(block, TOKENS, -1))
    return np.concatenate(found)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("dtype", "largest", "mean"), [("float32", 1e-4, 1e-4), ("bfloat16", 1e-2, 1e-3)])
def test_block_by_block_it_is_what_all_frames_at_once_give(case, dtype, largest, mean):
    """Bfloat16 is compared with float32 for the same rounded weights and tokens. Differences are shares of the largest value."""
    shape, block, window, blocks = CASES[case]
    generator = torch.Generator().manual_seed(3)
    shapes = {name: given[::-1] for name, given in parameter_shapes(shape, CHANNELS).items()}
    rounded = torch.bfloat16 if dtype == "bfloat16" else torch.float32
    weights = {name: value.to(rounded).float() for name, value in random_weights(shapes, generator).items()}
    hidden = torch.randn(blocks * block, TOKENS, CHANNELS, generator=generator).to(rounded).float()
    pixel_frames = shape.stride * blocks * block - shape.stride + 1
    done = torch.randn(pixel_frames, shape.keys + shape.mouse_width, generator=generator).to(rounded).float()
    plain = PlainActions(
        weights=weights, heads=shape.heads, time_width=shape.time_width, theta=shape.theta, block=block, window=window
    )
    mouse = done[:, shape.keys :] if shape.mouse_width else None
    wanted = plain(hidden, done[:, : shape.keys], mouse).numpy()
    found = by_blocks(shape, weights, hidden, done.numpy(), block, window, dtype)
    assert np.abs(wanted - hidden.numpy()).max() > 0.3  # the module has an effect
    scale = 1.0 if dtype == "float32" else np.abs(wanted).max()
    assert np.abs(found - wanted).max() / scale <= largest and np.abs(found - wanted).mean() / scale <= mean


def test_a_latent_frame_sees_what_was_done_before_its_last_pixel_frame():
    """The video has twelve pixel frames. Before the video, the first frame's action is repeated."""
    done = np.concatenate([np.zeros(12), np.arange(12)])[:, None]
    seen = action_windows(done, 3, stride=4, reach=12)[..., 0]
    np.testing.assert_array_equal(seen[0], np.zeros(12))
    np.testing.assert_array_equal(seen[1], [*np.zeros(8), 0, 1, 2, 3])
    np.testing.assert_array_equal(seen[2], [*np.zeros(4), *range(8)])


ROLLOUTS = {
    "1,1,3,9,3": 1e-4,  # nothing is dropped
    "1,1,2,3,4": 1e-4,  # the window rolls, and is no multiple of a block
    "2,2,2,4,3": 1e-4,
}
"""Keys: sp, tp, frames per block and per window, and the number of blocks. Values: the allowed difference of velocities."""


@pytest.fixture(scope="module")
def differences(request) -> dict[str, float]:
    """Return the differences of all cases that this test run selects."""
    return told_by("tests.backend.models.causal_wan.action_rollout_run", *asked(request, "case"), devices=4)


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=pytest.mark.slow) if case == "1,1,3,9,3" else case for case in ROLLOUTS]
)
def test_a_video_made_with_rings_is_what_all_frames_regenerated_give(differences, case):
    assert differences[case] <= ROLLOUTS[case]
