"""The models of diffusers' own tests of its Wan pipelines, rebuilt from their seeds, and the pixels that those tests expect.

Source: huggingface/diffusers, commit 58eb52c0803ea9af3abec60841c2a093bdf1f951, tests/pipelines/wan/: test_wan.py,
test_wan_22.py, test_wan_image_to_video.py, test_wan_22_image_to_video.py (sizes, seeds, settings, figures). Every network is
created right after torch.manual_seed(0). Their prompts go through hf-internal-testing/tiny-random-t5, which is only on the Hub.
Its embeddings are too near to zero to change the figures, and here they are zero.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import torch
from diffusers import (
    AutoencoderKLWan,
    FlowMatchEulerDiscreteScheduler,
    UniPCMultistepScheduler,
    WanImageToVideoPipeline,
    WanPipeline,
    WanTransformer3DModel,
    WanVACEPipeline,
    WanVACETransformer3DModel,
)
from transformers import (
    AutoTokenizer,
    CLIPImageProcessorPil,
    CLIPVisionConfig,
    CLIPVisionModelWithProjection,
    UMT5Config,
    UMT5EncoderModel,
)

from presets import Preset
from tests.parity.tiny_checkpoints import DEMO, make_preset

TEXT_WIDTH, TEXT_POSITIONS = 32, 16
STEPS, GUIDANCE, NUM_FRAMES, SEED = 2, 6.0, 9, 0
TINY_VAE = dict(base_dim=3, dim_mult=[1, 1, 1, 1], num_res_blocks=1, temperal_downsample=[False, True, True])
VAE_22 = dict(
    z_dim=48,
    in_channels=12,
    out_channels=12,
    is_residual=True,
    patch_size=2,
    latents_mean=[0.0] * 48,
    latents_std=[1.0] * 48,
    scale_factor_spatial=16,
    scale_factor_temporal=4,
)
TINY_TRANSFORMER = dict(
    patch_size=(1, 2, 2),
    num_attention_heads=2,
    attention_head_dim=12,
    text_dim=TEXT_WIDTH,
    freq_dim=256,
    ffn_dim=32,
    num_layers=2,
    cross_attn_norm=True,
    qk_norm="rms_norm_across_heads",
    rope_max_seq_len=32,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Published:
    """One of diffusers' tests. `pixels` are the first eight and the last eight of the video, [frames, 3, height, width] in [0,
    1].

    `tolerance`: diffusers' own tolerance is 1e-3. The 5B needs 4.2e-4 of it, in diffusers and here (measured on an x86 CPU).
    The other models agree within 6.3e-5, little more than the last printed digit.
    """

    family: str
    size: int = 16
    solver: str = "unipc"
    flow_shift: float = 3.0
    boundary: float | None = None
    clip_size: int | None = None
    pictures: tuple[str, ...] = ()
    tolerance: float = 2e-4
    pixels: tuple[float, ...]


EULER = dict(solver="euler", flow_shift=7.0)
PUBLISHED = {
    "TestWanPipeline": Published(family="wan2.1-t2v", **EULER, pixels=(
        0.4525, 0.4520, 0.4485, 0.4534, 0.4524, 0.4529, 0.4540, 0.4530,
        0.5127, 0.5326, 0.5204, 0.5253, 0.5439, 0.5424, 0.5133, 0.5078)),
    "TestWanImageToVideoPipeline": Published(family="wan2.1-i2v", **EULER, clip_size=32, pictures=("image",), pixels=(
        0.4528, 0.4525, 0.4493, 0.4537, 0.4521, 0.4532, 0.4543, 0.4536,
        0.5084, 0.5252, 0.5211, 0.5120, 0.5419, 0.5355, 0.5169, 0.5213)),
    "TestWanFLFToVideoPipeline": Published(family="wan2.1-flf2v", **EULER, clip_size=4, pictures=("image", "last_image"), pixels=(
        0.4525, 0.4525, 0.4497, 0.4537, 0.4520, 0.4529, 0.4540, 0.4535,
        0.5157, 0.5449, 0.5201, 0.5192, 0.5398, 0.5374, 0.5162, 0.5112)),
    "TestWan22Pipeline": Published(family="wan2.2-t2v", boundary=0.875, pixels=(
        0.4525, 0.4520, 0.4485, 0.4534, 0.4524, 0.4529, 0.4540, 0.4530,
        0.5127, 0.5326, 0.5204, 0.5253, 0.5439, 0.5424, 0.5133, 0.5078)),
    "TestWan22ImageToVideoPipeline": Published(family="wan2.2-i2v", boundary=0.875, pictures=("image",), pixels=(
        0.4527, 0.4526, 0.4498, 0.4539, 0.4521, 0.4524, 0.4533, 0.4535,
        0.5154, 0.5353, 0.5200, 0.5174, 0.5434, 0.5301, 0.5199, 0.5216)),
    "TestWan225BPipeline": Published(family="wan2.2-ti2v", size=32, tolerance=1e-3, pixels=(
        0.4814, 0.4298, 0.5094, 0.4289, 0.5061, 0.4301, 0.5043, 0.4284,
        0.5375, 0.5965, 0.5527, 0.6014, 0.5228, 0.6076, 0.6644, 0.5651)),
    "TestWan225BImageToVideoPipeline": Published(family="wan2.2-ti2v", size=32, tolerance=1e-3, pictures=("image",), pixels=(
        0.4833, 0.4305, 0.5100, 0.4299, 0.5056, 0.4298, 0.5052, 0.4332,
        0.5550, 0.6092, 0.5536, 0.5928, 0.5199, 0.5864, 0.6705, 0.5493)),
}  # fmt: skip


def make_pipeline(case: Published) -> WanPipeline | WanImageToVideoPipeline | WanVACEPipeline:
    """Build diffusers' pipeline with the networks of this test."""
    if case.family == "wan2.1-vace":
        return _make_vace(case)
    is_5b = case.family == "wan2.2-ti2v"
    channels = 48 if is_5b else 16
    takes = {"in_channels": 36 if case.pictures and not is_5b else channels, "out_channels": channels}
    if case.clip_size:
        takes |= {"image_dim": 4}
    if "last_image" in case.pictures:
        takes |= {"pos_embed_seq_len": 2 * (case.clip_size**2 + 1)}
    transformers = [_seeded(WanTransformer3DModel, **TINY_TRANSFORMER, **takes) for _ in range(2 if case.boundary else 1)]
    parts = {
        "vae": _seeded(AutoencoderKLWan, **TINY_VAE, **(VAE_22 if is_5b else {"z_dim": 16})),
        "transformer": transformers[0],
        "transformer_2": (*transformers, None)[1],
        "scheduler": _scheduler(case),
        "text_encoder": _silent_text_encoder(),
        "tokenizer": AutoTokenizer.from_pretrained(DEMO / "tokenizer"),
        "boundary_ratio": case.boundary,
        "expand_timesteps": is_5b,
    }
    if case.clip_size:
        size = case.clip_size
        parts["image_encoder"] = _seeded(CLIPVisionModelWithProjection, config=_clip(size))
        parts["image_processor"] = CLIPImageProcessorPil(crop_size=size, size=size)
    pipeline = (WanImageToVideoPipeline if case.pictures else WanPipeline)(**parts)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def _make_vace(case: Published) -> WanVACEPipeline:
    """Build the pipeline of their test_wan_vace.py, commit 01dae7492bdc2aca8d4e8ec40ec46b9d9b40b3e5."""
    own = {"in_channels": 16, "out_channels": 16, "num_layers": 3, "vace_layers": [0, 2], "vace_in_channels": 96}
    pipeline = WanVACEPipeline(
        transformer=_seeded(WanVACETransformer3DModel, **TINY_TRANSFORMER | own),
        vae=_seeded(AutoencoderKLWan, **TINY_VAE, z_dim=16),
        scheduler=_scheduler(case),
        text_encoder=_silent_text_encoder(),
        tokenizer=AutoTokenizer.from_pretrained(DEMO / "tokenizer"),
    )
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def make_published_preset(case: Published, folder: Path) -> Preset:
    """Return a preset for the saved pipeline."""
    size, boundary = case.size, case.boundary
    own = dict(
        name=f"published-{case.family}",
        width=size,
        height=size,
        num_frames=NUM_FRAMES,
        steps=STEPS,
        solver=case.solver,
        size_multiple=size,
        min_width=size,
        min_height=size,
        sizes=[[size, size]],
        flow_shift=case.flow_shift,
        guidance=[GUIDANCE] * (2 if boundary else 1),
        boundary=boundary,
    )
    return Preset(**make_preset(case.family, folder).model_dump() | own)


def _seeded(kind: type[torch.nn.Module], **options) -> torch.nn.Module:
    torch.manual_seed(0)
    return kind(**options).eval()


def _scheduler(case: Published) -> FlowMatchEulerDiscreteScheduler | UniPCMultistepScheduler:
    if case.solver == "euler":
        return FlowMatchEulerDiscreteScheduler(shift=case.flow_shift)
    return UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=case.flow_shift)


def _silent_text_encoder() -> UMT5EncoderModel:
    """Return a text encoder whose embeddings are zero for every prompt."""
    model = UMT5EncoderModel(UMT5Config(vocab_size=512, d_model=TEXT_WIDTH, d_kv=8, d_ff=32, num_layers=1, num_heads=4)).eval()
    torch.nn.init.zeros_(model.encoder.final_layer_norm.weight)
    return model


def _clip(size: int) -> CLIPVisionConfig:
    return CLIPVisionConfig(
        hidden_size=4,
        projection_dim=4,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=size,
        intermediate_size=16,
        patch_size=1,
    )
