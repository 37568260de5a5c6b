"""Videos of the embedded HunyuanVideo follow the prompt. The word in quotes, which only its ByT5 encoder reads, sets the speed.

The videos are generated in a separate process with optimised programs. The programs of other tests take three times as long.
"""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from backend.media.video import read_frames
from backend.settings import PROJECT_FOLDER
from presets import load_preset
from tests.many_devices import without_quick
from training.detector import detect

pytestmark = [pytest.mark.parity, pytest.mark.demo_model]

PRESET = load_preset("hunyuan-tiny")


WORDS = ("FAST", "SLOW")
MAKE = """
import sys
from pathlib import Path
from backend.schemas.request import GenerationRequest
from backend.pipeline.generate import generate
from backend.pipeline.load import load
from presets import load_preset

preset = load_preset("hunyuan-tiny")
loaded = load(preset, None, lambda event: None)
folder, prompt, image, *words = sys.argv[1:]
for word in words:
    request = GenerationRequest.from_preset(preset, prompt=f'{prompt}, "{word}"', seed=3, image=image or None)
    *_, final = generate(request, loaded, Path(folder) / word, lambda: False)
    assert final.kind == "finished", final
"""


@pytest.mark.parametrize(
    ("example", "spoken"),
    [
        (None, WORDS[:1]),
        pytest.param(None, WORDS[1:], marks=pytest.mark.slow),
        pytest.param(PRESET.image_examples[0], WORDS, marks=pytest.mark.slow),
    ],
    ids=["text", "text-slow", "picture"],
)
def test_the_word_in_quotes_sets_the_speed(tmp_path, example, spoken):
    image = "" if example is None else str(example.path)
    prompt = "a large red circle moving right on a black background"
    environment = without_quick() | {"STUDIO_DATA_DIR": str(tmp_path / "data")}
    words = [sys.executable, "-c", MAKE, str(tmp_path), prompt, image, *spoken]
    done = subprocess.run(words, cwd=PROJECT_FOLDER, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    for word in spoken:
        seen = detect(torch.from_numpy(np.stack(list(read_frames(Path(tmp_path / word / "video.mp4"))))))
        assert (seen.colour, seen.shape, seen.motion, seen.background) == ("red", "circle", "right", "black")
        assert seen.speed == word
