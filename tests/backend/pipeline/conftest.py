"""What the tests of the pipeline share."""

import pytest

from backend.pipeline.load import load
from backend.pipeline.loaded import LoadedModel
from presets import load_preset


@pytest.fixture(scope="module")
def loaded(tmp_path_factory) -> LoadedModel:
    """The demo model with its weights."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STUDIO_DATA_DIR", str(tmp_path_factory.mktemp("data")))
        yield load(load_preset("wan-tiny"), None, lambda event: None)
