"""Fixtures of the Edit view's routes: visitors and their uploads, with the `engine` of each file of tests."""

from pathlib import Path

import pytest
from gradio.utils import get_upload_folder
from starlette.applications import Starlette
from starlette.testclient import TestClient

from wan_ui.edit.routes import edit_routes
from wan_ui.gateway.access import Access
from wan_ui.gateway.visitors import COOKIE
from wan_ui.services.media import media_route
from wan_ui.services.studio_context import StudioContext


@pytest.fixture
def visitor(engine):
    """Return a function that creates the visitor of a letter."""
    access = Access("key")
    context = StudioContext(engine=engine, access=access, can_run=engine.has_weights)
    app = Starlette(routes=[*edit_routes(context), media_route(engine, access)])
    return lambda letter="A": TestClient(app, cookies={COOKIE: letter * 43})


@pytest.fixture
def upload(tmp_path):
    """Return a function that copies a file into the folder of uploads."""

    def put(path: Path) -> str:
        folder = Path(get_upload_folder()) / tmp_path.name
        folder.mkdir(parents=True, exist_ok=True)
        return str(path.rename(folder / path.name))

    return put
