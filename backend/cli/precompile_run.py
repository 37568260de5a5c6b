"""Compiles a preset's real programs without its weights into files, for this machine's devices or a described slice.

Runs in a process of its own (`python -m backend.cli.precompile_run`, started by `app.py precompile`).
"""

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

import jax

from backend.cli.module_process import write_message
from backend.imports import hide_unused_libraries
from backend.models.model import Model
from backend.pipeline.load import describe_model
from backend.pipeline.warm_up import warm_up
from backend.runtime.devices import described_devices
from backend.runtime.executables import ExecutableWriter
from backend.schemas.control import appends_control_clip, has_control_blocks
from backend.schemas.request import GenerationRequest, example_request, find_preset
from backend.schemas.worker import AXES
from presets import Preset


def write_programs(
    preset: Preset, topology: str | None, folder: Path, mesh: dict[str, int | None], sizes: dict, progressive: int | None = None
) -> dict:
    """Write every program that the preset's own requests run. Returns the report: what each file is for, and how long it took."""
    began, files = time.monotonic(), []

    def tell(name: str, path: Path, seconds: float | None) -> None:
        files.append({"program": name, "file": path.name, "bytes": path.stat().st_size, "compile_seconds": seconds})
        write_message({"progress": f"{name}: " + ("kept from before" if seconds is None else f"compiled in {seconds:.1f} s")})

    devices = described_devices(topology) if topology else jax.devices()
    model = describe_model(
        preset, devices, ExecutableWriter(folder=folder, report=tell), mesh, None if topology else _local_checkpoint(preset)
    )
    for request in requests_to_compile(preset, model, sizes, progressive):
        for _ in warm_up(model, request):
            pass
    return {
        "preset": preset.name,
        "topology": topology,
        "devices": len(devices),
        "device_kind": devices[0].device_kind,
        "mesh": {"guided": model.layout(True).plan_text, "unguided": model.layout(False).plan_text},
        "output": str(folder),
        "files": files,
        "seconds": time.monotonic() - began,
    }


def requests_to_compile(preset: Preset, model: Model, sizes: dict, progressive: int | None = None) -> Iterator[GenerationRequest]:
    """The preset's own request for each task, once for each prompt length that needs programs of its own; one with a reference
    picture, which makes the latents longer; one with a last picture and one with a key frame, which may make them longer too;
    one with a clip that is made anew, or whose sound is made, or into which a figure is put; one with a control clip beside the
    video; one with a sound; and one with a clip that goes on. Of each task also one at the level of `progressive`, if it is
    given."""
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
    elif "video" in preset.inputs and not has_control_blocks(preset):
        what = {"make": "sound"} if preset.makes_sound else {}
        yield example_request(preset, "t2v", video="/clip.mp4", **what, **sizes)
    if appends_control_clip(preset):
        yield example_request(preset, "t2v", control="/clip.mp4", **sizes)
    if "sound" in preset.inputs:
        yield example_request(preset, "t2v", sound="/sound.wav", **sizes)
    if preset.continues:
        yield example_request(preset, "t2v", video="/clip.mp4", extend="after", **sizes)


def _local_checkpoint(preset: Preset) -> Path | None:
    """The checkpoint's folder if it is on this machine: its tokenizer tells how long prompts become."""
    folder = Path(preset.model_source)
    return folder if (folder / "tokenizer").is_dir() else None


def main() -> None:
    hide_unused_libraries()
    about = "Started by `app.py precompile`, not by hand."
    parser = argparse.ArgumentParser(prog="backend.cli.precompile_run", description=about)
    parser.add_argument("--preset", required=True)
    parser.add_argument("--topology")
    parser.add_argument("--output", required=True, type=Path)
    for name in (*AXES, "width", "height", "frames"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--progressive", type=int)
    parser.add_argument("--mag-cache", type=float)
    arguments = parser.parse_args()
    mesh = {axis: getattr(arguments, axis) for axis in AXES}
    sizes = {"width": arguments.width, "height": arguments.height, "num_frames": arguments.frames}
    sizes |= {"mag_cache": arguments.mag_cache}
    # A program that JAX read from its own cache cannot be used after it is written again: "Function ... not found" on a CPU.
    jax.config.update("jax_enable_compilation_cache", False)
    preset = find_preset(arguments.preset)
    write_message({"report": write_programs(preset, arguments.topology, arguments.output, mesh, sizes, arguments.progressive)})


if __name__ == "__main__":
    main()
