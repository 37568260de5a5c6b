"""The noise levels at the start of each step, for all solvers. `backend.sampling.solvers` describes the solvers."""

import math
from typing import get_args

import numpy as np

from presets import Preset
from presets.loader import Solver

NUM_TRAIN_TIMESTEPS = 1000
SIGMA_MAX: float = Preset.model_fields["sigma_max"].default
LTX_DISTILLED = (1.0, 0.99375, 0.9875, 0.98125, 0.975, 0.909375, 0.725, 0.421875)
# The shift's logarithm grows linearly with the number of tokens, from `_LTX_LOG_SHIFTS[0]` at `_LTX_TOKEN_COUNTS[0]` tokens to
# `_LTX_LOG_SHIFTS[1]` at `_LTX_TOKEN_COUNTS[1]` tokens.
_LTX_LOG_SHIFTS, _LTX_TOKEN_COUNTS = (0.95, 2.05), (1024, 4096)
_LTX_LAST_LEVEL = 0.1  # the noise level before the last step of "ltx"
_RCM_ANGLES = (1.5, 1.4, 1.0)  # arc tangents of the ratio of noise to signal before steps 2 to 4 of "rcm"
_DMD_LEVELS = (1.0, 0.757, 0.522)


def noise_levels(solver: Solver, steps: int, flow_shift: float, num_tokens: int = 0, sigma_max: float = SIGMA_MAX) -> np.ndarray:
    """Return the level at the start of each step, [steps] float64. The levels fall from 1, or almost 1 for UniPC and rCM.

    `num_tokens` is the number of tokens of the video, which only "ltx" needs. `sigma_max` is the ratio of noise to signal before
    the first step of "rcm" and "rcm-ode". The solvers in `FEW_STEPS` return fewer levels if `steps` is above their limit.

    Raises: ValueError for an unknown solver. Source: diffusers' `UniPCMultistepScheduler` with flow sigmas,
    `FlowMatchEulerDiscreteScheduler`, and for the other solvers the sources in `backend.sampling.solvers`."""
    if solver == "unipc":
        levels = shift_levels(np.linspace(1, 1 / NUM_TRAIN_TIMESTEPS, steps + 1)[:-1], flow_shift)
        if abs(levels[0] - 1) < 1e-6:
            levels[0] -= 1e-6  # UniPC's lambda, the logarithm of signal to noise, would be infinite at level 1
        return levels
    if solver == "euler":
        base = np.linspace(1, 1 / NUM_TRAIN_TIMESTEPS, NUM_TRAIN_TIMESTEPS, dtype=np.float32).astype(np.float64)
        trained = shift_levels(base, flow_shift)
        ends = np.linspace(trained[0] * NUM_TRAIN_TIMESTEPS, trained[-1] * NUM_TRAIN_TIMESTEPS, steps) / NUM_TRAIN_TIMESTEPS
        return shift_levels(ends, flow_shift)
    if solver == "euler-distilled":
        return shift_levels(np.linspace(1, 0, steps + 1), flow_shift)[:-1]
    if solver == "lcm":
        whole = np.arange(steps, 0, -1) * NUM_TRAIN_TIMESTEPS // steps
        return shift_levels(whole / NUM_TRAIN_TIMESTEPS, flow_shift)
    if solver == "ltx":
        # Source: diffusers' `LTX2Pipeline.calculate_shift` and `FlowMatchEulerDiscreteScheduler.stretch_shift_to_terminal`.
        slope = (_LTX_LOG_SHIFTS[1] - _LTX_LOG_SHIFTS[0]) / (_LTX_TOKEN_COUNTS[1] - _LTX_TOKEN_COUNTS[0])
        shift = math.exp(_LTX_LOG_SHIFTS[0] + slope * (num_tokens - _LTX_TOKEN_COUNTS[0]))
        clean = 1 - shift_levels(np.linspace(1, 1 / steps, steps), shift * flow_shift)
        return 1 - clean * (1 - _LTX_LAST_LEVEL) / clean[-1] if steps > 1 else 1 - clean
    if solver in ("ltx-distilled", "ltx-ancestral"):
        return np.array(LTX_DISTILLED)[np.rint(np.linspace(0, len(LTX_DISTILLED) - 1, steps)).astype(int)]
    if solver in ("rcm", "rcm-ode"):
        angles = np.array([math.atan(sigma_max), *_RCM_ANGLES])[:steps]
        return np.sin(angles) / (np.sin(angles) + np.cos(angles))
    if solver == "dmd":
        return np.array(_DMD_LEVELS)[:steps]
    raise ValueError(f"solver={solver!r} must be one of {', '.join(get_args(Solver))}")


def timesteps_of_levels(solver: Solver, levels: np.ndarray) -> np.ndarray:
    """Return the model's input for each noise level, [steps] float32. diffusers' UniPC passes integers, and TurboDiffusion's
    sampler for rCM bfloat16 values."""
    timesteps = levels * NUM_TRAIN_TIMESTEPS
    if solver in ("rcm", "rcm-ode"):
        mantissas, exponents = np.frexp(timesteps)
        timesteps = np.ldexp(np.rint(mantissas * 256), exponents - 8)  # bfloat16 has eight significant bits
    return (np.trunc(timesteps) if solver == "unipc" else timesteps).astype(np.float32)


def shift_levels(levels: np.ndarray, flow_shift: float) -> np.ndarray:
    return flow_shift * levels / (1 + (flow_shift - 1) * levels)
