"""A transformer in a single file with Wan's own names generates the same video as its checkpoint's folder, to the last bit."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from backend.catalog.weights_here import matches_preset
from backend.errors import ModelError
from backend.models.wan.original import original_tensor_name
from backend.pipeline import load as load_module
from backend.pipeline.load import merge_loras
from backend.pipeline.model_files import check_model
from backend.settings import from_environment
from presets import LoraChoice
from tests.parity.tiny_runs import Tiny, latents_of

pytestmark = [pytest.mark.parity, pytest.mark.demo_model]

WEIGHTS = "diffusion_pytorch_model.safetensors"
MATRICES = (".self_attn.q", ".self_attn.k", ".self_attn.v", ".self_attn.o", ".cross_attn.q", ".ffn.0", ".ffn.2")


def makers_state(made: Tiny, part: str, prefix: str = "") -> dict[str, torch.Tensor]:
    """Return the part's tensors with Wan's own names."""
    state = load_file(Path(made.preset.model) / part / WEIGHTS)
    return {prefix + original_tensor_name(name): value for name, value in state.items()}


def loaded(made: Tiny, *files: Path):
    source = "+".join([made.preset.model, *map(str, files)])
    check_model(made.preset, source, lambda event: None)
    return load_module.load(made.preset, source, lambda event: None)


PREFIX = "model.diffusion_model."
CASES = [("wan2.1-vace", PREFIX)]  # the two experts' files below have names without a prefix
MORE_CASES = [("wan2.2-ti2v", ""), ("wan2.1-t2v", PREFIX), ("wan2.1-t2v", ""), ("wan2.1-i2v", ""), ("wan2.1-i2v", PREFIX), ("wan2.2-ti2v", PREFIX),
              ("wan2.1-vace", "")]  # fmt: skip


@pytest.mark.parametrize("family, prefix", CASES + [pytest.param(*case, marks=pytest.mark.slow) for case in MORE_CASES])
def test_one_file_makes_the_same_latents(family, prefix, tiny, pictures, tmp_path):
    made = tiny(family)
    save_file(makers_state(made, "transformer", prefix), tmp_path / "wan.safetensors")
    request = made.request(**({"image": pictures["image"]} if family == "wan2.1-i2v" else {}))
    ours = latents_of(request, loaded(made, tmp_path / "wan.safetensors"))
    np.testing.assert_array_equal(ours, latents_of(request, made.loaded))


def test_two_files_are_the_two_experts(tiny, tmp_path):
    made = tiny("wan2.2-t2v")
    high, low = tmp_path / "wan_high_noise.safetensors", tmp_path / "wan_low_noise.safetensors"
    save_file(makers_state(made, "transformer"), high)
    save_file(makers_state(made, "transformer_2"), low)
    np.testing.assert_array_equal(latents_of(made.request(), loaded(made, high, low)), latents_of(made.request(), made.loaded))
    with pytest.raises(ModelError, match="wan_low_noise.safetensors was given first, .*high-noise expert.s file must be first"):
        loaded(made, low, high)
    with pytest.raises(ModelError, match="and the model has 2 transformers; give it twice"):
        loaded(made, high)


@pytest.mark.parametrize("by_row", [pytest.param(False, marks=pytest.mark.slow), True])
def test_scaled_fp8_is_what_plain_pytorch_makes_of_it(by_row, tiny, tmp_path):
    made, folder = tiny("wan2.1-t2v"), tmp_path / "plain"
    shutil.copytree(made.preset.model, folder)
    own, plain = makers_state(made, "transformer"), {}
    names = {original_tensor_name(name): name for name in load_file(folder / "transformer" / WEIGHTS)}
    for name in [name for name in own if name.removesuffix(".weight").endswith(MATRICES)]:
        weight = own[name]
        scale = (weight.abs().amax(dim=1, keepdim=True) if by_row else weight.abs().max()) / 448
        own[name] = (weight / scale).to(torch.float8_e4m3fn)
        own[name.removesuffix("weight") + ("weight_scale" if by_row else "scale_weight")] = scale.float()
        plain[names[name]] = own[name].float() * scale
    assert len(plain) == 14
    own["scaled_fp8"] = torch.zeros(2, dtype=torch.float8_e4m3fn)
    save_file(own, tmp_path / "fp8.safetensors")
    save_file(load_file(folder / "transformer" / WEIGHTS) | plain, folder / "transformer" / WEIGHTS)
    request = made.request()
    reference = latents_of(request, load_module.load(made.preset, str(folder), lambda event: None))
    ours = loaded(made, tmp_path / "fp8.safetensors")
    np.testing.assert_array_equal(latents_of(request, ours), reference)
    assert np.abs(latents_of(request, made.loaded) - reference).max() > 1e-4
    # a LoRA changes the weights that the numbers represent
    lora = {"diffusion_model.blocks.0.self_attn.q.diff": torch.ones(256, 256)}
    from_environment().loras_dir.mkdir(parents=True, exist_ok=True)
    save_file(lora, from_environment().loras_dir / "one.safetensors")
    merge_loras(ours, [LoraChoice(source="one.safetensors", scale=0.01)], lambda event: None)
    found = np.asarray(ours.experts[0].weights.stacks["blocks."]["attn1.to_q.weight"][0]).T
    np.testing.assert_allclose(found, plain["blocks.0.attn1.to_q.weight"].numpy() + 0.01, atol=1e-6)


def test_a_file_of_another_model_is_refused_before_anything_is_read(tiny, tmp_path):
    made, other = tiny("wan2.1-t2v"), tiny("wan2.2-ti2v")
    save_file(makers_state(other, "transformer"), tmp_path / "other.safetensors")
    source = f"{made.preset.model}+{tmp_path / 'other.safetensors'}"
    with pytest.raises(ModelError, match="other.safetensors is an unknown transformer .256 wide, 2 layers, 48 channels") as said:
        check_model(made.preset, source, lambda event: None)
    assert "\n" not in str(said.value) and not matches_preset(made.preset, source)
    own = f"{made.preset.model}+{tmp_path / 'own.safetensors'}"
    with pytest.raises(ModelError, match="The transformer own.safetensors is not on this machine"):
        check_model(made.preset, own, lambda event: None)
    state = makers_state(made, "transformer")
    save_file({name: value for name, value in state.items() if "blocks.1.ffn.0.weight" not in name}, tmp_path / "own.safetensors")
    with pytest.raises(ModelError, match="blocks.1.ffn"):
        check_model(made.preset, own, lambda event: None)
    save_file(state, tmp_path / "own.safetensors")
    assert matches_preset(made.preset, own) and not matches_preset(other.preset, own)
