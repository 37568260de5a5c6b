"""Measure upscaling on this machine in seconds and memory, or predict it for a slice by the TPU's compiler.

    python -m benchmarks.upscale [--model animevideov3] [--scale 4] [--width 96] [--height 96] [--frames 17] [--repeats 3]
    python -m benchmarks.upscale --predict v6e:2x4 --scale 2 --width 1280 --height 720 --frames 81

On this machine a moving pattern of that size is encoded, upscaled as in a worker, and encoded again. The first run compiles and
does not count. The memory is the peak of the process beyond its memory with the loaded model. The encoder is a separate process,
so its memory is not included. A prediction includes only the programs, without reading, writing and transferring frames.
"""

import argparse
import json
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from backend.cli.module_process import compile_in_process
from backend.media.video import write_frames
from backend.schemas.events import Finished
from backend.schemas.finished import describe_clip, upscale_request
from backend.schemas.request import GenerationRequest
from backend.settings import leave_out_idle_libtpu, use_data_dir


def pattern(width: int, height: int, frames: int) -> Iterator[np.ndarray]:
    """Yield frames of a moving pattern, uint8 [height, width, 3]."""
    rows, columns = np.mgrid[:height, :width]
    for index in range(frames):
        waves = [np.sin((rows + index * step) / 7) + np.cos((columns - index) / (5 + step)) for step in range(3)]
        yield ((np.stack(waves, -1) + 2) * 63).astype(np.uint8)


def measured(arguments: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Return the seconds of the fastest run, the process's MiB with the loaded model, and the peak MiB beyond this."""
    from backend.pipeline.upscaling import upscale_video

    def asked(name: str, width: int, height: int, frames: int) -> GenerationRequest:
        write_frames(pattern(width, height, frames), folder / name, fps=16, comment="{}")
        made = describe_clip("a pattern", width, height, frames, 16)
        return upscale_request(made, str(folder / name), arguments.scale, arguments.model)

    wanted, small = asked("clip.mp4", arguments.width, arguments.height, arguments.frames), asked("small.mp4", 32, 32, 2)

    def once(request: GenerationRequest, name: str) -> float:
        started = time.monotonic()
        *_, last = upscale_video(request, folder / name, lambda: False, lambda _: (event for event in ()))
        assert isinstance(last, Finished), last
        return time.monotonic() - started

    once(small, "first")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = min([once(wanted, f"run-{number}") for number in range(arguments.repeats + 1)][1:])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"seconds": round(seconds, 2), "model_mib": before // 1024, "beyond_mib": (peak - before) // 1024}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--predict", metavar="TOPOLOGY", help="a slice, such as v6e:2x4")
    parser.add_argument("--model", default="animevideov3")
    for name, usual in (("scale", 4), ("width", 96), ("height", 96), ("frames", 17), ("repeats", 3)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    arguments = parser.parse_args()
    if arguments.predict:
        words = [
            word for name in ("model", "scale", "width", "height", "frames") for word in (f"--{name}", getattr(arguments, name))
        ]
        words = ["--topology", arguments.predict, *map(str, words)]
        found = compile_in_process("benchmarks.upscale_run", words, for_tpu=True)
    else:
        leave_out_idle_libtpu()
        with tempfile.TemporaryDirectory() as folder:
            use_data_dir(Path(folder))
            found = measured(arguments, Path(folder))
    sys.stdout.write(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
