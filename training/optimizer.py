"""One optimizer for all trainings: Muon for matrices and convolutions, AdamW for everything else.

Muon's update has equal singular values, so that no direction of a layer learns more slowly than the others. The demo
autoencoder's 32 latent channels had spanned eight dimensions after 23 minutes of AdamW; see docs/lab/cpu.md.
"""

from __future__ import annotations

import torch

WEIGHT_DECAY = 0.01


class MuonAndAdamW:
    """`torch.optim.Muon` sees every convolution as a matrix [out, in * taps]; both halves follow one learning rate."""

    def __init__(self, module: torch.nn.Module, adamw_names: tuple[str, ...] = ()) -> None:
        """Parameters with fewer than two dimensions, and those whose name holds one of `adamw_names`, go to AdamW."""
        named = [(name, value) for name, value in module.named_parameters() if value.requires_grad]
        self._matrices = [value for name, value in named if value.ndim >= 2 and not any(word in name for word in adamw_names)]
        chosen = set(map(id, self._matrices))
        others = [value for _, value in named if id(value) not in chosen]
        self._flat = [torch.nn.Parameter(torch.zeros_like(value).flatten(1)) for value in self._matrices]
        self._muon = torch.optim.Muon(self._flat, lr=0.0, weight_decay=WEIGHT_DECAY, adjust_lr_fn="match_rms_adamw")
        self._adamw = torch.optim.AdamW(others, lr=0.0, betas=(0.9, 0.98), weight_decay=0.0)

    def step(self, learning_rate: float) -> None:
        """Apply the gradients that the module's parameters hold, then drop them."""
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
