"""The panels are driven against the pretend pipeline only: it is fast, and can be slow."""

from pathlib import Path

import pytest

from tests.wan_ui.conftest import _serving, _studio


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("panels")


@pytest.fixture(scope="module")
def studio(data_dir):
    with _serving("fake", data_dir) as server:
        yield _studio("fake", server)
