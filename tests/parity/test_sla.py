"""Transformers with SLA equal diffusers' transformer with a plain PyTorch attention of the published formulas, float32.

The tiny transformers have random weights. Their blocks are small, and neither the number of tokens nor the share of kept blocks
divides evenly.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers.models.transformers.transformer_wan import WanAttention
from safetensors.torch import load_file, save_file

from backend.pipeline import load as load_module
from backend.pipeline.warm_up import calls
from backend.schemas.progressive import num_half_size_steps
from backend.schemas.step_plan import plan_steps
from backend.settings import from_environment
from tests.parity.test_few_steps import SIGMA_MAX, TOLERANCE, reference_latents
from tests.parity.test_lora import low_rank, reference_with
from tests.parity.test_parity import LATENT_TOLERANCE, LEAST_PSNR, psnr
from tests.parity.test_progressive import wan_reference
from tests.parity.test_quantize import LEAST_DECIBELS, decibels, load_in_bfloat16
from tests.parity.test_windows import FRAMES, WINDOW, by_hand
from tests.parity.tiny_checkpoints import HEAD_WIDTH, LAYERS, make_checkpoint, make_preset
from tests.parity.tiny_preset import find_also
from tests.parity.tiny_runs import Tiny, decode_reference, finished, latents_of, video_of
from tests.parity.two_sizes import given_spectrum, progressive

pytestmark = [pytest.mark.parity, pytest.mark.demo_model]

BLOCK_Q, BLOCK_KV, KEEP = 16, 7, 0.45
WEIGHTS = "diffusion_pytorch_model.safetensors"


class PlainSla:
    """A processor of diffusers' `WanAttention` that computes SLA. Without a `projection`, only the kept blocks count."""

    def __init__(self, projection: tuple[torch.Tensor, torch.Tensor] | None) -> None:
        self.projection = projection

    def __call__(
        self, attn: WanAttention, hidden_states: torch.Tensor, text: None, mask: None, rotary_emb: tuple
    ) -> torch.Tensor:
        query, key, value = attn.to_q(hidden_states), attn.to_k(hidden_states), attn.to_v(hidden_states)
        query, key, value = (
            array.unflatten(2, (attn.heads, -1)).transpose(1, 2) for array in (attn.norm_q(query), attn.norm_k(key), value)
        )
        query, key = rotate(query, rotary_emb), rotate(key, rotary_emb)
        scores = query @ key.mT * query.shape[-1] ** -0.5
        attended = scores.masked_fill(~seen_keys(query, key), -torch.inf).softmax(-1) @ value
        if self.projection is not None:
            features, keys = query.softmax(-1), key.softmax(-1)
            linear = features @ (keys.mT @ value) / (1e-5 + (features * keys.sum(2, keepdim=True)).sum(-1, keepdim=True))
            attended = attended + torch.nn.functional.linear(linear, *self.projection)
        return attn.to_out[0](attended.transpose(1, 2).flatten(2))


def rotate(heads: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Rotate pairs of neighbouring channels of [B, H, S, D]."""
    cosine, sine = (table[0, :, 0, ::2] for table in angles)
    pairs = torch.view_as_complex(heads.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * torch.complex(cosine, sine)).flatten(-2)


def seen_keys(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Return whether each query sees each key, [B, H, S, S]."""
    smooth = key - key.mean(2, keepdim=True)
    queries, keys = (
        torch.stack([block.mean(2) for block in array.split(size, 2)], 2)
        for array, size in ((query, BLOCK_Q), (smooth, BLOCK_KV))
    )
    scores = queries @ keys.mT
    kept = scores.topk(max(1, int(KEEP * keys.shape[2]))).indices
    seen = torch.zeros_like(scores, dtype=torch.bool).scatter(-1, kept, True)
    return seen.repeat_interleave(BLOCK_Q, 2).repeat_interleave(BLOCK_KV, 3)[:, :, : query.shape[2], : key.shape[2]]


def add_sla(folder: Path, method: str) -> None:
    """Turn the transformer in this folder into one with the method of sparse attention."""
    state, config = load_file(folder / WEIGHTS), json.loads((folder / "config.json").read_text())
    config |= {"sparse_attention": method, "sparse_blocks": [BLOCK_Q, BLOCK_KV]}
    (folder / "config.json").write_text(json.dumps(config))
    generator = torch.Generator().manual_seed(3)
    for layer in range(LAYERS if method == "sla" else 0):
        name = f"blocks.{layer}.attn1.proj_l"
        state[f"{name}.weight"] = torch.randn(HEAD_WIDTH, HEAD_WIDTH, generator=generator) * HEAD_WIDTH**-0.5
        state[f"{name}.bias"] = torch.randn(HEAD_WIDTH, generator=generator) * 0.3
    save_file(state, folder / WEIGHTS, metadata={"format": "pt"})


def compute_sla(made: Tiny) -> None:
    """Let diffusers' transformers of a checkpoint compute SLA."""
    for part in ("transformer", "transformer_2"):
        model = getattr(made.reference, part)
        state = {} if model is None else load_file(Path(made.preset.model) / part / WEIGHTS)
        for index, block in enumerate([] if model is None else model.blocks):
            weight, bias = (state.get(f"blocks.{index}.attn1.proj_l.{name}") for name in ("weight", "bias"))
            block.attn1.set_processor(PlainSla(None if weight is None else (weight, bias)))


@pytest.fixture(scope="module")
def sla(tmp_path_factory) -> Iterator[Callable[[str, str], Tiny]]:
    """A factory of tiny checkpoints with a method of sparse attention. Their presets offer the samplers of rCM, and UniPC."""
    with pytest.MonkeyPatch.context() as patch:
        presets = find_also(patch)

        @functools.cache
        def make(family: str, method: str) -> Tiny:
            folder = make_checkpoint(family, tmp_path_factory.mktemp(family))
            for place in folder.glob("transformer*"):
                add_sla(place, method)
            facts = {"name": f"tiny-{family}-{method}", "solvers": ("rcm", "rcm-ode", "unipc"), "solver": "rcm"}
            facts |= {"sigma_max": SIGMA_MAX, "sparse_keep": KEEP}
            plain = make_preset(family, folder)
            preset = plain.model_copy(update=facts | {"guidance": tuple(1.0 for _ in plain.guidance)})
            presets[preset.name] = preset
            made = Tiny(preset=preset, loaded=load_module.load(preset, None, lambda event: None))
            compute_sla(made)
            return made

        yield make


CASES = [
    *(("wan2.1-t2v", "sla", solver, steps) for solver in ("rcm", "rcm-ode") for steps in (1, 2, 3, 4)),
    ("wan2.1-t2v", "sla-map", "rcm", 2),
    ("wan2.2-i2v", "sla", "rcm", 4),
    ("wan2.2-i2v", "sla", "rcm-ode", 4),
]


@pytest.mark.parametrize("family, method, solver, steps", CASES)
def test_latents_and_video_equal_the_formulas(family, method, solver, steps, sla, pictures):
    made = sla(family, method)
    given = {"image": pictures["image"]} if family == "wan2.2-i2v" else {"width": 80}  # 48 and 60 tokens
    request = made.request(solver=solver, steps=steps, **given)
    assert [step.expert for step in plan_steps(request)] == [0, 0, *[int(family == "wan2.2-i2v")] * 2][:steps]
    ours, reference = latents_of(request, made.loaded), reference_latents(made, request)
    assert np.abs(ours - reference).max() <= TOLERANCE
    assert psnr(video_of(request, made.loaded, ours), decode_reference(made, reference)) >= LEAST_PSNR


def test_windows_two_sizes_and_a_lora_for_dense_models_equal_diffusers(sla, monkeypatch):
    made = given_spectrum(sla("wan2.1-t2v", "sla"), monkeypatch)
    usual = {"solver": "unipc", "guidance": (4.0,), "width": 80}
    long = made.request(**usual, num_frames=FRAMES, steps=4)
    ours = latents_of(long, made.loaded)
    assert np.abs(ours - by_hand(lambda: made.reference, made.weights, long, WINDOW)).max() <= LATENT_TOLERANCE
    small_first = progressive(made, **usual)
    assert num_half_size_steps(small_first) in range(1, small_first.steps)
    assert np.abs(latents_of(small_first, made.loaded) - wan_reference(made, small_first)).max() <= LATENT_TOLERANCE
    folder = from_environment().loras_dir
    folder.mkdir(parents=True, exist_ok=True)
    save_file(low_rank(made, "diffusers"), folder / "dense.safetensors")
    request = made.request(**usual, loras=[{"source": "dense.safetensors", "scale": 0.7}])
    ours, result = finished(request, made.loaded)
    assert np.abs(ours - reference_with(made, request, (folder / "dense.safetensors", 0.7, False))).max() <= LATENT_TOLERANCE
    assert not any("fit nothing" in note for note in result.notes)


def test_the_step_cache_runs_the_same_layers(sla):
    request = sla("wan2.1-t2v", "sla").request(solver="unipc", width=80)
    plain, cached = (latents_of(request.with_changes(step_cache=cache), sla("wan2.1-t2v", "sla").loaded) for cache in (0.0, 1e-6))
    assert np.abs(plain - cached).max() <= TOLERANCE


def test_precompilation_prepares_the_programs_of_the_presets_share(sla, monkeypatch):
    made = sla("wan2.1-t2v", "sla")
    request = made.request(steps=1)
    latents = latents_of(request, made.loaded)
    steps = [[call for call in calls(made.loaded.model, request) if call.program.key == "denoise_step"]]
    monkeypatch.setitem(made.preset.__dict__, "sparse_keep", 1.0)
    steps.append([call for call in calls(made.loaded.model, request) if call.program.key == "denoise_step"])
    assert [step.program.has_run(*step.arguments) for [step] in steps] == [True, False]
    assert np.abs(latents_of(request, made.loaded) - latents).max() > 20 * TOLERANCE


@pytest.mark.parametrize("quantize", ["int8", "fp8"])
def test_quantized_matrices_stay_near_bfloat16_and_the_projection_is_not_quantized(quantize, sla):
    request = sla("wan2.1-t2v", "sla").request(steps=4, width=80, quantize=quantize)
    loaded, exact = load_in_bfloat16(request), load_in_bfloat16(request.with_changes(quantize="off"))
    layers = loaded.experts[0].weights.stacks["blocks."]
    assert layers["attn1.proj_l.weight"].dtype == "float32" and layers["attn1.to_q.weight"].dtype.itemsize == 1
    error = decibels(latents_of(request, loaded), latents_of(request, exact))
    assert LEAST_DECIBELS[quantize] <= error < 80, "a model that is not quantized would be nearer"
