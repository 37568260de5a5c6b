"""Published rates predict the duration before the first run on TPUs. Other devices get no prediction."""

from types import SimpleNamespace

import pytest

from backend.engine.estimate import Timings, predicted_seconds
from backend.schemas.request import example_request
from backend.schemas.settings import find_preset
from backend.schemas.shape import Shape
from backend.schemas.windows import mean_step_calls
from backend.schemas.worker import Device
from presets import list_presets
from presets.needs import find_needs

EIGHT = tuple(Device(name=f"tpu:{index}", kind="TPU v6 lite") for index in range(8))
WAN = example_request(find_preset("wan2.1-t2v-14b-720p"))


def on_eight_chips(preset) -> float | None:
    """Return the stored seconds of a step by check-tpu on eight chips, None if unknown."""
    needs = find_needs(preset.model)
    known = needs.slices if needs else ()
    return next((one.step_seconds for one in known if (one.preset, one.slice) == (preset.name, "v6e:2x4")), None)


def test_wan_14b_on_eight_chips_lies_near_what_check_tpu_predicts():
    assert predicted_seconds(WAN, EIGHT) == pytest.approx(50 * 2.73, rel=0.1)  # docs/performance.md, the step on a TPU slice


@pytest.mark.parametrize("preset", [one for one in list_presets() if on_eight_chips(one)], ids=lambda preset: preset.name)
def test_what_the_compiler_says_of_eight_chips_is_what_is_predicted(preset):
    predicted = predicted_seconds(example_request(preset), EIGHT)
    assert predicted == pytest.approx(preset.steps * on_eight_chips(preset), rel=0.15)


def test_sol_attn_takes_as_much_less_as_the_compiler_predicts():
    assert predicted_seconds(WAN.with_changes(sparse=1.5), EIGHT) == pytest.approx(92, rel=0.1)  # docs/models.md


def test_matrices_in_8_bits_take_nearly_as_long_as_the_compiler_predicts():
    request = example_request(find_preset("turbowan2.1-t2v-14b-720p"), quantize="int8")
    assert predicted_seconds(request, EIGHT) == pytest.approx(4 * 0.576, rel=0.1)  # docs/performance.md


def test_half_the_chips_take_twice_as_long_and_one_branch_half():
    assert predicted_seconds(WAN, EIGHT[:4]) == pytest.approx(2 * predicted_seconds(WAN, EIGHT))
    assert predicted_seconds(WAN.with_changes(guidance=(1.0,)), EIGHT) == pytest.approx(predicted_seconds(WAN, EIGHT) / 2)


def test_a_long_video_takes_as_long_as_its_windows():
    name = "wan2.1-t2v-1.3b-480p"
    window, long = (example_request(find_preset(name), num_frames=count, steps=4) for count in (81, 321))
    seconds = predicted_seconds(window, EIGHT) * mean_step_calls(long)
    assert predicted_seconds(long, EIGHT) == pytest.approx(seconds) and 7 <= mean_step_calls(long) <= 8
    assert predicted_seconds(long.with_changes(context_windows=False), EIGHT) > seconds


@pytest.mark.parametrize("devices", [(), (Device(name="cpu:0", kind="cpu"),), (*EIGHT, Device(name="x", kind="TPU v5 lite"))])
def test_unknown_or_mixed_devices_give_no_number(devices):
    assert predicted_seconds(WAN, devices) is None


def test_every_setting_counts_in_a_cached_estimate_except_prompt_and_seed():
    loads = []
    timings = Timings(SimpleNamespace(load=lambda: loads.append(1) or []))
    worker = SimpleNamespace(device_kind="8 TPU v6 lite", facts=SimpleNamespace(devices=EIGHT))

    def seconds(**changes: object) -> float:
        request = WAN.with_changes(**changes)
        return timings.estimate(request, Shape.from_request(request), worker, True, True).seconds

    low, high = seconds(progressive=1), seconds(progressive=4)
    assert low > 1.2 * high
    assert seconds(progressive=1, prompt="another", seed=5) == low and len(loads) == 2
