"""Tests of the training of wan-tiny-vace: its scenes, control blocks, checkpoint and scores."""

import dataclasses
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from backend.models import find_family
from backend.pipeline.load import load
from presets import load_preset
from tests.gradients import without_gradients
from tests.parity.tiny_preset import find_also
from training import vace_networks
from training.detector import detect
from training.evaluate_vace import SIZE, overlap, score
from training.fast_vae import speed_up
from training.prompts import describe
from training.train_transformer import TransformerTraining
from training.vace import assemble_vace, shown_latents
from training.vace_networks import LEARNED, VaceNetworks, figure_prompt_for, with_other_references
from training.vace_world import (
    USES,
    Task,
    box_of,
    keyframes_of,
    margins_of,
    reference_of,
    reference_task_for,
    sample_reference_task,
    sample_task,
    source_of,
    task_for,
    to_frames,
    video_of,
)
from training.velocity import predict_velocity
from training.wan_networks import WanNetworks
from training.wan_vae import WAN_AUTOENCODER
from training.world import SHAPES, held_out_triples, sample_scene

BASE = Path(load_preset("wan-tiny").model_source)


def task(use: str, motion: str = "right") -> Task:
    rng = random.Random(2)
    return task_for(sample_scene(rng, ("red", "circle", motion)), use, rng)


def test_a_box_holds_all_of_the_shape_and_is_all_that_is_new():
    for motion in ("right", "up-left", "growing", "still"):
        given = task("box", motion)
        left, top, right, bottom = box_of(given, SIZE)
        source, frames = source_of(given, SIZE), to_frames(video_of(given, SIZE))
        is_outside = np.ones((96, 96), bool)
        is_outside[top:bottom, left:right] = False
        assert (source.is_new == ~is_outside).all() and is_outside.any()
        assert (np.ptp(frames[:, is_outside].astype(int), axis=(0, 1)) == 0).all()  # background alone


def test_key_frames_and_edges_are_shown():
    given = task("keyframes")
    source, frames = source_of(given, SIZE), to_frames(video_of(given, SIZE))
    places = keyframes_of(given, 17)
    assert [index for index in range(17) if not source.is_new[index].any()] == list(places) and {0, 16} <= set(places)
    assert all((source.frames[place] == frames[place]).all() for place in places)
    drawn = source_of(task("edges"), SIZE)
    assert drawn.is_new.all() and set(np.unique(drawn.frames)) == {0, 255}


def test_held_out_scenes_are_never_drawn():
    rng = random.Random(1)
    tasks = [sample_task(rng) for _ in range(500)]
    assert not held_out_triples() & {one.scene.triple for one in tasks}
    assert {one.use for one in tasks} == {*USES}


def test_a_reference_shows_the_shape_on_white_and_the_prompt_seldom_says_what_it_is():
    rng, options = random.Random(1), TransformerTraining()
    tasks = [sample_reference_task(rng) for _ in range(300)]
    assert not held_out_triples() & {one.scene.triple for one in tasks} and "white" not in {one.scene.colour for one in tasks}
    assert {one.use for one in tasks} == {"reference", "after", "keyframes", "edges"}
    for one in [one for one in tasks if one.reference[2] < 0.28][:20]:  # a tip of a larger shape may be outside the image
        picture = reference_of(one, SIZE)
        still = detect_on_white(picture)
        assert picture.shape == (96, 96, 3) and (picture[0] == 255).all() and still == (one.scene.colour, one.scene.shape)
    prompts = [figure_prompt_for(one, rng, options).lower() for one in tasks]
    telling = [any(word in prompt for word in SHAPES) for prompt in prompts]
    assert "" in prompts and 0.05 < sum(telling) / len(telling) < 0.3


def test_stars_are_more_often_shown_and_without_a_prompt_the_reference_is_another_clips():
    rng = random.Random(1)
    shapes = [sample_reference_task(rng).scene.shape for _ in range(400)]
    assert 0.3 < shapes.count("star") / 400 < 0.5 and all(shapes.count(shape) > 40 for shape in SHAPES)
    latents = torch.arange(3.0).view(3, 1, 1, 1, 1).expand(3, 2, 4, 1, 1)
    seen = with_other_references(latents, ["it moves", "", ""])
    assert seen[:, 0, :, 0, 0].tolist() == [[0, 0, 0, 0], [2, 1, 1, 1], [0, 2, 2, 2]] and (seen[:, 0] == seen[:, 1]).all()


@pytest.mark.demo_model
def test_what_a_reference_shows_is_read_where_there_is_a_prompt(networks, monkeypatch):
    vae, rng = WAN_AUTOENCODER.load(BASE / "vae").eval(), random.Random(3)
    tasks = [sample_reference_task(rng) for _ in range(2)]
    latents = shown_latents(vae, tasks, SIZE, "cpu")

    def lost(*prompts: str) -> float:
        generator = torch.Generator().manual_seed(0)
        return float(networks.loss(latents, tasks, list(prompts), TransformerTraining(), generator).detach())

    silent, told = lost("", ""), lost("it moves left", "")
    monkeypatch.setattr(vace_networks, "READ_WEIGHT", 0.0)
    assert silent == lost("", "") and told > lost("it moves left", "") + 0.05


def detect_on_white(picture: np.ndarray) -> tuple[str, str]:
    """Detect colour and shape of a shape on white. The detector expects a black background, so that white is replaced."""
    is_shape = (picture.min(-1) < 110)[..., None]
    seen = detect(torch.from_numpy(np.where(is_shape, picture, np.uint8(0)))[None].expand(5, -1, -1, -1))
    return seen.colour, seen.shape


@pytest.mark.parametrize(("use", "known"), [("after", range(9)), ("before", range(8, 17))])
def test_one_end_is_shown_where_a_clip_continues(use, known):
    given = dataclasses.replace(task(use), overlap=9)
    source, frames = source_of(given, SIZE), to_frames(video_of(given, SIZE))
    assert [index for index in range(17) if not source.is_new[index].any()] == list(known)
    assert (source.frames[known] == frames[known]).all() and source.is_new.mean() == pytest.approx(8 / 17)


def test_margins_are_new_in_every_frame():
    given = dataclasses.replace(task("margins"), margins=(0.25, 0.0, 0.0, 0.125))
    source, frames = source_of(given, SIZE), to_frames(video_of(given, SIZE))
    assert margins_of(given, SIZE) == (24, 0, 0, 12)
    assert not source.is_new[:, :84, 24:].any() and source.is_new[:, 84:].all() and source.is_new[:, :, :24].all()
    assert (source.frames[:, :84, 24:] == frames[:, :84, 24:]).all()


@pytest.fixture(scope="module")
def networks() -> VaceNetworks:
    torch.manual_seed(0)
    return VaceNetworks.begin(WanNetworks.load(BASE, BASE / "tokenizer", "cpu"), 256)


def example(networks: VaceNetworks) -> tuple[torch.Tensor, ...]:
    latents, control = torch.randn(2, 16, 3, 6, 6), torch.randn(2, 288, 3, 6, 6)
    return latents, control, torch.tensor([500.0, 300.0]), *networks.text.encode(["a red circle", ""])


@pytest.mark.demo_model
@without_gradients
def test_control_blocks_change_nothing_before_they_have_learned(networks):
    latents, control, timestep, text, bias = example(networks)
    arguments = (networks.learned, latents, timestep, timestep, text, bias, torch.float32)
    torch.testing.assert_close(predict_velocity(*arguments, control=control), predict_velocity(*arguments), atol=0, rtol=0)


@pytest.mark.demo_model
@without_gradients
def test_velocity_equals_the_class(networks):
    latents, control, timestep, text, bias = example(networks)
    learned = VaceNetworks.begin(networks, 256).learned
    for block in learned.vace_blocks:
        for linear in (block.proj_in, block.proj_out):
            if linear is not None:
                torch.nn.init.normal_(linear.weight, std=0.02)
    ours = predict_velocity(learned, latents, timestep, timestep, text, bias, torch.float32, control=control)
    tokens = networks.text.tokenizer(["a red circle", ""], padding="max_length", max_length=512, return_tensors="pt")
    whole = networks.text.encoder(**tokens).last_hidden_state * tokens.attention_mask[..., None]
    reference = learned(latents, timestep, whole, control_hidden_states=control, return_dict=False)[0]
    torch.testing.assert_close(ours, reference, atol=1e-4, rtol=0)  # float32 sums in another order, values to 10


@pytest.mark.demo_model
def test_layers_and_control_blocks_learn_and_something_can_be_learned(networks):
    rng, options = random.Random(3), TransformerTraining()
    vae = WAN_AUTOENCODER.load(BASE / "vae").eval()
    speed_up(vae)
    tasks = [sample_task(rng) for _ in range(2)]
    latents = shown_latents(vae, tasks, SIZE, "cpu")
    torch.testing.assert_close(latents[1:], shown_latents(vae, tasks[1:], SIZE, "cpu"), atol=1e-4, rtol=0)
    assert latents.shape == (2, 16 + 32 + 256, 5, 6, 6)
    words = [networks.words_for(one, rng, options) for one in tasks]
    networks.loss(latents, tasks, words, options, torch.Generator().manual_seed(0)).backward()
    with_reference = [reference_task_for(one.scene, "reference", rng) for one in tasks]
    seen = shown_latents(vae, with_reference, SIZE, "cpu")
    assert seen.shape == (2, 16 + 32 + 256, 6, 6, 6), "one frame more, before the others"
    torch.testing.assert_close(seen[:, :16, 0], seen[:, 16:32, 0], atol=0, rtol=0)
    assert not seen[:, 32:, 0].any() and seen[:, 48:, 1:].all()
    learned = {name: value.grad for name, value in networks.learned.named_parameters() if value.grad is not None}
    assert all(name.startswith(LEARNED) for name in learned) and not any("time_embedder" in name for name in learned)
    assert learned["vace_blocks.0.proj_out.weight"].abs().max() > 0
    networks.learned.zero_grad()


@pytest.mark.demo_model
def test_the_checkpoint_is_a_vace_that_shares_wan_tinys_parts_and_can_be_scored(networks, tmp_path, monkeypatch):
    monkeypatch.setenv("STUDIO_DATA_DIR", str(tmp_path / "data"))
    (tmp_path / "wan-tiny").symlink_to(BASE)
    networks.save(tmp_path / "parts")
    assemble_vace(tmp_path / "parts", tmp_path / "wan-tiny", tmp_path / "made")
    assert (tmp_path / "made/vae").is_symlink() and (tmp_path / "made/vae/config.json").is_file()
    assert sum(path.stat().st_size for path in (tmp_path / "made/transformer").iterdir()) < 30_000_000
    preset = load_preset("wan-tiny-vace").model_copy(update={"model": str(tmp_path / "made"), "steps": 2})
    find_also(monkeypatch, preset)
    assert find_family(preset)[1].name == "wan2.1-vace"
    found = score(load(preset, None, lambda event: None), preset, task("box"), "a red circle", 1)
    assert found["outside"] >= 35 and 0 <= found["overlap"] <= 1


SHOWN = [("blue", "square", "right"), ("red", "circle", "down"), ("green", "triangle", "left"), ("yellow", "star", "up"),
         ("cyan", "circle", "still"), ("magenta", "square", "growing")]  # fmt: skip
LEAST = {"box": 0.5, "edges": 0.7, "keyframes": 0.5, "margins": 0.5, "after": 0.5}
"""The least mean overlap over these scenes. One scene tells little: within a box and beyond a clip what is shown leaves some freedom."""


@pytest.mark.slow  # the result changes only if the model is trained again
@pytest.mark.demo_model
@pytest.mark.parametrize("use", LEAST)
def test_the_committed_model_makes_what_it_is_shown(committed, use):
    loaded, preset = committed
    rng, found = random.Random(4), []
    for triple in SHOWN:
        scene = sample_scene(rng, triple)
        found.append(score(loaded, preset, task_for(scene, use, rng), describe(scene, random.Random(1)), 3))
    assert all(one["colour"] and one.get("outside", 35) >= 35 for one in found)
    assert sum(one["overlap"] for one in found) / len(found) >= LEAST[use]


@pytest.fixture(scope="module")
def committed(tmp_path_factory):
    """Load the committed checkpoint of wan-tiny-vace."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STUDIO_DATA_DIR", str(tmp_path_factory.mktemp("data")))
        preset = load_preset("wan-tiny-vace")
        yield load(preset, None, lambda event: None), preset


def test_overlap_is_that_of_the_shapes():
    right, still = (torch.from_numpy(to_frames(video_of(task("box", motion), SIZE))) for motion in ("right", "still"))
    assert overlap(right, right) == pytest.approx(1.0) and overlap(right, still) < 0.5
    assert overlap(right, torch.zeros_like(right)) == 0.0
