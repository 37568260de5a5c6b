"""Check a transformer in a single file: its names, the meaning of its numbers, and which model it is."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from diffusers import WanTransformer3DModel
from safetensors.torch import save_file

from backend.checkpoints.single_file import FileSource, assign_parts, parse_file_source, read_single_file_tensors
from backend.checkpoints.torch_file import TorchFile
from backend.cli.arguments import model_from_arguments
from backend.cli.command_line import parse
from backend.errors import ModelError, RequestError
from backend.models.wan.original import check_transformer, original_tensor_name
from backend.weights.read import read_tensor
from presets import load_preset

GENERATE = ["generate", "--prompt", "x", "--preset"]


@pytest.mark.parametrize("base", ["/models/a+b/wan", "Wan-AI/Wan2.1-T2V-1.3B-Diffusers"])
@pytest.mark.parametrize(
    "files",
    [
        ("/x/high+.safetensors",),
        ("/x/high.safetensors", "/x y/low.safetensors"),
        ("me/repo:split/high.safetensors", "/x/low.safetensors"),
        ("/x/plain.pt",),
        ("me/repo:high.pth", "me/repo:low.pth"),
    ],
)
def test_a_source_names_a_base_and_files(base, files):
    assert parse_file_source("+".join([base, *files])) == FileSource(base=base, files=files)


@pytest.mark.parametrize(
    "source",
    ["owner/name", "/models/wan", "owner/name+relative.safetensors", "base/one+owner/two:file.ptx", "/a+/b.safetensors+/c.ckpt"],
)
def test_other_sources_are_none(source):
    assert parse_file_source(source) is None


def quantised(weight: torch.Tensor, by_row: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise a weight to fp8 with one scale, or with one scale per row."""
    largest = weight.abs().amax(dim=1, keepdim=True) if by_row else weight.abs().max()
    scale = (largest / 448).float()
    return (weight / scale).to(torch.float8_e4m3fn), scale


@pytest.mark.parametrize("prefix", ["", "model.diffusion_model.", "diffusion_model."])
@pytest.mark.parametrize("ending", ["scale_weight", "weight_scale"])
@pytest.mark.parametrize("by_row", [False, True])
def test_scaled_numbers_are_what_they_stand_for(prefix, ending, by_row, tmp_path):
    torch.manual_seed(0)
    small, scale = quantised(torch.randn(6, 5), by_row)
    state = {"patch_embedding.weight": torch.randn(2, 3), "blocks.0.self_attn.q.weight": small, f"blocks.0.self_attn.q.{ending}": scale,
             "blocks.0.self_attn.q.scale_input": torch.ones(1), "blocks.0.self_attn.q.bias": torch.randn(6).half(),
             "scaled_fp8": torch.zeros(2, dtype=torch.float8_e4m3fn)}  # fmt: skip
    others = {"vae.x": torch.ones(2)} if prefix else {}  # all of a model in one file
    save_file({prefix + name: value for name, value in state.items()} | others, tmp_path / "x.safetensors")
    places = read_single_file_tensors(tmp_path / "x.safetensors")
    assert places.keys() == {"patch_embedding.weight", "blocks.0.self_attn.q.weight", "blocks.0.self_attn.q.bias"}
    found = {name: read_tensor(place) for name, place in places.items()}
    assert torch.equal(found["blocks.0.self_attn.q.weight"], small.float() * scale)
    assert torch.equal(found["blocks.0.self_attn.q.bias"], state["blocks.0.self_attn.q.bias"])


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ({"a.weight": ((4, 4), "uint8")}, "as U8: only float32, float16, bfloat16, and fp8, int8 and fp4 .* can be read"),
        ({"a.weight": ((4, 4), "int8"), "a.weight_scale": ((4,), "float32")}, "as I8"),
        ({"a.weight": ((4, 4), "float8_e4m3fn"), "a.weight_scale": ((8,), "float32")}, "8 scales: it must have one"),
        ({"a.weight": ((4, 4), "float8_e4m3fn"), "scaled_fp8": ((0,), "float32")}, "a.weight has no scale"),
        ({"a.int8_weight": ((200, 4), "int8"), "a.scale": ((1, 1), "float32")}, "without a scale for each tile"),
        ({"a.int8_weight": ((200, 4), "int8")}, "without a scale for each tile"),
        (
            {
                "a.weight": ((4, 8), "uint8"),
                "a.alpha": ((), "float32"),
                "a.input_global_scale": ((1,), "float32"),
                "a.weight_scale": ((4, 1), "float8_e4m3fn"),
            },
            r"as fp4 \[4, 16\] with 4 scales: it must be a matrix with 512 scales",
        ),
    ],
)
def test_numbers_that_cannot_be_read_are_refused(state, said, tmp_path):
    tensors = {name: torch.ones(shape).to(getattr(torch, dtype)) for name, (shape, dtype) in state.items()}
    save_file(tensors, tmp_path / "x.safetensors")
    with pytest.raises(ModelError, match=said) as refused:
        read_single_file_tensors(tmp_path / "x.safetensors")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("ending", [".pth", ".safetensors"])
def test_int8_is_multiplied_by_the_scale_of_its_tile(ending, tmp_path):
    torch.manual_seed(0)
    numbers = torch.randint(-128, 128, (200, 256)).to(torch.int8)
    scale, bias, projection = torch.rand(2, 2), torch.randn(200).bfloat16(), torch.randn(4, 4)
    stem = "blocks.0.ffn.0"
    state = {f"{stem}.int8_weight": numbers, f"{stem}.scale": scale, f"{stem}.bias": bias, "proj_l.weight": projection}
    path = tmp_path / f"x-quant{ending}"
    torch.save(state, path) if ending == ".pth" else save_file(state, path)
    places = read_single_file_tensors(assign_parts([path])["transformer"])
    found = {name: read_tensor(place) for name, place in places.items()}
    assert found.keys() == {f"{stem}.weight", f"{stem}.bias", "proj_l.weight"}
    assert torch.equal(found[f"{stem}.bias"], bias) and torch.equal(found["proj_l.weight"], projection)
    for row, column in ((0, 0), (127, 128), (128, 127), (199, 255)):
        expected = numbers[row, column].float() * scale[row // 128, column // 128]
        assert found[f"{stem}.weight"][row, column] == expected


E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


def test_fp4_is_multiplied_by_the_scale_of_its_16_numbers(tmp_path):
    """Each number is found by the kernel's formulas: the low half of a byte is first, and scales are in tiles of 128 x 4."""
    torch.manual_seed(0)
    rows, columns = 130, 160
    packed = torch.randint(0, 256, (rows, columns // 2)).to(torch.uint8)
    scales = torch.rand(256, 12).to(torch.float8_e4m3fn)
    state = {
        "a.weight": packed,
        "a.weight_scale": scales,
        "a.alpha": torch.tensor(0.25),
        "a.input_global_scale": torch.tensor([3.0]),
        "a.bias": torch.ones(3),
    }
    save_file(state, tmp_path / "x.safetensors")
    places = read_single_file_tensors(tmp_path / "x.safetensors")
    assert places.keys() == {"a.weight", "a.bias"} and places["a.weight"].shape == (rows, columns)
    found, flat = read_tensor(places["a.weight"]), scales.flatten().float()
    for row in range(rows):
        for column in range(0, columns, 7):
            half = int(packed[row, column // 2]) >> 4 * (column % 2) & 15
            number, block = E2M1[half & 7] * (-1 if half & 8 else 1), column // 16
            offset = (row // 128 * 3 + block // 4) * 512 + row % 32 * 16 + row % 128 // 32 * 4 + block % 4
            assert found[row, column] == number * (flat[offset] * (0.25 * 3.0))


def shapes_of(name: str) -> tuple[dict[str, tuple[int, ...]], dict]:
    """Return the shapes of a published transformer with Wan's own names, and its configuration."""
    config = load_preset(name).network_configs()["transformer"]
    with torch.device("meta"):
        state = WanTransformer3DModel.from_config(config).state_dict()
    return {original_tensor_name(name): tuple(value.shape) for name, value in state.items()}, config


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("wan2.1-t2v-1.3b-480p", "Wan 2.1 T2V 1.3B"),
        ("wan2.1-t2v-14b-480p", "Wan 2.1 T2V 14B or an expert of Wan 2.2 T2V A14B"),
        ("wan2.1-i2v-14b-480p", "Wan 2.1 I2V 14B"),
        ("wan2.1-flf2v-14b-720p", "Wan 2.1 FLF2V 14B"),
        ("wan2.2-i2v-a14b-480p", "an expert of Wan 2.2 I2V A14B"),
        ("wan2.2-ti2v-5b-720p", "Wan 2.2 TI2V 5B"),
    ],
)
def test_each_published_size_is_recognised_and_no_other_takes_its_place(file, words):
    shapes, config = shapes_of(file)
    check_transformer("x.safetensors", shapes, config)
    other = "wan2.1-t2v-1.3b-480p" if file != "wan2.1-t2v-1.3b-480p" else "wan2.2-ti2v-5b-720p"
    expected = load_preset(other).network_configs()["transformer"]
    with pytest.raises(ModelError) as refused:
        check_transformer("x.safetensors", shapes, expected)
    assert str(refused.value).startswith(f"x.safetensors is {words} (") and "and the model needs Wan 2." in str(refused.value)


def test_what_is_no_transformer_of_wan_is_refused():
    shapes, config = shapes_of("wan2.1-t2v-1.3b-480p")
    with pytest.raises(ModelError, match="x.safetensors has no Wan transformer"):
        check_transformer("x.safetensors", {"double_blocks.0.img_attn.qkv.weight": (3, 3)}, config)
    with pytest.raises(ModelError, match="x.safetensors is a VACE transformer"):
        check_transformer("x.safetensors", shapes | {"vace_patch_embedding.weight": (1536, 96, 1, 2, 2)}, config)
    fewer = {name: shape for name, shape in shapes.items() if not name.startswith("blocks.29.")}
    with pytest.raises(ModelError, match="an unknown transformer .1536 wide, 29 layers, 16 channels"):
        check_transformer("x.safetensors", fewer, config)


def test_the_command_line_names_files_beside_the_presets_model_or_another(tmp_path):
    high, low = tmp_path / "high.safetensors", tmp_path / "low.safetensors"
    for path in (high, low):
        path.touch()
    words = [*GENERATE, "wan2.2-t2v-a14b-480p", "--transformer", str(high), "--transformer", str(low)]
    assert model_from_arguments(parse(words)) == f"Wan-AI/Wan2.2-T2V-A14B-Diffusers+{high}+{low}"
    assert model_from_arguments(parse([*words, "--model", "me/mine"])) == f"me/mine+{high}+{low}"
    assert model_from_arguments(parse([*GENERATE, "longlive-1.3b-480p", "--transformer", "me/x:a/b.safetensors"])).endswith(
        "+me/x:a/b.safetensors"
    )
    assert model_from_arguments(parse(["serve", "--model", "me/mine", "--transformer", str(high)])) == f"me/mine+{high}"
    assert model_from_arguments(parse(["denoise", "--run", "x", "--transformer", str(high)]), "wan2.1-t2v-1.3b-480p").startswith(
        "Wan-AI/"
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["serve", "--transformer", "FILE"], "give --model too"),
        ([*GENERATE, "wan-tiny", "--transformer", "/nowhere/x.safetensors"], "check the path"),
        ([*GENERATE, "wan-tiny", "--transformer", "FOLDER"], "must be a file that ends in .safetensors or .pt"),
        ([*GENERATE, "wan-tiny", *["--transformer", "FILE"] * 3], "a checkpoint has two at most"),
    ],
)
def test_wrong_files_are_refused_on_the_command_line(words, said, tmp_path):
    (tmp_path / "x.safetensors").touch()
    places = {"FILE": str(tmp_path / "x.safetensors"), "FOLDER": str(tmp_path)}
    with pytest.raises(RequestError, match=said):
        model_from_arguments(parse([places.get(word, word) for word in words]))


def test_a_file_of_pytorch_is_read_as_one():
    assert assign_parts([Path("/a.pt")]) == {"transformer": TorchFile(path=Path("/a.pt"))}
    assert list(assign_parts([Path("/a.safetensors"), Path("/b.safetensors")])) == ["transformer", "transformer_2"]
