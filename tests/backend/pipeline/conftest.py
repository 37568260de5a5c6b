"""Fixtures that the tests of the pipeline share."""

import pytest

from backend.pipeline.load import load
from backend.pipeline.loaded import LoadedModel
from presets import load_preset
from tests.backend.pipeline.kills import keep_every_state


@pytest.fixture(scope="module")
def loaded(tmp_path_factory) -> LoadedModel:
    """The demo model with its weights."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STUDIO_DATA_DIR", str(tmp_path_factory.mktemp("data")))
        yield load(load_preset("wan-tiny"), None, lambda event: None)


@pytest.fixture
def at_every_step(monkeypatch) -> None:
    """Store the state after every step and piece."""
    keep_every_state(monkeypatch)
