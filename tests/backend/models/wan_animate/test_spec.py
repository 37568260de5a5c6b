"""A checkpoint's own configurations state which Animate model it is. Other checkpoints, and checkpoints that do not fit the
preset, are refused.
"""

from pathlib import Path

import pytest

from backend.checkpoints.checkpoint import Checkpoint
from backend.errors import ModelError
from backend.models import find_family, recognise
from backend.models.spec import check_preset
from presets import load_preset

BASE, POSED = "wan2.2-animate-2-14b", "wan2.2-animate-14b"


def checkpoint_of(preset: str, index=None, **transformer) -> Checkpoint:
    """Return a checkpoint with the preset's configurations and these changed entries. None removes an entry."""
    configs = {part: dict(config) for part, config in load_preset(preset).network_configs().items()}
    configs["transformer"] |= transformer
    configs["transformer"] = {name: value for name, value in configs["transformer"].items() if value is not None}
    parts = {part: ["x", config.get("_class_name", part)] for part, config in configs.items()}
    name = "WanAnimate2Pipeline" if preset == BASE else "WanAnimatePipeline"
    return Checkpoint(folder=Path("model"), index={"_class_name": name, **parts, **(index or {})}, configs=configs)


def test_both_kinds_are_recognised_with_their_segments():
    specs = {preset: recognise(checkpoint_of(preset))[1] for preset in (BASE, POSED)}
    assert (specs[BASE].name, specs[BASE].segment_frames, specs[BASE].chunk) == ("wan2.2-animate", 81, 22)
    assert (specs[POSED].name, specs[POSED].face_side) == ("wan2.2-animate-poses", 512)
    shorter = recognise(checkpoint_of(BASE, {"segment_frame_length": 49}))[1]
    assert (shorter.segment_frames, shorter.chunk) == (49, 14)


def test_a_presets_kind_has_its_own_segments():
    preset = load_preset("wan-tiny-animate")
    spec = find_family(preset)[1]
    assert (spec.segment_frames, spec.chunk) == (preset.segment_frames, 6)


@pytest.mark.parametrize(
    ("preset", "changes", "said"),
    [
        (BASE, {"in_dim": 16}, "16 channels"),
        (BASE, {"num_layers": None}, "num_layers"),
        (POSED, {"in_channels": 16}, "16 channels"),
        (POSED, {"num_layers": 39}, "it must be a multiple of inject_face_latents_blocks=5"),
    ],
)
def test_what_is_none_is_refused_in_one_sentence(preset, changes, said):
    with pytest.raises(ModelError) as caught:
        recognise(checkpoint_of(preset, **changes))
    assert said in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(("model", "preset"), [(POSED, BASE), (BASE, POSED)])
def test_neither_takes_the_others_place(model, preset):
    found, asked = ("must", "no") if model == POSED else ("no", "must")
    with pytest.raises(ModelError, match=rf"inputs: face={found}\b.*\), .* for another kind \(inputs: face={asked}\b"):
        check_preset(recognise(checkpoint_of(model))[1], load_preset(preset), "model")
