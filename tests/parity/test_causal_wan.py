"""Causal Wan equals a plain loop over diffusers' transformer, with a tiny random checkpoint and the same prompt and noise, in
float32. The cases start from a prompt or a picture, change the prompt on the way, and load a single-file checkpoint.
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
from diffusers import FlowMatchLCMScheduler, WanPipeline
from PIL import Image
from safetensors.numpy import load_file
from safetensors.torch import load_file as load_torch_file

from backend.media.video import read_frames, read_request
from backend.models.causal_wan.model import draw_noise, noise_key_data
from backend.models.model import VIDEO
from backend.models.wan.original import original_tensor_name
from backend.pipeline import generate as pipeline_module
from backend.pipeline import load as load_module
from backend.pipeline.denoising_loop import draw_initial_noise
from backend.pipeline.live import live
from backend.pipeline.loaded import LoadedModel
from backend.sampling.solvers import make_schedule
from backend.schemas.events import Block, Cancelled, Event, Finished
from backend.schemas.live import frame_name
from backend.schemas.prompt_cues import Cue
from backend.schemas.request import GenerationRequest
from presets import Preset
from tests.backend.models.causal_wan.masked import masked_velocity
from tests.gradients import without_gradients
from tests.parity.tiny_checkpoints import make_checkpoint, make_preset
from tests.parity.tiny_preset import find_also
from tests.parity.tiny_runs import latents_of

pytestmark = [pytest.mark.parity, pytest.mark.demo_model]

BLOCK, NAME = 2, "tiny-causal-wan"
LATENT_TOLERANCE = 1e-3  # the project's bar
CLOSE = 1e-4  # for small effects of a mistake: a tiny model's past changes 5e-4; 8e-6 was measured
OTHER = "a small blue square"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tiny:
    """The checkpoint, loaded by our code and by diffusers."""

    preset: Preset
    loaded: LoadedModel
    reference: WanPipeline

    @property
    def block(self) -> int:
        return self.loaded.model.spec.chunk

    def request(self, **changes) -> GenerationRequest:
        settings = dict(prompt="a large yellow circle drifts up", seed=2**31 + 5, num_frames=21, width=64, height=64)
        return GenerationRequest.from_preset(self.preset, **settings | changes)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory, caches_in_a_folder_of_their_own) -> Iterator[Tiny]:
    folder = make_checkpoint("wan2.1-t2v", tmp_path_factory.mktemp("causal"))
    reference = WanPipeline.from_pretrained(folder)
    for name, entries in (
        ("model_index.json", {"_class_name": "WanCausalDMDPipeline"}),
        ("transformer/config.json", {"_class_name": "CausalWanTransformer3DModel", "num_frames_per_block": BLOCK}),
    ):
        (folder / name).write_text(json.dumps(json.loads((folder / name).read_text()) | entries))
    own = dict(name=NAME, series=NAME, guidance=[1.0], max_guidance=1.0, solver="lcm", solvers=["lcm"], flow_shift=5.0, steps=3)
    own |= dict(
        frame_step=8,
        first_frames=5,
        frame_counts=[5, 13, 21],
        num_frames=21,
        max_frames=61,
        trained_frames=None,
        windows_above=None,
        live=True,
    )
    own |= dict(tasks=["t2v", "i2v"], takes={})
    preset = Preset(**make_preset("wan2.1-t2v", folder).model_dump() | own)
    with pytest.MonkeyPatch.context() as patch:
        find_also(patch, preset)
        yield Tiny(preset=preset, loaded=load_module.load(preset, None, lambda event: None), reference=reference)


def run_ours(made: Tiny, request: GenerationRequest, folder: Path) -> np.ndarray:
    """Return the latents after all steps."""
    list(pipeline_module.generate(request, made.loaded, folder, lambda: False))
    return load_file(folder / "stage2_latents.safetensors")["latents"]


@pytest.fixture(scope="module")
def picture(tmp_path_factory) -> Path:
    pixels = np.random.default_rng(3).integers(0, 256, (64, 64, 3), np.uint8)
    path = tmp_path_factory.mktemp("picture") / "first.png"
    Image.fromarray(pixels).save(path)
    return path


@pytest.fixture(scope="module")
def makers_folder(tiny, tmp_path_factory) -> Path:
    """The same checkpoint as its makers save it: folders for the other parts, and a .pt file with Wan's own names."""
    folder, source = tmp_path_factory.mktemp("makers"), Path(tiny.preset.model)
    for part in ("vae", "text_encoder", "tokenizer"):
        shutil.copytree(source / part, folder / part)
    tensors = load_torch_file(source / "transformer" / "diffusion_pytorch_model.safetensors")
    named = {f"model.{original_tensor_name(name)}": value for name, value in tensors.items()}
    plain = {name: torch.zeros_like(value) for name, value in named.items()}
    torch.save({"generator": plain, "generator_ema": named, "step": 600}, folder / "causal.pt")
    return folder


@without_gradients
def still_clip(made: Tiny, path: Path, num_frames: int) -> torch.Tensor:
    """Return latents of a clip that shows the picture in all frames, encoded and normalised like a clip in diffusers'
    pipelines.
    """
    vae, pixels = made.reference.vae, torch.from_numpy(np.asarray(Image.open(path), np.float32)).permute(2, 0, 1)
    clip = (pixels / 127.5 - 1)[None, :, None].repeat(1, 1, num_frames, 1, 1)
    mean, deviation = (torch.tensor(values).view(1, -1, 1, 1, 1) for values in (vae.config.latents_mean, vae.config.latents_std))
    return (vae.encode(clip).latent_dist.mode() - mean) / deviation


@without_gradients
def run_reference(made: Tiny, request: GenerationRequest, recaches: bool = False) -> np.ndarray:
    """Return the latents of a plain loop: blocks, noise levels, and fresh noise between them. Each block uses the latest
    prompt. If the model `recaches`, earlier blocks use the latest prompt too. The first block shows the picture, if given.
    """
    block = made.block
    said = {0: request.prompt} | {cue.block: cue.prompt for cue in request.cues}
    texts: list[torch.Tensor] = []
    clean: list[torch.Tensor] = []
    for sample in torch.from_numpy(draw_initial_noise(request, made.loaded.model)[VIDEO]).split(block, dim=2):
        prompt = said[max(block for block in said if block <= len(clean))]
        text, _ = made.reference.encode_prompt(prompt, do_classifier_free_guidance=False, max_sequence_length=512)
        texts = [text] * (len(texts) + 1) if recaches else [*texts, text]
        if request.image and not clean:
            clean.append(still_clip(made, Path(request.image), 4 * block - 3))
            continue
        steps = request.steps if clean else max(request.steps, made.loaded.model.spec.first_steps)
        sigmas = make_schedule("lcm", steps, request.flow_shift).sigmas
        for sigma, following in zip(sigmas[:-1], sigmas[1:], strict=True):
            velocity = masked_velocity(made.reference.transformer, clean, sample, float(1000 * sigma), texts)
            estimate = sample - float(sigma) * velocity
            noise = draw_noise(noise_key_data(request.seed), np.int32(block * len(clean)), np.float32(sigma), sample.shape)
            sample = float(following) * torch.from_numpy(np.array(noise)) + (1 - float(following)) * estimate
        clean.append(sample)
    return torch.cat(clean, dim=2).numpy()


def test_every_block_is_what_a_plain_loop_makes(tiny):
    request = tiny.request()
    ours = latents_of(request, tiny.loaded)
    assert ours.shape[2] == 3 * BLOCK
    assert np.abs(ours - run_reference(tiny, request)).max() <= LATENT_TOLERANCE


def test_a_prompt_said_on_the_way_holds_from_its_block_on(tiny):
    """Finished blocks stay with their own prompt."""
    request = tiny.request(cues=(Cue(block=1, prompt="a small blue square"),))
    ours, plain = latents_of(request, tiny.loaded), latents_of(tiny.request(), tiny.loaded)
    assert np.abs(ours - run_reference(tiny, request)).max() <= LATENT_TOLERANCE
    np.testing.assert_array_equal(ours[:, :, :BLOCK], plain[:, :, :BLOCK])
    assert np.abs(ours[:, :, BLOCK:] - plain[:, :, BLOCK:]).max() > 1e-2


def test_a_longer_video_begins_with_the_same(tiny):
    short, long = (latents_of(tiny.request(num_frames=count), tiny.loaded) for count in (13, 21))
    np.testing.assert_array_equal(short, long[:, :, : short.shape[2]])


def test_another_seed_makes_another_video(tiny):
    videos = [latents_of(tiny.request(seed=seed, steps=1), tiny.loaded) for seed in (1, 2)]
    assert np.abs(videos[0] - videos[1]).max() > 0.1


def test_a_stopped_video_continues_and_comes_to_the_same(tiny, tmp_path):
    request, steps = tiny.request(cues=(Cue(block=1, prompt="a small blue square"),)), iter(range(100))
    whole = latents_of(request, tiny.loaded)
    events = pipeline_module.generate(request, tiny.loaded, tmp_path / "stopped", lambda: False)
    for event in events:
        if event.kind == "step" and next(steps) == 3:  # in the second block
            events.close()
            break
    np.testing.assert_array_equal(latents_of(request, tiny.loaded, tmp_path / "stopped"), whole)


def test_a_picture_is_the_first_block_and_the_video_continues_from_it(tiny, picture, tmp_path):
    request = tiny.request(image=str(picture))
    ours = run_ours(tiny, request, tmp_path)
    assert request.task == "i2v" and ours.shape[2] == 3 * BLOCK
    assert np.abs(ours - run_reference(tiny, request)).max() <= CLOSE
    assert np.abs(ours[:, :, :BLOCK] - still_clip(tiny, picture, 4 * BLOCK - 3).numpy()).max() <= CLOSE


def test_a_video_from_a_picture_continues_where_it_was_stopped_and_is_made_again_from_a_live_one(tiny, picture, tmp_path):
    *_, finished = run_live(tiny, tmp_path / "live", 3, {1: Cue(block=0, prompt=OTHER)}, image=str(picture))
    request, steps = finished.result.request, iter(range(100))
    assert request.image == str(picture) and request.cues == (Cue(block=1, prompt=OTHER),)
    events = pipeline_module.generate(request, tiny.loaded, tmp_path / "stopped", lambda: False)
    next(event for event in events if event.kind == "step" and next(steps) == request.steps)  # in the second block
    events.close()
    list(pipeline_module.generate(request, tiny.loaded, tmp_path / "stopped", lambda: False))
    np.testing.assert_array_equal(pixels(tmp_path / "live/video.mp4"), pixels(tmp_path / "stopped/video.mp4"))


def test_a_new_prompt_regenerates_the_past_where_the_model_was_trained_so(tiny, tmp_path, monkeypatch):
    """The window contains the whole past, so every block uses the new prompt. A stopped and resumed video is the same to the
    last bit.
    """
    monkeypatch.setattr(tiny.loaded.model, "spec", dataclasses.replace(tiny.loaded.model.spec, recaches=True))
    request, steps = tiny.request(cues=(Cue(block=1, prompt=OTHER), Cue(block=2, prompt="a green star"))), iter(range(100))
    ours = run_ours(tiny, request, tmp_path / "whole")
    assert np.abs(ours - run_reference(tiny, request, recaches=True)).max() <= CLOSE
    assert np.abs(ours - run_reference(tiny, request)).max() > 4 * CLOSE
    programs = tiny.loaded.model._programs(False)
    assert len(programs.settle._compiled) <= len(programs.step._compiled)  # without one of its own
    events = pipeline_module.generate(request, tiny.loaded, tmp_path / "stopped", lambda: False)
    next(event for event in events if event.kind == "step" and next(steps) == 2 * request.steps + 1)  # in the third block
    events.close()
    np.testing.assert_array_equal(run_ours(tiny, request, tmp_path / "stopped"), ours)


@pytest.mark.parametrize("steps", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_the_first_block_has_its_own_steps_where_the_model_was_trained_so(tiny, tmp_path, monkeypatch, steps):
    monkeypatch.setattr(tiny.loaded.model, "spec", dataclasses.replace(tiny.loaded.model.spec, first_steps=4))
    request = tiny.request(num_frames=13, steps=steps)
    assert np.abs(run_ours(tiny, request, tmp_path) - run_reference(tiny, request)).max() <= CLOSE


def test_the_makers_own_file_gives_the_same_latents(tiny, makers_folder, tmp_path):
    same = dataclasses.replace(tiny, loaded=load_module.load(tiny.preset, str(makers_folder), lambda event: None))
    assert same.loaded.model.spec == tiny.loaded.model.spec  # the preset states how the model was trained, the file does not
    request = tiny.request(num_frames=13, steps=1)
    np.testing.assert_array_equal(run_ours(same, request, tmp_path / "makers"), run_ours(tiny, request, tmp_path / "diffusers"))


def test_blocks_of_one_frame_from_a_picture(tiny, makers_folder, picture, tmp_path):
    """Causal-Forcing has blocks of one frame: the picture is the first latent frame and the first pixel frame of the video."""
    folder = Path(shutil.copytree(makers_folder, tmp_path / "folder"))
    (folder / "transformer").mkdir()
    (folder / "transformer" / "config.json").write_text(json.dumps({"num_frames_per_block": 1}))
    framewise = dataclasses.replace(tiny, loaded=load_module.load(tiny.preset, str(folder), lambda event: None))
    request, steps = framewise.request(num_frames=13, steps=2, image=str(picture)), iter(range(100))
    assert framewise.block == 1
    ours = run_ours(framewise, request, tmp_path / "whole")
    assert ours.shape[2] == 4 and len(pixels(tmp_path / "whole/video.mp4")) == 13
    assert np.abs(ours - run_reference(framewise, request)).max() <= CLOSE
    events = pipeline_module.generate(request, framewise.loaded, tmp_path / "stopped", lambda: False)
    next(event for event in events if event.kind == "step" and next(steps) == 2 * request.steps)  # in the third block
    events.close()
    np.testing.assert_array_equal(run_ours(framewise, request, tmp_path / "stopped"), ours)


def run_live(made: Tiny, folder: Path, blocks: int, said: dict[int, Cue], **changes) -> Iterator[Event]:
    """Yield the events of a live video that stops after `blocks` blocks. `said` has the cues by the number of the poll."""
    seen, asked = [], iter(range(1000))
    request = made.request(num_frames=61, is_open=True, steps=2, **changes)
    heard = lambda: [said[number]] if (number := next(asked)) in said else []  # noqa: E731
    for event in live(request, made.loaded, folder, lambda: len(seen) >= blocks, heard):
        if isinstance(event, Block):
            seen.append(event)
        yield event


def pixels(path: Path) -> np.ndarray:
    return np.stack(list(read_frames(path)))


def test_an_open_video_is_made_again_by_its_request(tiny, tmp_path):
    *_, finished = run_live(tiny, tmp_path / "live", 3, {1: Cue(block=0, prompt="a small blue square")})
    assert isinstance(finished, Finished)
    request = finished.result.request
    assert request.cues == (Cue(block=1, prompt="a small blue square"),) and not request.is_open
    assert read_request(tmp_path / "live/video.mp4").for_sharing() == request.for_sharing()
    *_, again = pipeline_module.generate(request, tiny.loaded, tmp_path / "again", lambda: False)
    assert again.result.num_frames == finished.result.num_frames == request.num_frames < 61
    np.testing.assert_array_equal(pixels(tmp_path / "live/video.mp4"), pixels(tmp_path / "again/video.mp4"))


@pytest.mark.slow  # tests/backend/pipeline/test_live.py resumes the demo model
def test_an_open_video_continues_after_its_process_was_killed(tiny, tmp_path):
    said = {2: Cue(block=0, prompt="a small blue square")}
    events = run_live(tiny, tmp_path / "live", 100, said)
    next(event for event in events if isinstance(event, Block) and event.index == 2)
    events.close()
    *_, finished = run_live(tiny, tmp_path / "live", 5, {})
    assert finished.result.request.cues == (Cue(block=2, prompt="a small blue square"),)
    *_, again = pipeline_module.generate(finished.result.request, tiny.loaded, tmp_path / "again", lambda: False)
    np.testing.assert_array_equal(pixels(tmp_path / "live/video.mp4"), pixels(tmp_path / "again/video.mp4"))


def test_each_frame_of_an_open_video_is_shown_as_soon_as_it_is_made(tiny, tmp_path):
    blocks, ends = 0, 0
    for event in run_live(tiny, tmp_path, 3, {}):
        if isinstance(event, Block):
            assert (event.index, event.first) == (blocks, ends)
            assert all((tmp_path / frame_name(number)).is_file() for number in range(event.first, event.end))
            blocks, ends = blocks + 1, event.end
    assert isinstance(event, Finished) and event.result.num_frames == ends


def test_an_open_video_that_is_stopped_before_it_begins_leaves_none(tiny, tmp_path):
    *_, last = run_live(tiny, tmp_path, 0, {})
    assert last == Cancelled(None) and not (tmp_path / "video.mp4").exists()


@pytest.mark.parametrize(("steps", "timesteps"), [(1, [1000]), (2, [1000, 833.333]), (4, [1000, 937.5, 833.333, 625])])
def test_the_timesteps_are_the_makers(steps, timesteps):
    """The timesteps of the configurations of Self-Forcing and Causal-Forcing: 1000; 1000, 500; 1000, 750, 500, 250, each
    shifted by 5.
    """
    np.testing.assert_allclose(make_schedule("lcm", steps, 5.0).timesteps, timesteps, atol=1e-3)


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_the_noise_levels_are_those_of_diffusers_scheduler(steps):
    scheduler = FlowMatchLCMScheduler(shift=5.0)
    scheduler.set_timesteps(sigmas=[1 - step / steps for step in range(steps)])
    schedule = make_schedule("lcm", steps, 5.0)
    np.testing.assert_allclose(schedule.sigmas, scheduler.sigmas.numpy(), atol=1e-6)
    np.testing.assert_allclose(schedule.timesteps, scheduler.timesteps.numpy(), atol=1e-3)
