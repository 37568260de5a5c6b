"""The commands `generate`, `live` and `storyboard`: generate one video and show its progress on standard error."""

import argparse
import dataclasses
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from backend.checkpoints.loras import adopt_lora, check_lora
from backend.cli.arguments import (
    absolute,
    hosts_from_arguments,
    model_from_arguments,
    request_from_arguments,
    worker_options_from_arguments,
)
from backend.cli.command_line import FAILED, OK, print_error
from backend.cli.models import print_licences
from backend.cli.progress import Progress
from backend.engine.engine import Engine
from backend.engine.folder import open_inputs
from backend.engine.job import Job
from backend.errors import OutputError, RequestError, VideoFileError
from backend.files import replace_file
from backend.media.sound import read_sound
from backend.schemas.events import Cancelled, Event, Failed, Finished, VideoResult
from backend.schemas.prompt_cues import num_blocks
from backend.schemas.request import GenerationRequest
from backend.schemas.settings import find_preset
from backend.schemas.shots import needs_only_cutting
from backend.settings import from_environment
from presets.loader import OPENING

TIMED = ("load", "compile", "encode", "denoise", "decode", "total")


def generate(
    arguments: argparse.Namespace, make_engine: Callable[..., Engine] = Engine, request: GenerationRequest | None = None
) -> int:
    """Generate one video and return the exit code. Raises: RequestError before any file is written or process started."""
    start = time.monotonic()
    request = request or request_from_arguments(arguments)
    model, options = model_from_arguments(arguments), worker_options_from_arguments(arguments)
    again, first_shot = getattr(arguments, "again", None), getattr(arguments, "from_shot", None)
    if (again is None) != (first_shot is None):
        given, other = ("--again", "--from-shot") if first_shot is None else ("--from-shot", "--again")
        raise RequestError(f"{given} was given", f"without {other}, which it needs", "give both")
    shots: dict[str, Any] = {} if again is None else {"regenerated_shot": (again, first_shot)}
    open_inputs(request)
    output = None if arguments.output is None else check_output(arguments.output)
    settings = from_environment(arguments.data_dir)
    for lora in arguments.loras:
        check_lora(lora.source, settings.loras_dir)
    more: dict[str, Any] = {}
    if arguments.command == "generate" and arguments.hosts:
        more["hosts"] = hosts_from_arguments(arguments)
    if needs_only_cutting(request):  # cutting needs no model
        more["start_worker"] = False
    preset = OPENING if request.finished_video else request.preset
    engine = make_engine(settings.data_dir, model, preset=preset, warm_up=False, resume=False, options=options, **more)
    print_licences([model or find_preset(preset).model, *(lora.source for lora in arguments.loras)], sys.stderr)
    try:
        for lora in arguments.loras:
            adopt_lora(lora.source, settings.loras_dir)
        job = engine.submit(request, owner="command line", may_download=True, **shots)
        final = follow_job(engine, job, Progress(sys.stderr))
        return _report_result(final, job, output, arguments, time.monotonic() - start)
    finally:
        engine.close()


def check_output(path: str) -> Path:
    """Check that the output can be written, and return its absolute path. Raises: OutputError."""
    output = Path(absolute(path))
    if output.suffix.lower() != ".mp4":
        raise OutputError(f"output={path!r}", "must end in .mp4", f"for example {output.stem or 'video'}.mp4")
    if os.path.isdir(output):  # os.path.isdir accepts names of any length, Path.is_dir does not
        raise OutputError(f"output={path!r}", "must be a file, and is a folder", "add a file name to it")
    if not os.path.isdir(output.parent):
        rule = f"must be in an existing folder, and {str(output.parent)!r} is not a folder"
        raise OutputError(f"output={path!r}", rule, "create that folder first, or choose another")
    try:
        tempfile.NamedTemporaryFile(dir=output.parent, prefix=f".{output.name}.", suffix=".part").close()
    except OSError as error:
        raise OutputError(f"output={path!r}", f"must be writable ({error.strerror})", "choose another") from None
    return output


def follow_job(engine: Engine, job: Job, progress: Progress) -> Event:
    """Show the job's events and return the final event. Ctrl+C cancels the job, a second Ctrl+C exits without waiting."""
    try:
        for _, event in engine.event_log.follow(job.id):
            progress.show(event)
    except KeyboardInterrupt:
        progress.write_text("Stopping")
        engine.queue.cancel(job.id)
        *_, (_, event) = engine.event_log.follow(job.id)
    progress.end()
    return event


def copy_video(video: Path, output: Path) -> None:
    """Copy the video to `output`. An error leaves no partial file. Raises: VideoFileError."""
    try:
        with replace_file(output) as part:
            shutil.copyfile(video, part)
    except OSError as error:
        rule = f"could not be written ({error.strerror})"
        raise VideoFileError(f"output={str(output)!r}", rule, f"the video is at {video}") from None


def _report_result(final: Event, job: Job, output: Path | None, arguments: argparse.Namespace, seconds: float) -> int:
    match final:
        case Finished(result):
            path = Path(result.path)
            if output is not None:
                copy_video(path, output)
            for note in result.notes:
                sys.stderr.write(f"{note}\n")
            summary = _summary(result, job, output or path, seconds, is_live=arguments.command == "live")
            shape = f"{result.width}x{result.height}, {result.num_frames} frames at {result.fps} fps"
            words = f"{summary['path']} ({shape}, seed {result.request.seed}, {seconds:.1f} s)"
            sys.stdout.write((json.dumps(summary) if arguments.json else words) + "\n")
            return OK
        case Failed(cause, fix, proposals):
            print_error(f"{cause}; {fix}")
            if proposals and arguments.json:
                would_fit = [dataclasses.asdict(proposal) for proposal in proposals]
                sys.stdout.write(json.dumps({"error": cause, "fix": fix, "would_fit": would_fit}) + "\n")
        case Cancelled(result):
            print_error(f"Stopped; the unfinished video is at {result.path}" if result else "Stopped")
    return FAILED


def _summary(result: VideoResult, job: Job, path: Path, seconds: float, *, is_live: bool) -> dict[str, object]:
    """Return the values that `--json` prints. `seconds` is the duration of the whole command.

    The values `frames_per_second` and `delay_seconds` (mean seconds per block) of `live` count denoising and decoding.
    """
    request = result.request
    timed = [*TIMED[:-1], *(["upscale"] if request.upscale else []), TIMED[-1]]
    seconds_by_work = {name: round(result.seconds.get(name, 0.0), 3) for name in timed} | {"total": round(seconds, 3)}
    summary: dict[str, object] = {
        "path": str(path),
        "width": result.width,
        "height": result.height,
        "num_frames": result.num_frames,
        "fps": result.fps,
        "seed": request.seed,
        "seconds": seconds_by_work,
        "rates": {stage: dataclasses.asdict(rate) for stage, rate in result.rates.items()},
        "preset": request.preset,
        "job_id": job.id,
    }
    if result.has_sound:
        sound = read_sound(path)
        channels, count = sound.samples.shape
        summary["sound"] = {"sample_rate": sound.rate, "channels": channels, "seconds": round(count / sound.rate, 3)}
    if is_live:
        preset = request.resolved_preset
        spent, blocks = result.seconds.get("denoise", 0.0) + result.seconds.get("decode", 0.0), num_blocks(request, preset)
        summary["frames_per_second"] = round(result.num_frames / spent, 3) if spent else None
        summary["delay_seconds"] = round(spent / blocks, 3) if spent else None
        summary["blocks"] = blocks
        begun = {cue.block: cue.action for cue in request.cues if cue.action is not None}
        actions: list[str | None] = [request.action]  # the first is removed below
        for block in range(blocks):
            actions.append(begun.get(block, actions[-1]))
        summary["actions"] = actions[1:] if preset.actions else []
    return summary
