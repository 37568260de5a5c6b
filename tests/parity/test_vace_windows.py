"""VACE in context windows: diffusers' own pipeline, whose network is called window by window and blended by hand in plain
PyTorch.

A window sees its own part of the control latents. References precede the video in every window.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from backend.schemas.windows import windows_at
from tests.parity.test_parity import LATENT_TOLERANCE
from tests.parity.test_vace import files, request_of, run_reference  # noqa: F401, one is a fixture
from tests.parity.tiny_runs import latents_of

pytestmark = [pytest.mark.parity, pytest.mark.demo_model]

FRAMES, WINDOW = 33, 5  # pixel frames of the video, latent frames of a window of the tiny presets: 17 pixel frames


@pytest.fixture
def in_windows(monkeypatch):
    """Return a function that makes a pipeline's networks blend their velocity from windows after `lead` latent frames of
    references.
    """

    def patch(pipeline, lead: int) -> None:
        seen: list[float] = []
        for network in filter(None, (pipeline.transformer, pipeline.transformer_2)):
            monkeypatch.setattr(network, "forward", _blended(network.forward, lead, seen))

    return patch


def _blended(plain, lead: int, seen: list[float]):
    def forward(hidden_states, timestep, encoder_hidden_states, control_hidden_states, control_hidden_states_scale, **others):
        if float(timestep) not in seen:
            seen.append(float(timestep))
        windows = windows_at(seen.index(float(timestep)), hidden_states.shape[2] - lead, WINDOW)
        blended = torch.zeros_like(hidden_states)
        for window in windows:
            own = [*range(lead), *range(lead + window.begin, lead + window.begin + WINDOW)]
            shares = torch.tensor([1 / len(windows)] * lead + list(window.weights))
            velocity = plain(
                hidden_states[:, :, own], timestep, encoder_hidden_states, None, control_hidden_states[:, :, own],
                control_hidden_states_scale, return_dict=False,
            )[0]  # fmt: skip
            blended[:, :, own] += velocity * shares[:, None, None]
        return (blended,)

    return forward


@pytest.mark.parametrize(
    ("family", "use"),
    [
        ("wan2.1-vace", "two references and a mask"),
        pytest.param("wan2.1-vace", "edges", marks=pytest.mark.slow),
        pytest.param("wan2.1-vace", "after", marks=pytest.mark.slow),
        pytest.param("wan2.2-vace", "one reference", marks=pytest.mark.slow),
        pytest.param("wan2.2-vace", "mask and control", marks=pytest.mark.slow),
    ],
)
def test_the_latents_are_those_of_diffusers_pipeline_window_by_window(family, use, tiny, files, in_windows):  # noqa: F811
    made = tiny(family)
    request = request_of(made, files, use, steps=4, num_frames=FRAMES)
    assert request.window_frames == 4 * WINDOW - 3
    whole = run_reference(made, request)
    in_windows(made.reference, len(request.references))
    ours, theirs = latents_of(request, made.loaded), run_reference(made, request, "in windows")
    assert np.abs(ours - theirs).max() <= LATENT_TOLERANCE < np.abs(whole - theirs).max() / 20
