"""LoRAs change the same as diffusers' `load_lora_weights`, and leave nothing behind."""

from __future__ import annotations

import re
from pathlib import Path

import jax
import numpy as np
import peft
import pytest
import torch
from safetensors.torch import save_file

from backend.errors import ModelError
from backend.models.common import networks
from backend.models.wan.spec import WAN
from backend.pipeline import load as load_module
from backend.pipeline.load import merge_loras
from backend.runtime.program import Program
from backend.settings import from_environment
from backend.weights.host_offload import HOST, is_offloaded
from backend.weights.lora import ScaledLora, apply_loras, read_lora
from presets import LoraChoice
from tests.kept import kept
from tests.parity.tiny_runs import Tiny, diffusers_latents, finished, latents_of, run_reference

pytestmark = [pytest.mark.parity, pytest.mark.demo_model]

LATENT_TOLERANCE = 1e-3  # the project's bar
RANK = 4
TEXT = r"blocks\.\d+\.(attn[12]\.(to_q|to_k|to_v|to_out\.0)|ffn\.net\.(0\.proj|2))\.weight"


@pytest.fixture
def loras() -> Path:
    folder = from_environment().loras_dir
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def low_rank(tiny: Tiny, style: str, seed: int = 0, pattern: str = TEXT, size: float = 0.1) -> dict[str, torch.Tensor]:
    """Return a LoRA for every matrix of the blocks, in one of the published styles of keys."""
    generator, state = torch.Generator().manual_seed(seed), {}
    for name, shape in tiny.loaded.experts[0].shapes.items():
        if not re.fullmatch(pattern, name):
            continue
        down, up = (torch.randn(*size_, generator=generator) * size for size_ in ((RANK, shape[1]), (shape[0], RANK)))
        stem = name.removesuffix(".weight")
        if style == "diffusers":
            state |= {f"transformer.{stem}.lora_A.weight": down, f"transformer.{stem}.lora_B.weight": up}
            continue
        stem = WAN.original_name(stem)
        if style == "lightx2v":
            stem = f"diffusion_model.{stem}"
            state[f"{stem}.diff_b"] = torch.randn(shape[0], generator=generator) * size
        else:
            stem = "lora_unet_" + stem.replace(".", "_")
        state |= {f"{stem}.lora_down.weight": down, f"{stem}.lora_up.weight": up, f"{stem}.alpha": torch.tensor(2.0)}
    return state


def reference_with(tiny: Tiny, request, *files: tuple[Path, float, bool]) -> np.ndarray:
    """Return diffusers' latents with these LoRA files: path, scale, and true for the second expert."""
    changes = [fact for path, scale, is_second in files for fact in (path, scale, is_second)]
    return kept(lambda: _reference_with(tiny, request, *files), tiny.weights, request, *changes)


def _reference_with(tiny: Tiny, request, *files: tuple[Path, float, bool]) -> np.ndarray:
    names = {"first": [], "second": []}
    for index, (path, _, is_second) in enumerate(files):
        names["second" if is_second else "first"].append(index)
        tiny.reference.load_lora_weights(path, adapter_name=f"a{index}", load_into_transformer_2=is_second)
    try:
        for key, transformer in (("first", tiny.reference.transformer), ("second", tiny.reference.transformer_2)):
            if names[key]:
                transformer.set_adapters([f"a{index}" for index in names[key]], [files[index][1] for index in names[key]])
        return diffusers_latents(tiny, request)
    finally:
        tiny.reference.unload_lora_weights()


@pytest.mark.parametrize("style", ["diffusers", "lightx2v", "kohya"])
def test_each_key_style_equals_diffusers(style, tiny, loras):
    made = tiny("wan2.1-t2v")
    save_file(low_rank(made, style), loras / f"{style}.safetensors")
    request = made.request(loras=[{"source": f"{style}.safetensors", "scale": 0.7}])
    ours, result = finished(request, made.loaded)
    reference = reference_with(made, request, (loras / f"{style}.safetensors", 0.7, False))
    plain = run_reference(made, request)
    assert np.abs(ours - reference).max() <= LATENT_TOLERANCE
    assert np.abs(plain - reference).max() > 100 * LATENT_TOLERANCE
    assert [note for note in result.notes if f"LoRA {style}.safetensors" in note and "fit nothing" not in note]


@pytest.mark.filterwarnings("ignore:Already found a `peft_config` attribute:UserWarning")  # the test needs two adapters
def test_two_loras_add_up_and_leave_nothing_behind(tiny, loras):
    made = tiny("wan2.1-t2v")
    plain = latents_of(made.request(), made.loaded)  # removes the LoRAs that an earlier test merged
    before = [np.array(leaf) for leaf in jax.tree.leaves(made.loaded.experts[0].weights)]
    for seed in (1, 2):
        save_file(low_rank(made, "diffusers", seed), loras / f"seed{seed}.safetensors")
    choices = [{"source": "seed1.safetensors", "scale": 0.5}, {"source": "seed2.safetensors", "scale": -0.8}]
    request = made.request(loras=choices)
    ours = latents_of(request, made.loaded)
    files = [(loras / "seed1.safetensors", 0.5, False), (loras / "seed2.safetensors", -0.8, False)]
    assert np.abs(ours - reference_with(made, request, *files)).max() <= LATENT_TOLERANCE
    again, result = finished(made.request(), made.loaded)
    np.testing.assert_array_equal(again, plain)
    for leaf, original in zip(jax.tree.leaves(made.loaded.experts[0].weights), before, strict=True):
        np.testing.assert_array_equal(np.asarray(leaf), original)
    assert result.notes == () and "lora" in result.seconds


@pytest.mark.filterwarnings("ignore:Already found a `peft_config` attribute:UserWarning")
@pytest.mark.parametrize("experts", [("high",), ("low",), ("both",), ("high", "low")])
def test_each_expert_gets_its_own(experts, tiny, loras):
    made = tiny("wan2.2-t2v")
    choices, files = [], []
    for seed, expert in enumerate(experts):
        path = loras / f"expert{seed}.safetensors"
        save_file(low_rank(made, "lightx2v", seed), path)
        choices.append({"source": path.name, "expert": expert})
        files += [(path, 1.0, is_second) for is_second in (False, True) if expert in ("both", "low" if is_second else "high")]
    request = made.request(loras=choices)
    ours = latents_of(request, made.loaded)
    assert np.abs(ours - reference_with(made, request, *files)).max() <= LATENT_TOLERANCE


def test_the_image_projections_are_reached(tiny, loras, pictures):
    made = tiny("wan2.1-i2v")
    save_file(low_rank(made, "kohya", pattern=TEXT.replace("to_q|", "to_q|add_k_proj|add_v_proj|")), loras / "image.safetensors")
    assert any("k_img" in key for key in low_rank(made, "kohya", pattern=TEXT.replace("to_q|", "to_q|add_k_proj|add_v_proj|")))
    request = made.request(image=pictures["image"], loras=[{"source": "image.safetensors"}])
    ours = latents_of(request, made.loaded)
    found = read_lora(loras / "image.safetensors", made.loaded.experts[0].shapes, 0, WAN.lora_names)
    assert {"blocks.0.attn2.add_k_proj.weight", "blocks.1.attn2.add_v_proj.weight"} <= found.changes.keys()
    plain = latents_of(request.with_changes(loras=()), made.loaded)
    assert np.abs(ours - plain).max() > 100 * LATENT_TOLERANCE


def test_what_fits_nothing_is_reported_and_nothing_at_all_is_refused(tiny, loras):
    made = tiny("wan2.1-t2v")
    state = low_rank(made, "diffusers")
    extra = {
        "transformer.blocks.99.attn1.to_q.lora_A.weight": torch.zeros(4, 256),
        "transformer.blocks.0.attn1.to_q.magnitude": torch.zeros(4),
    }
    save_file(state | extra, loras / "partly.safetensors")
    notes = merge_loras(made.loaded, [LoraChoice(source="partly.safetensors")], lambda event: None)
    assert f"{len(state)} keys change {len(state) // 2} tensors; 2 keys fit nothing (" in notes[0] and "magnitude" in notes[0]
    wrong_shape = {key: torch.zeros(4, 8) if "lora_A" in key else torch.zeros(8, 4) for key in state}
    for name, tensors in (("foreign", extra), ("wrong-shape", wrong_shape)):
        save_file(tensors, loras / f"{name}.safetensors")
        with pytest.raises(ModelError, match="changes nothing in this model"):
            merge_loras(made.loaded, [LoraChoice(source=f"{name}.safetensors")], lambda event: None)
    merge_loras(made.loaded, [], lambda event: None)


@pytest.mark.parametrize("kind", ["DoRA", "LoHa", "LoKr", "LoKr of low rank"])
def test_each_kind_equals_pefts_own_merge(kind, tmp_path):
    """peft trains these LoRAs, and its merge defines the file's meaning. Its alpha is in a second file, here in the metadata: 1
    per rank.
    """
    configs = {
        "DoRA": peft.LoraConfig(r=RANK, lora_alpha=RANK, use_dora=True, target_modules=["to_q"]),
        "LoHa": peft.LoHaConfig(r=RANK, alpha=RANK, target_modules=["to_q"]),
        "LoKr": peft.LoKrConfig(r=16, alpha=16, target_modules=["to_q"]),
        "LoKr of low rank": peft.LoKrConfig(r=2, alpha=2, decompose_both=True, target_modules=["to_q"]),
    }
    torch.manual_seed(1)
    block = torch.nn.ModuleDict({"attn1": torch.nn.ModuleDict({"to_q": torch.nn.Linear(24, 36)})})
    plain = torch.nn.ModuleDict({"blocks": torch.nn.ModuleList([block])})
    base = block["attn1"]["to_q"].weight.detach().clone()
    trained = peft.get_peft_model(plain, configs[kind])
    with torch.no_grad():
        for name, value in trained.named_parameters():
            if any(part in name for part in ("lora_", "hada_", "lokr_")):
                value.add_(0.3 * torch.randn_like(value))
    save_file(
        {key: value.contiguous() for key, value in peft.get_peft_model_state_dict(trained).items()}, tmp_path / "x.safetensors"
    )
    expected = trained.merge_and_unload().get_submodule("blocks.0.attn1.to_q").weight.detach()
    name = "blocks.0.attn1.to_q.weight"
    file = read_lora(tmp_path / "x.safetensors", {name: tuple(base.shape)}, 0, WAN.lora_names)
    found = apply_loras([ScaledLora(file=file, scale=1.0)], name, base)
    assert not file.unused_keys and (expected - base).abs().max() > 0.05
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)  # float32, products of some ten numbers


def test_a_lora_that_is_cut_short_is_told_as_such(tmp_path):
    path = tmp_path / "cut.safetensors"
    save_file({"blocks.0.attn1.to_q.lora_A.weight": torch.ones(2, 3)}, path)
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(ModelError, match="is cut short: .*; copy or download the LoRA again"):
        read_lora(path, {})


def test_differences_of_norms_and_modulation_are_added(tiny, loras):
    """lightx2v's `.diff` and `.diff_m`, which diffusers ignores, are added unchanged, times the scale."""
    made = tiny("wan2.1-t2v")
    expert = made.loaded.experts[0]
    merge_loras(made.loaded, [], lambda event: None)
    before = {name: np.array(value) for name, value in expert.weights.stacks["blocks."].items()}
    width = before["norm2.weight"].shape[1]
    save_file(
        {
            "diffusion_model.blocks.1.norm3.diff": torch.full((width,), 0.5),
            "diffusion_model.blocks.0.diff_m": torch.ones(1, 6, width),
            "diffusion_model.blocks.1.self_attn.norm_k.diff": torch.full((width,), 2.0),
        },
        loras / "differences.safetensors",
    )
    merge_loras(made.loaded, [LoraChoice(source="differences.safetensors", scale=2.0)], lambda event: None)
    after = {name: np.array(value) for name, value in expert.weights.stacks["blocks."].items()}
    merge_loras(made.loaded, [], lambda event: None)
    np.testing.assert_allclose(after["norm2.weight"] - before["norm2.weight"], [[0.0] * width, [1.0] * width], atol=1e-6)
    np.testing.assert_allclose(after["attn1.norm_k.weight"][1] - before["attn1.norm_k.weight"][1], 4.0, atol=1e-6)
    np.testing.assert_allclose(after["scale_shift_table"][0] - before["scale_shift_table"][0], 2.0, atol=1e-6)
    changed = {name for name in before if not np.array_equal(before[name], after[name])}
    assert changed == {"norm2.weight", "attn1.norm_k.weight", "scale_shift_table"}


def test_a_presets_own_loras_are_merged_on_load(tiny, loras):
    made = tiny("wan2.2-t2v")
    save_file(low_rank(made, "lightx2v", 7), loras / "own.safetensors")
    choices = (LoraChoice(source="own.safetensors", scale=0.5, expert="low"),)
    loaded = load_module.load(made.preset.model_copy(update={"loras": choices}), None, lambda event: None)
    merge_loras(made.loaded, choices, lambda event: None)
    for ours, reference in zip(loaded.experts, made.loaded.experts, strict=True):
        jax.tree.map(np.testing.assert_array_equal, ours.weights, reference.weights)
    events = []
    merge_loras(loaded, choices, events.append)
    assert events == []  # nothing was left to read
    merge_loras(loaded, (), events.append)
    merge_loras(made.loaded, (), lambda event: None)
    jax.tree.map(np.testing.assert_array_equal, loaded.experts[1].weights, made.loaded.experts[1].weights)


def test_experts_on_the_host_take_turns_on_the_devices_and_keep_their_loras(tiny, loras, monkeypatch):
    made = tiny("wan2.2-t2v")
    save_file(low_rank(made, "lightx2v", 7), loras / "turns.safetensors")
    request = made.request(loras=[{"source": "turns.safetensors", "expert": "low"}])
    expected = latents_of(request, made.loaded)
    monkeypatch.setattr(networks, "memory_bytes", lambda kind: 1)
    parked = load_module.load(made.preset, None, lambda event: None)
    shapes, on_devices, run = {leaf.shape for leaf in jax.tree.leaves(parked.experts[0].weights.stacks)}, [], Program.__call__

    def count_bytes() -> int:
        arrays = (array for array in jax.live_arrays() if array.shape in shapes and array.sharding.memory_kind != HOST)
        return sum(array.nbytes for array in arrays)

    def count(program: Program, *arguments: object) -> object:
        if program.key == "denoise_step":
            on_devices.append(count_bytes() - before)
        return run(program, *arguments)

    monkeypatch.setattr(Program, "__call__", count)
    before = count_bytes()
    np.testing.assert_array_equal(latents_of(request, parked), expected)
    assert len(on_devices) == request.steps
    assert set(on_devices) == {sum(leaf.nbytes for leaf in jax.tree.leaves(parked.experts[0].weights.stacks))}
    assert count_bytes() == before and all(is_offloaded(expert.weights) for expert in parked.experts)
    merge_loras(made.loaded, (), lambda event: None)
