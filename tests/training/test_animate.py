"""Tests of the training of wan-tiny-animate: scenes, forward pass and sampler compared with diffusers, checkpoint and scores."""

import dataclasses
import json
import random
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, WanAnimate2Transformer3DModel
from diffusers.guiders import ClassifierFreeGuidance
from diffusers.models.transformers.transformer_wan_animate_2 import WanAnimate2KVCache
from diffusers.modular_pipelines.modular_pipeline import PipelineState
from diffusers.modular_pipelines.wan_animate_2.denoise import WanAnimate2DenoiseStep
from diffusers.modular_pipelines.wan_animate_2.encoders import WanAnimate2ImageVaeEncoderStep
from diffusers.modular_pipelines.wan_animate_2.encoders import WanAnimate2ProcessVideosInputStep as ProcessVideos

from tests.gradients import without_gradients
from tests.parity.tiny_animate import uncompiled
from training import animate_velocity
from training.animate import assemble_animate, task_latents
from training.animate_networks import REFERENCE_PROMPT, AnimateNetworks
from training.animate_sampling import AnimateSampler, AnimateSettings
from training.animate_world import (
    LEAST,
    MOST,
    Pair,
    draw_previous_frame,
    driving_clip,
    driving_of,
    frames_in_segments,
    num_segments,
    picture_of,
    sample_pair,
    true_places,
    video_of,
    whole_video,
)
from training.detector import detect, positions
from training.evaluate_animate import SIZE, evaluate, held_out_pair, make_video, score
from training.fast_vae import speed_up
from training.latents import Bucket
from training.train_transformer import TransformerTraining
from training.velocity import predict_velocity
from training.wan_networks import WanNetworks
from training.wan_vae import WAN_AUTOENCODER
from training.world import held_out_triples, sample_scene

BASE = Path("models/wan-tiny")
COMMITTED = Path("models/wan-tiny-animate")
FLEX = "ignore:flex_attention called without torch.compile:UserWarning"  # the comparison has a tiny size


def pair(motion: str, **others) -> Pair:
    rng = random.Random(2)
    picture, driving = sample_scene(rng, ("red", "star", "up")), sample_scene(rng, ("blue", "circle", motion))
    return Pair(picture=picture, driving=driving, **others)


def frames(video: torch.Tensor) -> torch.Tensor:
    """uint8 [F, H, W, 3]."""
    return ((video.permute(1, 2, 3, 0) + 1) * 127.5).round().clamp(0, 255).byte()


@pytest.mark.parametrize("motion", ["right", "up-left", "still", "growing", "shrinking"])
def test_the_right_video_has_the_pictures_look_and_the_driving_shapes_place(motion):
    given = pair(motion)
    video, clip, picture = (frames(one(given, SIZE)) for one in (video_of, driving_of, picture_of))
    seen = detect(video)
    assert (seen.shape, seen.colour, seen.background) == ("star", "red", given.picture.background)
    assert seen.motion == detect(clip).motion == motion
    ours, driving, shown = positions(video), positions(clip), positions(picture)
    assert (ours[:, :2] - driving[:, :2]).abs().max() < 0.02
    assert (ours[0, 2] / shown[0, 2]).item() == pytest.approx(1, abs=0.05)
    wanted = (shown[0, 2] * driving[:, 2] / driving[0, 2]).clamp(max=1)
    free = (true_places(given, SIZE)[2] / 96 > LEAST * 1.01) & (true_places(given, SIZE)[2] / 96 < MOST * 0.99)
    assert free[0] and torch.allclose(ours[free, 2], wanted[free], atol=0.02)


@pytest.mark.parametrize("num_frames", [9, 17, 24, 33, 40, 49])
def test_segments_and_the_frames_that_fill_the_last_one_are_diffusers(num_frames):
    clip = torch.arange(num_frames, dtype=torch.float32).view(1, 1, -1, 1, 1).expand(1, 3, num_frames, 2, 2)
    processor = SimpleNamespace(preprocess_video=lambda video, **_: clip)
    state = PipelineState()
    for name, value in {"driving_video": [], "segment_frame_length": 17, "height": 2, "width": 2}.items():
        state.set(name, value)
    ProcessVideos()(SimpleNamespace(_execution_device=torch.device("cpu"), video_processor=processor), state)
    assert state.get("driving_video_pixels")[0, 0, :, 0, 0].tolist() == frames_in_segments(num_frames)
    assert state.get("num_segments") == num_segments(num_frames)


def test_a_later_segment_begins_with_the_frame_that_it_is_given():
    given = pair("right", num_frames=40, segment=1)
    before, carried = video_of(dataclasses.replace(given, segment=0), SIZE), draw_previous_frame(given, SIZE)
    assert torch.equal(carried[:, 0], before[:, -1]) and torch.equal(carried[:, 0], video_of(given, SIZE)[:, 0])
    assert not carried[:, 1:].any() and draw_previous_frame(pair("right"), SIZE) is None
    assert torch.equal(video_of(given, SIZE), whole_video(given, SIZE)[:, 16:33])
    slipped = draw_previous_frame(dataclasses.replace(given, slip=(0.05, 0.0, 1.0)), SIZE)
    apart = positions(frames(slipped[:, :1])) - positions(frames(carried[:, :1]))
    assert apart[0, 0].item() == pytest.approx(0.05, abs=0.005)


def test_a_driving_clip_of_another_form_stands_between_black_bars():
    for size in (SIZE, Bucket(width=128, height=96, num_frames=17, share=1.0, batch=1, clips=1)):
        given = pair("right", has_bars=True)
        is_bar = (driving_clip(given, size) == -1).all(0).all(0)
        rows, columns = is_bar.all(1).sum().item(), is_bar.all(0).sum().item()
        assert (rows, columns) == ((24, 0) if size is SIZE else (0, 32))
        assert not (video_of(given, size) == -1).all(0).all(0).any()


def test_nothing_that_is_held_out_is_drawn_and_half_of_the_tasks_continue():
    rng = random.Random(1)
    pairs = [sample_pair(rng) for _ in range(1000)]
    drawn = {one for given in pairs for one in (given.triple, given.picture.triple, given.driving.triple)}
    assert not held_out_triples() & drawn
    assert 0.45 < sum(given.segment > 0 for given in pairs) / len(pairs) < 0.55
    assert all(0 <= given.segment < num_segments(given.num_frames) for given in pairs)
    changing = [sample_pair(rng, changing_share=1.0) for _ in range(100)]
    assert {given.driving.motion for given in changing} == {"growing", "shrinking"}
    assert not held_out_triples() & {given.triple for given in changing}
    assert {held_out_pair(number, 17, rng).triple for number in range(len(held_out_triples()))} == held_out_triples()


@pytest.fixture(scope="module")
def networks() -> AnimateNetworks:
    torch.manual_seed(0)
    return AnimateNetworks.begin(WanNetworks.load(BASE, BASE / "tokenizer", "cpu"))


@pytest.fixture(scope="module")
def looking(networks) -> AnimateNetworks:
    """Return networks whose output depends on the condition too."""
    torch.manual_seed(1)
    made = AnimateNetworks(networks.text, WanAnimate2Transformer3DModel.from_config(networks.learned.config))
    made.learned.load_state_dict(networks.learned.state_dict())
    torch.nn.init.normal_(made.learned.patch_embedding.weight.data[:, 16:], std=0.03)
    return made


@pytest.fixture(scope="module")
def vae() -> torch.nn.Module:
    made = WAN_AUTOENCODER.load(BASE / "vae").eval()
    speed_up(made)
    return made


@pytest.fixture
def eager_mask():
    """Do not let diffusers compile its mask and attention. That takes seconds and changes no result."""
    uncompiled()


def example() -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    draw = partial(torch.randn, generator=generator)
    return draw(2, 16, 4, 4, 6), draw(2, 20, 4, 4, 6), draw(2, 16, 3, 4, 6), torch.tensor([500.0, 300.0])


@pytest.mark.demo_model
@without_gradients
def test_it_begins_as_wan_tiny_where_no_driving_clip_is_seen(networks, monkeypatch):
    latents, condition, driving, timestep = example()
    whole = animate_velocity.who_sees_whom

    def seen_alone(num_frames: int, tokens: int) -> torch.Tensor:
        seen = whole(num_frames, tokens)
        seen[: num_frames * tokens, num_frames * tokens :] = False
        return seen

    monkeypatch.setattr(animate_velocity, "who_sees_whom", seen_alone)
    text = networks.text.encode(["a red circle", ""])
    ours = networks.predict(latents, condition, driving, timestep, text)
    base = WanNetworks.load(BASE, BASE / "tokenizer", "cpu").learned
    theirs = predict_velocity(base, latents, timestep, timestep, *text, torch.float32)
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)  # float32 sums in another order, values to 10


@pytest.mark.demo_model
@pytest.mark.filterwarnings(FLEX)
@without_gradients
def test_velocity_equals_the_class(looking, eager_mask):
    latents, condition, driving, timestep = example()
    prompts = ["a red circle", ""]
    ours = looking.predict(latents, condition, driving, timestep, looking.text.encode(prompts))
    for index, prompt in enumerate(prompts):
        theirs = of_the_class(looking, latents[index], condition[index], driving[index], timestep[index], prompt)
        torch.testing.assert_close(ours[index], theirs, atol=1e-4, rtol=0)  # as above


def of_the_class(networks, latents, condition, driving, timestep, prompt: str) -> torch.Tensor:
    """Compute the velocity with the two passes of diffusers' class."""
    grid, cache = torch.tensor([[3, 2, 3]]), WanAnimate2KVCache(networks.learned.config.num_layers)
    networks.learned(
        [driving],
        timestep=timestep[None],
        encoder_hidden_states=[embedded(networks, REFERENCE_PROMPT)],
        condition_latents=[torch.cat([torch.ones_like(driving[:4]), driving])],
        kv_cache=cache,
        kv_cache_mode="extract",
        seq_len=18,
        offset_grid_sizes=grid,
    )
    return networks.learned(
        [latents],
        timestep=timestep[None],
        encoder_hidden_states=[embedded(networks, prompt)],
        condition_latents=[condition],
        kv_cache=cache,
        kv_cache_mode="cached",
        seq_len=24,
        reference_grid_sizes=grid,
        origin_len=9,
        origin_area=[32, 48],  # in pixels: the class counts one token per 16 x 16 pixels, as in `grid`
    ).sample[0]


def embedded(networks, prompt: str) -> torch.Tensor:
    tokens = networks.text.tokenizer([prompt], padding="max_length", max_length=512, return_tensors="pt")
    return (networks.text.encoder(**tokens).last_hidden_state * tokens.attention_mask[..., None])[0]


@pytest.mark.demo_model
@pytest.mark.filterwarnings(FLEX)
@without_gradients
def test_videos_of_two_segments_equal_those_of_diffusers_steps(looking, vae, eager_mask):
    given, steps = pair("right", num_frames=33), 2
    picture, clip = picture_of(given, SIZE)[None], driving_clip(given, SIZE)[None]
    ours = AnimateSampler(looking, vae).sample(picture, clip, ["a red star"], [3], AnimateSettings(steps=steps, solver="euler"))
    components = SimpleNamespace(
        vae=vae,
        transformer=looking.learned,
        scheduler=FlowMatchEulerDiscreteScheduler(shift=AnimateSettings.flow_shift),
        guider=ClassifierFreeGuidance(guidance_scale=1.0),
        vae_scale_factor_spatial=16,
        num_channels_latents=16,
        _execution_device=torch.device("cpu"),
    )
    state, grid = PipelineState(), torch.tensor([[5, 3, 3]])
    said = {
        "prompt_embeds": embedded(looking, "a red star")[None],
        "prompt_ref_embeds": embedded(looking, REFERENCE_PROMPT)[None],
    }
    sizes = {
        "max_seq_len": 54,
        "max_seq_len_ref": 45,
        "grid_sizes_ref": grid,
        "effective_segment": 16,
        "segment_frame_length": 17,
    }
    area = {"height": 48, "width": 48, "num_segments": 2, "num_inference_steps": steps}  # as in the test above
    shown = {"image_pixels": picture[:, :, 0], "driving_video_pixels": clip, "condition_clip_context": torch.zeros(1)}
    for name, value in (said | sizes | area | shown | {"generator": torch.Generator().manual_seed(3)}).items():
        state.set(name, value)
    WanAnimate2ImageVaeEncoderStep()(components, state)
    WanAnimate2DenoiseStep()(components, state)
    theirs = frames(torch.cat(state.get("segment_frames"), 2)[0])
    assert ours.shape == (1, 33, 96, 96, 3)
    assert (ours[0].int() - theirs.int()).abs().max() <= 1  # values can round differently


@pytest.mark.demo_model
def test_tasks_are_what_the_sampler_is_given_and_everything_can_be_learned(looking, vae):
    rng, options = random.Random(3), TransformerTraining(text_dropout=0.5)
    pairs = [pair("right"), pair("left", num_frames=33, segment=1)]
    latents = task_latents(vae, pairs, SIZE, "cpu")
    assert latents.shape == (2, 16 + 20 + 16, 6, 6, 6)
    torch.testing.assert_close(latents[1:], task_latents(vae, pairs[1:], SIZE, "cpu"), atol=1e-4, rtol=0)
    mask = latents[:, 16:20]
    assert mask[0, :, 0].all() and not mask[0, :, 1:].any() and mask[1, :, :2].all() and not mask[1, :, 2:].any()
    assert torch.equal(latents[:, :16, 0], latents[:, 20:36, 0])  # the image has the same latents as its frame
    assert looking.words_for(pairs[0], random.Random(1), dataclasses.replace(options, text_dropout=1.0)) == ""
    words = [looking.words_for(one, rng, options) for one in pairs]
    looking.loss(latents, pairs, words, options, torch.Generator().manual_seed(0)).backward()
    idle = [name for name, value in looking.learned.named_parameters() if value.grad is None or not value.grad.any()]
    assert not [name for name in idle if ".to_k.bias" not in name]  # biases of keys can cancel out in the softmax
    looking.learned.zero_grad()


@pytest.mark.demo_model
def test_the_checkpoint_is_diffusers_class_and_shares_wan_tinys_parts(looking, tmp_path):
    (tmp_path / "wan-tiny").symlink_to(BASE.resolve())
    looking.save(tmp_path / "parts")
    assemble_animate(tmp_path / "parts", tmp_path / "wan-tiny", tmp_path / "made")
    assert (tmp_path / "made/vae").is_symlink() and (tmp_path / "made/vae/config.json").is_file()
    assert sum(path.stat().st_size for path in (tmp_path / "made/transformer").iterdir()) < 25_000_000
    index = json.loads((tmp_path / "made/model_index.json").read_text("utf-8"))
    assert index["transformer"] == ["diffusers", "WanAnimate2Transformer3DModel"] and index["image_encoder"] == [None, None]
    loaded = WanAnimate2Transformer3DModel.from_pretrained(tmp_path / "made/transformer")
    scheduler = FlowMatchEulerDiscreteScheduler.from_pretrained(tmp_path / "made/scheduler")
    assert scheduler.config.shift == AnimateSettings.flow_shift and index["scheduler"][1] == type(scheduler).__name__
    assert loaded.config.in_dim == 36 and not loaded.config.use_img_emb
    scored = evaluate(AnimateSampler.load(tmp_path / "made"), [pair("right")], 1, AnimateSettings(steps=2))
    assert 0 <= scored["near"] <= 1


@pytest.mark.demo_model
@pytest.mark.parametrize(
    ("motion", "num_frames"),
    [("right", 17), pytest.param("growing", 17, marks=pytest.mark.slow), pytest.param("up", 49, marks=pytest.mark.slow)],
)
def test_the_committed_model_moves_the_pictures_shape_as_the_driving_one(motion, num_frames):
    given = pair(motion, num_frames=num_frames)
    found = score(make_video(AnimateSampler.load(COMMITTED), given, "", 1, AnimateSettings()), given)
    assert found["follows"] and found["shape"] and found["colour"] and found["background"]


def test_scores_tell_a_right_video_from_a_wrong_one():
    given, elsewhere, other = pair("right"), pair("down"), pair("still")
    right, wrong = (frames(whole_video(one, SIZE)) for one in (given, elsewhere))
    assert score(right, given)["follows"] and score(right, given)["distance"] == 0 and score(right, given)["size"] == 1
    assert not score(wrong, given)["follows"] and score(wrong, given)["colour"]
    assert not score(frames(whole_video(other, SIZE)), given)["motion"]
    driving = score(frames(driving_clip(given, SIZE)), given)
    assert driving["follows"] and not driving["colour"] and not driving["shape"]
    assert not score(torch.zeros_like(right), given)["follows"]
