"""Matrix-Game 2.0 equals a plain loop over diffusers' transformer and a plain action module. The tiny random checkpoint has
FastVideo's layout. Picture, actions and noise are the same, in float32.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import AutoencoderKLWan, WanTransformer3DModel
from safetensors.numpy import load_file
from safetensors.torch import save_file
from transformers import CLIPVisionModel

from backend.media.pictures import crop_to, load_checked_image
from backend.media.video import read_frames
from backend.models.causal_wan.action_model import STILL_FRAMES
from backend.models.causal_wan.action_spec import PIPELINES, TRANSFORMERS, read_action_shape
from backend.models.causal_wan.actions import parameter_shapes
from backend.models.causal_wan.model import draw_noise, noise_key_data
from backend.models.model import VIDEO
from backend.pipeline import generate as pipeline_module
from backend.pipeline import load as load_module
from backend.pipeline.denoising_loop import draw_initial_noise
from backend.pipeline.live import live
from backend.pipeline.loaded import LoadedModel
from backend.sampling.solvers import make_schedule
from backend.schemas.events import Block, Finished
from backend.schemas.prompt_cues import Cue
from backend.schemas.request import GenerationRequest
from presets import Preset, load_preset
from tests.backend.models.causal_wan.plain_actions import PlainActions, plain_velocity, random_weights
from tests.gradients import without_gradients
from tests.parity.tiny_checkpoints import IMAGE_WIDTH, make_checkpoint
from tests.parity.tiny_preset import find_also

pytestmark = [pytest.mark.parity, pytest.mark.demo_model]

BLOCK, WINDOW, SIDE, NAME = 2, 3, 64, "tiny-action-wan"
TRANSFORMER = dict(
    num_attention_heads=2,
    attention_head_dim=128,
    num_layers=2,
    ffn_dim=256,
    freq_dim=256,
    in_channels=36,
    out_channels=16,
    image_dim=IMAGE_WIDTH,
)
ACTIONS = dict(
    blocks=[0],
    heads_num=4,
    hidden_size=8,
    img_hidden_size=256,
    keyboard_dim_in=4,
    keyboard_hidden_dim=32,
    mouse_dim_in=2,
    mouse_hidden_dim=32,
    mouse_qk_dim_list=[4, 2, 2],
    rope_dim_list=[4, 2, 2],
    rope_theta=256,
    vae_time_compression_ratio=4,
    windows_size=3,
)
FASTVIDEOS_NAMES = {
    "patch_embedding.": "patch_embedding.proj.", "time_embedder.linear_1": "time_embedder.mlp.fc_in",
    "time_embedder.linear_2": "time_embedder.mlp.fc_out", "time_proj": "time_modulation.linear",
    "image_embedder.ff.net.0.proj": "image_embedder.ff.fc_in", "image_embedder.ff.net.2": "image_embedder.ff.fc_out",
    ".attn1.to_out.0": ".to_out", ".attn1.": ".", ".attn2.to_out.0": ".attn2.to_out", ".ffn.net.0.proj": ".ffn.fc_in",
    ".ffn.net.2": ".ffn.fc_out",
}  # fmt: skip
CLIP_MEAN, CLIP_DEVIATION = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
LATENT_TOLERANCE = 1e-3  # the project's bar


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tiny:
    """The checkpoint, loaded by our code, and its parts in diffusers and in a plain module."""

    preset: Preset
    loaded: LoadedModel
    transformer: WanTransformer3DModel
    actions: PlainActions
    folder: Path
    picture: Path

    def request(self, **changes) -> GenerationRequest:
        settings = dict(seed=2**31 + 5, num_frames=21, image=str(self.picture))
        return GenerationRequest.from_preset(self.preset, **settings | changes)


def make_action_checkpoint(folder: Path) -> tuple[WanTransformer3DModel, dict[str, torch.Tensor]]:
    """Write a checkpoint, and return its transformer with the weights of the one action module."""
    make_checkpoint("wan2.1-i2v", folder)
    for part in ("text_encoder", "tokenizer", "transformer"):
        shutil.rmtree(folder / part)
    torch.manual_seed(7)
    transformer = WanTransformer3DModel(**TRANSFORMER, text_dim=1).eval()
    with torch.no_grad():
        for name, value in transformer.named_parameters():
            if "norm" in name:  # ones and zeros would hide a mix-up
                value.add_(0.2 * torch.randn_like(value))
        transformer.proj_out.weight.mul_(2)
    config = {**TRANSFORMER, "_class_name": TRANSFORMERS[0], "text_dim": 0, "num_frames_per_block": BLOCK}
    config |= {"local_attn_size": WINDOW, "action_config": ACTIONS}
    shapes = {name: shape[::-1] for name, shape in parameter_shapes(read_action_shape(config), 256).items()}
    actions = random_weights(shapes, torch.Generator().manual_seed(8))
    tensors = {name: value for name, value in transformer.state_dict().items() if "text_embedder" not in name}
    named = {_fastvideos_name(name): value.contiguous() for name, value in tensors.items()}
    unused = {f"blocks.0.action_model.{name}.weight": torch.full([8], 9.0) for name in ("img_attn_q_norm", "key_attn_k_norm")}
    (folder / "transformer").mkdir()
    (folder / "transformer/config.json").write_text(json.dumps(config))
    in_blocks = {f"blocks.0.action_model.{name}": value.contiguous() for name, value in actions.items()}
    save_file(named | in_blocks | unused, folder / "transformer/diffusion_pytorch_model.safetensors")
    index = {"transformer": TRANSFORMERS[0], "vae": "AutoencoderKLWan", "scheduler": "SelfForcingFlowMatchScheduler"}
    index |= {"image_encoder": "CLIPVisionModel", "image_processor": "CLIPImageProcessor"}
    whole = {"_class_name": PIPELINES[0]} | {part: ["diffusers", name] for part, name in index.items()}
    (folder / "model_index.json").write_text(json.dumps(whole))
    return transformer, actions


def _fastvideos_name(name: str) -> str:
    for diffusers, fastvideo in FASTVIDEOS_NAMES.items():
        name = name.replace(diffusers, fastvideo)
    return name.replace(".norm2.", ".self_attn_residual_norm.norm.") if name.startswith("blocks.") else name


@pytest.fixture(scope="module")
def tiny(tmp_path_factory, caches_in_a_folder_of_their_own, picture) -> Iterator[Tiny]:
    folder = tmp_path_factory.mktemp("action") / "checkpoint"
    transformer, weights = make_action_checkpoint(folder)
    own = dict(name=NAME, series=NAME, model=str(folder), architecture=None, dtype="float32", fps=8)
    own |= dict(
        frame_step=4 * BLOCK,
        first_frames=4 * BLOCK - 3,
        num_frames=21,
        frame_counts=[21],
        min_frames=5,
        max_frames=61,
        trained_frames=None,
        windows_above=None,
    )
    own |= dict(width=SIDE, height=SIDE, sizes=[[SIDE, SIDE]])
    own |= {f"{which}_{side}": SIDE for which in ("min", "max") for side in ("width", "height")}
    preset = Preset(**load_preset("matrix-game-2.0").model_dump() | own)
    actions = PlainActions(weights=weights, heads=4, time_width=4, theta=256, block=BLOCK, window=WINDOW)
    with pytest.MonkeyPatch.context() as patch:
        find_also(patch, preset)
        loaded = load_module.load(preset, None, lambda event: None)
        yield Tiny(preset=preset, loaded=loaded, transformer=transformer, actions=actions, folder=folder, picture=picture)


def run_ours(made: Tiny, request: GenerationRequest, folder: Path) -> np.ndarray:
    """Return the latents after all steps."""
    list(pipeline_module.generate(request, made.loaded, folder, lambda: False))
    return load_file(folder / "stage2_latents.safetensors")["latents"]


@without_gradients
def picture_of(made: Tiny, request: GenerationRequest) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the picture's channels [1, 20, frames, 8, 8], and its CLIP embeddings [1, tokens, D] after squeezing it into a
    square.
    """
    image = crop_to(load_checked_image(request.image), SIDE, SIDE, request.image_focus)
    pixels = torch.from_numpy(np.asarray(image, np.float32)).permute(2, 0, 1)[None] / 255
    clip = torch.cat([2 * pixels[:, :, None] - 1, torch.zeros(1, 3, request.num_frames - 1, SIDE, SIDE)], dim=2)
    vae = AutoencoderKLWan.from_pretrained(made.folder / "vae")
    mean, deviation = (torch.tensor(values).view(1, -1, 1, 1, 1) for values in (vae.config.latents_mean, vae.config.latents_std))
    latents = (vae.encode(clip).latent_dist.mode() - mean) / deviation
    mask = torch.zeros(1, 4, *latents.shape[2:])
    mask[:, :, 0] = 1
    encoder = CLIPVisionModel.from_pretrained(made.folder / "image_encoder").eval()
    square = torch.nn.functional.interpolate(pixels, size=(28, 28), mode="bicubic", align_corners=False)
    mean, deviation = (torch.tensor(values).view(1, 3, 1, 1) for values in (CLIP_MEAN, CLIP_DEVIATION))
    seen = encoder(pixel_values=(square - mean) / deviation, output_hidden_states=True).hidden_states[-2]
    return torch.cat([mask, latents], dim=1), seen


def done_in(rows: dict[int, tuple[list[float], list[float]]], blocks: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each pixel frame's keyboard and mouse from the actions, which change at some blocks."""
    said = [rows[max(block for block in rows if block <= number)] for number in range(blocks)]
    counts = torch.tensor([4 * BLOCK - 3] + [4 * BLOCK] * (blocks - 1))
    keyboard, mouse = (torch.tensor(numbers, dtype=torch.float32) for numbers in zip(*said, strict=True))
    return keyboard.repeat_interleave(counts, dim=0), mouse.repeat_interleave(counts, dim=0)


def run_reference(made: Tiny, request: GenerationRequest, rows: dict[int, tuple[list[float], list[float]]]) -> np.ndarray:
    """Return the latents of a plain loop: blocks, noise levels, and fresh noise between them. Every velocity is computed from
    all frames again.
    """
    channels, seen = picture_of(made, request)
    sigmas = make_schedule("lcm", request.steps, request.flow_shift).sigmas
    clean: list[torch.Tensor] = []
    samples = torch.from_numpy(draw_initial_noise(request, made.loaded.model)[VIDEO]).split(BLOCK, dim=2)
    done = done_in(rows, len(samples))
    for sample in samples:
        for sigma, following in zip(sigmas[:-1], sigmas[1:], strict=True):
            given = (float(1000 * sigma), channels, seen, done)
            velocity = plain_velocity(made.transformer, [made.actions], clean, sample, *given)
            estimate = sample - float(sigma) * velocity
            noise = draw_noise(noise_key_data(request.seed), np.int32(BLOCK * len(clean)), np.float32(sigma), sample.shape)
            sample = float(following) * torch.from_numpy(np.array(noise)) + (1 - float(following)) * estimate
        clean.append(sample)
    return torch.cat(clean, dim=2).numpy()


STEERED = dict(action="forward", cues=(Cue(block=1, action="look-left+right"), Cue(block=2, action="forward")))
ROWS = {0: ([1, 0, 0, 0], [0, 0]), 1: ([0, 0, 0, 1], [0, -0.1]), 2: ([1, 0, 0, 0], [0, 0])}


def test_every_block_is_what_a_plain_loop_makes(tiny, tmp_path):
    request = tiny.request(**STEERED)
    ours = run_ours(tiny, request, tmp_path)
    assert ours.shape[2] == 3 * BLOCK
    assert np.abs(ours - run_reference(tiny, request, ROWS)).max() <= LATENT_TOLERANCE


def test_what_is_done_changes_the_blocks_from_there_on(tiny, tmp_path):
    steered, still = (
        run_ours(tiny, tiny.request(action="forward", cues=cues, steps=1), tmp_path / name)
        for name, cues in (("steered", STEERED["cues"]), ("still", ()))
    )
    np.testing.assert_array_equal(steered[:, :, :BLOCK], still[:, :, :BLOCK])
    assert np.abs(steered[:, :, BLOCK:] - still[:, :, BLOCK:]).max() > 1e-2


@pytest.mark.slow  # test_causal_wan.py resumes another causal model
def test_a_stopped_video_continues_and_comes_to_the_same(tiny, tmp_path):
    request, steps = tiny.request(**STEERED), iter(range(100))
    whole = run_ours(tiny, request, tmp_path / "whole")
    events = pipeline_module.generate(request, tiny.loaded, tmp_path / "stopped", lambda: False)
    for event in events:
        if event.kind == "step" and next(steps) == 7:  # in the third block
            events.close()
            break
    np.testing.assert_array_equal(run_ours(tiny, request, tmp_path / "stopped"), whole)


@pytest.mark.slow  # tests/backend/pipeline/test_live.py generates the demo model's video again
def test_an_open_video_that_was_steered_is_made_again_by_its_request(tiny, tmp_path):
    seen, asked = [], iter(range(1000))
    request = tiny.request(num_frames=61, is_open=True, steps=1)
    said = {1: Cue(block=0, action="forward+look-up"), 2: Cue(block=0, action="stay")}
    heard = lambda: [said[number]] if (number := next(asked)) in said else []  # noqa: E731
    for event in live(request, tiny.loaded, tmp_path / "live", lambda: len(seen) >= 4, heard):
        if isinstance(event, Block):
            seen.append(event)
    assert isinstance(event, Finished)
    made = event.result.request
    assert [cue.action for cue in made.cues] == ["forward+look-up", "stay"] and made.prompt == ""
    *_, again = pipeline_module.generate(made, tiny.loaded, tmp_path / "again", lambda: False)
    assert again.result.num_frames == event.result.num_frames < 61
    live_frames, again_frames = (np.stack(list(read_frames(tmp_path / name / "video.mp4"))) for name in ("live", "again"))
    np.testing.assert_array_equal(live_frames, again_frames)


def test_after_thirty_latent_frames_a_clip_that_stands_still_gives_the_same_ones():
    """Check the value of `STILL_FRAMES` with diffusers' encoder and as many convolutions as in the published encoder."""
    torch.manual_seed(0)
    vae = AutoencoderKLWan(base_dim=4, z_dim=4, dim_mult=[1, 1, 1, 1], num_res_blocks=2).eval()
    clip = torch.cat([torch.randn(1, 3, 1, 16, 16), torch.zeros(1, 3, 4 * (STILL_FRAMES + 1), 16, 16)], dim=2)
    with torch.no_grad():
        latents = vae.encode(clip).latent_dist.mode()
    torch.testing.assert_close(
        latents[:, :, STILL_FRAMES:], latents[:, :, STILL_FRAMES - 1 : STILL_FRAMES].expand(-1, -1, 2, -1, -1), rtol=0, atol=0
    )
