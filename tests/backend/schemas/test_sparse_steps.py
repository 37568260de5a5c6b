"""Sol-Attn: which presets offer it, combinations that are refused, and which steps are dense."""

import re

import pytest

from backend.errors import RequestError
from backend.schemas.request import GenerationRequest, example_request
from backend.schemas.shape import Shape
from backend.schemas.step_plan import plan_steps, relative_step_costs
from presets import list_presets, load_preset

WAN = load_preset("wan2.1-t2v-14b-720p")


@pytest.mark.parametrize(("steps", "dense"), [(50, 10), (40, 8), (4, 1), (1, 1)])
def test_the_first_fifth_of_the_steps_is_dense(steps, dense):
    plan = plan_steps(example_request(WAN, sparse=1.0, steps=steps))
    assert [step.is_sparse for step in plan] == [False] * dense + [True] * (steps - dense)
    assert len({step.context_key for step in plan}) == 1 + (steps > dense), "dense and sparse steps have their own contexts"


def test_without_it_no_step_is_sparse():
    assert not any(step.is_sparse for step in plan_steps(example_request(WAN)))


def test_steps_at_half_the_size_are_dense():
    plan = plan_steps(example_request(WAN, sparse=1.0, progressive=2))
    assert all(step.is_small != step.is_sparse for step in plan)


def test_a_restyled_clip_leaves_out_dense_steps_first():
    restyled = example_request(WAN, sparse=1.0, steps=50, video="/clip.mp4", strength=0.9)
    assert [step.is_sparse for step in plan_steps(restyled)] == [False] * 5 + [True] * 40


def test_a_sparse_video_costs_as_much_less_as_the_compiler_predicts():
    dense, sparse = (sum(relative_step_costs(example_request(WAN, sparse=level))) for level in (0.0, 1.5))
    assert dense / sparse == pytest.approx(136.7 / 92, rel=0.02)  # docs/models.md


def test_guided_wan_with_dense_attention_takes_it_and_nothing_else():
    taking = {preset.name for preset in list_presets() if preset.takes_sparse}
    assert taking == {
        preset.name
        for preset in list_presets()
        if preset.name.startswith(("wan2.1-t2v", "wan2.1-i2v", "wan2.1-flf2v", "wan2.2-t2v", "wan2.2-i2v", "wan2.2-ti2v", "wan-tiny"))
        and preset.guidance[0] > 1 and "vace" not in preset.name and "animate" not in preset.name
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "changes"),
    [("hunyuanvideo-1.5-t2v-720p", {}), ("wan2.1-t2v-14b-720p-fast", {}), ("wan2.1-t2v-14b-720p", {"mag_cache": 0.2}),
     ("wan2.1-t2v-14b-720p", {"step_cache": 0.1}), ("wan2.1-t2v-14b-720p", {"sparse": 4.0})],
)  # fmt: skip
def test_it_is_refused_where_it_cannot_be_used(name, changes):
    with pytest.raises(RequestError, match="sparse"):
        example_request(load_preset(name), **{"sparse": 1.0} | changes)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("wan2.1-vace-14b-720p", "guided presets of wan2.1 and wan2.2 for text or image to video, without control clips; leave"),
        ("wan2.1-t2v-14b-720p-fast", "it is for guided presets"),
        ("ltx-2.3-704p", "it is for guided presets"),
        (
            "turbowan2.1-t2v-14b-720p",
            "own sparse attention (sla), and the preset's sparse_keep=0.1 sets the share of blocks; leave",
        ),
        (
            "fastwan2.1-t2v-1.3b-480p",
            "own sparse attention (vsa), and the preset's sparse_keep=0.2 sets the share of blocks; leave",
        ),
        ("hunyuanvideo-1.5-i2v-720p-sparse", "trained with its own sparse attention (ssta); leave"),
    ],
)
def test_the_refusal_names_the_reason(name, reason):
    image = {"image": "/picture.png"} if "i2v" in name else {}
    with pytest.raises(RequestError, match=re.escape(reason)):
        example_request(load_preset(name), sparse=1.0, **image)


def test_a_stored_request_restores_it_and_it_selects_the_programs():
    wanted = example_request(WAN, sparse=1.5)
    assert GenerationRequest.from_stored(wanted.to_json()) == wanted
    assert "sparse" not in example_request(WAN).to_json(), "older versions do not know it"
    assert Shape.from_request(wanted) != Shape.from_request(example_request(WAN, sparse=1.0))
