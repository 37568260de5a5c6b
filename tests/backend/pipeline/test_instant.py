"""Check instant drafts of the demo model: the picture of the same prompt and seed, no files, and a stop within one step."""

import base64
import io

import numpy as np
import pytest
from PIL import Image, ImageSequence

from backend.engine.instant import draft_request
from backend.media.video import read_frames
from backend.pipeline.generate import generate
from backend.pipeline.instant import generate_draft
from backend.pipeline.load import load
from backend.pipeline.loaded import LoadedModel
from backend.schemas.events import Cancelled, DraftFinished, Encoding, Finished, Step
from backend.schemas.request import GenerationRequest
from presets import load_preset

PRESET = load_preset("wan-tiny")
REQUEST = draft_request(GenerationRequest.from_preset(PRESET, prompt="a red circle on a navy background", seed=3), PRESET)

pytestmark = [pytest.mark.parity, pytest.mark.demo_model]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory) -> LoadedModel:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STUDIO_DATA_DIR", str(tmp_path_factory.mktemp("data")))
        yield load(PRESET, None, lambda event: None)


def test_a_draft_shows_the_frames_of_the_video_with_the_same_settings_and_writes_no_file(loaded, tmp_path):
    *events, last = generate_draft(REQUEST, loaded, tmp_path / "draft", lambda: False)
    assert isinstance(last, DraftFinished) and not (tmp_path / "draft").exists()
    assert [event.index for event in events if isinstance(event, Step)] == [1, 2, 3, 4, 5, 6, 7, 8]
    with Image.open(io.BytesIO(base64.b64decode(last.picture))) as animation:
        frames = np.stack([np.asarray(frame.convert("RGB"), np.float64) for frame in ImageSequence.Iterator(animation)])
    assert frames.shape == (13, 96, 96, 3)
    *_, finished = generate(REQUEST, loaded, tmp_path / "video", lambda: False)
    assert isinstance(finished, Finished)
    video = np.stack(list(read_frames(finished.result.path)))
    assert np.abs(frames - video).mean() < 6  # colour levels; WebP and H.264 lose detail, and store colours at half the size


@pytest.mark.parametrize("steps", [0, 1, 3, 8])
def test_a_stopped_draft_ends_before_its_next_step(loaded, tmp_path, steps):
    seen = []
    for event in generate_draft(REQUEST, loaded, tmp_path, lambda: sum(isinstance(one, Step) for one in seen) >= steps):
        seen.append(event)
    assert seen[-1] == Cancelled(None) and sum(isinstance(one, Step) for one in seen) == steps
    assert any(isinstance(one, Encoding) for one in seen) == (steps > 0)
