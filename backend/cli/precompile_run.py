"""Compile a preset's programs to files, without loading weights, in a separate process of `app.py precompile`."""

import argparse
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import jax

from backend.catalog.measured_ratios import add_measured_ratios
from backend.child_process import write_message
from backend.engine.instant import DRAFT_INPUTS, draft_request
from backend.imports import hide_unused_libraries
from backend.models.model import Model
from backend.pipeline.load import describe_model
from backend.pipeline.warm_up import warm_up
from backend.runtime.devices import described_devices
from backend.runtime.executables import ExecutableWriter
from backend.schemas.control import appends_control_clip
from backend.schemas.request import GenerationRequest, example_request
from backend.schemas.settings import find_preset
from backend.schemas.worker import AXES
from backend.settings import from_environment
from presets import Preset


def write_programs(
    preset: Preset,
    topology: str | None,
    folder: Path,
    mesh: dict[str, int | None],
    sizes: dict,
    progressive: int | None = None,
    *,
    is_instant: bool = False,
) -> dict:
    """Compile and write each program that the preset's requests run. Return a report on the files and compile times."""
    start, files = time.monotonic(), []

    def record_file(name: str, path: Path, seconds: float | None) -> None:
        files.append({"program": name, "file": path.name, "bytes": path.stat().st_size, "compile_seconds": seconds})
        write_message({"progress": f"{name}: " + ("kept from before" if seconds is None else f"compiled in {seconds:.1f} s")})

    devices = described_devices(topology) if topology else jax.devices()
    checkpoint = Path(preset.model_source)  # its tokenizer determines the lengths of prompts
    if topology or not (checkpoint / "tokenizer").is_dir():
        checkpoint = None
    model = describe_model(preset, devices, ExecutableWriter(folder=folder, report=record_file), mesh, checkpoint)
    requests = list(requests_to_compile(preset, model, sizes, progressive))
    if is_instant:
        requests += drafts_to_compile(preset, requests)
    for request in requests:
        for _ in warm_up(model, add_measured_ratios(request, from_environment().magnitudes_dir)):
            pass
    return {
        "preset": preset.name,
        "topology": topology,
        "devices": len(devices),
        "device_kind": devices[0].device_kind,
        "mesh": {"guided": model.layout(True).plan_text, "unguided": model.layout(False).plan_text},
        "output": str(folder),
        "files": files,
        "seconds": time.monotonic() - start,
    }


def requests_to_compile(preset: Preset, model: Model, sizes: dict, progressive: int | None = None) -> Iterator[GenerationRequest]:
    """Yield example requests that together run all programs of the preset: for each task, prompt length and kind of input."""
    for task in preset.tasks:
        for prompt in model.prompts_for_all_programs(preset.examples[0]):
            yield example_request(preset, task, prompt=prompt, **sizes)
        if progressive:
            yield example_request(preset, task, progressive=progressive, **sizes)
    if "references" in preset.inputs:
        yield example_request(preset, "t2v", references=("/picture.png",), **sizes)
    if preset.takes_last_image and not preset.needs_last_image:
        yield example_request(preset, "i2v", last_image="/last_image.png", **sizes)
    if "keyframes" in preset.inputs:
        yield example_request(preset, "t2v", keyframes=("/picture.png",), keyframe_at=(1,), **sizes)
    if {"video", "mask"} <= preset.inputs.keys() and "drive" in preset.inputs:
        yield example_request(preset, "i2v", video="/clip.mp4", mask="/mask.mp4", **sizes)
    elif "video" in preset.inputs and not preset.has_control_blocks:
        what = {"make": "sound"} if preset.makes_sound else {}
        yield example_request(preset, "t2v", video="/clip.mp4", **what, **sizes)
    if appends_control_clip(preset):
        yield example_request(preset, "t2v", control="/clip.mp4", **sizes)
    if "sound" in preset.inputs:
        yield example_request(preset, "t2v", sound="/sound.wav", **sizes)
    if preset.continues:
        yield example_request(preset, "t2v", video="/clip.mp4", extend="after", **sizes)


def drafts_to_compile(preset: Preset, requests: Sequence[GenerationRequest]) -> list[GenerationRequest]:
    """Return the instant drafts of these requests of the preset, without requests that have no draft."""
    return [draft_request(request, preset) for request in requests if request.inputs().keys() <= DRAFT_INPUTS]


def main() -> None:
    hide_unused_libraries()
    about = "`app.py precompile` starts this module. Do not start it by hand."
    parser = argparse.ArgumentParser(prog="backend.cli.precompile_run", description=about)
    parser.add_argument("--preset", required=True)
    parser.add_argument("--topology")
    parser.add_argument("--output", required=True, type=Path)
    for name in (*AXES, "width", "height", "frames"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--progressive", type=int)
    parser.add_argument("--mag-cache", type=float)
    parser.add_argument("--sparse", type=float)
    parser.add_argument("--quantize")
    parser.add_argument("--instant", action="store_true")
    arguments = parser.parse_args()
    mesh = {axis: getattr(arguments, axis) for axis in AXES}
    sizes = {"width": arguments.width, "height": arguments.height, "num_frames": arguments.frames}
    sizes |= {"mag_cache": arguments.mag_cache, "sparse": arguments.sparse}
    # JAX's own cache is disabled, because a program from this cache cannot be loaded again after it is written to a file
    # ("Function ... not found" on a CPU).
    jax.config.update("jax_enable_compilation_cache", False)
    preset = example_request(find_preset(arguments.preset), quantize=arguments.quantize).resolved_preset
    report = write_programs(
        preset, arguments.topology, arguments.output, mesh, sizes, arguments.progressive, is_instant=arguments.instant
    )
    write_message({"report": report})


if __name__ == "__main__":
    main()
