"""Causal Wan makes what a plain loop over diffusers' transformer makes: a tiny random checkpoint, same prompt and noise, float32."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from diffusers import FlowMatchLCMScheduler, WanPipeline

from backend.contract import request as request_module
from backend.contract.cues import Cue
from backend.contract.request import GenerationRequest
from backend.families.causal_wan.model import fresh_noise, key_data
from backend.pipeline import generate as pipeline_module
from backend.pipeline import load as load_module
from backend.pipeline.generate import initial_noise
from backend.pipeline.load import LoadedModel
from backend.sampling.solvers import make_schedule
from presets import Preset, load_preset
from tests.backend.families.causal_wan.masked import masked_velocity
from tests.parity.tiny_checkpoints import make_checkpoint, make_preset
from tests.parity.tiny_runs import latents_of

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
    own |= dict(frame_step=8, first_frames=5, frame_counts=[5, 13, 21], num_frames=21, live=True)
    preset = Preset(**make_preset("wan2.1-t2v", folder).model_dump() | own)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(request_module, "load_preset", lambda name: preset if name == NAME else load_preset(name))
        yield Tiny(preset=preset, loaded=load_module.load(preset, None, lambda event: None), reference=reference)


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


def test_every_block_is_what_a_plain_loop_makes(tiny):
    request = tiny.request()
    ours = latents_of(request, tiny.loaded)
    assert ours.shape[2] == 3 * BLOCK
    assert np.abs(ours - run_reference(tiny, request)).max() <= LATENT_TOLERANCE


def test_a_prompt_said_on_the_way_holds_from_its_block_on(tiny):
    """Blocks that are there stay as they were seen, with their own prompt."""
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


def test_a_stopped_video_goes_on_and_comes_to_the_same(tiny, tmp_path):
    request, steps = tiny.request(cues=(Cue(block=1, prompt="a small blue square"),)), iter(range(100))
    whole = latents_of(request, tiny.loaded)
    events = pipeline_module.generate(request, tiny.loaded, tmp_path / "stopped", lambda: False)
    for event in events:
        if event.kind == "step" and next(steps) == 3:  # in the second block
            events.close()
            break
    np.testing.assert_array_equal(latents_of(request, tiny.loaded, tmp_path / "stopped"), whole)


@pytest.mark.parametrize("steps", [1, 4])
def test_the_noise_levels_are_those_of_diffusers_scheduler(steps):
    scheduler = FlowMatchLCMScheduler(shift=5.0)
    scheduler.set_timesteps(sigmas=[1 - step / steps for step in range(steps)])
    schedule = make_schedule("lcm", steps, 5.0)
    np.testing.assert_allclose(schedule.sigmas, scheduler.sigmas.numpy(), atol=1e-6)
    np.testing.assert_allclose(schedule.timesteps, scheduler.timesteps.numpy(), atol=1e-3)
