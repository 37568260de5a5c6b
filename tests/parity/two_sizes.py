"""A plain reference of progressive resolution: diffusers' pipelines at both sizes, with scipy's cosine transform between them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.fft
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, UniPCMultistepScheduler

from backend.schemas.progressive import num_half_size_steps, request_at_first_size
from backend.schemas.request import GenerationRequest

SPECTRUM = (2.0, 1.5)  # with this spectrum, some steps of tiny checkpoints are at half size, and some are not


def given_spectrum(made: Any, patch: pytest.MonkeyPatch) -> Any:
    """Give the preset of a tiny family a spectrum."""
    patch.setitem(made.preset.__dict__, "latent_spectrum", SPECTRUM)
    return made


def progressive(made: Any, level: int = 2, **changes: Any) -> GenerationRequest:
    return made.request(**{"steps": 6, "progressive": level} | changes)


def part_of(scheduler: Any, begin: int, end: int | None, level: float | None = None) -> Any:
    """Return a scheduler of the same kind that runs only its steps from `begin` to `end`. `level` replaces the first noise
    level.
    """

    class Part(type(scheduler)):
        def set_timesteps(self, num_inference_steps: int | None = None, device: Any = None, sigmas: Any = None) -> None:
            given = {"num_inference_steps": num_inference_steps} if sigmas is None else {"sigmas": sigmas}
            super().set_timesteps(device=device, **given)
            self.timesteps = self.timesteps[begin:end].to(torch.float32)
            self.sigmas = self.sigmas[begin : None if end is None else end + 1].clone()
            self.num_inference_steps = len(self.timesteps)
            if level is not None:
                self.sigmas[0], self.timesteps[0] = level, level * 1000

    lower = {"lower_order_final": end is None} if isinstance(scheduler, UniPCMultistepScheduler) else {}
    return Part.from_config(scheduler.config, **lower)


def enlarge_noisy_latents(latents: np.ndarray, noise: np.ndarray, sigma: float) -> tuple[np.ndarray, float]:
    """Return the latents after the paper's transition, and their noise level."""
    rows, columns = latents.shape[-2:]
    growth = np.sqrt(np.prod(noise.shape[-2:]) / (rows * columns))
    mixed = sigma * scipy.fft.dctn(noise, axes=(-2, -1), norm="ortho")
    mixed[..., :rows, :columns] = scipy.fft.dctn(latents, axes=(-2, -1), norm="ortho")
    share = 1 + (growth - 1) * sigma
    return growth / share * scipy.fft.idctn(mixed, axes=(-2, -1), norm="ortho"), growth * sigma / share


def reference(made: Any, request: GenerationRequest, run: Callable[[GenerationRequest, Any, torch.Tensor], Any], scheduler: Any):
    """Return the latents after both sizes. `run` returns diffusers' result for a request, a scheduler and the initial latents."""
    small, count = request_at_first_size(request), num_half_size_steps(request)
    assert 0 < count < request.steps
    generator, model = torch.Generator().manual_seed(request.seed), made.loaded.model
    first, second = (torch.randn(model.latent_shape(one), generator=generator) for one in (small, request))
    after = run(small, part_of(scheduler, 0, count), first).numpy()
    whole = part_of(scheduler, 0, None)
    whole.set_timesteps(request.steps, **_sigmas(scheduler, request.steps))
    latents, level = enlarge_noisy_latents(after, second.numpy(), float(whole.sigmas[count]))
    rest = part_of(scheduler, count, None, level)
    return run(request, rest, torch.from_numpy(latents.astype(np.float32))).numpy()


def _sigmas(scheduler: Any, steps: int) -> dict[str, Any]:
    """Return the sigmas that HunyuanVideo's pipelines give their scheduler."""
    is_euler = isinstance(scheduler, FlowMatchEulerDiscreteScheduler)
    return {"sigmas": np.linspace(1.0, 0.0, steps + 1)[:-1]} if is_euler else {}
