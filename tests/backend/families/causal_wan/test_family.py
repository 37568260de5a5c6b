"""A causal checkpoint says how it was trained; what it does not say is Self-Forcing's, and what cannot be is refused."""

from pathlib import Path

import pytest

from backend.checkpoints.checkpoint import Checkpoint
from backend.contract.geometry import Geometry
from backend.errors import ModelError
from backend.families import of_preset, recognise
from backend.families.causal_wan.family import PIPELINES
from backend.families.wan.family import NEEDED_ENTRIES
from presets import load_preset


def kind_of(**transformer):
    index = {"_class_name": PIPELINES[0]} | {part: ["diffusers", part] for part in NEEDED_ENTRIES}
    configs = {part: dict.fromkeys(entries, 1) for part, entries in NEEDED_ENTRIES.items()}
    configs["transformer"] |= {"in_channels": 16} | transformer
    configs["vae"] |= {"z_dim": 16}
    _, kind = recognise(Checkpoint(folder=Path("model"), index=index, configs=configs))
    return kind


def test_what_a_checkpoint_does_not_say_is_self_forcings():
    kind = kind_of(_class_name="CausalWanTransformer3DModel")  # as the published one: none of the causal entries
    assert (kind.name, kind.tasks, kind.chunk, kind.window, kind.sink, kind.trained) == ("wan2.1-live", ("t2v",), 3, 21, 0, 21)


def test_a_window_with_a_sink_is_read():
    kind = kind_of(num_frames_per_block=3, local_attn_size=12, sink_size=3)
    assert (kind.chunk, kind.window, kind.sink, kind.trained) == (3, 12, 3, 21)


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ({"in_channels": 36}, "its transformer takes 36 channels and its VAE makes 16"),
        ({"_class_name": "WanTransformer3DModel"}, "it has a WanTransformer3DModel"),
        ({"local_attn_size": 3, "sink_size": 3}, "local_attn_size=3, sink_size=3"),
        ({"local_attn_size": 4, "sink_size": 2}, "a block must find room in the window beside the sink"),
        ({"local_attn_size": 30}, "the window must be no longer than in training"),
        ({"num_frames_per_block": 0}, "num_frames_per_block=0"),
    ],
)
def test_what_cannot_be_is_refused(entries, said):
    with pytest.raises(ModelError, match=said):
        kind_of(**entries)


def test_a_steps_arithmetic_is_that_of_one_block_and_a_full_window():
    preset = load_preset("wan2.1-live-1.3b-480p")
    family, kind = of_preset(preset)
    shapes = [Geometry(width=832, height=480, num_frames=frames, spatial_scale=8) for frames in (81, 969)]
    one, other = (family.step_flops(preset.network_configs(), shape, branches=1) for shape in shapes)
    assert kind.chunk == 3 and one == other
    assert one.attention == 4 * (3 * 1560) * (21 * 1560) * 1536 * 30
