"""Check progressive resolution: which presets offer it, combinations that are refused, and the number of half-size steps."""

import math

import pytest

from backend.engine.estimate import predicted_seconds
from backend.errors import RequestError
from backend.schemas.noise_levels import noise_levels
from backend.schemas.progressive import at_step, full_size_level, num_half_size_steps, request_at_first_size
from backend.schemas.request import GenerationRequest, example_request
from backend.schemas.shape import Shape
from backend.schemas.step_plan import relative_step_costs
from backend.schemas.windows import equivalent_tokens
from backend.schemas.worker import Device
from presets import list_presets, load_preset
from presets.loader import ANY_MODEL
from tests.backend.conftest import request

WAN = load_preset("wan2.1-t2v-14b-720p")


@pytest.mark.parametrize(("level", "steps"), [(1, 23), (2, 27), (3, 33), (4, 37)])
def test_at_480p_as_many_steps_are_small_as_sglang_publishes(level, steps):
    """SGLang's documentation, "Choosing delta" of Wan 2.1: 50 steps, shift 5, 480 x 832."""
    assert num_half_size_steps(example_request(WAN, width=832, height=480, progressive=level)) == steps


def test_the_level_of_the_full_size_is_where_the_criterion_says():
    """The paper's criterion for the noise level t: the lost power is the tolerance's share, P (1 + P - d) (1/t - 1)^2 = d."""
    for tolerance in (0.01, 0.1):
        level, power = full_size_level(tolerance, (219.0, 2.4), 30, 52), 219.0 * 15**-2.4
        assert math.isclose(power * (1 + power - tolerance) * (1 / level - 1) ** 2, tolerance)


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("wan2.1-t2v-14b-720p", (640, 368)),  # 45 rows of latents are not a whole number of tokens: 46
        ("wan2.2-ti2v-5b-720p", (640, 352)),
        ("hunyuanvideo-1.5-t2v-720p", (640, 368)),
        ("wan-tiny", (64, 64)),
    ],
)
def test_the_half_size_is_rounded_up_to_whole_tokens(name, size):
    small = request_at_first_size(example_request(load_preset(name), progressive=2))
    assert (small.width, small.height) == size and num_half_size_steps(small) == 0


def test_later_steps_have_the_videos_own_size_and_one_at_least_does():
    wanted = example_request(WAN, progressive=4, flow_shift=100.0)
    assert num_half_size_steps(wanted) == 49
    assert at_step(wanted, 48).width == 640 and at_step(wanted, 49) == wanted


def test_every_full_wan_and_hunyuanvideo_takes_it():
    taking = {preset.name for preset in list_presets() if preset.takes_progressive}
    expected = {
        preset.name
        for preset in list_presets()
        if preset.name.startswith(("wan2.", "hunyuanvideo")) and not preset.live and preset.steps > 8
    }
    assert {
        name for name in expected if not any(word in name for word in ("vace", "animate", "distilled", "sparse", "fast"))
    } <= taking
    assert {"wan-tiny", "hunyuan-tiny"} <= taking
    assert all(preset.solvers == ANY_MODEL for preset in list_presets() if preset.takes_progressive)


@pytest.mark.parametrize("name", ["wan2.2-t2v-a14b-480p-fast", "ltx-2.0-512p", "wan-live-tiny", "wan2.1-vace-14b-720p"])
def test_it_is_refused_where_all_steps_have_one_size(name):
    preset = load_preset(name)
    with pytest.raises(RequestError, match=f"progressive was given, and {name} does not support it; leave it out"):
        GenerationRequest.from_preset(preset, prompt="x", progressive=2)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"video": "/clip.mp4"}, "progressive cannot be combined with video; leave one out"),
        ({"shots": [{"prompt": "x"}, {"prompt": "y"}]}, "progressive cannot be combined with shots; leave one out"),
        ({"mag_cache": 0.1}, "progressive cannot be combined with mag_cache; leave one out"),
        ({"progressive": 5}, "progressive=5 must be between 0 and 4; 0 is off, 2 is usual"),
    ],
)
def test_what_does_not_go_together_is_refused(changes, words):
    with pytest.raises(RequestError) as refused:
        GenerationRequest.from_preset(load_preset("wan-tiny"), **{"prompt": "x", "progressive": 2, **changes})
    assert str(refused.value) == words


def test_a_video_in_windows_cannot_have_it():
    preset = load_preset("wan-tiny")
    with pytest.raises(RequestError, match="cannot be combined with context windows"):
        GenerationRequest.from_preset(preset, prompt="x", num_frames=65, progressive=2)


def test_it_needs_programs_of_its_own_and_counts_in_estimates():
    wanted, plain = example_request(WAN, progressive=2), example_request(WAN)
    assert Shape.from_request(wanted) != Shape.from_request(plain)
    tokens = [one.geometry().num_tokens for one in (request_at_first_size(wanted), wanted)]
    costs = relative_step_costs(wanted)
    assert costs[0] == 1 and math.isclose(costs[-1], (tokens[1] / tokens[0]) ** 1.5) and len(costs) == 50
    assert equivalent_tokens(wanted) < 0.6 * equivalent_tokens(plain)
    chips = [Device(name="chip", kind="TPU v6 lite")] * 8
    assert predicted_seconds(wanted, chips) < 0.5 * predicted_seconds(plain, chips)


def test_it_is_kept_in_a_videos_settings_and_not_in_those_without_it():
    wanted = request(progressive=3)
    assert GenerationRequest.from_stored(wanted.to_json()) == wanted
    assert "progressive" not in request().to_json()


@pytest.mark.parametrize("solver", ["unipc", "euler", "euler-distilled"])
def test_noise_levels_fall_from_almost_one(solver):
    levels = noise_levels(solver, 20, 3.0)
    assert len(levels) == 20 and 0.99 < levels[0] <= 1 and (levels[1:] < levels[:-1]).all() and levels[-1] > 0
