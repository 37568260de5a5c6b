"""The embedded HunyuanVideo: its videos show what the prompt says, and the word in quotes sets the speed, which only its ByT5 reads."""

from pathlib import Path

import numpy as np
import pytest
import torch

from backend.contract.events import Finished
from backend.contract.request import GenerationRequest
from backend.media.video import read_frames
from backend.pipeline.generate import generate
from backend.pipeline.load import load
from backend.pipeline.loaded import LoadedModel
from presets import load_preset
from training.detector import Detection, detect

pytestmark = [pytest.mark.parity, pytest.mark.demo_model]

PRESET = load_preset("hunyuan-tiny")


@pytest.fixture(scope="module")
def loaded(tmp_path_factory) -> LoadedModel:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STUDIO_DATA_DIR", str(tmp_path_factory.mktemp("data")))
        yield load(PRESET, None, lambda event: None)


def seen_in(loaded: LoadedModel, folder: Path, prompt: str, image: str | None = None) -> Detection:
    request = GenerationRequest.from_preset(PRESET, prompt=prompt, seed=3, image=image)
    final = list(generate(request, loaded, folder, lambda: False))[-1]
    assert isinstance(final, Finished)
    return detect(torch.from_numpy(np.stack(list(read_frames(Path(final.result.path))))))


@pytest.mark.parametrize(
    "example", [None, pytest.param(PRESET.image_examples[0], marks=pytest.mark.slow)], ids=["text", "picture"]
)
def test_the_word_in_quotes_sets_the_speed(loaded, tmp_path, example):
    image = None if example is None else str(example.path)
    prompt = "a large red circle moving right on a black background"
    for word in ("FAST", "SLOW"):
        seen = seen_in(loaded, tmp_path / word, f'{prompt}, "{word}"', image)
        assert (seen.colour, seen.shape, seen.motion, seen.background) == ("red", "circle", "right", "black")
        assert seen.speed == word
