"""Matrix-Game 2.0 written plainly, from its paper and its configuration: all frames at once, nothing cached, heads apart.

The weights have the names of the checkpoint within a block's action module.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from diffusers import WanTransformer3DModel
from diffusers.models.transformers.transformer_wan import WanAttnProcessor
from torch.nn import functional

from tests.gradients import without_gradients

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class PlainActions:
    """One action module. Frames are generated `block` at a time. They see the last `window` frames up to the end of their
    block.
    """

    weights: Tensors
    heads: int
    time_width: int
    theta: float
    block: int
    window: int
    stride: int = 4
    windows: int = 3

    def __call__(self, hidden: torch.Tensor, keyboard: torch.Tensor, mouse: torch.Tensor | None) -> torch.Tensor:
        """Return the tokens [F, T, D] of all frames after the actions in each pixel frame, `keyboard` [P, keys] and `mouse` [P,
        2].
        """
        if mouse is not None:
            hidden = hidden + self._mouse(hidden, mouse)
        return hidden + self._keyboard(hidden, keyboard)

    def seen(self, done: torch.Tensor, frame: int) -> torch.Tensor:
        """Return the actions that a latent frame sees, [pixel frames, N]. Before the video, the first frame's action is
        repeated.
        """
        last = self.stride * frame
        return torch.stack([done[max(0, number)] for number in range(last - self.stride * self.windows, last)])

    def _linear(self, name: str, value: torch.Tensor) -> torch.Tensor:
        return functional.linear(value, self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias"))

    def _mouse(self, hidden: torch.Tensor, mouse: torch.Tensor) -> torch.Tensor:
        moved = torch.stack([self.seen(mouse, frame).flatten() for frame in range(len(hidden))])
        joined = torch.cat([hidden, moved[:, None].expand(-1, hidden.shape[1], -1)], dim=-1)
        inner = self._linear("mouse_mlp.2", functional.gelu(self._linear("mouse_mlp.0", joined), approximate="tanh"))
        inner = functional.layer_norm(
            inner, inner.shape[-1:], self.weights["mouse_mlp.3.weight"], self.weights["mouse_mlp.3.bias"], 1e-5
        )
        query, key, value = (self._apart(part) for part in self._linear("t_qkv", inner).chunk(3, dim=-1))
        query, key = self._prepared(query), self._prepared(key)
        attended = []
        for frame in range(len(hidden)):
            see = self._visible(frame)
            scores = torch.einsum("thw,nthw->thn", query[frame], key[see]) / query.shape[-1] ** 0.5
            attended.append(torch.einsum("thn,nthw->thw", scores.softmax(-1), value[see]).flatten(1))
        return self._linear("proj_mouse", torch.stack(attended))

    def _keyboard(self, hidden: torch.Tensor, keyboard: torch.Tensor) -> torch.Tensor:
        embedded = self._linear("keyboard_embed.2", functional.silu(self._linear("keyboard_embed.0", keyboard)))
        pressed = torch.stack([self.seen(embedded, frame).flatten() for frame in range(len(hidden))])
        key, value = (self._apart(part) for part in self._linear("keyboard_attn_kv", pressed).chunk(2, dim=-1))
        query, key = self._prepared(self._apart(self._linear("mouse_attn_q", hidden))), self._prepared(key)
        attended = []
        for frame in range(len(hidden)):
            see = self._visible(frame)
            scores = torch.einsum("thw,nhw->thn", query[frame], key[see]) / query.shape[-1] ** 0.5
            attended.append(torch.einsum("thn,nhw->thw", scores.softmax(-1), value[see]).flatten(1))
        return self._linear("proj_keyboard", torch.stack(attended))

    def _apart(self, value: torch.Tensor) -> torch.Tensor:
        return value.unflatten(-1, (self.heads, -1))

    def _visible(self, frame: int) -> slice:
        end = (frame // self.block + 1) * self.block
        return slice(max(0, end - self.window), end)

    def _prepared(self, heads: torch.Tensor) -> torch.Tensor:
        """Heads [F, ..., H, W], root mean square 1, the first channels' neighbouring pairs turned by the frame's number."""
        heads = heads / (heads.square().mean(-1, keepdim=True) + 1e-6).sqrt()
        pairs = torch.arange(0, self.time_width, 2) / self.time_width
        for_pair = torch.arange(len(heads))[:, None] / self.theta**pairs
        turn = torch.polar(torch.ones_like(for_pair), for_pair).reshape(len(heads), *[1] * (heads.ndim - 2), -1)
        time, rest = heads[..., : self.time_width], heads[..., self.time_width :]
        turned = torch.view_as_real(torch.view_as_complex(time.unflatten(-1, (-1, 2)).contiguous()) * turn).flatten(-2)
        return torch.cat([turned, rest], dim=-1)


class _SteeredCrossAttention:
    """diffusers' cross-attention, with `act` applied to its result."""

    def __init__(self, block, act: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._act, self._hidden = act, torch.zeros(0)
        block.norm2.register_forward_pre_hook(self._keep)

    def _keep(self, module, inputs) -> None:
        self._hidden = inputs[0]

    def __call__(self, attn, hidden_states, encoder_hidden_states=None, attention_mask=None, rotary_emb=None):
        attended = WanAttnProcessor()(attn, hidden_states, encoder_hidden_states)
        whole = self._hidden + attended
        return attended + self._act(whole) - whole


@without_gradients
def plain_velocity(
    model: WanTransformer3DModel,
    modules: list[PlainActions],
    clean: list[torch.Tensor],
    noisy: torch.Tensor,
    timestep: float,
    channels: torch.Tensor,
    picture: torch.Tensor,
    done: tuple[torch.Tensor, torch.Tensor | None],
) -> torch.Tensor:
    """Compute the velocity of the block `noisy` [1, C, F, H, W] at this timestep with diffusers' whole transformer and a mask.
    The `clean` blocks before it are at timestep 0. `channels` [1, 4 + C, frames, H, W] covers all frames. `picture` [1, tokens,
    D] has the image embeddings. `done` has the keyboard and mouse of all pixel frames. The first blocks have these `modules`.
    """
    latents = torch.cat([*clean, noisy], dim=2)
    count, rows = latents.shape[2], latents.shape[3] * latents.shape[4] // 4
    frame_of = torch.arange(count * rows) // rows
    end = (frame_of // modules[0].block + 1) * modules[0].block
    seen = ((frame_of < end[:, None]) & (frame_of >= end[:, None] - modules[0].window))[None, None]
    plain = WanAttnProcessor()

    def attend_to_window(attn, hidden_states, encoder_hidden_states=None, attention_mask=None, rotary_emb=None):
        return plain(attn, hidden_states, None, seen, rotary_emb)

    for number, block in enumerate(model.blocks):
        block.attn1.set_processor(attend_to_window)
        block.norm2._forward_pre_hooks.clear()
        block.attn2.set_processor(WanAttnProcessor())
        if number < len(modules):
            block.attn2.set_processor(_SteeredCrossAttention(block, functools.partial(_acted, modules[number], done, count)))
    timesteps = torch.where(frame_of >= count - noisy.shape[2], timestep, 0.0)[None]
    text = torch.zeros(1, 0, model.config.text_dim)
    joined = torch.cat([latents, channels[:, :, :count]], dim=1)
    return model(joined, timesteps, text, encoder_hidden_states_image=picture).sample[:, :, -noisy.shape[2] :]


def _acted(
    module: PlainActions, done: tuple[torch.Tensor, torch.Tensor | None], count: int, hidden: torch.Tensor
) -> torch.Tensor:
    """Return the tokens [1, S, D] of `count` frames after the actions `done`."""
    return module(hidden[0].unflatten(0, (count, -1)), *done).flatten(0, 1)[None]


def random_weights(shapes: Mapping[str, tuple[int, ...]], generator: torch.Generator) -> dict[str, torch.Tensor]:
    """Weights of these shapes, [out, in] or [out], that keep values near 1."""
    return {
        name: torch.randn(shape, generator=generator) / (shape[1] ** 0.5 if len(shape) == 2 else 4)
        + (name == "mouse_mlp.3.weight")
        for name, shape in shapes.items()
    }
