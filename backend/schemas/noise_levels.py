"""The noise levels at the start of each step, for the solvers UniPC, Euler and distilled Euler."""

import numpy as np

from presets.loader import Solver

NUM_TRAIN_TIMESTEPS = 1000


def noise_levels(solver: Solver, steps: int, flow_shift: float) -> np.ndarray:
    """Return the level at the start of each step, [steps] float64. The levels fall; the first is 1, or almost 1 for UniPC.

    Raises: ValueError for a solver with its own levels. Source: diffusers' `UniPCMultistepScheduler` with flow sigmas,
    `FlowMatchEulerDiscreteScheduler`, and for "euler-distilled" the source in `backend.sampling.solvers`.
    """
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
    raise ValueError(f"solver={solver!r} has its own noise levels")


def shift_levels(levels: np.ndarray, flow_shift: float) -> np.ndarray:
    """Apply the flow shift: larger values put more steps at high noise."""
    return flow_shift * levels / (1 + (flow_shift - 1) * levels)
