"""One rule compares a checkpoint's spec with a preset, and one table finds the family of a checkpoint."""

import dataclasses
from pathlib import Path

import pytest
from pydantic import BaseModel

from backend.checkpoints.checkpoint import Checkpoint
from backend.errors import ModelError
from backend.models import FAMILIES, complete_checkpoint, find_family
from backend.models.spec import FACTS, ModelSpec, check_preset
from presets import Preset, load_preset

OWN = {"name", "boundary"}
"""Names of spec and preset that are no facts. A spec's name is the model's. A preset's boundary is used if the checkpoint has none."""


def names_of(model: type) -> set[str]:
    fields = model.model_fields if issubclass(model, BaseModel) else {field.name for field in dataclasses.fields(model)}
    return {*fields, *(name for name in dir(model) if isinstance(getattr(model, name), property))}


def test_every_fact_that_specs_and_presets_have_in_common_is_compared():
    assert names_of(ModelSpec) & names_of(Preset) == {*FACTS} | OWN


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("wan2.1-t2v-1.3b-480p", {"tasks": ("t2v", "i2v")}, ("tasks: t2v", "tasks: t2v and i2v")),
        ("wan2.1-t2v-1.3b-480p", {"guidance": (3.0, 4.0)}, ("num_experts: 1", "num_experts: 2")),
        ("wan2.1-t2v-1.3b-480p", {"vae_scale_temporal": 8}, ("vae_scale_temporal: 4", "vae_scale_temporal: 8")),
        ("wan2.1-t2v-1.3b-480p", {"size_multiple": 8}, ("patch: 2", "patch: 1")),
        ("wan2.1-t2v-1.3b-480p", {"takes": {"references": "may"}}, ("inputs: references=no", "inputs: references=may")),
        ("wan2.2-animate-2-14b", {"takes": {}, "segment_frames": None}, ("inputs: drive=must", "inputs: drive=no")),
        ("wan2.1-vace-1.3b-480p", {"takes": {"video": "may"}}, ("has_control_blocks: True", "has_control_blocks: False")),
        ("wan2.1-t2v-1.3b-480p", {"continues": True}, ("continues: False", "continues: True")),
        ("ltx-2.3-704p", {"refines": True, "size_multiple": 64}, ("refines: False", "refines: True")),
        ("ltx-2.3-704p", {"makes_sound": False}, ("makes_sound: True", "makes_sound: False")),
        ("wan2.1-live-1.3b-480p", {"live": False}, ("live: True", "live: False")),
        ("wan2.1-live-1.3b-480p", {"frame_step": 4}, ("frame_step: 12", "frame_step: 4")),
        ("wan2.1-live-1.3b-480p", {"first_frames": 1}, ("first_frames: 9", "first_frames: 1")),
        ("wan2.1-live-1.3b-480p", {"actions": ("jump",)}, ("actions: none", "actions: jump")),
        ("wan-live-tiny", {"combines_actions": True}, ("combines_actions: False", "combines_actions: True")),
        ("matrix-game-2.0", {"reads_prompt": True}, ("reads_prompt: False", "reads_prompt: True")),
        ("wan-tiny-animate", {"segment_frames": 33}, ("segment_frames: 17", "segment_frames: 33")),
        ("wan2.2-animate-14b", {"face_side": 256}, ("face_side: 512", "face_side: 256")),
    ],
)
def test_a_fact_that_differs_is_named_with_both_values(name, changes, said):
    preset = load_preset(name)
    spec, (found, asked) = find_family(preset)[1], said
    with pytest.raises(ModelError) as caught:
        check_preset(spec, preset.model_copy(update=changes), "model")
    assert str(caught.value) == (
        f"The model model is a {spec.name} ({found}), and the preset {name} is for another kind ({asked}); "
        f"use a preset of {spec.name}, or another --model"
    )


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("wan2.2-ti2v-5b-720p", {"tasks": ("i2v",), "takes": {}, "continues": False}),
        ("wan2.2-i2v-a14b-720p", {"takes_last_image": True, "needs_last_image": True}),
        ("matrix-game-2.0", {"actions": ("forward",), "combines_actions": False}),
        ("ltx-2.5-1024p-fast", {"refines": False, "size_multiple": 32}),
        ("wan2.1-live-1.3b-480p", {"frame_step": 24, "first_frames": 21}),
    ],
)
def test_a_preset_may_ask_for_less_than_the_checkpoint_offers(name, changes):
    preset = load_preset(name)
    check_preset(find_family(preset)[1], preset.model_copy(update=changes), "model")


def test_no_pipeline_belongs_to_two_families():
    families = dict.fromkeys(FAMILIES.values())
    assert sum(len(family.pipelines) for family in families) == len(FAMILIES)
    assert len({family.name for family in families}) == len(families)


@pytest.mark.parametrize("pipeline", ["LTX2Pipeline", "WanAnimatePipeline", "MatrixGameCausalDMDPipeline", "FluxPipeline"])
def test_a_file_for_a_model_without_single_files_is_refused(pipeline):
    files = {"transformer": Path("/models/x.safetensors")}
    checkpoint = Checkpoint(folder=Path("model"), index={"_class_name": pipeline}, configs={}, transformer_files=files)
    with pytest.raises(ModelError) as caught:
        complete_checkpoint(checkpoint)
    assert str(caught.value) == (
        f"--transformer was given for x.safetensors, but a {pipeline} has its transformer in its own folder; leave it out"
    )
