"""A checkpoint's own configurations state that it is a VACE model. Other checkpoints, and checkpoints that do not fit the
preset, are refused.
"""

from pathlib import Path

import pytest

from backend.checkpoints.checkpoint import Checkpoint
from backend.chips import StepFlops
from backend.errors import ModelError
from backend.models import find_family, recognise
from backend.models.spec import check_preset
from backend.models.wan.original import check_transformer, original_tensor_name
from backend.models.wan.spec import NEEDED_ENTRIES
from backend.models.wan_vace.spec import WAN_VACE
from backend.models.wan_vace.transformer import Segments, group_layers
from backend.schemas.request import example_request
from presets import load_preset

CONTROL = {"_class_name": "WanVACETransformer3DModel", "in_channels": 16, "num_layers": 40, "vace_in_channels": 96}
CONTROL |= {"vace_layers": list(range(0, 40, 5))}


def spec_of(experts: int = 1, **transformer):
    parts = {part: ["diffusers", part] for part in NEEDED_ENTRIES}
    index = {"_class_name": "WanVACEPipeline", "transformer_2": [None, None], **parts}
    configs = {part: dict.fromkeys(entries, 1) for part, entries in NEEDED_ENTRIES.items()}
    configs["transformer"] |= {name: value for name, value in (CONTROL | transformer).items() if value is not None}
    configs["vae"] |= {"z_dim": 16}
    if experts == 2:
        index |= {"transformer_2": ["diffusers", "x"], "boundary_ratio": 0.875}
        configs["transformer_2"] = configs["transformer"]
    return recognise(Checkpoint(folder=Path("model"), index=index, configs=configs))[1]


def test_both_kinds_are_recognised():
    assert (spec_of().name, spec_of().boundary) == ("wan2.1-vace", None)
    assert (spec_of(2).name, spec_of(2).boundary, spec_of(2).num_experts) == ("wan2.2-vace", 0.875, 2)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"vace_layers": None}, "vace_layers"),
        ({"vace_in_channels": None}, "vace_in_channels"),
        ({"vace_in_channels": 132}, "its control blocks take 132 channels and its VAE makes 16"),
        ({"in_channels": 36}, "its control blocks take 96 channels"),
        ({"vace_layers": [5, 10]}, "its control blocks are at the layers 5, 10"),
        ({"vace_layers": [0, 40]}, "its control blocks are at the layers 0, 40"),
        ({"_class_name": "WanTransformer3DModel"}, "it has a WanTransformer3DModel"),
    ],
)
def test_what_is_none_is_refused(changes, said):
    with pytest.raises(ModelError) as caught:
        spec_of(**changes)
    assert said in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("preset", ["wan2.1-t2v-14b-720p", "wan2.1-i2v-14b-720p"])
def test_a_vace_takes_no_other_presets_place(preset):
    with pytest.raises(ModelError, match="is a wan2.1-vace"):
        check_preset(spec_of(), load_preset(preset), "model")
    check_preset(spec_of(), load_preset("wan2.1-vace-14b-720p"), "model")
    _, other = find_family(load_preset("wan2.1-t2v-14b-720p"))
    with pytest.raises(
        ModelError,
        match=r"is a wan2.1-t2v \(inputs: control=no and mask=no and references=no and keyframes=no\).*wan2.1-vace-14b-720p",
    ):
        check_preset(other, load_preset("wan2.1-vace-14b-720p"), "model")


def test_a_step_is_so_much_more_work_than_the_plain_models():
    """Check 8 control blocks for 40 layers, and 15 for 30. Each is as large as a layer, with one more matrix."""
    for name, plain, blocks in (("wan2.1-vace-14b-720p", "wan2.1-t2v-14b-720p", 8 / 40),
                                ("wan2.1-vace-1.3b-480p", "wan2.1-t2v-1.3b-480p", 15 / 30)):  # fmt: skip
        ours, theirs = (flops(load_preset(one)) for one in (name, plain))
        assert ours.attention == pytest.approx((1 + blocks) * theirs.attention)
        assert 1 + blocks < ours.matmul / theirs.matmul < 1.05 * (1 + blocks)


def flops(preset) -> StepFlops:
    family, _ = find_family(preset)
    return family.step_flops(preset.network_configs(), example_request(preset), 2)


def test_the_layers_fall_into_segments():
    assert list(group_layers(range(0, 40, 5), 40)) == [Segments(control=0, count=8, layer=0, length=5)]
    assert list(group_layers([0, 2], 3)) == [
        Segments(control=0, count=1, layer=0, length=2),
        Segments(control=1, count=1, layer=2, length=1),
    ]


def test_wans_makers_have_other_names_for_the_control_blocks():
    names = {
        "vace_blocks.0.proj_in.weight": "vace_blocks.0.before_proj.weight",
        "vace_blocks.7.proj_out.bias": "vace_blocks.7.after_proj.bias",
        "vace_blocks.3.attn1.to_out.0.weight": "vace_blocks.3.self_attn.o.weight",
        "vace_blocks.3.norm2.bias": "vace_blocks.3.norm3.bias",
        "vace_blocks.3.scale_shift_table": "vace_blocks.3.modulation",
        "vace_patch_embedding.weight": "vace_patch_embedding.weight",
        "proj_out.weight": "head.head.weight",
    }
    assert {name: original_tensor_name(name) for name in names} == names
    assert WAN_VACE.lora_names("vace_blocks.1.ffn.net.2")[0].name == "vace_blocks.1.ffn.2"


@pytest.mark.parametrize(("is_vace", "said"), [(True, "is a VACE transformer"), (False, "is not a VACE transformer")])
def test_a_file_of_the_other_sort_is_refused(is_vace, said):
    shapes = {
        "patch_embedding.weight": (256, 16, 1, 2, 2),
        "blocks.0.self_attn.q.weight": (256, 256),
        "blocks.0.ffn.0.weight": (256, 256),
        "text_embedding.0.weight": (256, 32),
        "time_embedding.0.weight": (256, 256),
        "head.head.weight": (64, 256),
    }
    config = {"num_attention_heads": 2, "attention_head_dim": 128, "num_layers": 1, "in_channels": 16}
    control = {"vace_patch_embedding.weight": (256, 96, 1, 2, 2)}
    with pytest.raises(ModelError, match=said):
        check_transformer(
            "x.safetensors", shapes | control if is_vace else shapes, config if is_vace else config | CONTROL | config
        )
