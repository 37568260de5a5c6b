"""Tests of the training of ltx-tiny with few steps: the audio fits the video, and the engine can load the checkpoint."""

from __future__ import annotations

import dataclasses
import functools
import random

import numpy as np
import pytest
import torch

from backend.checkpoints.checkpoint import open_checkpoint
from backend.models import recognise
from backend.models.ltx.spectrum import log_mel as log_mel_of_one
from tests.gradients import without_gradients
from training import train_text_encoder as text_training
from training import train_vae as vae_training
from training.__main__ import Plan, make
from training.fast_vae import speed_up
from training.hum import HOP, LOWEST, NOTE, RATE, hum, notes
from training.ltx_configs import SOUND_VAE
from training.ltx_networks import Given, LtxNetworks, sound_length
from training.ltx_text import make_ltx_tokenizer
from training.ltx_vae import LTX_AUTOENCODER
from training.prompts import compose
from training.recipe import Recipe, StageSeconds
from training.recipes import LTX_TINY
from training.sound_networks import SoundTraining, log_mel, train_sound
from training.train_transformer import TransformerTraining
from training.world import Scene, sample_training_scene

MOST_BYTES = 40e6  # limit of a committed checkpoint's size


def large_red_circle_in_the_middle() -> Scene:
    return Scene(colour="red", shape="circle", motion="still", background="black", size="large", start=(0.5, 0.5), travel=0.4)


def heard(**changes) -> np.ndarray:
    return hum(dataclasses.replace(large_red_circle_in_the_middle(), **changes), 17, 96, 96).numpy()


def loudest(samples: np.ndarray) -> float:
    """Return the strongest frequency in Hz."""
    return np.abs(np.fft.rfft(samples)).argmax() * RATE / len(samples)


def test_higher_is_higher_by_an_octave_at_least():
    low, high = (loudest(heard(start=(0.5, place)).sum(0)) for place in (0.9, 0.1))
    assert abs(low / NOTE - round(low / NOTE)) < 0.05 and LOWEST * 0.9 < low < high
    top, bottom = notes(torch.tensor([0.0, 1.0])).tolist()
    assert top / bottom >= 2


def test_left_and_right_are_heard_where_they_are_seen():
    left, right = (np.abs(heard(start=(place, 0.5))).mean(1) for place in (0.1, 0.9))
    assert left[0] > 2 * left[1] and right[1] > 2 * right[0]
    moving = np.abs(heard(motion="right", start=(0.2, 0.5), travel=0.6)).reshape(2, 17, -1).mean(2)
    assert moving[0, 0] > moving[1, 0] and moving[0, -1] < moving[1, -1]


def test_larger_is_louder_and_silent_is_silent():
    assert np.abs(heard(size="large")).mean() > 1.3 * np.abs(heard(size="small")).mean()
    assert not heard(is_silent=True).any()


def test_kinds_of_shape_have_tones_of_their_own():
    spectra = [np.abs(np.fft.rfft(heard(shape=shape).sum(0)[: 16 * 1000])) for shape in ("circle", "square", "triangle", "star")]
    unit = [one / np.linalg.norm(one) for one in spectra]
    assert max(unit[one] @ unit[other] for one in range(4) for other in range(one)) < 0.95


def test_a_note_begins_again_with_each_frame_of_the_spectrum():
    up = heard(motion="up", start=(0.5, 0.8), travel=0.6)
    assert np.abs(up[:, ::HOP]).max() < 1e-6  # every tone is zero there, so that changes of notes do not click
    assert len({round(loudest(part)) for part in up.sum(0).reshape(17, -1)}) > 4


def test_prompts_say_silent_only_of_scenes_that_are():
    rng = random.Random(1)
    scenes = [sample_training_scene(rng, has_sound=True) for _ in range(200)]
    said = [compose(scene, rng) for scene in scenes]
    assert 10 < sum(scene.is_silent for scene in scenes) < 60
    for scene, (sentence, stated) in zip(scenes, said, strict=True):
        words = any(word in sentence.lower() for word in ("silen", "without a sound"))
        assert words == scene.is_silent == (stated.get("sound") == "silent")


def test_training_hears_what_the_engine_hears():
    samples = torch.from_numpy(heard()).float()
    many, one = log_mel(samples[None])[0].numpy(), log_mel_of_one(samples.numpy(), RATE, HOP, SOUND_VAE["mel_bins"])
    np.testing.assert_allclose(many, one, atol=0.01)  # logarithms of values down to 1e-5, float32 compared with float64


@without_gradients
def test_the_faster_autoencoder_gives_the_same_numbers():
    torch.manual_seed(2)
    vae = LTX_AUTOENCODER.create().eval()
    clip, still = torch.rand(1, 3, 5, 64, 64) * 2 - 1, torch.rand(1, 3, 1, 64, 64) * 2 - 1
    plain = [vae.decode(vae.encode(video).latent_dist.mode()).sample for video in (clip, still)]
    speed_up(vae)
    for video, before in zip((clip, still), plain, strict=True):
        made = vae.decode(vae.encode(video).latent_dist.mode()).sample
        torch.testing.assert_close(made, before, atol=1e-4, rtol=0)  # float32 sums in another order


@pytest.fixture(scope="module")
def little() -> Recipe:
    buckets = tuple(dataclasses.replace(bucket, num_frames=5, batch=2, clips=2) for bucket in LTX_TINY.buckets[:1])
    training = dataclasses.replace(LTX_TINY.vae_training, measured_clips=1, refining=((32, 32, 5, 2),))
    sound = SoundTraining(seconds=0.2, batch=2, measured=4)
    return dataclasses.replace(
        LTX_TINY,
        buckets=buckets,
        vae_training=training,
        make_tokenizer=functools.partial(make_ltx_tokenizer, sentences=2000),
        train_sound=lambda folder, seconds, device, trained: train_sound(folder, sound, device, trained),
    )


@pytest.fixture(scope="module")
def plan(little, tmp_path_factory) -> Plan:
    """Run every stage of the training for a moment."""
    folder = tmp_path_factory.mktemp("made")
    seconds = StageSeconds(vae=0.2, text=0.2, sound=0.2, transformer=0.2, refine=0.2)
    plan = Plan(recipe=little, seconds=seconds, work=folder / "work", output=folder / "model", device="cpu", compiled=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_training, "BATCH", 8)
        for name in ("IMAGES", "CLIPS"):
            patch.setattr(vae_training, name, ((32, 32, 5, 2),))
        make(plan)
    return plan


def test_the_stages_end_in_a_checkpoint_for_both_tasks(plan):
    _, kind = recognise(open_checkpoint(plan.output))
    assert (kind.name, kind.tasks, kind.scales) == ("ltx-2.3", ("t2v", "i2v"), (16, 4))
    assert (kind.sound_rate, kind.sound_latents, kind.sound_shape) == (RATE, 12.5, (2, 16))
    assert sum(path.stat().st_size for path in plan.output.rglob("*") if path.is_file()) < MOST_BYTES


def test_the_whole_training_takes_three_hours_at_most():
    assert sum(dataclasses.astuple(LTX_TINY.seconds)) <= 170 * 60  # plus the time for encoding clips


@pytest.fixture
def networks(plan) -> LtxNetworks:
    return LtxNetworks.load(plan.output, plan.work / "tokenizer", "cpu")


def test_what_is_given_is_not_scored_and_something_can_be_learned(networks):
    rng, generator = random.Random(3), torch.Generator().manual_seed(3)
    options = TransformerTraining()
    scenes = [sample_training_scene(rng, has_sound=True) for _ in range(4)]
    prompts = [networks.words_for(scene, rng, options) for scene in scenes]
    loss = networks.loss(torch.randn(4, 32, 2, 3, 3), scenes, prompts, options, generator)
    loss.backward()
    assert torch.isfinite(loss) and networks.transformer.audio_proj_out.weight.grad.abs().max() > 0
    given = Given.drawn(torch.zeros(400, 32, 2, 3, 3), options, torch.Generator().manual_seed(0))
    whole, first = given.video[:, 0, 1, 0, 0] == 0, given.video[:, 0, 0, 0, 0] == 0
    assert 0.05 < whole.float().mean() < 0.15 and first[whole].all() and 0.3 < first.float().mean() < 0.6
    assert 0.1 < (given.sound == 0).float().mean() < 0.2 and not ((given.sound == 0) & whole).any()


def test_latents_of_sound_are_as_many_as_the_engine_makes():
    assert [sound_length(frames) for frames in (5, 17, 33)] == [4, 13, 26]
