"""Causal Wan makes what a plain loop over diffusers' transformer makes: a tiny random checkpoint, same prompt and noise, float32."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import FlowMatchLCMScheduler, WanPipeline
from safetensors.numpy import load_file

from backend.contract import request as request_module
from backend.contract.cues import Cue
from backend.contract.events import Block, Cancelled, Event, Finished
from backend.contract.live import frame_name
from backend.contract.request import GenerationRequest
from backend.families.causal_wan.model import fresh_noise, key_data
from backend.media.video import read_frames, read_request
from backend.pipeline import generate as pipeline_module
from backend.pipeline import load as load_module
from backend.pipeline.denoising import initial_noise
from backend.pipeline.live import live
from backend.pipeline.load import LoadedModel
from backend.sampling.solvers import make_schedule
from presets import Preset, load_preset
from tests.backend.families.causal_wan.masked import masked_velocity
from tests.parity.tiny_checkpoints import make_checkpoint, make_preset

pytestmark = [pytest.mark.parity, pytest.mark.demo_model]

BLOCK, NAME = 2, "tiny-causal-wan"
LATENT_TOLERANCE = 1e-3  # the project's bar


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tiny:
    """The checkpoint, loaded by us and by diffusers."""

    preset: Preset
    loaded: LoadedModel
    reference: WanPipeline

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
    own |= dict(frame_step=8, first_frames=5, frame_counts=[5, 13, 21], num_frames=21, max_frames=61, live=True)
    preset = Preset(**make_preset("wan2.1-t2v", folder).model_dump() | own)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(request_module, "load_preset", lambda name: preset if name == NAME else load_preset(name))
        yield Tiny(preset=preset, loaded=load_module.load(preset, None, lambda event: None), reference=reference)


def run_ours(made: Tiny, request: GenerationRequest, folder: Path) -> np.ndarray:
    """The latents after all steps."""
    list(pipeline_module.generate(request, made.loaded, folder, lambda: False))
    return load_file(folder / "stage2_latents.safetensors")["latents"]


@torch.no_grad()
def run_reference(made: Tiny, request: GenerationRequest) -> np.ndarray:
    """The latents of a plain loop: blocks, noise levels, fresh noise between them; each block with the prompt that was said last."""
    said = {0: request.prompt} | {cue.block: cue.prompt for cue in request.cues}
    texts: list[torch.Tensor] = []
    sigmas = make_schedule("lcm", request.steps, request.flow_shift).sigmas
    clean: list[torch.Tensor] = []
    for sample in torch.from_numpy(initial_noise(request, made.loaded.model)).split(BLOCK, dim=2):
        prompt = said[max(block for block in said if block <= len(clean))]
        text, _ = made.reference.encode_prompt(prompt, do_classifier_free_guidance=False, max_sequence_length=512)
        texts.append(text)
        for sigma, following in zip(sigmas[:-1], sigmas[1:], strict=True):
            velocity = masked_velocity(made.reference.transformer, clean, sample, float(1000 * sigma), texts)
            estimate = sample - float(sigma) * velocity
            noise = fresh_noise(key_data(request.seed), np.int32(BLOCK * len(clean)), np.float32(sigma), sample.shape)
            sample = float(following) * torch.from_numpy(np.array(noise)) + (1 - float(following)) * estimate
        clean.append(sample)
    return torch.cat(clean, dim=2).numpy()


def test_every_block_is_what_a_plain_loop_makes(tiny, tmp_path):
    request = tiny.request()
    ours = run_ours(tiny, request, tmp_path)
    assert ours.shape[2] == 3 * BLOCK
    assert np.abs(ours - run_reference(tiny, request)).max() <= LATENT_TOLERANCE


def test_a_prompt_said_on_the_way_holds_from_its_block_on(tiny, tmp_path):
    """Blocks that are there stay as they were seen, with their own prompt."""
    request = tiny.request(cues=(Cue(block=1, prompt="a small blue square"),))
    ours, plain = run_ours(tiny, request, tmp_path / "cued"), run_ours(tiny, tiny.request(), tmp_path / "plain")
    assert np.abs(ours - run_reference(tiny, request)).max() <= LATENT_TOLERANCE
    np.testing.assert_array_equal(ours[:, :, :BLOCK], plain[:, :, :BLOCK])
    assert np.abs(ours[:, :, BLOCK:] - plain[:, :, BLOCK:]).max() > 1e-2


def test_a_longer_video_begins_with_the_same(tiny, tmp_path):
    short, long = (run_ours(tiny, tiny.request(num_frames=count), tmp_path / str(count)) for count in (13, 21))
    np.testing.assert_array_equal(short, long[:, :, : short.shape[2]])


def test_another_seed_makes_another_video(tiny, tmp_path):
    videos = [run_ours(tiny, tiny.request(seed=seed, steps=1), tmp_path / str(seed)) for seed in (1, 2)]
    assert np.abs(videos[0] - videos[1]).max() > 0.1


def test_a_stopped_video_goes_on_and_comes_to_the_same(tiny, tmp_path):
    request, steps = tiny.request(cues=(Cue(block=1, prompt="a small blue square"),)), iter(range(100))
    whole = run_ours(tiny, request, tmp_path / "whole")
    events = pipeline_module.generate(request, tiny.loaded, tmp_path / "stopped", lambda: False)
    for event in events:
        if event.kind == "step" and next(steps) == 3:  # in the second block
            events.close()
            break
    np.testing.assert_array_equal(run_ours(tiny, request, tmp_path / "stopped"), whole)


def run_live(made: Tiny, folder: Path, blocks: int, said: dict[int, Cue]) -> Iterator[Event]:
    """An open video that is stopped when so many blocks have been seen; `said` by the number of the question."""
    seen, asked = [], iter(range(1000))
    request = made.request(num_frames=61, is_open=True, steps=2)
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


def test_an_open_video_goes_on_after_its_process_was_killed(tiny, tmp_path):
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


@pytest.mark.parametrize("steps", [1, 4])
def test_the_noise_levels_are_those_of_diffusers_scheduler(steps):
    scheduler = FlowMatchLCMScheduler(shift=5.0)
    scheduler.set_timesteps(sigmas=[1 - step / steps for step in range(steps)])
    schedule = make_schedule("lcm", steps, 5.0)
    np.testing.assert_allclose(schedule.sigmas, scheduler.sigmas.numpy(), atol=1e-6)
    np.testing.assert_allclose(schedule.timesteps, scheduler.timesteps.numpy(), atol=1e-3)
