"""Recognise which Matrix-Game 2.0 a checkpoint is, and the names of its keys and mouse."""

from pathlib import Path

import pytest

from backend.checkpoints.checkpoint import Checkpoint
from backend.errors import ModelError, RequestError
from backend.models import find_family, recognise
from backend.models.causal_wan.action_spec import ACTION_WAN, PIPELINES, TRANSFORMERS, diffusers_name
from backend.schemas.request import example_request
from presets import load_preset

PRESET = load_preset("matrix-game-2.0")


def checkpoint(entries: dict | None = None, **actions) -> Checkpoint:
    configs = PRESET.network_configs()
    transformer = configs["transformer"] | (entries or {})
    transformer["action_config"] = transformer["action_config"] | actions
    return Checkpoint(folder=Path("model"), index={"_class_name": PIPELINES[0]}, configs=configs | {"transformer": transformer})


def spec_of(entries: dict | None = None, **actions):
    family, spec = recognise(checkpoint(entries, **actions))
    assert family is ACTION_WAN
    return spec


def test_the_universal_model_is_read_from_its_configuration():
    spec = spec_of()
    assert (spec.name, spec.tasks, spec.inputs) == ("matrix-game", ("i2v",), {"image": "must"})
    assert (spec.chunk, spec.window, spec.sink, spec.trained) == (3, 6, 0, 15)
    assert (spec.shape.layers, spec.shape.reach, spec.shape.time_width) == (15, 12, 8)
    assert spec.actions == PRESET.actions


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_both_names_of_its_transformer_are_known(name):
    assert spec_of({"_class_name": name}).window == 6


def test_the_driving_game_has_two_keys_and_a_shorter_window():
    found = checkpoint(keyboard_dim_in=2)
    del found.configs["transformer"]["local_attn_size"]
    _, spec = recognise(found)
    assert spec.window == 4 and spec.actions[:3] == ("forward", "back", "look-up")


def test_the_running_game_has_seven_keys_and_no_mouse():
    spec = spec_of(enable_mouse=False, keyboard_dim_in=7)
    assert spec.actions == ("jump", "slide", "turn-left", "turn-right", "left", "right", "stay")
    assert spec.encode_action(None) == ([1.0, 0, 0, 0, 0, 0, 0], [])  # "stay" is a key too
    assert spec.encode_action("slide") == ([0, 0, 1.0, 0, 0, 0, 0], [])


@pytest.mark.parametrize(
    ("action", "keyboard", "mouse"),
    [
        (None, [0, 0, 0, 0], [0, 0]),
        ("stay", [0, 0, 0, 0], [0, 0]),
        ("right", [0, 0, 0, 1], [0, 0]),
        ("forward+left", [1, 0, 1, 0], [0, 0]),
        ("look-left+forward", [1, 0, 0, 0], [0, -0.1]),
        ("look-up+look-right", [0, 0, 0, 0], [0.1, 0.1]),
    ],
)
def test_an_action_is_keys_and_the_mouses_turn(action, keyboard, mouse):
    assert spec_of().encode_action(action) == (keyboard, mouse)


@pytest.mark.parametrize("action", ["jump", "forward+", "+", "forward left", "forward+jump"])
def test_an_action_that_the_model_does_not_know_is_refused(action):
    with pytest.raises(RequestError, match=r"must be of forward, back, .*, stay, joined by \+"):
        spec_of().encode_action(action)


@pytest.mark.parametrize(
    ("entries", "actions", "said"),
    [
        ({"in_channels": 16}, {}, "takes 16 channels and its VAE makes 16"),
        ({"_class_name": "MatrixGameWanModel"}, {}, "it has a MatrixGameWanModel"),
        ({"local_attn_size": 2}, {}, "local_attn_size=2.*num_frames_per_block <= local_attn_size"),
        ({"sink_size": 1}, {}, "keeps the first 1 frames"),
        ({}, {"blocks": [0, 2]}, r"blocks=\[0, 2\]"),
        ({}, {"keyboard_dim_in": 6}, "keyboard_dim_in=6"),
        ({}, {"qkv_bias": True}, "qkv_bias=true"),
        ({}, {"mouse_qk_dim_list": [16, 24, 24]}, "a mouse of another shape"),
    ],
)
def test_what_cannot_be_run_is_refused(entries, actions, said):
    with pytest.raises(ModelError, match=said):
        spec_of(entries, **actions)


def test_an_entry_that_is_missing_is_named():
    found = checkpoint()
    del found.configs["transformer"]["action_config"]["windows_size"]
    with pytest.raises(ModelError, match=r"action_config\.windows_size"):
        recognise(found)
    del found.configs["transformer"]["action_config"]
    with pytest.raises(ModelError, match="no action_config"):
        recognise(found)


@pytest.mark.parametrize(
    ("in_file", "name"),
    [
        ("patch_embedding.proj.weight", "patch_embedding.weight"),
        ("condition_embedder.time_embedder.mlp.fc_in.weight", "condition_embedder.time_embedder.linear_1.weight"),
        ("condition_embedder.time_modulation.linear.bias", "condition_embedder.time_proj.bias"),
        ("condition_embedder.image_embedder.ff.fc_out.bias", "condition_embedder.image_embedder.ff.net.2.bias"),
        ("blocks.12.to_q.weight", "blocks.12.attn1.to_q.weight"),
        ("blocks.12.to_out.bias", "blocks.12.attn1.to_out.0.bias"),
        ("blocks.1.norm_k.weight", "blocks.1.attn1.norm_k.weight"),
        ("blocks.1.attn2.to_out.weight", "blocks.1.attn2.to_out.0.weight"),
        ("blocks.1.attn2.to_out.0.weight", "blocks.1.attn2.to_out.0.weight"),
        ("blocks.1.self_attn_residual_norm.norm.bias", "blocks.1.norm2.bias"),
        ("blocks.1.ffn.fc_in.weight", "blocks.1.ffn.net.0.proj.weight"),
        ("blocks.1.ffn.net.2.weight", "blocks.1.ffn.net.2.weight"),
        ("blocks.14.action_model.t_qkv.weight", "actions.14.t_qkv.weight"),
        ("scale_shift_table", "scale_shift_table"),
    ],
)
def test_fastvideos_names_become_diffusers(in_file, name):
    assert diffusers_name(in_file) == name


def test_a_steps_arithmetic_is_that_of_one_block_and_its_actions():
    family, spec = find_family(PRESET)
    request = example_request(PRESET)
    requests = [request, request.model_copy(update={"num_frames": 501})]
    one, other = (family.step_flops(PRESET.network_configs(), one, branches=1) for one in requests)
    tokens = 3 * 880
    actions = 15 * 2 * tokens * ((1536 + 1024 + 3 * 1024 + 1536) * 1024 + 2 * 1536 * 1024)
    plain = 30 * (2 * tokens * (6 * 1536 + 2 * 8960) * 1536 + 4 * tokens * 257 * 1536)
    assert spec.chunk == 3 and one == other
    assert (one.attention, one.matmul) == (4 * tokens * (6 * 880) * 1536 * 30, plain + actions)
