"""A causal checkpoint states how it was trained. Missing entries get Self-Forcing's values, and impossible values are refused."""

import inspect
from pathlib import Path

import pytest
import torch
from diffusers import WanTransformer3DModel

from backend.checkpoints.checkpoint import Checkpoint
from backend.errors import ModelError
from backend.models import find_family, recognise
from backend.models.causal_wan.spec import PIPELINES
from backend.models.wan.original import map_file_names, original_tensor_name, transformer_config
from backend.models.wan.spec import NEEDED_ENTRIES
from backend.schemas.request import example_request
from presets import load_preset


def spec_of(**transformer):
    index = {"_class_name": PIPELINES[0]} | {part: ["diffusers", part] for part in NEEDED_ENTRIES}
    configs = {part: dict.fromkeys(entries, 1) for part, entries in NEEDED_ENTRIES.items()}
    configs["transformer"] |= {"in_channels": 16} | transformer
    configs["vae"] |= {"z_dim": 16}
    _, spec = recognise(Checkpoint(folder=Path("model"), index=index, configs=configs))
    return spec


def test_what_a_checkpoint_does_not_say_is_self_forcings():
    spec = spec_of(_class_name="CausalWanTransformer3DModel")  # like the published one: no causal entries
    assert (spec.name, spec.tasks, spec.inputs) == ("wan2.1-live", ("t2v", "i2v"), {"image": "may"})
    assert (spec.chunk, spec.window, spec.sink, spec.trained, spec.recaches, spec.first_steps) == (3, 21, 0, 21, False, 1)


def test_a_window_with_a_sink_is_read():
    spec = spec_of(num_frames_per_block=3, local_attn_size=12, sink_size=3)
    assert (spec.chunk, spec.window, spec.sink, spec.trained) == (3, 12, 3, 21)


def test_longlives_window_and_what_it_does_at_a_new_prompt_are_read():
    spec = find_family(load_preset("longlive-1.3b-480p"))[1]
    assert (spec.chunk, spec.window, spec.sink, spec.trained, spec.recaches) == (3, 12, 3, 240, True)
    spec = find_family(load_preset("causal-forcing-1.3b-480p"))[1]
    assert (spec.chunk, spec.window, spec.first_steps) == (1, 21, 4)


def test_the_transformer_of_a_makers_file_is_told_by_its_tensors():
    """The shapes of the published transformer."""
    config = load_preset("wan2.1-live-1.3b-480p").network_configs()["transformer"]
    own = inspect.signature(WanTransformer3DModel.__init__).parameters
    with torch.device("meta"):
        state = WanTransformer3DModel.from_config({name: config[name] for name in config.keys() & own}).state_dict()
    renamed = {f"model.{original_tensor_name(name)}": tuple(value.shape) for name, value in state.items()}
    found = transformer_config(renamed)
    assert found == {name: config[name] for name in found}
    names = map_file_names(state)
    assert sorted(map(names, renamed)) == sorted(state) and all(names(name) == name for name in state)
    assert transformer_config({name: tuple(value.shape) for name, value in state.items()}) is None  # names other than Wan's own


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ({"in_channels": 36}, "its transformer takes 36 channels and its VAE makes 16"),
        ({"_class_name": "WanTransformer3DModel"}, "it has a WanTransformer3DModel"),
        ({"local_attn_size": 3, "sink_size": 3}, "local_attn_size=3, sink_size=3"),
        ({"local_attn_size": 4, "sink_size": 2}, "sink_size=2.*num_frames_per_block <= local_attn_size - sink_size"),
        ({"local_attn_size": 30}, "local_attn_size=30.*local_attn_size <= sliding_window_num_frames"),
        ({"num_frames_per_block": 0}, "num_frames_per_block=0"),
    ],
)
def test_what_cannot_be_is_refused(entries, said):
    with pytest.raises(ModelError, match=said):
        spec_of(**entries)


def test_a_steps_arithmetic_is_that_of_one_block_and_a_full_window():
    preset = load_preset("wan2.1-live-1.3b-480p")
    family, spec = find_family(preset)
    requests = [example_request(preset, num_frames=frames) for frames in (81, 969)]
    one, other = (family.step_flops(preset.network_configs(), request, branches=1) for request in requests)
    assert spec.chunk == 3 and one == other
    assert one.attention == 4 * (3 * 1560) * (21 * 1560) * 1536 * 30
