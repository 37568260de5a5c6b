"""Tests of the training of wan-live-tiny: its scenes, its transformer and its checkpoint."""

import json
import random

import pytest
import torch

from backend.models import find_family
from presets import Preset, load_preset
from tests.backend.models.causal_wan.masked import masked_velocity
from tests.gradients import without_gradients
from training.detector import detect, positions
from training.live import assemble_live
from training.live_networks import LiveNetworks
from training.live_world import (
    ACTIONS,
    BLOCK_FRAMES,
    CENTRE,
    FARTHEST,
    Look,
    Story,
    held_out_looks,
    path,
    render_story,
    sample_look,
    sample_story,
)
from training.model_configs import TRANSFORMER
from training.tokenizer import make_tokenizer
from training.train_transformer import TransformerTraining
from training.velocity import predict_blocks
from training.wan_networks import WanText

RED = {"colour": "red", "shape": "circle", "background": "navy"}
BLUE = {"colour": "blue", "shape": "square", "background": "navy"}


def test_each_action_shows_in_its_block():
    story = Story(looks=(Look(**RED),) * 4, actions=("right", "grow", "stay"))
    frames = render_story(story, 96, 96)
    assert frames.shape == (3, story.num_frames, 96, 96) and story.num_frames == 13
    found = positions(((frames.permute(1, 2, 3, 0) + 1) * 127.5).round().byte())
    ends = found[::BLOCK_FRAMES]
    assert (ends[1] - ends[0])[0].item() == pytest.approx(0.08, abs=0.01)
    assert (ends[2] / ends[1])[2].item() == pytest.approx(1.12, abs=0.03)
    torch.testing.assert_close(ends[3], ends[2], atol=5e-3, rtol=0)


def test_a_shape_stays_in_the_picture_and_a_new_one_takes_its_place():
    story = Story(looks=(Look(**RED),) * 10 + (Look(**BLUE),) * 5, actions=("right",) * 14)
    assert max(x for x, _, _ in path(story)) == pytest.approx(FARTHEST)
    video = ((render_story(story, 96, 96).permute(1, 2, 3, 0) + 1) * 127.5).round().byte()
    before, after = detect(video[: 1 + 4 * 9]), detect(video[1 + 4 * 9 :])
    assert (before.colour, before.shape, after.colour, after.shape) == ("red", "circle", "blue", "square")


def test_held_out_looks_are_never_drawn():
    rng = random.Random(1)
    assert len(held_out_looks()) == 13
    assert not held_out_looks() & {sample_look(rng) for _ in range(2000)}
    stories = [sample_story(rng, 13) for _ in range(50)]
    assert {action for story in stories for action in story.actions} == set(ACTIONS)
    assert any(story.start == CENTRE for story in stories) and any(len(set(story.looks)) == 2 for story in stories)


@pytest.fixture(scope="module")
def networks(tmp_path_factory) -> LiveNetworks:
    folder = tmp_path_factory.mktemp("tokenizer")
    make_tokenizer(folder, sentences=2000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(TRANSFORMER, "num_layers", 2)
        torch.manual_seed(0)
        text = WanText.create(folder, "cpu")
        text.encoder.eval()
        made = LiveNetworks.create(text, "cpu")
    torch.nn.init.normal_(made.learned.proj_out.weight, std=0.02)
    return made


@without_gradients
def test_frames_from_noise_are_what_the_class_makes_of_each_after_those_before(networks):
    torch.manual_seed(1)
    past, noisy = torch.randn(2, 1, TRANSFORMER["in_channels"], 4, 6, 6)
    text, timesteps = torch.randn(1, 4, 5, TRANSFORMER["text_dim"]), torch.tensor([[1000.0, 500.0, 1000.0, 700.0]])
    found = predict_blocks(networks.learned, past, noisy, timesteps, text, torch.zeros(1, 4, 1, 1, 5), 4, torch.float32)
    for frame in range(4):
        clean = [past[:, :, index : index + 1] for index in range(frame)]
        texts = [text[:, index] for index in range(frame + 1)]
        now = noisy[:, :, frame : frame + 1]
        wanted = masked_velocity(networks.learned, clean, now, timesteps[0, frame].item(), texts)
        torch.testing.assert_close(found[:, :, frame : frame + 1], wanted, atol=2e-5, rtol=0)


def test_what_is_said_changes_with_the_action_and_the_look(networks):
    story = Story(looks=(Look(**RED), Look(**RED), Look(**BLUE)), actions=("left", "up"))
    first, second, third = networks.words_for(story, random.Random(2), TransformerTraining())
    assert first == second.replace(", up", ", left") if "up" in second else first == second
    assert "blue" in third and third.endswith(", up")


def test_a_batch_has_a_loss_that_can_be_learned_from(networks):
    rng, options = random.Random(3), TransformerTraining()
    stories = [sample_story(rng, 4) for _ in range(2)]
    latents = torch.randn(2, TRANSFORMER["in_channels"], 4, 6, 6)
    words = [networks.words_for(story, rng, options) for story in stories]
    loss = networks.loss(latents, stories, words, options, torch.Generator().manual_seed(0))
    loss.backward()
    assert loss.item() > 0 and networks.learned.blocks[0].attn2.to_k.weight.grad.abs().max() > 0


@pytest.mark.demo_model
def test_the_checkpoint_is_a_causal_one_that_shares_wan_tinys_parts(networks, tmp_path):
    base = tmp_path / "wan-tiny"
    base.symlink_to(load_preset("wan-tiny").model_source)
    networks.save(tmp_path / "parts")
    assemble_live(tmp_path / "parts", base, tmp_path / "made")
    assert (tmp_path / "made/vae").is_symlink() and (tmp_path / "made/vae/config.json").is_file()
    live = load_preset("wan2.1-live-1.3b-480p").model_dump() | {"model": str(tmp_path / "made"), "architecture": None}
    _, kind = find_family(Preset(**live))
    assert (kind.chunk, kind.window, kind.sink) == (1, 6, 0)
    config = json.loads((tmp_path / "made/transformer/config.json").read_text())
    assert config["actions"] == list(ACTIONS)
