"""wan-tiny-turbo's transformer in training: SLA in place of dense self-attention, and the four noise levels of rCM.

A clip starts from a noise whose result wan-tiny has generated. The student takes the steps of the solver "rcm-ode" and learns to
predict this result from each of the four points. In a share of the batches, its own steps lead to the point, so that it learns to
correct its mistakes. In the others, the last point has fresh noise. What must be removed there hardly depends on the noise of the
start, and fresh noise makes many examples of a pair.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import cast

import torch
from diffusers import WanTransformer3DModel
from safetensors.torch import load_file

from backend.models.wan.sparse_attention import BLOCKS as SPARSE_BLOCKS
from backend.models.wan.sparse_attention import add_sparse_weights
from backend.models.wan.spec import SPARSE
from backend.schemas.noise_levels import noise_levels, timesteps_of_levels
from training.train_transformer import TransformerTraining
from training.turbo_pairs import Asked
from training.velocity import linear, predict_velocity, projected, run_one_block
from training.wan_networks import WanNetworks, WanText

BLOCKS = 8, 4  # queries and keys in a block; a video of 17 frames has only 45 tokens
KEEP = 0.3  # three of twelve blocks of keys, or six of twenty-one for 33 frames
OWN_POINTS = 0.5  # share of the batches whose points the student's own steps reach
SMALLEST_SUM = 1e-5  # as in `kernels.attention.sla`
SOLVER, STEPS = "rcm-ode", 4
LEVELS = noise_levels(SOLVER, STEPS, flow_shift=1.0).tolist()
TIMESTEPS = timesteps_of_levels(SOLVER, noise_levels(SOLVER, STEPS, flow_shift=1.0)).tolist()


def sparse_linear_attention(attention, hidden, cosine, sine, dtype) -> torch.Tensor:
    """Compute SLA of tokens [B, S, D] as `kernels.attention.sla` does, with gradients for all weights."""
    query, key, value = projected(attention, hidden, cosine, sine, dtype)
    scores = torch.matmul(query.to(dtype), key.to(dtype).transpose(-1, -2)).float() * query.shape[-1] ** -0.5
    weights = torch.softmax(scores.masked_fill(~_kept_keys(query, key), -math.inf), -1)
    feature_q, feature_k = torch.softmax(query, -1), torch.softmax(key, -1)
    products = torch.matmul(feature_k.transpose(-1, -2).to(dtype), value.to(dtype))
    norm = torch.matmul(feature_q, feature_k.sum(2)[..., None])
    spread = torch.matmul(feature_q.to(dtype), products).float() / (SMALLEST_SUM + norm)
    attended = torch.matmul(weights.to(dtype), value.to(dtype)).float() + linear(attention.proj_l, spread, dtype).float()
    return linear(attention.to_out[0], attended.transpose(1, 2).flatten(2), dtype).float()


@torch.no_grad()
def _kept_keys(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Return the mask [B, H, S, S] of the keys in the blocks that each query's block attends to."""
    length = query.shape[2]
    scores = _block_means(query, BLOCKS[0]) @ _block_means(key - key.mean(2, keepdim=True), BLOCKS[1]).transpose(-1, -2)
    kept = scores.topk(max(1, int(KEEP * scores.shape[-1])), -1).indices
    blocks = torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, kept, True)
    return blocks.repeat_interleave(BLOCKS[0], 2)[:, :, :length].repeat_interleave(BLOCKS[1], 3)[..., :length]


def _block_means(value: torch.Tensor, block: int) -> torch.Tensor:
    """Return the means over blocks of tokens [B, H, S, D]. The last block can be smaller."""
    return torch.stack([part.float().mean(2) for part in value.split(block, 2)], 2)


class TurboNetworks(WanNetworks):
    """See `Networks`. The batches are pairs of `turbo_pairs`."""

    def __init__(self, text: WanText, transformer: WanTransformer3DModel) -> None:
        super().__init__(text, transformer)
        self._run_block = functools.partial(run_one_block, attend=sparse_linear_attention)

    @classmethod
    def load(cls, folder: Path, tokenizer_folder: Path, device: str) -> TurboNetworks:
        """Load the networks of a checkpoint or of a work folder, in float32.

        In wan-tiny's checkpoint the projection of linear attention is missing. It is zero at first.
        """
        networks = cast(TurboNetworks, super().load(folder, tokenizer_folder, device))  # the class method returns this class
        transformer, path = networks.learned, folder / "transformer/diffusion_pytorch_model.safetensors"
        add_sparse_weights(transformer, "sla")
        projections = {name: value for name, value in transformer.state_dict().items() if "proj_l" in name}
        saved = load_file(path)
        transformer.load_state_dict(
            {name: saved.get(name, torch.zeros_like(value)) for name, value in projections.items()}, strict=False
        )
        transformer.to(device)
        return networks

    def compile(self) -> None:
        """See `Networks`."""
        self._run_block = torch.compile(self._run_block, dynamic=False)

    def words_for(self, scene: Asked, rng, options: TransformerTraining) -> str:
        """See `Networks`. A pair has one prompt."""
        return scene.prompt

    def loss(
        self,
        latents: torch.Tensor,
        scenes: list[Asked],
        prompts: list[str],
        options: TransformerTraining,
        generator: torch.Generator,
    ) -> torch.Tensor:
        """See `Networks`. The velocity is that from the point to the clean latents."""
        noise, clean = latents.chunk(2, 1)
        has_image = torch.tensor([scene.has_image for scene in scenes], device=latents.device)
        with torch.no_grad(), torch.autocast(latents.device.type, torch.bfloat16):
            text, bias = self.text.encode(prompts)

        def velocity(point: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
            timesteps = torch.tensor(TIMESTEPS, device=latents.device)[step]
            first_timesteps = torch.where(has_image, 0.0, timesteps)
            return predict_velocity(
                self.learned, point, timesteps, first_timesteps, text.float(), bias, run_block=self._run_block
            )

        given = has_image[:, None, None, None, None] & (torch.arange(clean.shape[2], device=latents.device) == 0)[:, None, None]
        levels = torch.tensor(LEVELS, device=latents.device)
        if torch.rand(1, generator=generator, device=latents.device).item() < OWN_POINTS:
            taken = int(torch.randint(1, STEPS, (1,), generator=generator, device=latents.device))
            step = torch.full((len(prompts),), taken, device=latents.device)
            with torch.no_grad():
                point = take_steps(lambda at, number: velocity(at, torch.full_like(step, number)), noise, clean, given, taken)
        else:
            step = torch.randint(0, STEPS, (len(prompts),), generator=generator, device=latents.device)
            level, last = levels[step][:, None, None, None, None], (step == STEPS - 1)[:, None, None, None, None]
            fresh = torch.randn(noise.shape, generator=generator, device=latents.device)
            share = torch.where(step == 0, 0.0, 1 - levels[step])[:, None, None, None, None]  # the first step sees only noise
            point = level * torch.where(last, fresh, noise) + share * clean
        point = torch.where(given, clean, point)
        wanted = (point - clean) / levels[step][:, None, None, None, None]
        error = (velocity(point, step) - wanted).square() * ~given
        return error.sum() / ((~given).sum() * error[0, :, 0].numel())


def take_steps(
    velocity: Callable[[torch.Tensor, int], torch.Tensor],
    noise: torch.Tensor,
    clean: torch.Tensor,
    given: torch.Tensor,
    steps: int = STEPS,
) -> torch.Tensor:
    """Return the point [B, C, F, H, W] after some steps of the solver. Where `given`, it is `clean`."""
    point = torch.where(given, clean, LEVELS[0] * noise)
    for number, following in enumerate([*LEVELS[1:], 0.0][:steps]):
        point = torch.where(given, clean, point - (LEVELS[number] - following) * velocity(point, number))
    return point


def is_sparse(model: Path) -> bool:
    """Return whether a demo model's transformer has sparse attention."""
    path = model / "transformer/config.json"
    return SPARSE in json.loads(path.read_text("utf-8"))


def write_config(folder: Path) -> None:
    """Add the entries about sparse attention to a saved transformer's configuration."""
    path = folder / "config.json"
    config = json.loads(path.read_text("utf-8")) | {SPARSE: "sla", SPARSE_BLOCKS: list(BLOCKS)}
    path.write_text(json.dumps(config, indent=2) + "\n", "utf-8")
