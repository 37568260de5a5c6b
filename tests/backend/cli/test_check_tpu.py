"""Check the output of `check-tpu`, and the arguments that it refuses before it compiles anything."""

import argparse

import pytest

from backend.chips import CHIPS
from backend.cli.check_tpu import check_tpu, format_report
from backend.cli.module_process import check_topology
from backend.errors import RequestError
from backend.models import find_family
from backend.schemas.request import GenerationRequest
from backend.settings import tpu_compiler_environment
from presets import load_preset

GIB = 2**30


def report(**changes) -> dict:
    step = {
        "fits": True,
        "hbm_bytes_per_device": 5 * GIB,
        "compile_seconds": 60.0,
        "predicted_seconds": 3.0,
        "repeats": 50,
        "breakdown": {"attention": 2.0, "matmul": 0.7, "layout": 0.0001},
    }
    return {
        "preset": "wan2.1-t2v-14b-720p",
        "topology": "v6e:2x4",
        "mesh": {"dp": 2, "sp": 4, "tp": 1},
        "fits": True,
        "hbm_bytes_per_device": 8 * GIB,
        "hbm_capacity_bytes": 32 * GIB,
        "weight_bytes_per_device": {"transformer": 3 * GIB},
        "components": {"denoise_step": step},
        "predicted_total_seconds": 150.0,
        "roofline_seconds": 1.78,
        "floor_seconds": 2.41,
        "mfu": 0.59,
        "published": {"step_seconds": 4.59, "source": "somebody"},
    } | changes


def test_the_table_says_what_is_predicted_and_what_was_published():
    text = format_report(report())
    assert "wan2.1-t2v-14b-720p on v6e:2x4 (dp=2 sp=4 tp=1): fits, 8.0 of 32 GiB a chip" in text
    assert "predicted 3.00 s" in text and "no chip has run this" in text
    assert "published: 4.59 s a step, somebody" in text
    assert "attention 2.000, matmul 0.700" in text and "layout" not in text  # components of almost no time are omitted


def test_what_does_not_fit_comes_with_what_would():
    step = report()["components"]["denoise_step"] | {"fits": False, "predicted_seconds": None, "breakdown": None}
    remedy = {"topology": "v6e:4x4", "width": 1280, "height": 720, "num_frames": 81, "hbm_bytes_per_device": 20 * GIB}
    changes = {
        "fits": False,
        "hbm_bytes_per_device": 40 * GIB,
        "components": {"denoise_step": step},
        "predicted_total_seconds": None,
        "mfu": None,
    }
    text = format_report(report(**changes, would_fit=[remedy]))
    assert "does not fit, 40.0 of 32 GiB" in text
    assert "would fit: 1280x720, 81 frames on v6e:4x4, 20.0 GiB a chip" in text
    assert "nothing that fits was found" in format_report(report(**changes, would_fit=[]))


@pytest.mark.parametrize("topology", ["v6e", "v9:2x4", "", "2x4"])
def test_an_unknown_topology_is_refused(topology):
    with pytest.raises(RequestError, match="must be a chip and a shape, such as v5e:2x4"):
        check_topology(topology)


def test_an_unknown_preset_is_refused_before_anything_compiles():
    arguments = argparse.Namespace(preset="wan", topology="v6e:2x4", json=None, dp=None, sp=None, tp=None)
    with pytest.raises(RequestError, match="must be one of"):
        check_tpu(arguments)


def test_libtpu_is_told_that_there_is_no_tpu():
    environment = tpu_compiler_environment()
    assert environment["JAX_PLATFORMS"] == "cpu" and environment["TPU_SKIP_MDS_QUERY"] == "1"


def test_the_arithmetic_of_a_720p_step_is_what_others_count():
    preset = load_preset("wan2.1-t2v-14b-720p")
    family, _ = find_family(preset)
    request = GenerationRequest.from_preset(preset, prompt="x")
    assert request.geometry().num_tokens == 75_600
    flops = family.step_flops(preset.network_configs(), request, branches=2)
    assert flops.attention == pytest.approx(9.364e15, rel=1e-3)
    assert flops.total == pytest.approx(13.05e15, rel=2e-3)  # without embeddings and the text's own keys
    assert flops.roofline_seconds(CHIPS["v6e"], 8) == pytest.approx(1.78, abs=0.01)
    assert flops.floor_seconds(CHIPS["v6e"], 8) == pytest.approx(2.41, abs=0.01)


def test_the_table_says_how_many_frames_a_second_a_live_video_has():
    text = format_report(report(predicted_frames_per_second=61.23, predicted_delay_seconds=0.196))
    assert "live: predicted 61.2 frames per second with the decoder; a block takes 0.20 s" in text
    assert "live:" not in format_report(report())
