"""wan-live-tiny's transformer in training: every frame of a story at once, each from noise and the frames before it.

Frames before are the true ones, a little spoiled, or, in a share of the batches, the network's own: so that it learns to go on
from typing import cast
from what it has made itself. Two kinds of noise are learned most: pure noise, with which each block begins, and what the second
of the two steps begins with.
"""

from __future__ import annotations

import random
from typing import cast

import torch
from diffusers import WanTransformer3DModel

from training.live_world import CENTRE, RADIUS, Look, Story, scene_of
from training.prompts import describe_look
from training.train_transformer import TransformerTraining
from training.velocity import predict_blocks, run_framewise_block
from training.wan_networks import WanNetworks, WanText

WINDOW = 6  # latent frames that a block sees, its own counted
OWN_PAST = 0.5  # the share of the batches whose past is the network's own
SPOILED = 0.15  # the largest share of noise in a true past
PURE_NOISE = 0.5  # the share of frames that start from noise alone
NO_ACTION = 0.3  # the share of the blocks without movement whose text names no action


class LiveNetworks(WanNetworks):
    """See `Networks`. What a story is told is a text for each block: its prompt, and what is done."""

    def __init__(self, text: WanText, transformer: WanTransformer3DModel) -> None:
        super().__init__(text, transformer)
        self._run_block = run_framewise_block

    @classmethod
    def load(cls, folder, tokenizer_folder, device: str) -> LiveNetworks:
        """The networks of a checkpoint or of a parts folder, in float32; wan-tiny's too."""
        return cast(LiveNetworks, super().load(folder, tokenizer_folder, device))  # of this class

    def compile(self) -> None:
        """See `Networks`; once for learning, and once for what the network makes of its own."""
        self._run_block = torch.compile(run_framewise_block, dynamic=False)

    def words_for(self, scene: Story, rng: random.Random, options: TransformerTraining) -> list[str]:
        """See `Networks`; the look's words do not change as long as it does not."""
        prompts: dict[Look, str] = {}
        texts = []
        for look, action in zip(scene.looks, (scene.actions[0], *scene.actions), strict=True):
            prompt = prompts.setdefault(look, describe_look(scene_of(look), rng))
            is_named = action != "stay" or rng.random() >= NO_ACTION
            texts.append(f"{prompt}, {action}" if is_named else prompt)
        return texts

    def loss(
        self,
        latents: torch.Tensor,
        scenes: list[Story],
        prompts: list[list[str]],
        options: TransformerTraining,
        generator: torch.Generator,
    ) -> torch.Tensor:
        """See `Networks`; a story that begins in its middle is not scored on its first frame."""
        batch, _, num_frames = latents.shape[:3]

        def random_like(*shape: int) -> torch.Tensor:
            return torch.rand(*shape, generator=generator, device=latents.device)

        def normal() -> torch.Tensor:
            return torch.randn(latents.shape, generator=generator, device=latents.device)

        text, bias = self._texts(prompts)
        begins = torch.tensor([scene.start == CENTRE and scene.radius == RADIUS for scene in scenes], device=latents.device)
        past = latents
        if random_like(1).item() < OWN_PAST:
            past = self._own(latents, begins, normal(), text, bias)
            if random_like(1).item() < 0.5:
                past = self._own(past, begins, normal(), text, bias)
        past = past + SPOILED * random_like(batch, 1, 1, 1, 1) * normal()
        noise, levels = normal(), random_like(batch, num_frames)
        sigma = torch.where(random_like(batch, num_frames) < PURE_NOISE, 1.0, 0.2 + 0.7 * levels)
        mixed = latents + sigma[:, None, :, None, None] * (noise - latents)
        predicted = predict_blocks(self.learned, past, mixed, 1000 * sigma, text, bias, WINDOW, run_block=self._run_block)
        mask = torch.ones(batch, 1, num_frames, 1, 1, device=latents.device)
        mask[:, :, 0] = begins[:, None, None, None].float()
        error = (predicted - (noise - latents)).square() * mask
        return error.sum() / (mask.sum() * error[0, :, 0].numel())

    @torch.no_grad()
    def _own(
        self, past: torch.Tensor, begins: torch.Tensor, noise: torch.Tensor, text: torch.Tensor, bias: torch.Tensor
    ) -> torch.Tensor:
        """What the network makes of noise in one step after this past; a story's first frame stays unless it `begins` there."""
        whole = torch.full((len(past), past.shape[2]), 1000.0, device=past.device)
        own = noise - predict_blocks(self.learned, past, noise, whole, text, bias, WINDOW, run_block=self._run_block)
        first = torch.where(begins[:, None, None, None, None], own[:, :, :1], past[:, :, :1])
        return torch.cat([first, own[:, :, 1:]], 2)

    def _texts(self, prompts: list[list[str]]) -> tuple[torch.Tensor, torch.Tensor]:
        """Embeddings [B, F, L, D] and biases [B, F, 1, 1, L]; each text is read once."""
        known = {text: number for number, text in enumerate(dict.fromkeys(text for row in prompts for text in row))}
        with torch.no_grad(), torch.autocast(self.text.encoder.device.type, torch.bfloat16):
            embedded, bias = self.text.encode(list(known))
        rows = torch.tensor([[known[text] for text in row] for row in prompts], device=embedded.device)
        return embedded.float()[rows], bias[rows]


def transformer_config(transformer: WanTransformer3DModel, trained_frames: int, actions: list[str]) -> dict:
    """The entries of its config.json that say how it was trained, as causal Wan checkpoints have them."""
    return {
        "_class_name": "CausalWanTransformer3DModel",
        "num_frames_per_block": 1,
        "local_attn_size": WINDOW,
        "sink_size": 0,
        "sliding_window_num_frames": max(WINDOW, trained_frames),
        "actions": actions,
    }
