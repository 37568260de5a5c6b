"""Tests of the benchmark of model changes, with stand-ins for the models."""

import pytest

from backend.schemas.events import Loading
from benchmarks import model_changes


def test_a_model_that_is_still_coming_is_given_up_after_the_steps(monkeypatch, tmp_path):
    given_up = []

    def load(preset, source, tell, model_cache, files=None, is_used=True):
        if is_used:
            return "a model"
        with pytest.raises(BaseException) as ended:
            while True:
                tell(Loading(0, 2, "a"))
        given_up.append(type(ended.value).__name__)
        raise ended.value

    monkeypatch.setattr(model_changes, "load", load)
    monkeypatch.setattr(model_changes, "_denoising", lambda loaded: 1.0)
    assert model_changes.measure_prefetch(tmp_path) and given_up == ["Stopped"] * model_changes.TURNS
