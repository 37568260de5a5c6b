"""Run one stage of a video in a folder, continuing from the files in the folder. Only the networks of the stage are loaded.

`backend.cli.module_process` starts this module with the command line of `app.py`.
"""

import argparse
import contextlib
import json
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path

from backend.catalog.measured_ratios import add_measured_ratios
from backend.checkpoints.loras import adopt_lora, check_lora
from backend.cli.arguments import model_from_arguments, request_from_arguments, worker_options_from_arguments
from backend.cli.command_line import FAILED, OK, print_error, run_command
from backend.cli.models import print_licences
from backend.cli.progress import Progress
from backend.engine.folder import REQUEST, open_inputs, read_request, write_request
from backend.errors import KernelRefused, RequestError, Stopped, StudioError
from backend.files import folder_lock
from backend.media.video import read_request as read_video_request
from backend.pipeline import stage_files
from backend.pipeline.decoding import decode
from backend.pipeline.denoising import denoise, finish_latents
from backend.pipeline.denoising_loop import divide_into_chunks
from backend.pipeline.encoding import encode_conditions
from backend.pipeline.load import load
from backend.pipeline.model_cache import ModelCache
from backend.pipeline.preparing import prepare
from backend.pipeline.run import PartialVideo, Run
from backend.runtime.context import RuntimeContext
from backend.schemas.events import VIDEO_FILE, Event
from backend.schemas.guidance_steps import guide_first_steps
from backend.schemas.request import GenerationRequest
from backend.schemas.settings import FIELDS
from backend.schemas.step_plan import plan_steps
from backend.settings import Settings, from_environment

STOP_SECONDS = 8.0
NEXT = {"encode": "denoise", "denoise": "decode"}
CHANGEABLE = tuple(one.name for one in FIELDS if one.stage == "denoise")  # settings that `denoise` may change


def run_in_this_process(arguments: argparse.Namespace) -> int:
    """Run the command's stage in this process, and return the exit code. Raises: RequestError before any file is written."""
    began, folder = time.monotonic(), Path(arguments.run).expanduser().absolute()
    settings, options = from_environment(arguments.data_dir), worker_options_from_arguments(arguments)
    if folder.is_relative_to(settings.data_dir):
        rule = "is a folder of the studio's library, which must not change"
        raise RequestError(f"run={arguments.run!r}", rule, "copy the folder to another place, and give the copy")
    request = _prepare_request(arguments, folder, settings)
    model = model_from_arguments(arguments, request.preset)
    print_licences([model or request.resolved_preset.model, *(lora.source for lora in request.loras)], sys.stderr)
    product = folder / {"encode": stage_files.EMBEDDINGS, "denoise": stage_files.LATENTS, "decode": VIDEO_FILE}[arguments.command]
    if _is_finished(arguments.command, folder, request):
        return _print_result(arguments, product, {"total": time.monotonic() - began}, "already existed")
    progress, stop = Progress(sys.stderr), threading.Event()
    runtime, model_cache = RuntimeContext(), ModelCache()
    runtime.crash_guard.withdraw_recorded(settings.kernels_dir)
    with _stop_on_signal(stop, folder), folder_lock(folder):
        while True:
            where = (options.mesh, options.executables, (arguments.command,))
            loaded = load(request.resolved_preset, model, progress.show, *where, model_cache=model_cache, runtime=runtime)
            load_seconds = time.monotonic() - began
            run = Run(request=request, loaded=loaded, folder=folder, is_cancelled=stop.is_set)
            try:
                with contextlib.closing(_STAGES[arguments.command](run)) as stage:  # closing saves the state if printing fails
                    message = progress.run(stage)
                break
            except KernelRefused:  # the next loop loads the model without the refused kernel
                model_cache.unload((loaded.source, request.resolved_preset.weight_format))
                del loaded, run, stage
    progress.end()
    if message is not None:
        print_error(message)
        return FAILED
    for note in (*run.notes, *run.loaded.runtime.fallbacks.sentences()):
        sys.stderr.write(f"{note}\n")
    return _print_result(arguments, product, {"load": load_seconds, **run.clock.seconds, "total": time.monotonic() - began})


def _prepare_request(arguments: argparse.Namespace, folder: Path, settings: Settings) -> GenerationRequest:
    """Return the folder's request. `encode` writes a new request into an empty folder. `denoise` writes a changed request.

    Raises: RequestError.
    """
    if arguments.command == "encode":
        stored = read_request(folder) if (folder / REQUEST).is_file() else None
        if arguments.preset is None or arguments.prompt is None:
            if stored is None:
                raise RequestError("preset and prompt are missing:", f"{str(folder)!r} has no run", "give --preset and --prompt")
            return stored
        request = request_from_arguments(arguments)
        if stored is not None:
            seed = request.seed if arguments.seed is not None else stored.seed
            if request.with_changes(seed=seed).for_sharing() != stored.with_changes().for_sharing():
                raise RequestError(f"run={arguments.run!r}", "is the folder of another video", "choose another folder")
            return stored
        if folder.is_dir() and any(folder.iterdir()):
            raise RequestError(f"run={arguments.run!r}", "must be a new or an empty folder", "choose another folder")
        inputs = open_inputs(request)
        for lora in arguments.loras:
            check_lora(lora.source, settings.loras_dir)
            adopt_lora(lora.source, settings.loras_dir)
        folder.mkdir(parents=True, exist_ok=True)
        return write_request(request, inputs, folder)
    request = read_request(folder)
    if arguments.command == "decode":
        if stage_files.read_latents(folder, request) is None:
            raise RequestError(f"run={arguments.run!r}", "has no latents of this video", _command_hint("denoise", folder))
        return request
    given = {name: getattr(arguments, name) for name in CHANGEABLE if getattr(arguments, name) is not None}
    if arguments.guided_steps is not None:
        given |= guide_first_steps(request.resolved_preset, arguments.guided_steps, request.model_dump() | given)
    changed = add_measured_ratios(request.with_changes(**given), settings.magnitudes_dir) if given else request
    if stage_files.read_conditions(folder, changed) is None:
        raise RequestError(f"run={arguments.run!r}", "has no embeddings for this video", _command_hint("encode", folder))
    return changed if changed == request else write_request(changed, {}, folder)


def _is_finished(stage: str, folder: Path, request: GenerationRequest) -> bool:
    if stage != "decode":
        return (stage_files.read_conditions if stage == "encode" else stage_files.read_latents)(folder, request) is not None
    try:
        return read_video_request(folder / VIDEO_FILE).for_sharing() == request.for_sharing()
    except (StudioError, OSError):
        return False


def _encode(run: Run) -> Generator[Event, None, str | None]:
    yield from prepare(run, ("encode",))
    if not run.is_cancelled():
        with contextlib.suppress(Stopped):
            yield from encode_conditions(run)
    return _stop_message("encode", run) if run.is_cancelled() else None


def _denoise(run: Run) -> Generator[Event, None, str | None]:
    conditions = stage_files.read_conditions(run.folder, run.request)
    resumed_from = stage_files.read_state(run.folder, run.request)
    yield from prepare(run, ("denoise",))
    if run.is_cancelled():
        return _stop_message("denoise", run)
    assert conditions is not None, "checked by _prepare_request"
    denoised = yield from denoise(run, conditions, resumed_from)
    total = run.request.num_steps * len(divide_into_chunks(run.model, run.request))
    if denoised.steps_done < total:
        # A stored state does not contain the previous step's output, so a later run cannot start at a step that reuses it.
        plan = () if run.request.uses_step_cache else plan_steps(run.request, run.model.spec.boundary)
        if plan and not plan[denoised.steps_done % len(plan)].reuses:
            stage_files.write_state(run, denoised)
        return _stop_message("denoise", run, f" after step {denoised.steps_done} of {total}")
    stage_files.write_latents(run, finish_latents(run, conditions, denoised))
    return None


def _decode(run: Run) -> Generator[Event, None, str | None]:
    yield from prepare(run, ("decode",))
    if run.is_cancelled():
        return _stop_message("decode", run)
    video = run.folder / VIDEO_FILE
    if video.is_file():  # it may have other settings
        free = next(path for number in range(1, 10_000) if not (path := video.with_stem(f"video-{number}")).exists())
        video.rename(free)
        sys.stderr.write(f"The previous video was renamed to {free.name}\n")
    latents = stage_files.read_latents(run.folder, run.request)
    assert latents is not None, "checked by _prepare_request"
    try:
        yield from decode(run, latents)
    except PartialVideo:
        video.unlink(missing_ok=True)  # incomplete: the next run decodes all frames again
        return _stop_message("decode", run)
    return None


_STAGES: dict[str, Callable[[Run], Generator[Event, None, str | None]]] = {
    "encode": _encode,
    "denoise": _denoise,
    "decode": _decode,
}


def _stop_message(stage: str, run: Run, when: str = "") -> str:
    return f"Stopped{when}; {_command_hint(stage, run.folder)}"


def _command_hint(stage: str, folder: Path) -> str:
    return f"`python app.py {stage} --run {folder}` {'continues' if stage != 'encode' else 'creates them'}"


def _print_result(arguments: argparse.Namespace, product: Path, seconds: dict[str, float], news: str = "") -> int:
    following = NEXT.get(arguments.command)
    hint = f"; next: python app.py {following} --run {product.parent}" if following else ""
    text = f"{product} {news or '({:.1f} s)'.format(seconds['total'])}{hint}"
    if arguments.json:
        rounded = {name: round(value, 3) for name, value in seconds.items()}
        text = json.dumps({"run": str(product.parent), "stage": arguments.command, "path": str(product), "seconds": rounded})
    sys.stdout.write(f"{text}\n")
    return OK


@contextlib.contextmanager
def _stop_on_signal(stop: threading.Event, folder: Path) -> Generator[None]:
    """Set `stop` at the first SIGINT or SIGTERM. The stage ends when it next checks `stop`.

    Exit the process at the second signal, or if the stage does not end within STOP_SECONDS, for example while it compiles.
    """
    is_over = threading.Event()
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)

    def wait_for_signal(seconds: float | None = None) -> bool:
        readable, _, _ = select.select([read_end], [], [], seconds)
        return bool(readable and os.read(read_end, 1))

    def listen() -> None:
        wait_for_signal()
        if is_over.is_set():  # `_stop_on_signal` ended and woke this thread; no signal arrived
            return
        stop.set()
        wait_for_signal(STOP_SECONDS)
        if not is_over.is_set():
            print_error(f"Stopped; finished work is in {folder}")
            os._exit(FAILED)

    # Python runs signal handlers only in the main thread, which may be inside the compiler. The pipe wakes the listener thread
    # immediately.
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.set_wakeup_fd(write_end)
    listener = threading.Thread(target=listen, name="signals", daemon=True)
    listener.start()
    try:
        yield
    finally:
        is_over.set()
        signal.set_wakeup_fd(-1)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.write(write_end, b"\0")
        listener.join()
        os.close(read_end)
        os.close(write_end)


if __name__ == "__main__":
    sys.exit(run_command(run_in_this_process))
