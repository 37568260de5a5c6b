"""wan-live-tiny's transformer in training: all frames of a story at once, each from noise and the frames before it.

The frames before are the true frames with some noise. In a share of the batches they are the network's own frames, so that it
learns to continue its own videos. Two noise levels are most frequent: pure noise, at which each block starts, and the level of
the second of the two steps.
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

WINDOW = 6  # latent frames that a block attends to, including its own
OWN_PAST = 0.5  # share of the batches whose past the network generates
SPOILED = 0.15  # largest share of noise in a true past
PURE_NOISE = 0.5  # share of frames that start from pure noise
NO_ACTION = 0.3  # share of the blocks without movement whose text names no action


class LiveNetworks(WanNetworks):
    """See `Networks`. A story has a text for each block: the prompt and the action."""

    def __init__(self, text: WanText, transformer: WanTransformer3DModel) -> None:
        super().__init__(text, transformer)
        self._run_block = run_framewise_block

    @classmethod
    def load(cls, folder, tokenizer_folder, device: str) -> LiveNetworks:
        """Load the networks of a checkpoint or of a work folder, in float32, also of wan-tiny."""
        return cast(LiveNetworks, super().load(folder, tokenizer_folder, device))  # the class method returns this class

    def compile(self) -> None:
        """See `Networks`. Compile once for training and once for the network's own frames."""
        self._run_block = torch.compile(run_framewise_block, dynamic=False)

    def words_for(self, scene: Story, rng: random.Random, options: TransformerTraining) -> list[str]:
        """See `Networks`. The prompt changes only when the look changes."""
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
        """See `Networks`. The loss omits the first frame of a story that starts in its middle."""
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
        """Generate frames in one step from noise and this past. Keep a story's first frame unless it `begins` there."""
        whole = torch.full((len(past), past.shape[2]), 1000.0, device=past.device)
        own = noise - predict_blocks(self.learned, past, noise, whole, text, bias, WINDOW, run_block=self._run_block)
        first = torch.where(begins[:, None, None, None, None], own[:, :, :1], past[:, :, :1])
        return torch.cat([first, own[:, :, 1:]], 2)

    def _texts(self, prompts: list[list[str]]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return embeddings [B, F, L, D] and biases [B, F, 1, 1, L]. Each text is encoded once."""
        known = {text: number for number, text in enumerate(dict.fromkeys(text for row in prompts for text in row))}
        with torch.no_grad(), torch.autocast(self.text.encoder.device.type, torch.bfloat16):
            embedded, bias = self.text.encode(list(known))
        rows = torch.tensor([[known[text] for text in row] for row in prompts], device=embedded.device)
        return embedded.float()[rows], bias[rows]


def transformer_config(transformer: WanTransformer3DModel, trained_frames: int, actions: list[str]) -> dict:
    """Return the entries of config.json about the training, as in causal Wan checkpoints."""
    return {
        "_class_name": "CausalWanTransformer3DModel",
        "num_frames_per_block": 1,
        "local_attn_size": WINDOW,
        "sink_size": 0,
        "sliding_window_num_frames": max(WINDOW, trained_frames),
        "actions": actions,
    }
