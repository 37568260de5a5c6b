"""HunyuanVideo 1.5 equals diffusers: a tiny random checkpoint in the real layout, with the same prompt, picture and seed, in
float32.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers.guiders import ClassifierFreeZeroStarGuidance
from PIL import Image
from safetensors.torch import save_file

from backend.errors import ModelError, RequestError
from backend.media.pictures import crop_to
from backend.models.hunyuan import model as hunyuan_model
from backend.models.hunyuan.spec import HUNYUAN
from backend.pipeline import load as load_module
from backend.pipeline.load import merge_loras
from backend.pipeline.loaded import LoadedModel
from backend.schemas.request import GenerationRequest
from backend.schemas.step_plan import plan_steps
from backend.settings import from_environment
from presets import LoraChoice, Preset, loader
from tests.gradients import without_gradients
from tests.kept import digest, kept
from tests.parity.tiny_hunyuan import (
    HEAD_WIDTH,
    HEADS,
    KINDS,
    LAYERS,
    SIDE,
    make_parts,
    make_preset,
    pipeline_of,
    write_checkpoint,
)
from tests.parity.tiny_preset import find_also
from tests.parity.tiny_runs import latents_of, video_of
from tests.parity.two_sizes import SPECTRUM, given_spectrum, progressive, reference
from tests.rounding import rounding

pytestmark = [pytest.mark.parity, pytest.mark.demo_model]

LATENT_TOLERANCE = 1e-3  # the project's bar
ADDITIONS = LAYERS * 2 * HEADS * HEAD_WIDTH  # the longest sum of a layer, in the feed-forward, times the number of layers
LEAST_PSNR = 50.0  # in dB over the video, pixels in [0, 1]; the project's bar
QUOTES = 'a shop with the sign "Café 24" and a poster that says “open”, slow pan'
PLAIN = "a fox in the snow"
LONG = " ".join(["a very long story about many different things that happen one after another"] * 12)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tiny:
    """A checkpoint of one kind, loaded by our code and by diffusers."""

    preset: Preset
    loaded: LoadedModel
    reference: Any

    @functools.cached_property
    def weights(self) -> str:
        """A digest of the checkpoint's files."""
        return digest(Path(self.preset.model))

    def request(self, **changes) -> GenerationRequest:
        return GenerationRequest.from_preset(self.preset, **dict(prompt=QUOTES, seed=5, steps=4, num_frames=9) | changes)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory, caches_in_a_folder_of_their_own) -> Callable[[str], Tiny]:
    """A factory that creates each kind once. Requests find its preset by name."""
    with pytest.MonkeyPatch.context() as patch:
        presets = find_also(patch)

        @functools.cache
        def make(kind: str) -> Tiny:
            parts = make_parts(kind)
            folder = write_checkpoint(parts, tmp_path_factory.mktemp(kind) / "model")
            preset = presets[f"tiny-{kind}"] = make_preset(kind, folder)
            loaded = load_module.load(preset, None, lambda event: None)
            return Tiny(preset=preset, loaded=loaded, reference=pipeline_of(parts))

        yield make


@pytest.fixture(scope="module")
def picture(tmp_path_factory) -> str:
    """A picture of the video's size, so that nothing is resized."""
    rows, columns = np.mgrid[:SIDE, :SIDE]
    pixels = np.stack([4 * rows, 255 - 3 * columns, (rows * columns) % 256], -1).astype(np.uint8)
    path = tmp_path_factory.mktemp("pictures") / "first.png"
    Image.fromarray(pixels).save(path)
    return str(path)


def run_reference(made: Tiny, request: GenerationRequest, *changes: object) -> np.ndarray:
    """Return diffusers' latents of the same request. `changes` are the test's changes of the reference: facts of `kept`."""
    return kept(lambda: _run_reference(made, request), made.weights, request, *changes)


def _run_reference(made: Tiny, request: GenerationRequest) -> np.ndarray:
    pipeline = made.reference
    pipeline.guider = pipeline.guider.new(guidance_scale=request.guidance[0])
    given = {"image": Image.open(request.image)} if request.image else {"height": request.height, "width": request.width}
    return pipeline(
        **given,
        prompt=request.prompt,
        negative_prompt=request.negative_prompt,
        num_frames=request.num_frames,
        num_inference_steps=request.steps,
        generator=torch.Generator().manual_seed(request.seed),
        output_type="latent",
    ).frames.numpy()


def decode_reference(made: Tiny, latents: np.ndarray) -> np.ndarray:
    return kept(lambda: _decode_reference(made, latents), made.weights, latents)


@without_gradients
def _decode_reference(made: Tiny, latents: np.ndarray) -> np.ndarray:
    vae = made.reference.vae
    video = vae.decode(torch.from_numpy(latents) / vae.config.scaling_factor).sample
    return ((video[0].permute(1, 2, 3, 0) + 1) / 2).clamp(0, 1).numpy()


def psnr(ours: np.ndarray, reference: np.ndarray) -> float:
    return float(-10 * np.log10(max(np.square(ours - reference).mean(), 1e-12)))


BASE = [(KINDS[0], 6.0, QUOTES, PLAIN), (KINDS[1], 6.0, QUOTES, PLAIN), (KINDS[2], 1.0, QUOTES, "")]
CASES = [(*case, 2) for case in BASE]
MORE_CASES = [
    (KINDS[0], 6.0, PLAIN, LONG, 2),
    (KINDS[0], 1.0, PLAIN, "", 1),
    (KINDS[0], 6.0, LONG, "", 2),
    *[(*case, steps) for case in BASE for steps in (1, 4, 8)],
    (KINDS[1], 1.0, QUOTES, "", 2),
    (KINDS[1], 6.0, PLAIN, QUOTES, 2),
]


@pytest.mark.parametrize(
    ("kind", "guidance", "prompt", "negative", "steps"),
    CASES + [pytest.param(*case, marks=pytest.mark.slow) for case in MORE_CASES],
)
def test_latents_and_video_equal_diffusers(kind, guidance, prompt, negative, steps, tiny, picture):
    made = tiny(kind)
    image = {"image": picture} if "i2v" in kind else {}
    request = made.request(guidance=(guidance,), prompt=prompt, negative_prompt=negative, steps=steps, **image)
    ours, reference = latents_of(request, made.loaded), run_reference(made, request)
    assert np.abs(ours - reference).max() <= LATENT_TOLERANCE
    assert psnr(video_of(request, made.loaded, ours), decode_reference(made, reference)) >= LEAST_PSNR
    assert made.loaded.model.spec.name == kind


def test_prompts_quotes_pictures_and_the_end_of_a_step_do_something(tiny, picture):
    """The equality above is not an equality of constants: each of these changes the latents."""

    def latents(kind: str, **changes) -> np.ndarray:
        image = {"image": picture} if "i2v" in kind else {}
        return latents_of(tiny(kind).request(steps=1, **image | changes), tiny(kind).loaded)

    base = latents(KINDS[0])
    for changes in ({"prompt": PLAIN}, {"prompt": QUOTES.replace("open", "shut")}, {"negative_prompt": PLAIN}):
        assert np.abs(latents(KINDS[0], **changes) - base).max() > 0.01
    given = latents(KINDS[1], guidance=(1.0,))
    other = Path(picture).with_name("other.png")
    Image.open(picture).rotate(90).save(other)
    assert np.abs(latents(KINDS[1], guidance=(1.0,), image=str(other)) - given).max() > 0.01


def test_guidance_runs_on_its_share_of_the_steps(tiny):
    """Guidance on half of the schedule equals diffusers' result if its guider stops halfway."""
    made = tiny(KINDS[0])
    request = made.request(negative_prompt=PLAIN, guidance_interval=(0.0, 0.5))
    guider = made.reference.guider
    made.reference.guider = guider.new(guidance_scale=6.0, start=0.0, stop=0.5)
    try:
        reference = run_reference(made, request, "guided on half of the steps")
    finally:
        made.reference.guider = guider
    assert np.abs(latents_of(request, made.loaded) - reference).max() <= LATENT_TOLERANCE


def test_cfg_zero_is_diffusers_own(tiny):
    """The first step is skipped, as in diffusers' guider. The result differs from plain guidance."""
    made = tiny(KINDS[0])
    request = made.request(negative_prompt=PLAIN, cfg_zero=True)
    guider = made.reference.guider
    made.reference.guider = ClassifierFreeZeroStarGuidance(guidance_scale=6.0, zero_init_steps=1)
    try:
        reference = run_reference(made, request, "CFG-Zero*")
    finally:
        made.reference.guider = guider
    ours = latents_of(request, made.loaded)
    assert np.abs(ours - reference).max() <= LATENT_TOLERANCE
    assert np.abs(ours - latents_of(request.with_changes(cfg_zero=False), made.loaded)).max() > 10 * LATENT_TOLERANCE


def planned_blocks(blocks: torch.nn.ModuleList, reuses: tuple[bool, ...]) -> torch.nn.Module:
    class PlannedBlocks(torch.nn.Module):
        """diffusers' blocks. In steps that the plan reuses, they add the last difference of the same guidance branch."""

        def __init__(self, blocks: torch.nn.ModuleList, reuses: tuple[bool, ...]) -> None:
            super().__init__()
            self.blocks, self.reuses, self.added, self.calls = blocks, reuses, {}, 0

        def forward(self, hidden, beside, *others):
            (step, branch), before = divmod(self.calls, 2), hidden
            self.calls += 1
            if self.reuses[step]:
                return hidden + self.added[branch], beside
            for block in self.blocks:
                hidden, beside = block(hidden, beside, *others)
            self.added[branch] = hidden - before
            return hidden, beside

    return PlannedBlocks(blocks, reuses)


def test_mag_cache_adds_what_all_layers_added_in_each_branch(tiny, monkeypatch):
    monkeypatch.setattr(loader, "LEAST_STEPS", 1)
    made, ratios = tiny(KINDS[0]), (1.0, 1.0, 0.99, 0.99, 0.97, 0.98)
    request = made.request(negative_prompt=PLAIN, steps=6, mag_cache=0.1, mag_ratios=ratios)
    reuses, transformer = [step.reuses for step in plan_steps(request)], made.reference.transformer
    blocks = transformer.transformer_blocks
    transformer.transformer_blocks = torch.nn.ModuleList([planned_blocks(blocks, reuses)])
    try:
        reference = run_reference(made, request, "planned blocks", reuses)
    finally:
        transformer.transformer_blocks = blocks
    assert 1 < sum(reuses) < 5 and np.abs(latents_of(request, made.loaded) - reference).max() <= LATENT_TOLERANCE
    assert np.abs(latents_of(request.with_changes(mag_cache=0.0), made.loaded) - reference).max() > 10 * LATENT_TOLERANCE


def test_a_step_cache_spares_steps_only_if_it_may(tiny):
    made = tiny(KINDS[0])
    requests = (made.request(steps=4, flow_shift=50.0, step_cache=one) for one in (0.0, 1e-9, 0.6))  # the first steps are equal
    plain, strict, loose = (latents_of(request, made.loaded) for request in requests)
    np.testing.assert_allclose(strict, plain, rtol=0, atol=rounding(plain, guidance=6.0, additions=ADDITIONS))
    assert np.abs(loose - plain).max() > 10 * LATENT_TOLERANCE  # at least one step was reused


LAYER = re.compile(
    r"transformer_blocks\.\d+\.(attn\.(to_[qkv]|add_[qkv]_proj|to_out\.0|to_add_out)|ff(_context)?\.net\.(0\.proj|2))"
)


def low_rank(made: Tiny, style: str) -> dict[str, torch.Tensor]:
    """A LoRA for every matrix of the layers' attention and feed-forward, with the names of diffusers, of the makers or of
    ComfyUI. ComfyUI has query, key and value in one matrix, so that these share an input factor in all styles.
    """
    generator, downs, ups = torch.Generator().manual_seed(0), {}, {}
    for name, shape in made.loaded.experts[0].shapes.items():
        stem = name.removesuffix(".weight")
        if LAYER.fullmatch(stem):
            original, comfy = HUNYUAN.lora_names(stem)[:2]
            down, up = (0.1 * torch.randn(*size, generator=generator) for size in ((4, shape[1]), (shape[0], 4)))
            stem = {"diffusers": f"transformer.{stem}", "original": f"diffusion_model.{original.name}"}.get(style)
            stem = stem or f"diffusion_model.{comfy.name}"
            shared = downs.setdefault(comfy.name, down)
            downs[stem] = shared
            ups.setdefault(stem, {})[comfy.part if style == "comfy" else 0] = up
    words = ("lora_A", "lora_B") if style == "diffusers" else ("lora_down", "lora_up")
    state = {f"{stem}.{words[0]}.weight": downs[stem].clone() for stem in ups}
    return state | {
        f"{stem}.{words[1]}.weight": torch.cat([parts[part] for part in sorted(parts)]) for stem, parts in ups.items()
    }


@pytest.fixture(scope="module")
def plain(tiny) -> np.ndarray:
    """Return the latents without a LoRA."""
    made = tiny(KINDS[0])
    return latents_of(made.request(guidance=(1.0,), steps=2), made.loaded)


@pytest.mark.parametrize("style", [pytest.param("diffusers", marks=pytest.mark.slow), "original", "comfy"])
def test_a_lora_changes_what_diffusers_changes(style, plain, tiny):
    made, folder = tiny(KINDS[0]), from_environment().loras_dir
    folder.mkdir(parents=True, exist_ok=True)
    save_file(low_rank(made, style), folder / "style.safetensors")
    request = made.request(guidance=(1.0,), steps=2, loras=[{"source": "style.safetensors", "scale": 0.7}])
    ours = latents_of(request, made.loaded)
    transformer = made.reference.transformer
    transformer.load_lora_adapter(low_rank(made, "diffusers"), prefix="transformer", adapter_name="style")
    transformer.set_adapters(["style"], [0.7])
    try:
        reference = run_reference(made, request, "LoRA", folder / "style.safetensors")
    finally:
        transformer.unload_lora()
    assert np.abs(ours - reference).max() <= LATENT_TOLERANCE
    assert np.abs(plain - reference).max() > 10 * LATENT_TOLERANCE


def test_a_lora_of_another_model_is_refused(tiny):
    made, folder = tiny(KINDS[0]), from_environment().loras_dir
    folder.mkdir(parents=True, exist_ok=True)
    wan = {"diffusion_model.blocks.0.self_attn.q.lora_down.weight": torch.ones(4, 256)}
    save_file(wan | {"diffusion_model.blocks.0.self_attn.q.lora_up.weight": torch.ones(256, 4)}, folder / "wan.safetensors")
    with pytest.raises(ModelError, match="The LoRA wan.safetensors changes nothing in this model: none of its 2 keys"):
        merge_loras(made.loaded, [LoraChoice(source="wan.safetensors")], lambda event: None)


@pytest.mark.parametrize("missing", ["tokenizer", "tokenizer_2", "feature_extractor"])
def test_a_checkpoint_without_its_tokenizer_or_preprocessor_is_refused(missing, tiny, tmp_path):
    preset = tiny(KINDS[1]).preset
    folder = tmp_path / "model"
    shutil.copytree(preset.model, folder, ignore=shutil.ignore_patterns(missing))
    with pytest.raises(ModelError, match=f"The checkpoint's {missing} folder cannot be read .*copy the checkpoint again"):
        load_module.load(preset.model_copy(update={"model": str(folder)}), None, lambda event: None)


def test_a_prompt_that_is_too_long_is_cut_where_diffusers_cuts_it(tiny):
    made = tiny(KINDS[0])
    request = made.request(guidance=(1.0,), prompt=" ".join([LONG] * 3), steps=1)
    ours, reference = latents_of(request, made.loaded), run_reference(made, request)
    assert np.abs(ours - reference).max() <= LATENT_TOLERANCE
    (note,) = made.loaded.model.notes(request)
    assert "of which the model reads 1000: its end was left out" in note


def test_a_step_has_room_for_the_tokens_that_count_and_what_is_compiled_ahead_knows_it(tiny, monkeypatch):
    """The length from the prompts, known before encoding, equals the length from the counted tokens of the conditions."""
    made, lengths, chosen = tiny(KINDS[0]), set(), hunyuan_model.make_context_tokens

    def noted(xp, *branches, length, **given):
        lengths.add((xp is np, length))
        return chosen(xp, *branches, length=length, **given)

    monkeypatch.setattr(hunyuan_model, "make_context_tokens", noted)
    middle = LONG[:90]
    for prompt, negative, room in (("a fox", "", 64), (middle, "", 256), ("a fox", middle, 256), (LONG, "", 1256)):
        lengths.clear()
        latents_of(made.request(guidance=(6.0,), prompt=prompt, negative_prompt=negative, steps=1), made.loaded)
        assert lengths == {(False, room), (True, room)}, (prompt[:20], negative[:20])
    rooms = {
        made.loaded.model._padded_length(made.request(prompt=prompt), None, 2)
        for prompt in made.loaded.model.prompts_for_all_programs("a fox " * 8)
    }
    assert rooms == {64, 256, 512, 1256}


def test_sizes_and_lengths_that_the_model_does_not_make_are_refused(tiny):
    made = tiny(KINDS[0])
    with pytest.raises(RequestError, match=r"num_frames=8 must be 4n\+1; nearest: 5 or 9"):
        made.request(num_frames=8)
    with pytest.raises(RequestError, match="width=56 must be a multiple of 16.*nearest: 48 or 64"):
        made.request(width=56)


@pytest.mark.slow  # tests/parity/test_progressive.py tests Wan models
@pytest.mark.parametrize("kind", ["hunyuanvideo-1.5-t2v", "hunyuanvideo-1.5-i2v"])
def test_progressive_resolution_equals_its_papers_steps(kind, tiny, picture, monkeypatch):
    made = given_spectrum(tiny(kind), monkeypatch)
    request = progressive(made, prompt=QUOTES, **({"image": picture} if "i2v" in kind else {}))
    expected = kept(lambda: _progressive_reference(made, request), made.weights, request, "progressive", SPECTRUM)
    assert np.abs(latents_of(request, made.loaded) - expected).max() <= LATENT_TOLERANCE


def _progressive_reference(made: Any, request: GenerationRequest) -> np.ndarray:
    pipeline = made.reference
    pipeline.guider = pipeline.guider.new(guidance_scale=request.guidance[0])
    full = Image.open(request.image) if request.image else None

    def run(sized: GenerationRequest, scheduler: Any, latents: torch.Tensor) -> torch.Tensor:
        given = {"height": sized.height, "width": sized.width}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(pipeline, "scheduler", scheduler)
            if full is not None:
                given, encode = {"image": crop_to(full, sized.width, sized.height)}, pipeline.encode_image
                patch.setattr(pipeline, "target_size", sized.width)
                patch.setattr(pipeline, "encode_image", lambda image, **options: encode(image=full, **options))
            return pipeline(
                **given,
                prompt=request.prompt,
                negative_prompt=request.negative_prompt,
                num_frames=request.num_frames,
                num_inference_steps=request.steps,
                latents=latents,
                output_type="latent",
            ).frames

    return reference(made, request, run, pipeline.scheduler)
