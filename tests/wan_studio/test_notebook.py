"""Test of the Python API in a notebook: a real kernel runs the cells and displays their outputs."""

import base64
import re
from collections.abc import Iterator

import nbclient
import nbformat
import pytest

from backend.engine.keys import Keys
from backend.settings import PROJECT_FOLDER
from tests.wan_ui.conftest import _serving

CELLS = (
    "import sys; from wan_studio import Studio; studio = Studio.connect({url!r}, {key!r}, folder={folder!r})",
    'studio.generate("a red square", preset="wan-tiny", num_inference_steps=40, num_frames=17, seed=7)',
    "[event async for event in studio.submit('a red square', preset='wan-tiny', num_inference_steps=1)][-1]",
    '{{"jax", "torch", "gradio"}} & {{*sys.modules}}',
)


@pytest.fixture
def cells(tmp_path, monkeypatch) -> Iterator[list]:
    """Run the cells in a kernel, and return them with their outputs."""
    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    with _serving("fake", tmp_path, more=["--auth", "user:password"]) as server:
        values = {"url": server.url, "key": Keys(tmp_path).create("notebook")[1], "folder": str(tmp_path / "videos")}
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell.format(**values)) for cell in CELLS])
        resources = {"metadata": {"path": str(PROJECT_FOLDER)}}
        updates = []

        class Client(nbclient.NotebookClient):
            def process_message(self, message, cell, cell_index):
                if message["msg_type"] in ("display_data", "update_display_data"):
                    updates.append(message["content"]["data"]["text/html"])
                return super().process_message(message, cell, cell_index)

        Client(notebook, timeout=120, kernel_name="python3", resources=resources).execute()
        yield [*notebook.cells, updates]


def test_a_cell_shows_progress_with_previews_and_then_the_video(cells):
    _, generate, follow, imported, updates = cells
    progress, video = generate.outputs
    assert len(updates) > 2 and any("<img" in update for update in updates)
    assert progress.data["text/html"] == updates[-1] and "<img" not in updates[-1] and 'value="1"' in updates[-1]
    encoded = re.search(r'src="data:video/mp4;base64,([^"]+)"', video.data["text/html"])[1]
    assert video.output_type == "execute_result" and base64.b64decode(encoded)[4:8] == b"ftyp"
    assert 'value="1"' in follow.outputs[0].data["text/html"]
    assert imported.outputs[0].data["text/plain"] == "set()"
