"""Each kind of LoRA file, in each style of keys, changes the same as a merge in plain PyTorch. Unsuitable files are reported."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from backend.errors import ModelError
from backend.models.hunyuan.spec import HUNYUAN
from backend.models.wan.spec import WAN
from backend.weights.lora import ScaledLora, apply_loras, read_lora

SHAPES = {
    "blocks.0.attn1.to_q.weight": (12, 8),
    "blocks.0.attn1.to_q.bias": (12,),
    "blocks.0.ffn.net.0.proj.weight": (8, 8),  # square: only the shape of the lengths distinguishes rows from columns
    "patch_embedding.weight": (12, 4, 1, 2, 2),
}
STYLES = {
    "diffusers": ("transformer.", "blocks.0.attn1.to_q", "blocks.0.ffn.net.0.proj"),
    "peft": ("base_model.model.", "blocks.0.attn1.to_q", "blocks.0.ffn.net.0.proj"),
    "makers": ("diffusion_model.", "blocks.0.self_attn.q", "blocks.0.ffn.0"),
    "kohya": ("lora_unet_", "blocks_0_self_attn_q", "blocks_0_ffn_0"),
    "lycoris": ("lycoris_", "blocks_0_attn1_to_q", "blocks_0_ffn_net_0_proj"),
}
RANK, ALPHA = 2, 3.0
TOLERANCE = 2e-6  # float32, sums of some ten products of order 1


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape) * 7 + len(shape)))


def kronecker(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Return the Kronecker product: `second` times each number of `first`, block by block."""
    return torch.cat([torch.cat([number * second for number in row], dim=1) for row in first])


MATRIX_KINDS = (*("LoRA", "LoHa", "LoHa without alpha", "LoKr", "LoKr, one of low rank", "LoKr, both of low rank", "difference"),)


def matrix_cases() -> dict[str, tuple[dict[str, torch.Tensor], torch.Tensor]]:
    """Return factors for a matrix 12 x 8, and its change by the papers' formulas, including alpha."""
    scale = ALPHA / RANK
    down, up = drawn(RANK, 8), drawn(12, RANK)
    halves = {"hada_w1_a": drawn(12, RANK), "hada_w1_b": drawn(RANK, 8), "hada_w2_a": drawn(12, RANK) + 1,
              "hada_w2_b": drawn(RANK, 8) - 1}  # fmt: skip
    product = (halves["hada_w1_a"] @ halves["hada_w1_b"]) * (halves["hada_w2_a"] @ halves["hada_w2_b"])
    small, large = drawn(3, 2), drawn(4, 4)
    left, right = drawn(4, RANK), drawn(RANK, 4)
    first, second = drawn(3, RANK), drawn(RANK, 2)
    alpha = {"alpha": torch.tensor(ALPHA)}
    cases = {
        "LoRA": ({"lora_down.weight": down, "lora_up.weight": up, **alpha}, scale * up @ down),
        "LoHa": (halves | alpha, scale * product),
        "LoHa without alpha": (halves, product),
        "LoKr": ({"lokr_w1": small, "lokr_w2": large, **alpha}, kronecker(small, large)),  # without a rank, no alpha
        "LoKr, one of low rank": (
            {"lokr_w1": small, "lokr_w2_a": left, "lokr_w2_b": right, **alpha},
            scale * kronecker(small, left @ right),
        ),
        "LoKr, both of low rank": (
            {"lokr_w1_a": first, "lokr_w1_b": second, "lokr_w2_a": left, "lokr_w2_b": right, **alpha},
            scale * kronecker(first @ second, left @ right),
        ),
        "difference": ({"diff": drawn(12, 8)}, drawn(12, 8)),
    }
    assert tuple(cases) == MATRIX_KINDS
    return cases


def merged(path: Path, base: torch.Tensor, tensor: str, scale: float = 1.0, shapes=SHAPES, family=WAN) -> torch.Tensor:
    file = read_lora(path, shapes, 0, family.lora_names)
    return apply_loras([ScaledLora(file=file, scale=scale)], tensor, base)


def keys(style: str, factors: dict[str, torch.Tensor], module: int = 0) -> dict[str, torch.Tensor]:
    prefix, *modules = STYLES[style]
    return {f"{prefix}{modules[module]}.{name}": value.contiguous() for name, value in factors.items()}


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("kind", MATRIX_KINDS)
def test_each_kind_in_each_style_equals_the_formula(kind, style, tmp_path):
    factors, change = matrix_cases()[kind]
    save_file(keys(style, factors), tmp_path / "x.safetensors")
    base = drawn(12, 8).flip(0)
    found = merged(tmp_path / "x.safetensors", base, "blocks.0.attn1.to_q.weight", 0.5)
    torch.testing.assert_close(found, base + 0.5 * change, atol=10 * TOLERANCE, rtol=TOLERANCE)
    assert not torch.equal(found, base)


def test_a_bias_has_its_own_difference(tmp_path):
    save_file(keys("makers", {"diff_b": drawn(12)}), tmp_path / "x.safetensors")
    base = torch.ones(12)
    assert torch.equal(merged(tmp_path / "x.safetensors", base, "blocks.0.attn1.to_q.bias", 2.0), base + 2 * drawn(12))


@pytest.mark.parametrize("kind", ["LoRA", "LoHa", "LoKr, one of low rank", "difference"])
@pytest.mark.parametrize(
    ("name", "shape", "axis"),
    [
        ("lora_magnitude_vector", (12,), 1),
        ("lora_magnitude_vector.weight", (12,), 1),
        ("lora_magnitude_vector.default.weight", (12,), 1),
        ("dora_scale", (12, 1), 1),
        ("dora_scale", (12,), 1),
        ("dora_scale", (1, 8), 0),
    ],
)
def test_dora_gives_rows_or_columns_their_lengths(kind, name, shape, axis, tmp_path):
    factors, change = matrix_cases()[kind]
    lengths = drawn(*shape).abs() + 0.5
    save_file(keys("diffusers", factors | {name: lengths}), tmp_path / "x.safetensors")
    base = drawn(12, 8).flip(0)
    whole = torch.nn.functional.normalize(base + change, dim=axis) * lengths.reshape((-1, 1) if axis else (1, -1))
    for scale in (1.0, 0.4):  # at scale 1 the makers' weights; below, this fraction of the way to them
        found = merged(tmp_path / "x.safetensors", base, "blocks.0.attn1.to_q.weight", scale)
        torch.testing.assert_close(found, base + scale * (whole - base), atol=10 * TOLERANCE, rtol=10 * TOLERANCE)


def test_the_lengths_of_a_square_matrix_are_told_by_their_shape(tmp_path):
    down, up, base = drawn(RANK, 8), drawn(8, RANK), drawn(8, 8).flip(1)
    for shape, axis in (((8, 1), 1), ((1, 8), 0)):
        lengths = torch.arange(1.0, 9.0).reshape(shape)
        factors = {"lora_down.weight": down, "lora_up.weight": up, "dora_scale": lengths}
        save_file(keys("kohya", factors, module=1), tmp_path / "x.safetensors")
        found = merged(tmp_path / "x.safetensors", base, "blocks.0.ffn.net.0.proj.weight")
        torch.testing.assert_close(found.norm(dim=axis), lengths.flatten(), rtol=10 * TOLERANCE, atol=0)


def convolution_cases() -> dict[str, tuple[dict[str, torch.Tensor], torch.Tensor]]:
    """Return factors for a convolution 12 x 4 x 1 x 2 x 2, some with a core (Tucker), and its change."""
    size = (1, 2, 2)
    cores = {f"hada_t{number}": drawn(RANK, RANK, *size) + number for number in (1, 2)}
    sides = {"hada_w1_a": drawn(RANK, 12), "hada_w1_b": drawn(RANK, 4), "hada_w2_a": drawn(RANK, 12) - 1,
             "hada_w2_b": drawn(RANK, 4) + 1}  # fmt: skip
    halves = [
        torch.einsum("ijtyx,jc,ir->rctyx", cores[f"hada_t{n}"], sides[f"hada_w{n}_b"], sides[f"hada_w{n}_a"]) for n in (1, 2)
    ]
    first, core, left, right = drawn(3, 2), drawn(RANK, RANK, *size), drawn(RANK, 4), drawn(RANK, 2)
    second = torch.einsum("ijtyx,jc,ir->rctyx", core, right, left)
    blocks = torch.cat([torch.cat([number * second for number in row], dim=1) for row in first])
    down, up = drawn(RANK, 4, *size), drawn(12, RANK, 1, 1, 1)
    return {
        "LoRA": ({"lora_A.weight": down, "lora_B.weight": up}, torch.einsum("rctyx,or->octyx", down, up[..., 0, 0, 0])),
        "LoHa": (sides | cores, halves[0] * halves[1]),
        "LoKr": ({"lokr_w1": first, "lokr_w2_a": left, "lokr_w2_b": right, "lokr_t2": core}, blocks),
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["LoRA", "LoHa", "LoKr"])
def test_a_convolution_is_changed_too(kind, tmp_path):
    factors, change = convolution_cases()[kind]
    save_file({f"diffusion_model.patch_embedding.{name}": value for name, value in factors.items()}, tmp_path / "x.safetensors")
    base = drawn(12, 4, 1, 2, 2).flip(0)
    found = merged(tmp_path / "x.safetensors", base, "patch_embedding.weight")
    torch.testing.assert_close(found, base + change, atol=10 * TOLERANCE, rtol=10 * TOLERANCE)


def test_a_matrix_that_stands_for_three_changes_each_of_them(tmp_path):
    """HunyuanVideo's query, key and value are one matrix in ComfyUI's files."""
    names = [f"transformer_blocks.0.attn.to_{part}.weight" for part in "qkv"]
    shapes = dict.fromkeys(names, (4, 6))
    small, large, lengths = drawn(3, 2), drawn(4, 3), torch.arange(1.0, 13.0)
    stem = "diffusion_model.double_blocks.0.img_attn.qkv"
    factors, base = {f"{stem}.lokr_w1": small, f"{stem}.lokr_w2": large}, drawn(12, 6).flip(0)
    changed = base + kronecker(small, large)
    turned = torch.nn.functional.normalize(changed, dim=1) * lengths[:, None]
    for extra, whole in (({}, changed), ({f"{stem}.dora_scale": lengths[:, None]}, turned)):
        save_file(factors | extra, tmp_path / "x.safetensors")
        for part, name in enumerate(names):
            found = merged(tmp_path / "x.safetensors", base.chunk(3)[part], name, 1.0, shapes, HUNYUAN)
            torch.testing.assert_close(found, whole.chunk(3)[part], atol=10 * TOLERANCE, rtol=10 * TOLERANCE)
    columns = {f"{stem}.dora_scale": drawn(1, 6)}  # lengths over all three matrices do not determine the lengths of one
    save_file(factors | columns, tmp_path / "x.safetensors")
    with pytest.raises(ModelError, match="has a DoRA magnitude of another size"):
        read_lora(tmp_path / "x.safetensors", shapes, 0, HUNYUAN.lora_names)


@pytest.mark.parametrize(
    ("factors", "said"),
    [
        ({"hada_w1_a": (12, 2), "hada_w1_b": (2, 8), "hada_w2_a": (12, 2)}, "lacks hada_w2_b of LoHa"),
        ({"lora_down.weight": (2, 8)}, "lacks up of LoRA"),
        ({"lokr_w1": (3, 2)}, "lacks lokr_w2 of LoKr"),
        ({"lokr_w1": (3, 2), "lokr_w2_a": (4, 2)}, "lacks lokr_w2_b of LoKr"),
        ({"lokr_w1": (3, 2), "lokr_w2": (4, 5)}, "has LoKr of another size"),
        ({"lokr_w1": (6, 2), "lokr_w2": (4, 2)}, "has LoKr of another size"),  # as many numbers, but other rows
        ({"hada_w1_a": (12, 2), "hada_w1_b": (3, 8), "hada_w2_a": (12, 2), "hada_w2_b": (2, 8)}, "has LoHa of another size"),
        # the shapes of the transposed matrix
        ({"lora_down.weight": (2, 12), "lora_up.weight": (8, 2)}, "has LoRA of another size"),
        ({"lora_down.weight": (2, 8), "lora_up.weight": (12, 2), "lokr_w1": (3, 2)}, "mixes LoRA and LoKr"),
        ({"lora_down.weight": (2, 8), "lora_up.weight": (12, 2), "dora_scale": (1, 9)}, "has a DoRA magnitude of another size"),
        ({"dora_scale": (12, 1)}, "has no factors"),
        ({"diff": (12, 9)}, "has a difference of another size"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_sentence(factors, said, tmp_path):
    state = {name: torch.ones(shape) for name, shape in factors.items()}
    save_file(keys("makers", state), tmp_path / "x.safetensors")
    with pytest.raises(ModelError, match="changes nothing in this model") as refused:
        read_lora(tmp_path / "x.safetensors", SHAPES, 0, WAN.lora_names)
    assert f"blocks.0.attn1.to_q.weight {said}" in str(refused.value) and "\n" not in str(refused.value)
    other = keys("makers", {"lokr_w1": drawn(2, 2), "lokr_w2": drawn(4, 4)}, module=1)
    save_file(keys("makers", state) | other, tmp_path / "y.safetensors")  # the unsuitable part is reported, the rest is merged
    file = read_lora(tmp_path / "y.safetensors", SHAPES, 0, WAN.lora_names)
    assert file.changes.keys() == {"blocks.0.ffn.net.0.proj.weight"} and len(file.unused_keys) == len(factors)
    assert file.describe_keys().endswith(f": blocks.0.attn1.to_q.weight {said}")


def test_a_half_precision_file_changes_a_half_precision_weight(tmp_path):
    factors, _ = matrix_cases()["LoHa"]
    save_file(keys("kohya", {name: value.to(torch.bfloat16) for name, value in factors.items()}), tmp_path / "x.safetensors")
    base = drawn(12, 8).to(torch.bfloat16)
    rounded = {name: value.to(torch.bfloat16).float() for name, value in factors.items()}
    product = (rounded["hada_w1_a"] @ rounded["hada_w1_b"]) * (rounded["hada_w2_a"] @ rounded["hada_w2_b"])
    found = merged(tmp_path / "x.safetensors", base, "blocks.0.attn1.to_q.weight")
    expected = base.float() + rounded["alpha"] / RANK * product
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found.numpy(), expected.numpy(), atol=10 * TOLERANCE, rtol=10 * TOLERANCE)
