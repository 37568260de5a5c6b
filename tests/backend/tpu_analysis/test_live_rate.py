"""Check the predicted frames per second of a live video."""

from types import SimpleNamespace

import pytest

from backend.schemas.request import example_request
from backend.tpu_analysis import live_rate as module
from backend.tpu_analysis.live_rate import predict_live_rate
from presets import load_preset

PRESET = load_preset("wan2.1-live-1.3b-480p")
SECONDS = {"denoise_step": 0.1, "settle": 0.05, "decode_first": 100.0, "decode_next": 0.025}
PROGRAMS = {key: {"predicted_seconds": seconds} for key, seconds in SECONDS.items()}


@pytest.fixture(autouse=True)
def runs(monkeypatch):
    """Yield the calls for blocks of three latent frames. Each block has its steps and one pass that stores its keys. Latent
    frames are decoded one by one.
    """

    def calls(model, request, stages):
        assert "encode" not in stages
        frames = request.geometry().num_latent_frames
        keys = (["denoise_step"] * request.steps + ["settle"]) * (frames // 3) + ["decode_first"] + ["decode_next"] * (frames - 1)
        return [SimpleNamespace(program=SimpleNamespace(key=key)) for key in keys]

    monkeypatch.setattr(module, "calls", calls)


def test_a_block_is_its_steps_its_keys_and_its_frames_decoded():
    block = 4 * 0.1 + 0.05 + 3 * 0.025
    found = predict_live_rate(None, example_request(PRESET), PROGRAMS)
    assert found == pytest.approx({"predicted_frames_per_second": 12 / block, "predicted_delay_seconds": block})


def test_nothing_is_said_where_a_program_is_missing_or_does_not_fit():
    request = example_request(PRESET)
    assert predict_live_rate(None, request, {"denoise_step": PROGRAMS["denoise_step"]}) == {}
    assert predict_live_rate(None, request, PROGRAMS | {"settle": {"predicted_seconds": None}}) == {}
    assert predict_live_rate(None, example_request(load_preset("wan2.1-t2v-1.3b-480p")), PROGRAMS) == {}
