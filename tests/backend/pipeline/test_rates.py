"""A video's result states the rate of arithmetic in each stage."""

import pytest

from backend.chips import CHIPS
from backend.models.wan.spec import WAN
from backend.pipeline.decoding import count_stage_flops
from backend.pipeline.generate import generate
from backend.pipeline.warm_up import calls
from backend.schemas.events import Finished, Rate, VideoResult
from backend.schemas.request import GenerationRequest
from backend.schemas.step_plan import plan_steps
from presets import load_preset

pytestmark = [pytest.mark.parity, pytest.mark.demo_model]


def request_with(**settings) -> GenerationRequest:
    return GenerationRequest.from_preset(load_preset("wan-tiny"), prompt="a red circle", seed=1, **settings)


def test_a_finished_video_has_rates_of_all_stages_and_no_share_of_an_unknown_peak(loaded, tmp_path):
    final = list(generate(request_with(steps=2), loaded, tmp_path, lambda: False))[-1]
    assert isinstance(final, Finished)
    result = VideoResult.from_json(final.result.to_json())
    assert set(result.rates) == {"encode", "denoise", "decode"} and result.peak_flops is None
    for stage, rate in result.rates.items():
        assert rate == Rate(flops_per_second=result.flops[stage] / result.seconds[stage], mfu=None)


def test_denoising_is_as_many_steps_with_one_branch_or_two(loaded):
    request = request_with(steps=4)
    configs = load_preset("wan-tiny").network_configs()
    one, two = (WAN.step_flops(configs, request, branches).total for branches in (1, 2))
    assert count_stage_flops(loaded, request)["denoise"] == 4 * two
    assert count_stage_flops(loaded, request_with(steps=4, guidance=(1.0,)))["denoise"] == 4 * one
    halved = request_with(steps=4, guidance_interval=(0.0, 0.5))
    assert count_stage_flops(loaded, halved)["denoise"] == 2 * two + 2 * one


def test_denoising_in_windows_is_as_many_programs(loaded):
    long, window = request_with(steps=4, num_frames=65), request_with(steps=4, num_frames=33)
    configs = load_preset("wan-tiny").network_configs()
    one = WAN.step_flops(configs, window, 2).total
    run = sum(call.program.key == "denoise_step" for call in calls(loaded.model, long))
    assert count_stage_flops(loaded, long)["denoise"] == run * one and run > 8


def test_steps_at_half_the_size_are_less_work(loaded):
    request, small = request_with(steps=6, progressive=2), request_with(steps=6).model_copy(update={"width": 64, "height": 64})
    configs = load_preset("wan-tiny").network_configs()
    one, less = (WAN.step_flops(configs, sized, 2).total for sized in (request, small))
    run = [call.program.key for call in calls(loaded.model, request) if call.program.key in ("small_step", "denoise_step")]
    count = run.count("small_step")
    assert count > 0 and run == ["small_step"] * count + ["denoise_step"] * (6 - count)
    assert count_stage_flops(loaded, request)["denoise"] == count * less + (6 - count) * one


@pytest.mark.parametrize("strength", [0.5, 1.0])
def test_denoising_of_a_clip_is_as_many_steps_as_are_done(loaded, strength):
    request = request_with(steps=6, video="/clip.mp4", trim=(0.0, 1.0625), strength=strength)
    one = WAN.step_flops(load_preset("wan-tiny").network_configs(), request, 2).total
    run = sum(call.program.key == "denoise_step" for call in calls(loaded.model, request))
    assert run == 6 * strength and count_stage_flops(loaded, request)["denoise"] == run * one


def test_the_step_cache_leaves_denoising_without_a_number(loaded):
    assert set(count_stage_flops(loaded, request_with(step_cache=0.1))) == {"encode", "decode"}


def test_a_step_that_reuses_another_counts_as_none(loaded):
    request = request_with(mag_cache=0.12)
    one = WAN.step_flops(load_preset("wan-tiny").network_configs(), request, 2).total
    run = sum(call.program.key == "denoise_step_kept" for call in calls(loaded.model, request))
    assert (
        count_stage_flops(loaded, request)["denoise"] == run * one
        and run == 20 - sum(step.reuses for step in plan_steps(request)) < 20
    )


def test_a_share_of_the_peak_is_that_of_all_chips():
    peak = 8 * CHIPS["v6e"].peak_flops
    result = VideoResult(
        path="x", fps=16, num_frames=1, width=1, height=1, seconds={"denoise": 2.0, "decode": 0.0}, versions={},
        request=request_with(), flops={"denoise": peak, "decode": 1.0}, peak_flops=peak,
    )  # fmt: skip
    assert result.rates == {"denoise": Rate(flops_per_second=peak / 2, mfu=0.5)}
