"""The command `check-tpu`: what the TPU's own compiler says about a preset on a slice, as a table or as JSON."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from backend.commands.apart import compile_apart, mesh_words, refuse_topology
from backend.contract.request import find_preset

GIB = 2**30


def check_tpu(arguments: argparse.Namespace) -> bool:
    """Print the report, or write it to --json FILE; whether the preset fits. Raises: RequestError, StudioError."""
    find_preset(arguments.preset)
    refuse_topology(arguments.topology)
    words = ["--preset", arguments.preset, "--topology", arguments.topology, *mesh_words(arguments)]
    found = compile_apart("backend.commands.check_tpu_run", words, for_tpu=True)
    if arguments.json is not None:
        Path(arguments.json).write_text(json.dumps(found, indent=2) + "\n", "utf-8")
    sys.stdout.write(table(found) + "\n")
    return found["fits"]


def table(found: dict[str, Any]) -> str:
    """The report for people. Seconds on a chip are predictions."""
    mesh = " ".join(f"{axis}={size}" for axis, size in found["mesh"].items())
    needed, capacity = found["hbm_bytes_per_device"] / GIB, found["hbm_capacity_bytes"] / GIB
    verdict = "fits" if found["fits"] else "does not fit"
    weights = ", ".join(_weights_of(name, size) for name, size in found["weight_bytes_per_device"].items())
    lines = [
        f"{found['preset']} on {found['topology']} ({mesh}): {verdict}, {needed:.1f} of {capacity:.0f} GiB a chip",
        f"weights at rest: {weights}",
        "",
        f"{'program':17} {'runs':>4} {'HBM GiB':>8} {'compile s':>9} {'predicted s':>11}  predicted seconds by kind",
    ]
    lines += [_row(name, part) for name, part in found["components"].items()]
    return "\n".join([*lines, "", *_closing(found)])


def _weights_of(name: str, size: int) -> str:
    return f"{name} {size / GIB:.2f} GiB" if size else f"{name} on the host but for the prompt"


def _row(name: str, part: dict[str, Any]) -> str:
    size = part["hbm_bytes_per_device"] / GIB
    if part["predicted_seconds"] is None:
        return f"{name:17} {part['repeats']:4} {size:8.2f} {part['compile_seconds']:9.1f} {'does not fit':>11}"
    kinds = ", ".join(f"{kind} {value:.3f}" for kind, value in part["breakdown"].items() if value >= 0.0005)
    return f"{name:17} {part['repeats']:4} {size:8.2f} {part['compile_seconds']:9.1f} {part['predicted_seconds']:11.3f}  {kinds}"


def _closing(found: dict[str, Any]) -> list[str]:
    lines = []
    if found["predicted_total_seconds"] is not None:
        lines.append(f"predicted whole video: {found['predicted_total_seconds']:.1f} s (no chip has run this)")
    step = found["components"]["denoise_step"]["predicted_seconds"]
    if step is not None:
        lines.append(
            f"one step: predicted {step:.2f} s; floor with scores at the rate of their width {found['floor_seconds']:.2f} s; "
            f"roofline {found['roofline_seconds']:.2f} s, so MFU {found['mfu']:.0%}"
        )
    if found["published"] is not None:
        lines.append(f"published: {found['published']['step_seconds']:.2f} s a step, {found['published']['source']}")
    if not found["fits"]:
        lines += _remedies(found)
    return lines


def _remedies(found: dict[str, Any]) -> Iterator[str]:
    """One line each; every one has been compiled."""
    for remedy in found["would_fit"]:
        what = f"{remedy['width']}x{remedy['height']}, {remedy['num_frames']} frames on {remedy['topology']}"
        yield f"would fit: {what}, {remedy['hbm_bytes_per_device'] / GIB:.1f} GiB a chip"
    if not found["would_fit"]:
        yield "nothing that fits was found: a much larger slice, a smaller model, or a chip with more memory"
