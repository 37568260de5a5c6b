"""Tests of the training of hunyuan-tiny with few steps: its parts equal diffusers' pipelines, its stages give a checkpoint."""

from __future__ import annotations

import dataclasses
import functools
import random
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import AutoencoderKLHunyuanVideo15, HunyuanVideo15Pipeline
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import Qwen2_5_VLTextModel

from backend.checkpoints.checkpoint import open_checkpoint
from backend.models import recognise
from backend.pipeline.load import load
from backend.sampling.solvers import make_schedule
from backend.schemas.request import GenerationRequest
from presets import Preset, load_preset
from tests.gradients import without_gradients
from tests.parity.tiny_preset import find_also
from tests.parity.tiny_runs import latents_of, video_of
from training import __main__ as command
from training import train_text_encoder as text_training
from training import train_vae as vae_training
from training.__main__ import Plan, make
from training.chat_text import CUT_TOKENS, ChatText, make_chat_tokenizer
from training.evaluate import evaluate_image_to_video, evaluate_text_to_video
from training.fast_vae import speed_up
from training.hunyuan_configs import TRANSFORMER, VAE
from training.hunyuan_networks import HunyuanNetworks
from training.recipe import Recipe, StageSeconds
from training.recipes import HUNYUAN_TINY, WAN_TINY
from training.sampling import Sampler, Settings
from training.train_vae import RunningMoments

PROMPTS = ['a red circle moving left, "FAST"', "", "“SLOW”: A small star goes up."]
MOST_BYTES = 40e6  # limit of a committed checkpoint's size


def few_steps() -> Settings:
    return Settings(num_frames=5, steps=2, batch=2)


@pytest.fixture(scope="module")
def tokenizer_folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    make_chat_tokenizer(folder, sentences=2000)
    return folder


@pytest.fixture
def text(tokenizer_folder) -> ChatText:
    torch.manual_seed(0)
    made = ChatText.create(tokenizer_folder, "cpu")
    for value in made.encoder.eval().parameters():
        value.data *= 4  # random weights are so small that all tokens look alike
    return made


@without_gradients
def test_the_text_is_read_as_diffusers_reads_it(text, tmp_path):
    text.save(tmp_path)
    whole = Qwen2_5_VLTextModel.from_pretrained(tmp_path).eval()
    reference, mask = HunyuanVideo15Pipeline._get_mllm_prompt_embeds(whole, text.tokenizer, PROMPTS, "cpu")
    ours, ours_mask = text.encode(PROMPTS)
    assert torch.equal(ours_mask, mask[:, : ours.shape[1]]) and mask[:, ours.shape[1] :].sum() == 0
    torch.testing.assert_close(
        ours, (reference * mask[..., None])[:, : ours.shape[1]], atol=1e-4, rtol=0
    )  # other sums of values around 10
    again = ChatText.load(tmp_path, Path(text.tokenizer.name_or_path), "cpu")
    torch.testing.assert_close(again.encode(PROMPTS)[0], ours)
    assert text.read(PROMPTS)[1].sum(1).tolist() == [3, 3, 3]


def test_the_text_begins_where_diffusers_cuts_and_leaves_out_what_is_quoted(text):
    chats = [[{"role": "system", "content": "x"}, {"role": "user", "content": prompt}] for prompt in PROMPTS]
    rows = text.tokenizer.apply_chat_template(chats, add_generation_prompt=True, tokenize=True, return_dict=True)["input_ids"]
    own = [text.tokenizer.convert_ids_to_tokens(row[CUT_TOKENS:]) for row in rows]
    closing = ["<|im_end|>", "<|im_start|>", "<|assistant|>"]
    assert own[0] == ["▁a", "▁red", "▁circle", "▁moving", "▁left", ",", *closing] and own[1] == closing
    assert len({tuple(row[:CUT_TOKENS]) for row in rows}) == 1


@pytest.fixture
def networks(text, monkeypatch) -> HunyuanNetworks:
    monkeypatch.setitem(TRANSFORMER, "num_layers", 2)
    torch.manual_seed(1)
    made = HunyuanNetworks.create(text, "cpu")
    made.learned.eval()
    torch.nn.init.normal_(made.learned["transformer"].proj_out.weight, std=0.02)
    return made


@without_gradients
@pytest.mark.parametrize("has_picture", [True, False])
def test_velocity_equals_the_class_at_the_pipelines_lengths(has_picture, networks, tmp_path):
    """Training and evaluation pad to a few dozen tokens, the pipelines to 1000 and 256."""
    prompts, latents, timesteps = PROMPTS[:2], torch.randn(2, 32, 2, 6, 6), torch.tensor([700.0, 200.0])
    pictures = torch.rand(2, 3, 1, 96, 96) * 2 - 1 if has_picture else None
    first = torch.randn(2, 32, 1, 6, 6) if has_picture else None
    ours = networks.velocity_for(prompts, pictures, first)(latents, timesteps)
    networks.text.save(tmp_path)
    whole = Qwen2_5_VLTextModel.from_pretrained(tmp_path).eval()
    embeds, mask = HunyuanVideo15Pipeline._get_mllm_prompt_embeds(whole, networks.text.tokenizer, prompts, "cpu")
    quoted, quoted_mask = HunyuanVideo15Pipeline._get_byt5_prompt_embeds(
        networks._quoted_tokenizer, networks.learned["quoted_encoder"], prompts, "cpu"
    )
    given, seen = torch.zeros(2, 33, 2, 6, 6), torch.zeros(2, 9, 64)
    if has_picture:
        given[:, :32, 0], given[:, 32, 0] = first[:, :, 0], 1.0
        seen = networks.learned["image_encoder"](pixel_values=pictures[:, :, 0]).last_hidden_state
    reference = networks.learned["transformer"](
        torch.cat([latents, given], 1), timesteps, embeds, mask, None, quoted, quoted_mask, seen, return_dict=False
    )[0]
    torch.testing.assert_close(ours, reference, atol=1e-5, rtol=0)  # float32 sums over other lengths, values around 0.5
    other = networks.velocity_for([prompts[0].replace("FAST", "SLOW"), ""], pictures, first)(latents, timesteps)
    assert (other - ours).abs()[0].max() > 1e-4 and (other - ours).abs()[1].max() < 1e-6


def test_sampling_takes_the_engines_steps():
    timesteps = HUNYUAN_TINY.schedule(20, 3.0).timesteps
    schedule = make_schedule("euler-distilled", 20, 3.0)
    np.testing.assert_allclose(timesteps.numpy(), np.asarray(schedule.timesteps), atol=1e-3)


@without_gradients
def test_the_faster_autoencoder_gives_the_same_numbers_in_batches_too():
    torch.manual_seed(2)
    vae = AutoencoderKLHunyuanVideo15(**VAE).eval()
    clips = torch.rand(2, 3, 5, 32, 32) * 2 - 1
    plain = torch.cat([vae.decode(vae.encode(clip[None]).latent_dist.mode()).sample for clip in clips])
    still = vae.encode(clips[:1, :, :1]).latent_dist.mode()
    speed_up(vae)
    latents = vae.encode(clips).latent_dist.mode()
    torch.testing.assert_close(vae.decode(latents).sample, plain, atol=1e-4, rtol=0)  # float32 sums in another order
    torch.testing.assert_close(vae.encode(clips[:1, :, :1]).latent_dist.mode(), still, atol=1e-4, rtol=0)
    torch.testing.assert_close(
        latents[:1, :, :1], still, atol=1e-4, rtol=0
    )  # the cached clips' first frames are pictures' latents


def test_latents_are_drawn_towards_unit_spread():
    torch.manual_seed(3)
    latents = torch.nn.Parameter(torch.randn(8, 4, 1, 8, 8) * torch.tensor([0.3, 0.5, 1.5, 2.0]).view(1, 4, 1, 1, 1))
    moments, optimizer = RunningMoments(), torch.optim.SGD([latents], lr=5.0)
    for _ in range(300):
        optimizer.zero_grad()
        moments.distance(latents).backward()
        optimizer.step()
    flat = latents.detach().transpose(0, 1).flatten(1)
    torch.testing.assert_close(flat @ flat.T / flat.shape[1], torch.eye(4), atol=0.05, rtol=0)


@pytest.fixture(scope="module")
def little() -> Recipe:
    buckets = tuple(dataclasses.replace(bucket, num_frames=5, batch=2, clips=2) for bucket in HUNYUAN_TINY.buckets[:1])
    training = dataclasses.replace(HUNYUAN_TINY.vae_training, measured_clips=1)
    make_tokenizer = functools.partial(make_chat_tokenizer, sentences=2000)
    return dataclasses.replace(HUNYUAN_TINY, buckets=buckets, vae_training=training, make_tokenizer=make_tokenizer)


@pytest.fixture(scope="module")
def plan(little, tmp_path_factory) -> Plan:
    """Run every stage of the training for a moment."""
    folder = tmp_path_factory.mktemp("made")
    seconds = StageSeconds(vae=0.2, text=0.2, transformer=0.2, refine=0.2)
    plan = Plan(recipe=little, seconds=seconds, work=folder / "work", output=folder / "model", device="cpu", compiled=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_training, "BATCH", 8)
        for name in ("IMAGES", "CLIPS", "REFINING"):
            patch.setattr(vae_training, name, ((32, 32, 5, 2),))
        make(plan)
    return plan


def test_the_stages_end_in_a_checkpoint_for_both_tasks(plan):
    _, kind = recognise(open_checkpoint(plan.output))
    assert (kind.name, kind.tasks) == ("hunyuanvideo-1.5-ti2v", ("t2v", "i2v"))
    assert sum(path.stat().st_size for path in plan.output.rglob("*") if path.is_file()) < MOST_BYTES
    latents = vae_training.random_latents(plan.recipe.autoencoder.load(plan.work / "vae"), random.Random(0), "cpu", 1)
    factor = plan.recipe.autoencoder.load(plan.output / "vae").config.scaling_factor
    assert (latents * factor).square().mean().item() == pytest.approx(1, rel=1e-3)


def test_no_stage_runs_twice(plan, monkeypatch):
    for name in ("train_vae", "train_text_encoder", "train_transformer", "refine_decoder"):
        monkeypatch.setattr(command, name, None)
    make(plan)


def test_the_command_makes_the_model_that_it_names_within_ninety_minutes(monkeypatch):
    plans = []
    monkeypatch.setattr(command, "make", plans.append)
    for words in (["--model", "hunyuan-tiny", "--vae-seconds", "7"], []):
        monkeypatch.setattr("sys.argv", ["training", *words])
        command.main()
    ours, wan = plans
    assert (ours.recipe, ours.work, ours.output) == (HUNYUAN_TINY, Path("build/hunyuan-tiny"), Path("models/hunyuan-tiny"))
    assert (ours.seconds.vae, ours.seconds.text, ours.compiled) == (7, HUNYUAN_TINY.seconds.text, True)
    assert (wan.output, wan.seconds, wan.compiled) == (Path("models/wan-tiny"), WAN_TINY.seconds, False)
    assert sum(dataclasses.astuple(HUNYUAN_TINY.seconds)) < 80 * 60  # plus the time for encoding clips and compiling


def test_a_checkpoint_is_scored_with_its_speed(plan):
    sampler = Sampler.load(plan.output)
    scores = evaluate_text_to_video(sampler, 4, few_steps()) | evaluate_image_to_video(sampler, 4, few_steps())
    assert set(scores) == {"colour", "shape", "motion", "background", "speed", "first_frame_psnr_mean", "first_frame_psnr_least"}


@pytest.fixture
def preset(plan, monkeypatch) -> Preset:
    """Return hunyuan-tiny's preset with a random last layer. After such a short training the layer would predict 0."""
    path = plan.output / "transformer" / "diffusion_pytorch_model.safetensors"
    state = load_file(path)
    state["proj_out.weight"] = 0.05 * torch.randn(state["proj_out.weight"].shape, generator=torch.Generator().manual_seed(4))
    save_file(state, path, {"format": "pt"})
    preset = load_preset("hunyuan-tiny").model_copy(update={"model": str(plan.output)})
    find_also(monkeypatch, preset)
    return preset


@pytest.mark.parity
@pytest.mark.slow  # the same tests of wan-tiny and wan-tiny-vace are not slow
def test_the_engine_makes_the_videos_that_are_scored(preset, plan, tmp_path):
    """Generate the video of the evaluation with the engine: same prompt, seed and image, for both tasks."""
    sampler, loaded = Sampler.load(plan.output), load(preset, None, lambda event: None)
    picture = np.asarray(Image.open(preset.image_examples[0].path).convert("RGB").resize((96, 96)))
    Image.fromarray(picture).save(tmp_path / "first.png")
    settings = dataclasses.replace(few_steps(), guidance=preset.guidance[0])
    given = torch.from_numpy(picture.copy()).permute(2, 0, 1)[None, :, None] / 127.5 - 1
    videos = []
    for image, pictures in ((None, None), (str(tmp_path / "first.png"), given)):
        request = GenerationRequest.from_preset(preset, prompt=PROMPTS[0], seed=5, steps=2, num_frames=5, image=image)
        ours = video_of(request, loaded, latents_of(request, loaded))
        scored = sampler.sample([PROMPTS[0]], [5], settings, pictures)[0].numpy()
        assert np.abs(255 * ours - scored).max() < 2  # rounding to 8 bits is 0.5; the rest float32 in another order
        videos.append(scored.astype(float))
    assert np.abs(videos[1] - videos[0]).max() > 2  # the image changes the video


def test_the_presets_words_fit_the_world():
    preset = load_preset("hunyuan-tiny")
    assert preset.translations["zh"] and all(example.path.is_file() for example in preset.image_examples)
    quoted = {word for prompt in preset.examples for word in re.findall(r'"(.*?)"', prompt)}
    assert quoted == {"FAST", "SLOW"}
