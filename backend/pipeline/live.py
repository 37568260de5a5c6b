"""Generate a live video: block after block until it is stopped, each with the newest prompts and keys. One thread denoises. A
second thread decodes the previous block, writes its frames as images for the page, and passes them to the mp4. A process that
resumes the video generates the same blocks again from their stored cues, without waiting for the playback."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import queue
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image

from backend.errors import Stopped, VideoFileError
from backend.files import remove_half_written
from backend.media.video import copy_with_request, write_frames
from backend.models.model import VIDEO, StepState
from backend.pipeline import prompt_schedule
from backend.pipeline.decoding import add_flops, decode_pieces, frames_to_uint8
from backend.pipeline.denoising_loop import Denoising, can_run_concurrently, should_warm_up
from backend.pipeline.encoding import encode_conditions
from backend.pipeline.inputs import open_inputs
from backend.pipeline.loaded import LoadedModel
from backend.pipeline.preparing import prepare
from backend.pipeline.run import Run
from backend.runtime.work import run as do
from backend.schemas.events import VIDEO_FILE, Block, Cancelled, Event, Finished, VideoResult
from backend.schemas.live import FOLDER, KEPT_SECONDS, frame_name
from backend.schemas.prompt_cues import Cue, check_cue, merge_cues
from backend.schemas.request import GenerationRequest

# Seconds by which the generated video may be ahead of its playback. The effect of a viewer's input appears after this lead and
# the time of generation.
LEAD_SECONDS = 0.15
PICTURE_QUALITY = 90
MOST_TEXTS = 16  # number of latest prompts whose conditions stay in memory; the conditions of a prompt take some megabytes
_SCRIPT = f"{FOLDER}/script.jsonl"
_PAUSE_SECONDS = 0.01


def live(
    request: GenerationRequest,
    loaded: LoadedModel,
    folder: Path,
    is_stopped: Callable[[], bool],
    read_cues: Callable[[], Sequence[Cue]],
    lead: float = LEAD_SECONDS,
) -> Generator[Event]:
    """Generate the video in `folder` until `is_stopped()` is true, or until the video has all its frames. `read_cues` returns the
    cues since its last call, for the next block. Their block numbers are ignored. The generation waits while the video is ahead
    of its playback by more than `lead` seconds. Ends with Finished, or with Cancelled if no block is finished. Raises: ModelError
    if the model does not fit the preset, or a LoRA changes nothing; RequestError for cues that the model cannot follow."""
    run = Run(request=request, loaded=loaded, folder=folder, is_cancelled=is_stopped)
    (folder / FOLDER).mkdir(parents=True, exist_ok=True)
    remove_half_written(folder)
    # The first three blocks use all programs of the video.
    scale, blocks = request.geometry().temporal_scale, 3 * (run.model.spec.chunk or 1)
    first_blocks = request.model_copy(update={"num_frames": min(request.num_frames, scale * (blocks - 1) + 1)})
    yield from prepare(dataclasses.replace(run, request=first_blocks))
    if is_stopped():
        yield Cancelled(None)
        return
    with contextlib.closing(_BlockDecoder(run, lead)) as decoder:
        try:
            cues = yield from _generate_blocks(run, decoder, read_cues)
        except Stopped:  # only the encoding before the first block raises this
            yield Cancelled(None)
            return
        if not decoder.num_frames:
            yield Cancelled(None)
            return
        final_request = request.with_changes(is_open=False, num_frames=decoder.num_frames, cues=cues)
        yield Finished(add_flops(decoder.write_video(final_request), run.loaded))


def _generate_blocks(
    run: Run, decoder: _BlockDecoder, read_cues: Callable[[], Sequence[Cue]]
) -> Generator[Event, None, tuple[Cue, ...]]:
    """Generate all blocks. Return their cues."""
    conditions = yield from encode_conditions(run)
    log, script, preset = _CueLog(run.folder), prompt_schedule.Script(run.request), run.request.resolved_preset
    loop = Denoising(run, conditions, script=script)
    if should_warm_up(run.model, run.request):
        loop.warm_up()
    block = 0
    while loop.steps_done < loop.total_steps and not run.is_cancelled():
        is_repeated = block < log.blocks
        # The cues of a new block are one cue with their last prompt and their last action.
        new = () if is_repeated else merge_cues(cue.model_copy(update={"block": block}) for cue in read_cues())
        cue = log.cues.get(block) if is_repeated else next(iter(new), None)
        if cue is not None:
            check_cue(cue, preset)
        if cue is not None and script.add_cue(cue):
            number = len(script.texts) - 1
            text, inputs = script.texts[number], open_inputs(run.request)
            with run.clock.measure("encode"):
                loop.free_expert()
                encoding = prompt_schedule.encode_later_text(run.model, run.loaded.weights, text, inputs)
                conditions.by_text[number] = do(encoding)
            conditions.remove(script.forget_oldest(MOST_TEXTS), run.model.spec.from_inputs)
        if not is_repeated:
            log.append(block, cue)
        start_time = time.monotonic()
        for _ in range(loop.schedule.steps):
            loop.step()
            yield from decoder.finished_blocks()
        decoder.start_block(block, loop.current_latents(is_clean=False)[VIDEO], start_time)
        loop.free_committed_chunk()
        yield from decoder.finished_blocks()
        block += 1
        while not is_repeated and decoder.is_ahead() and not (run.place.is_alone and run.is_cancelled()):
            time.sleep(_PAUSE_SECONDS)
            yield from decoder.finished_blocks()
    yield from decoder.finished_blocks(waits=True)
    return merge_cues(cue for number, cue in log.cues.items() if number < block)


class _CueLog:
    """The cues so far, in a file with one line per block. Each line is written before its block starts."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / _SCRIPT
        self.blocks, self.cues = 0, {}
        for line in self._path.read_text("utf-8").splitlines() if self._path.is_file() else ():
            try:
                cue = json.loads(line)
            except ValueError:
                break  # the process was killed while it wrote this line
            self.blocks += 1
            if cue is not None:
                self.cues[self.blocks - 1] = Cue(**cue)

    def append(self, block: int, cue: Cue | None) -> None:
        """Append the block's cue, or None if neither the prompt nor the action changes."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(None if cue is None else cue.model_dump(exclude_none=True), ensure_ascii=False) + "\n")
        self.blocks += 1
        if cue is not None:
            self.cues[block] = cue


class _BlockDecoder:
    """Decodes blocks one after another, each while the next block is denoised. `close` ends its threads. `lead` is the number of
    seconds by which the generation may be ahead of playback, which starts once the first frames exist."""

    def __init__(self, run: Run, lead: float) -> None:
        self._run, self._lead = run, lead
        self._start_time, self._start_frames = 0.0, 0
        self._state: StepState = None
        # With several hosts, blocks are not decoded during the denoising. All hosts must call programs in the same order, but two
        # threads could call programs in another order on each host.
        self._is_beside = run.place.is_alone and can_run_concurrently(run.model, run.request)
        self._kept_frames = KEPT_SECONDS * run.request.fps
        self._decoder, self._encoder = ThreadPoolExecutor(1, "decode"), ThreadPoolExecutor(1, "encode")
        self._frames: queue.Queue[np.ndarray | None] = queue.Queue(maxsize=4 * run.request.fps)
        self._video = run.folder / FOLDER / VIDEO_FILE
        self._encoding = self._encoder.submit(write_frames, self._queued_frames(), self._video, fps=run.request.fps, comment="")
        self._blocks: list[Future[Block]] = []
        self.num_frames = 0  # number of frames in all blocks whose decoding has started

    def close(self) -> None:
        self._decoder.shutdown()
        while not self._encoding.done():
            try:
                self._frames.put(None, timeout=1.0)
            except queue.Full:
                continue
            break
        self._encoder.shutdown()

    def start_block(self, index: int, latents: np.ndarray, start_time: float) -> None:
        """Wait until the previous block is decoded. Then start to decode this block's clean latents [1, C, F, H, W]."""
        if self._blocks:
            self._blocks[-1].exception()
        first, scale = self.num_frames, self._run.request.geometry().temporal_scale
        self.num_frames += latents.shape[2] * scale - (scale - 1 if index == 0 else 0)
        self._blocks.append(self._decoder.submit(self._decode, index, latents, first, start_time))
        if not self._is_beside:
            self._blocks[-1].exception()

    def is_ahead(self) -> bool:
        now = time.monotonic()
        if not self._start_time and self.num_frames:
            self._start_time, self._start_frames = now, self.num_frames
        ahead = (self.num_frames - self._start_frames) / self._run.request.fps - (now - self._start_time)
        # If the video is behind its playback by more than the lead, the counts of seconds and frames restart here. Otherwise
        # later blocks would be generated faster than playback, to catch up.
        if ahead < -self._lead:
            self._start_time, self._start_frames = now, self.num_frames
        return ahead > self._lead

    def finished_blocks(self, waits: bool = False) -> Iterator[Block]:
        """Yield the blocks decoded since the last call, with `waits` all blocks. Raises: any error of the decoding."""
        while self._blocks and (waits or self._blocks[0].done()):
            yield self._blocks.pop(0).result()

    def write_video(self, request: GenerationRequest) -> VideoResult:
        """Write the video of all blocks, with `request` in the file's comment field. Raises: VideoFileError."""
        run, path = self._run, self._run.folder / VIDEO_FILE
        with run.clock.measure("decode"):
            self._queue_frame(None)
            count = self._encoding.result()
            copy_with_request(self._video, path, request)
            self._video.unlink()
        return run.create_result(path, count, request)

    def _decode(self, index: int, latents: np.ndarray, first: int, start_time: float) -> Block:
        number = first
        with self._run.clock.measure("decode"):
            for frames, state in decode_pieces(self._run, latents, state=self._state):
                self._state = state
                for frame in frames_to_uint8(frames):
                    Image.fromarray(frame).save(self._run.folder / frame_name(number), quality=PICTURE_QUALITY)
                    if number >= self._kept_frames:
                        (self._run.folder / frame_name(number - self._kept_frames)).unlink(missing_ok=True)
                    self._queue_frame(frame)
                    number += 1
        return Block(index, first, number, round(time.monotonic() - start_time, 4))

    def _queue_frame(self, frame: np.ndarray | None) -> None:
        """Pass a frame, or None at the end, to the thread that writes the mp4. Raises: the error of that thread."""
        while True:
            if self._encoding.done():
                self._encoding.result()
                raise VideoFileError("the video file was closed", "before its last frame", "this is a bug: please report it")
            try:
                return self._frames.put(frame, timeout=1.0)
            except queue.Full:
                continue

    def _queued_frames(self) -> Iterator[np.ndarray]:
        while (frame := self._frames.get()) is not None:
            yield frame
