"""The command `check-tpu`: the report of the TPU's compiler about a preset on a slice, as a table or as JSON."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from backend.catalog.measured_ratios import add_measured_ratios
from backend.cli.module_process import check_topology, compile_in_process, option_words
from backend.schemas.request import example_request
from backend.schemas.settings import find_preset
from backend.settings import from_environment

GIB = 2**30
SPEED_SETTINGS = ("progressive", "mag_cache", "sparse", "quantize")


def check_tpu(arguments: argparse.Namespace) -> bool:
    """Print the report, and write it to --json FILE if given. Return whether the preset fits. Raises: StudioError."""
    preset = find_preset(arguments.preset)
    request = example_request(preset, **{name: getattr(arguments, name) for name in SPEED_SETTINGS})
    add_measured_ratios(request, from_environment().magnitudes_dir)
    check_topology(arguments.topology)
    words = option_words(arguments, "preset", "topology", *SPEED_SETTINGS) + ["--instant"] * arguments.instant
    report = compile_in_process("backend.cli.check_tpu_run", words, for_tpu=True)
    if arguments.json is not None:
        Path(arguments.json).write_text(json.dumps(report, indent=2) + "\n", "utf-8")
    sys.stdout.write(format_report(report) + "\n")
    return report["fits"]


def format_report(report: dict[str, Any]) -> str:
    """Format the report as text. Seconds on a chip are predictions."""
    mesh = " ".join(f"{axis}={size}" for axis, size in report["mesh"].items())
    needed, capacity = report["hbm_bytes_per_device"] / GIB, report["hbm_capacity_bytes"] / GIB
    verdict = "fits" if report["fits"] else "does not fit"
    weights = [
        f"{name} {size / GIB:.2f} GiB" if size else f"{name} in host memory, except while it encodes the prompt"
        for name, size in report["weight_bytes_per_device"].items()
    ]
    lines = [
        f"{report['preset']} on {report['topology']} ({mesh}): {verdict}, {needed:.1f} of {capacity:.0f} GiB a chip",
        f"weights per chip: {', '.join(weights)}",
        "",
        f"{'program':19} {'runs':>4} {'HBM GiB':>8} {'compile s':>9} {'predicted s':>11}  predicted seconds by kind",
    ]
    for name, costs in report["components"].items():
        size, seconds = costs["hbm_bytes_per_device"] / GIB, costs["predicted_seconds"]
        kinds = ", ".join(f"{kind} {value:.3f}" for kind, value in (costs["breakdown"] or {}).items() if value >= 0.0005)
        predicted = f"{'does not fit':>11}" if seconds is None else f"{seconds:11.3f}  {kinds}"
        lines.append(f"{name:19} {costs['repeats']:4} {size:8.2f} {costs['compile_seconds']:9.1f} {predicted}")
    lines.append("")
    if report["predicted_total_seconds"] is not None:
        lines.append(f"predicted whole video: {report['predicted_total_seconds']:.1f} s (no chip has run this)")
    if "predicted_frames_per_second" in report:
        rate, delay = report["predicted_frames_per_second"], report["predicted_delay_seconds"]
        lines.append(f"live: predicted {rate:.1f} frames per second with the decoder; a block takes {delay:.2f} s")
    step = report["components"].get("denoise_step", {}).get("predicted_seconds")
    if step is not None:
        lines.append(
            f"one step: predicted {step:.2f} s; floor with attention scores at the rate of their width "
            f"{report['floor_seconds']:.2f} s; roofline {report['roofline_seconds']:.2f} s; MFU {report['mfu']:.0%}"
        )
    if report["published"] is not None:
        lines.append(f"published: {report['published']['step_seconds']:.2f} s a step, {report['published']['source']}")
    if not report["fits"]:
        for remedy in report["would_fit"]:  # the TPU's compiler has confirmed that these fit
            what = f"{remedy['width']}x{remedy['height']}, {remedy['num_frames']} frames on {remedy['topology']}"
            lines.append(f"would fit: {what}, {remedy['hbm_bytes_per_device'] / GIB:.1f} GiB a chip")
        if not report["would_fit"]:
            lines.append("nothing that fits was found: a much larger slice, a smaller model, or a chip with more memory")
    return "\n".join(lines)
