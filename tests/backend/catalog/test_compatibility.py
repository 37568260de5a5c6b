"""Check the verdicts on whether a machine can run a model, from its devices and from stored figures."""

import pytest

from backend.catalog.compatibility import (
    _num_devices,
    denoising_seconds,
    find_faster_preset,
    fitting_presets,
    is_estimate,
    judge_compatibility,
    recommend_preset,
)
from backend.chips import DEVICE_KINDS, SLICES
from backend.schemas.worker import Device
from presets import Preset, list_presets
from presets.needs import find_needs

GIB = 2**30


def users(name: str) -> list[Preset]:
    """Return the presets with the same model as this preset."""
    model = next(preset.model for preset in list_presets() if preset.name == name)
    return [preset for preset in list_presets() if preset.model == model]


def devices(count: int, kind: str, gib: float | None = None) -> list[Device]:
    return [Device(name=str(number), kind=kind, bytes_limit=gib and int(gib * GIB)) for number in range(count)]


BIG = "wan2.1-t2v-14b-720p"


@pytest.mark.parametrize(
    ("name", "machine", "verdict"),
    [
        (BIG, [], "unknown"),
        (BIG, devices(1, "cpu"), "slow"),
        ("wan-tiny", devices(1, "cpu"), "runs"),
        ("wan-live-tiny", devices(1, "cpu"), "runs"),
        ("wan-tiny", devices(1, "an unknown device"), "runs"),
        (BIG, devices(1, "TPU v6 lite", 31.25), "untried"),
        (BIG, devices(1, "TPU v5 lite"), "short"),
        (BIG, devices(4, "TPU v6 lite", 31.25), "runs"),
        (BIG, devices(16, "TPU v6 lite"), "runs"),
        (BIG, devices(4, "TPU v5 lite"), "untried"),
        (BIG, devices(8, "TPU v5 lite"), "runs"),
        (BIG, devices(1, "NVIDIA H200", 140), "untried"),
        (BIG, devices(1, "NVIDIA T4", 15), "short"),
        (BIG, devices(1, "an unknown device"), "untried"),
        ("wan2.2-ti2v-5b-720p", devices(1, "TPU v6 lite"), "runs"),
    ],
)
def test_the_verdict(name, machine, verdict):
    assert judge_compatibility(users(name), machine).verdict == verdict


def test_the_slice_shown_is_the_smallest_of_this_machines_chips_or_of_any():
    assert judge_compatibility(users(BIG), []).smallest.slice == "v6e:2x2"
    assert judge_compatibility(users(BIG), devices(1, "cpu")).smallest.slice == "v6e:2x2"
    assert judge_compatibility(users(BIG), devices(1, "TPU v5p")).smallest.slice == "v5p:2x2x2"


def test_the_memory_is_that_of_all_devices_together():
    assert judge_compatibility(users(BIG), devices(8, "TPU v6 lite")).memory_bytes == 8 * 32 * GIB
    assert judge_compatibility(users(BIG), devices(2, "an unknown device")).memory_bytes is None


def test_of_every_model_the_weights_are_known():
    assert [preset.name for preset in list_presets() if find_needs(preset.model) is None] == []


def test_every_slice_that_is_kept_has_as_many_devices_as_the_compiler_knows():
    kept = {one.slice for preset in list_presets() if (needs := find_needs(preset.model)) for one in needs.slices}
    assert {"v6e:4x8", "v5p:4x4x4"} <= kept
    known = {f"{chip}:{shape}": count for chip, shapes in SLICES.items() for shape, count in shapes.items()}
    counted = {name: _num_devices(name) for name in kept}
    assert counted["v6e:4x8"] == 32 and counted["v5p:4x4x4"] == 64
    assert all(known[name] == count for name, count in counted.items() if name in known)
    for preset in list_presets():
        assert judge_compatibility([preset], ()).verdict == "unknown"


@pytest.mark.parametrize(
    ("machine", "name", "shape"),
    [
        ([], "wan-tiny", None),
        (devices(1, "cpu"), "wan-tiny", None),
        (devices(1, "an unknown device"), "wan-tiny", None),
        (devices(1, "NVIDIA H200", 140), "hunyuanvideo-1.5-t2v-480p", "v6e:1x1"),
        (devices(1, "NVIDIA T4", 15), "turbowan2.1-t2v-1.3b-480p", "v5e:1x1"),
        (devices(4, "TPU v5p", 95), "ltx-2.0-512p", "v6e:2x2"),
        (devices(8, "TPU v5p", 95), "wan2.1-t2v-14b-720p", "v5p:2x2x2"),
        (devices(8, "TPU v5 lite", 15.75), "wan2.2-t2v-a14b-720p", "v5e:2x4"),
        (devices(1, "TPU v5 lite", 15.75), "turbowan2.1-t2v-1.3b-480p", "v5e:1x1"),
        (devices(8, "TPU v6 lite", 31.25), "wan2.2-t2v-a14b-720p", "v6e:2x4"),
        (devices(1, "TPU v6 lite", 31.25), "fastwan2.2-ti2v-5b-720p", "v6e:1x1"),
        (devices(1, "TPU v6 lite", 24.0), "turbowan2.1-t2v-1.3b-480p", "v6e:1x1"),
        (devices(8, "TPU v6 lite", 8.0), "wan-tiny", None),
    ],
)
def test_the_recommended_preset_is_the_largest_and_fastest_that_fits_with_memory_to_spare(machine, name, shape):
    preset, need = recommend_preset(machine)
    assert (preset.name, need and need.slice) == (name, shape)
    if need is not None:
        assert is_estimate(need, machine) == (not shape.startswith(DEVICE_KINDS.get(machine[0].kind, "none")))


def test_a_recommendation_takes_only_presets_that_can_be_used_and_support_the_task():
    machine = devices(8, "TPU v5 lite", 15.75)
    preset, need = recommend_preset(machine, lambda preset: find_needs(preset.model).weight_bytes < 50 * 10**9)
    assert (preset.name, need.slice) == ("turbowan2.1-t2v-14b-720p", "v5e:2x4")
    preset, _ = recommend_preset(machine, task="i2v")
    assert "i2v" in preset.tasks and not preset.needs_last_image and preset.segment_frames is None
    assert recommend_preset(machine, lambda preset: False) == (list_presets()[0], None)


def test_the_fastest_preset_with_videos_as_large_is_the_alternative():
    machine = devices(8, "TPU v5 lite", 15.75)
    best, _ = recommend_preset(machine)
    faster, need = find_faster_preset(best, fitting_presets(machine))
    assert (faster.name, denoising_seconds(faster, need)) == ("turbowan2.1-t2v-14b-720p", pytest.approx(8.12))
    assert find_faster_preset(faster, fitting_presets(machine)) is None


def test_a_recommended_preset_needs_a_prompt_only_and_eight_v5e_chips_run_more_than_the_demo_model():
    preset, need = recommend_preset(devices(8, "TPU v5 lite", 15.75))
    assert (
        "t2v" in preset.tasks
        and not preset.live
        and not preset.has_control_blocks
        and need.slice == "v5e:2x4"
        and need.gib < 15.75
    )
