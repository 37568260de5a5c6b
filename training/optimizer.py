"""The optimizer of all trainings: Muon for matrices and convolutions, AdamW for other parameters.

Muon's update has equal singular values, so all directions of a layer learn equally fast. With AdamW alone, the demo autoencoder's
32 latent channels used only eight dimensions after 23 minutes (docs/lab/cpu.md).
"""

from __future__ import annotations

import torch

WEIGHT_DECAY = 0.01


class MuonAndAdamW:
    """Muon and AdamW with one learning rate. `torch.optim.Muon` gets every convolution as a matrix [out, in * taps]."""

    def __init__(self, module: torch.nn.Module, adamw_names: tuple[str, ...] = ()) -> None:
        """Assign the parameters. AdamW gets those with fewer than two dimensions, or with one of `adamw_names` in their name."""
        named = [(name, value) for name, value in module.named_parameters() if value.requires_grad]
        self._matrices = [value for name, value in named if value.ndim >= 2 and not any(word in name for word in adamw_names)]
        chosen = set(map(id, self._matrices))
        others = [value for _, value in named if id(value) not in chosen]
        self._flat = [torch.nn.Parameter(torch.zeros_like(value).flatten(1)) for value in self._matrices]
        self._muon = torch.optim.Muon(self._flat, lr=0.0, weight_decay=WEIGHT_DECAY, adjust_lr_fn="match_rms_adamw")
        self._adamw = torch.optim.AdamW(others, lr=0.0, betas=(0.9, 0.98), weight_decay=0.0)

    def step(self, learning_rate: float) -> None:
        """Apply the parameters' gradients, then clear them."""
        for half in (self._muon, self._adamw):
            for group in half.param_groups:
                group["lr"] = learning_rate
        for flat, value in zip(self._flat, self._matrices, strict=True):
            flat.grad = None if value.grad is None else value.grad.flatten(1)
            flat.data.copy_(value.data.flatten(1))
        self._muon.step()
        for flat, value in zip(self._flat, self._matrices, strict=True):
            value.data.copy_(flat.data.view_as(value))
            value.grad = None
        self._adamw.step()
        self._adamw.zero_grad()
