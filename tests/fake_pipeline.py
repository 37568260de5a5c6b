"""A pipeline without a model, for tests only: a moving square, with steps, previews and decoding like the real one.

The engine reaches it by `Engine(..., pipeline="tests.fake_pipeline")` and in no other way. A test that needs a video or a model
to take long makes it wait at a gate (`tests/gates.py`).

Words in a prompt make the pipeline misbehave:

- "explode" raises.
- "missing" raises an error that names a file in a folder of the server.
- "memory" raises as if memory were short (see `suggest_smaller_requests`).
- "die" ends the process.
- "fall" kills the process in the third step, each time. "trip" kills it only the first time.
- "lost" loses the device in the second step.
- "full" fills the disk in the second step.
- "noise" prints a lot.
- "refuse" needs a kernel that is refused until the model is loaded again.
- "vanish" ends without a result.
- "stuck" waits a minute while it encodes or looks for memory suggestions.
- "alone" fails on the last of several hosts only.

With "hums" in its prompt a video has audio (see `hum`).
"""

import base64
import errno
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy
from PIL import Image

from backend.errors import KernelRefused, ModelError
from backend.media.animation import encode_animation
from backend.media.audio_inputs import read_original
from backend.media.clips import read_clip_facts
from backend.media.pictures import crop_to, load_checked_image
from backend.media.sound import Sound, copy_clip_audio, replace_audio
from backend.media.source import original_frames
from backend.media.video import read_frames, write_video
from backend.schemas.events import (
    Block,
    Cancelled,
    Compiling,
    Decoding,
    DraftFinished,
    Encoding,
    Event,
    Finished,
    Loading,
    Proposal,
    ShotFinished,
    ShotStarted,
    Step,
    Upscaling,
    VideoResult,
)
from backend.schemas.live import FOLDER, frame_name
from backend.schemas.prompt_cues import Cue, merge_cues
from backend.schemas.request import GenerationRequest
from backend.schemas.settings import find_preset
from backend.schemas.shots import shot_request
from backend.schemas.sound import SoundPart
from backend.schemas.upscaling import without_upscaling
from backend.schemas.worker import Device
from presets import Preset
from tests.gates import has_gate, pass_gate

STEP_SECONDS = float(os.environ.get("STUDIO_TEST_STEP_SECONDS", 0.02))
STUCK_SECONDS = 60.0
REFUSED = "The square's kernel cannot be compiled here"
_loads, _refused = [], []
MISSING_PRESET, LARGE_PRESET = "wan2.1-t2v-14b-720p", "wan2.1-t2v-14b-480p"


@dataclass(frozen=True)
class FakeModel:
    """The loaded model, which has only a name."""

    model: str


class NoModelCache:
    """A cache without models, with the methods of `ModelCache` that workers call."""

    def activate(self, key: tuple[str, str]) -> None: ...

    def peek(self, key: tuple[str, str]) -> None: ...

    def set_expected(self, models: Sequence[str]) -> None: ...

    def pin(self, model: str, is_pinned: bool) -> None: ...

    def unload(self, key: tuple[str, str]) -> None: ...

    def unload_idle(self, model: str | None = None) -> bool:
        return False

    def list_models(self) -> tuple[()]:
        return ()

    def count_bytes(self) -> tuple[int, int]:
        return 0, 0


model_cache, keeps_models = NoModelCache(), False


def check(preset: Preset, model: str | None, on_event: Callable[[Event], None]) -> None:
    """Pretend to check a checkpoint: "missing" and the checkpoint of `MISSING_PRESET` do not exist."""
    if model == "missing" or preset.name == MISSING_PRESET:
        raise ModelError("model 'missing'", "must be a checkpoint folder", "download it first")


def load(
    preset: Preset,
    model: str | None,
    on_event: Callable[[Event], None],
    files: None = None,
    request: GenerationRequest | None = None,
) -> FakeModel:
    """Pretend to read a checkpoint of 4 MB. "deadly" ends the process, and `LARGE_PRESET` runs out of memory."""
    source = model or preset.model_source
    if source == "deadly":
        os._exit(7)
    if preset.name == LARGE_PRESET:
        raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate")
    for part in range(5):
        pass_gate(source, f"load {part}")
        on_event(Loading(part * 1_000_000, 4_000_000, "the square"))
        time.sleep(STEP_SECONDS)
    _loads.append(source)
    return FakeModel(source)


def refusals() -> tuple[str, ...]:
    """Return the sentences about refused kernels."""
    return tuple(_refused)


def disable_crashed_kernels(agree: Callable[[str], list[str]]) -> None:
    """Do nothing: no kernel has crashed a process."""


def forget_running_kernels() -> None:
    """Do nothing: the stand-in records no kernel runs."""


def find_unused(devices: Sequence[Device] | Exception) -> None:
    """Report no unused accelerator."""


def device_facts() -> list[Device]:
    """Return one device that does not report its memory."""
    return [Device(name="Square:0", kind="square")]


def warm_up(loaded: FakeModel, request: GenerationRequest) -> Iterator[Event]:
    """Pretend to compile."""
    for what in ("the text encoder", "the denoiser", "the decoder"):
        yield Compiling(what)
        time.sleep(STEP_SECONDS)


def suggest_smaller_requests(request: GenerationRequest, tell: Callable[[Event], None]) -> tuple[Proposal, ...]:
    """Suggest five frames, or the preset's first size. "no remedy" gives no suggestion, "broken remedy" raises."""
    tell(Compiling("settings that fit"))
    if "stuck" in request.prompt.split():
        time.sleep(STUCK_SECONDS)
    pass_gate(request.prompt, "would fit", lambda: tell(Compiling("settings that fit")))
    if "broken" in request.prompt:
        raise ValueError("the square does not know")
    if "no remedy" in request.prompt:
        return ()
    shorter = Proposal(width=request.width, height=request.height, num_frames=5, bytes_per_device=800)
    smaller = Proposal(width=96, height=96, num_frames=request.num_frames, bytes_per_device=900)
    return shorter, smaller


def generate(request: GenerationRequest, loaded: FakeModel, folder: Path, is_cancelled: Callable[[], bool]) -> Iterator[Event]:
    """Generate a square that moves right, over the first frame or the clip if one is given.

    A storyboard has one such video for each shot. The last shot is the result.
    """
    if request.upscale:
        yield from _larger(request, loaded, folder, is_cancelled)
        return
    if request.shots:
        yield from _shots(request, loaded, folder, is_cancelled)
        return
    _misbehave(request.prompt)
    if has_gate(request.prompt, "compile"):
        yield Compiling("the square")
        pass_gate(request.prompt, "compile", is_cancelled)
        yield Compiling("the square's shadow")
    if "refuse" in request.prompt and (not _refused or len(_loads) < 2):
        _refused[:] = [REFUSED]
        raise KernelRefused("the square needs a kernel", "which cannot be compiled here")
    yield Encoding()
    if "stuck" in request.prompt.split():
        time.sleep(STUCK_SECONDS)
    background = _background(request)
    (folder / "previews").mkdir(exist_ok=True)
    kept, done = folder / ("steps_done" if _place()[1] == 1 else "stage2_steps.safetensors"), 0
    if kept.exists():
        done = int(kept.read_text())
        yield Step(done, request.num_steps, STEP_SECONDS, STEP_SECONDS * (request.num_steps - done))
    for index in range(done + 1, request.num_steps + 1):
        _stumble(request.prompt, index, folder)
        pass_gate(request.prompt, f"step {index}", is_cancelled)
        if is_cancelled():
            yield Cancelled(_result(request, folder, background) if index > 1 else None)
            return
        time.sleep(STEP_SECONDS)
        preview = f"previews/step-{index:03d}.png"
        Image.fromarray(_frame(background, index / request.num_steps)).save(folder / preview, compress_level=1)
        kept.write_text(str(index))
        yield Step(index, request.num_steps, STEP_SECONDS, STEP_SECONDS * (request.num_steps - index), preview)
    if "vanish" in request.prompt:
        return
    for done in range(4, request.num_frames + 1, 4):
        yield Decoding(done, request.num_frames)
    yield Finished(_result(request, folder, background))


def _larger(request: GenerationRequest, loaded: FakeModel, folder: Path, is_cancelled: Callable[[], bool]) -> Iterator[Event]:
    """Upscale a generated or finished video: each pixel becomes a square of pixels."""
    source = request.finished_video
    if source is None:
        for event in generate(without_upscaling(request), loaded, folder, is_cancelled):
            if not event.is_final:
                yield event
        if isinstance(event, Cancelled):
            yield event
            return
        source = folder / "video.mp4"
    frames = []
    for frame in read_frames(Path(source)):
        pass_gate(request.prompt, f"frame {len(frames) + 1}", is_cancelled)
        if is_cancelled():
            yield Cancelled(None)
            return
        frames.append(frame.repeat(request.upscale, 0).repeat(request.upscale, 1))
        yield Upscaling(len(frames), request.total_frames, 1.0)
    has_sound = read_clip_facts(source).has_sound
    write_video(frames, folder / "larger.mp4", fps=request.fps, request=request)
    if has_sound:
        copy_clip_audio(folder / "larger.mp4", source, 0.0, len(frames) / request.fps, request.final_size)
    (folder / "larger.mp4").replace(folder / "video.mp4")
    width, height = request.final_size
    facts = {"fps": request.fps, "num_frames": len(frames), "width": width, "height": height, "has_sound": has_sound}
    seconds = {"upscale": 0.2}
    path = str(folder / "video.mp4")
    yield Finished(VideoResult(path=path, seconds=seconds, request=request, versions={"fake": "1"}, **facts))


_FROM_NOTHING = {"task": "t2v", "image": None, "video": None, "extend": None, "overlap": None, "keeps_pixels": True}


def _shots(request: GenerationRequest, loaded: FakeModel, folder: Path, is_cancelled: Callable[[], bool]) -> Iterator[Event]:
    for index, one in enumerate(request.shots):
        if one.video is not None:
            continue
        yield ShotStarted(index + 1, len(request.shots))
        (folder / "steps_done").unlink(missing_ok=True)
        shot = shot_request(request, index, find_preset(request.preset), "/").with_changes(**_FROM_NOTHING)
        for event in generate(shot, loaded, folder, is_cancelled):
            if not event.is_final:
                yield event
        if isinstance(event, Cancelled):
            yield event
            return
        yield ShotFinished(index + 1, len(request.shots), event.result)
    yield Finished(_result(request, folder, _background(request)))


def live(
    request: GenerationRequest,
    loaded: FakeModel,
    folder: Path,
    is_stopped: Callable[[], bool],
    hear: Callable[[], list[Cue]],
) -> Iterator[Event]:
    """Generate a square that moves as the actions say, in real time, four frames a block.

    It is red, or blue if the prompt says so.
    """
    yield Encoding()
    (folder / FOLDER).mkdir(exist_ok=True)
    frames, cues, place, prompt, action = [], [], request.width // 2, request.prompt, request.action
    for block in range(request.num_frames // 4):
        if is_stopped():
            break
        for cue in hear():
            cues.append(cue.model_copy(update={"block": block}))
            prompt, action = cue.prompt or prompt, cue.action or action
        first = len(frames)
        for _ in range(4 if block else 1):
            place = min(max(place + {"left": -2, "right": 2}.get(action, 0), 0), request.width - 24)
            frame = numpy.full((request.height, request.width, 3), 40, numpy.uint8)
            frame[36:60, place : place + 24] = (40, 80, 255) if "blue" in prompt else (255, 60, 40)
            Image.fromarray(frame).save(folder / frame_name(len(frames)), quality=95)
            frames.append(frame)
        time.sleep((len(frames) - first) / request.fps)
        yield Block(block, first, len(frames), 0.25)
    if not frames:
        yield Cancelled(None)
        return
    made = request.with_changes(is_open=False, num_frames=len(frames), cues=merge_cues(cues))
    write_video(frames, folder / "video.mp4", fps=request.fps, request=made)
    result = _result(made, folder, frames[0], write=False)
    yield Finished(result)


def draft(request: GenerationRequest, loaded: FakeModel, folder: Path, is_cancelled: Callable[[], bool]) -> Iterator[Event]:
    """Generate an instant draft: the square of `generate` in two frames."""
    _misbehave(request.prompt)
    yield Encoding()
    background = _background(request)
    for index in range(1, request.num_steps + 1):
        pass_gate(request.prompt, f"draft {index}", is_cancelled)
        if is_cancelled():
            yield Cancelled(None)
            return
        time.sleep(STEP_SECONDS)
        yield Step(index, request.num_steps, STEP_SECONDS, STEP_SECONDS * (request.num_steps - index))
    frames = numpy.stack([_frame(background, share) for share in (0.0, 1.0)])
    yield DraftFinished(base64.b64encode(encode_animation(frames, request.fps)).decode())


def square_in(picture: Path) -> tuple[int, str]:
    """Return the horizontal place, in pixels, and the colour of the square of `live` in a frame."""
    red, _, blue = numpy.moveaxis(numpy.asarray(Image.open(picture), int)[48], 1, 0)
    place = int(numpy.argmax(numpy.maximum(red, blue) > 150))
    return place, "red" if red[place] > blue[place] else "blue"


def _misbehave(prompt: str) -> None:
    if "explode" in prompt:
        raise ValueError("the square\nexploded")
    if "missing" in prompt.split():
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", "/srv/models/square/config.json")
    if "memory" in prompt:
        raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate")
    is_last = _place()[0] + 1 == _place()[1] > 1
    if "alone" in prompt.split() and is_last:
        raise ValueError("this host's square is broken")
    if "die" in prompt.split():
        os._exit(9)
    if "noise" in prompt:
        os.write(1, b'{"type": "event"}\n' * 1000)
        print("noise\n" * 1000)


def _place() -> tuple[int, int]:
    """Return this process's host index and the number of hosts."""
    given = dict(zip(sys.argv, sys.argv[1:], strict=False))
    return int(given.get("--host-index", 0)), int(given.get("--hosts", 1))


class XlaRuntimeError(RuntimeError):
    """Error with the name of the error that XLA raises."""


def _stumble(prompt: str, index: int, folder: Path) -> None:
    """Fail in this step if a word of the prompt asks for it."""
    words, is_first = prompt.split(), not (folder / "stumbled").exists()
    if "lost" in words and index == 2 and is_first:
        (folder / "stumbled").touch()
        raise XlaRuntimeError("UNAVAILABLE: the square has left the slice")
    if "full" in words and index == 2 and is_first:
        (folder / "stumbled").touch()
        raise OSError(errno.ENOSPC, "No space left on device")
    if index != 3:
        return
    if "fall" in words or ("trip" in words and is_first):
        (folder / "stumbled").touch()
        os.kill(os.getpid(), signal.SIGKILL)


def _background(request: GenerationRequest) -> numpy.ndarray:
    if request.video or request.control:
        return next(original_frames(request))
    if request.image:
        return numpy.asarray(crop_to(load_checked_image(request.image), request.width, request.height))
    return numpy.full((request.height, request.width, 3), 40, numpy.uint8)


def _frame(background: numpy.ndarray, share: float) -> numpy.ndarray:
    """Draw the square at the fraction `share` of its way, uint8 [height, width, 3]."""
    frame, side = background.copy(), background.shape[0] // 4
    left = round(share * (background.shape[1] - side))
    frame[side : 2 * side, left : left + side] = (255, 80, 40)
    return frame


def _result(request: GenerationRequest, folder: Path, background: numpy.ndarray, write: bool = True) -> VideoResult:
    path = folder / "video.mp4"
    grounds = original_frames(request) if request.video or request.control else [background] * request.num_frames
    frames = (_frame(ground, index / request.num_frames) for index, ground in enumerate(grounds))
    size = request.width, request.height
    has_sound = bool(request.video) and not request.extend and read_clip_facts(request.video).has_sound
    if write:
        write_video(frames, path, fps=request.fps, request=request)
        if request.sound:
            replace_audio(path, read_original(request.sound, SoundPart.from_request(request)), size)
        elif "hums" in request.prompt:
            replace_audio(path, hum(request), size)
        elif has_sound:
            copy_clip_audio(path, request.video, request.trim[0], request.num_frames / request.fps, size)
    return VideoResult(
        path=str(path),
        fps=request.fps,
        num_frames=request.num_frames,
        width=request.width,
        height=request.height,
        seconds={"encode": 0.01, "denoise": 0.4, "decode": 0.1},
        request=request,
        versions={"fake": "1"},
        has_sound=has_sound or bool(request.sound) or "hums" in request.prompt,
    )


def hum(request: GenerationRequest) -> Sound:
    """Return a tone as long as the video. The left channel swells three times, the right channel grows louder.

    The frequency is 220 Hz * (1 + seed mod 4).
    """
    seconds, rate = request.num_frames / request.fps, 24_000
    times = numpy.arange(round(seconds * rate)) / rate
    tone = numpy.sin(2 * numpy.pi * 220 * (1 + request.seed % 4) * times)
    left, right = numpy.sin(3 * numpy.pi * times / seconds) ** 2, 0.5 * times / seconds
    return Sound(samples=0.8 * numpy.stack([tone * left, tone * right]).astype(numpy.float32), rate=rate)
