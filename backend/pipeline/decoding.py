"""Decode latents to frames, piece by piece, and to audio, then write the mp4."""

import dataclasses
import functools
import itertools
from collections.abc import Generator, Iterator

import jax
import numpy as np

from backend.chips import CHIPS, DEVICE_KINDS
from backend.errors import StudioError
from backend.media.audio_inputs import read_original, read_sound_facts
from backend.media.clips import read_clip_facts
from backend.media.sound import MODEL_SOUND, Sound, copy_clip_audio, replace_audio
from backend.media.video import write_video
from backend.models.model import SOUND, VIDEO, Latents, StepState
from backend.pipeline.denoising_loop import divide_into_chunks
from backend.pipeline.loaded import LoadedModel
from backend.pipeline.profiling import create_tracer
from backend.pipeline.run import Described, PartialVideo, Run
from backend.pipeline.stage_files import Decoded, read_frames_so_far, remove_unfinished, write_frames
from backend.pipeline.state_saver import StateSaver, save_if_closed
from backend.runtime.hosts import gather_to_host
from backend.runtime.work import OnHost, Work, describe
from backend.runtime.work import run as do
from backend.schemas.clip import Part
from backend.schemas.events import VIDEO_FILE, Decoding, Event, VideoResult
from backend.schemas.progressive import request_at_first_size
from backend.schemas.request import GenerationRequest
from backend.schemas.sound import SoundPart
from backend.schemas.step_plan import plan_steps
from backend.schemas.windows import step_calls

AUDIBLE_SECONDS = 0.05  # if the audio input ends at most this much before the video, no note reports it


def frames_to_uint8(frames: jax.Array) -> np.ndarray:
    """Convert frames [1, 3, F, H, W] in [-1, 1] to uint8 [F, H, W, 3]."""
    values = np.asarray(frames, np.float32)[0].transpose(1, 2, 3, 0)
    return np.round((values + 1) * 127.5).clip(0, 255).astype(np.uint8)


def decode_piece(run: Run | Described, latents: jax.Array | np.ndarray, first: int = 0, decoder_state: StepState = None) -> Work:
    """Yield the work of decoding one piece of the video's latents, from latent frame `first`. Returns: frames [1, 3, F, height,
    width], and the decoder's state for the next piece, whose call overwrites the state's arrays. Some models generate a video in
    overlapping segments. The first piece of each segment is decoded without `decoder_state`."""
    end, segment = first + run.model.decode_stride, run.model.segment
    piece = yield OnHost(lambda xp, given: xp.asarray(given)[:, :, first:end], (latents,))
    state = None if first > 0 and segment is not None and first % segment == 0 else decoder_state
    return (yield from run.model.decode(run.weights, run.request, piece, state))


def decode_preview(run: Run | Described, latents: jax.Array | np.ndarray) -> Work:
    """Yield the work of decoding a preview: the first frames [1, 3, F, height, width] of the video's latents."""
    piece = yield OnHost(lambda xp, given: xp.asarray(given)[:, :, : run.model.preview_stride], (latents,))
    return (yield from run.model.preview(run.weights, run.request, piece))


def decode_pieces(
    run: Run, latents: np.ndarray, first: int = 0, state: StepState = None
) -> Iterator[tuple[jax.Array, StepState]]:
    """Yield each piece from latent frame `first` on: its pixel frames [1, 3, F, height, width] in [-1, 1], and the decoder's
    state. Decoding the next piece overwrites the state."""
    for begin in range(first, latents.shape[2], run.model.decode_stride):
        frames, state = do(decode_piece(run, latents, begin, state))
        frames = gather_to_host(frames)
        # The first pixel frame of a later segment repeats the previous segment's last pixel frame.
        starts_later_segment = begin > 0 and run.model.segment is not None and begin % run.model.segment == 0
        yield frames[:, :, 1:] if starts_later_segment else frames, state


def decode(run: Run, latents: Latents) -> Generator[Event, None, VideoResult]:
    """Decode all frames, or the remaining frames of an interrupted decoding, and write the mp4. Closing the iterator saves the
    decoded frames. With several hosts, nothing is saved, because no host can store the decoder's whole state. Raises:
    PartialVideo after a cancel, with the video of the decoded frames."""
    video, is_alone, state = np.asarray(latents[VIDEO]), run.place.is_alone, None
    pieces, latent_frames, num_frames = [], 0, 0

    def describe_state() -> object:
        """Describe the state after the second piece. The states after all later pieces have the same shapes."""
        described = None
        for _ in range(2):
            _, described = describe(decode_piece(run, video, 0, described))
        return described

    def copy_to_host() -> Decoded:
        host_state = jax.tree.map(np.array, state)
        return Decoded(latent_frames=latent_frames, pixels=np.concatenate(pieces), decoder_state=host_state)

    def wait_for_devices() -> None:
        jax.block_until_ready(state)

    if is_alone and (earlier := read_frames_so_far(run.folder, run.request, describe_state)) is not None:
        pieces, latent_frames, num_frames = [earlier.pixels], earlier.latent_frames, len(earlier.pixels)
        state = earlier.decoder_state
        del earlier
    kept_pixels = run.kept_pixels
    if num_frames:
        yield Decoding(num_frames, run.request.num_frames)
    remaining, state = decode_pieces(run, video, latent_frames, state), None
    with StateSaver(functools.partial(write_frames, run)) as saver, create_tracer(run.profile, run.folder, "decoder") as tracer:
        for number in itertools.count(1):
            with run.clock.measure("decode"), tracer.trace_unit(number, wait_for_devices):
                piece = next(remaining, None)
                if piece is None:
                    break
                frames, state = piece
                pixels = frames_to_uint8(frames)[: run.request.num_frames - num_frames]
                del frames, piece  # frees the frames on the devices before audio is decoded
                pieces.append(pixels if kept_pixels is None else kept_pixels.put_back(pixels, num_frames))
                num_frames, latent_frames = num_frames + len(pieces[-1]), latent_frames + run.model.decode_stride
            with save_if_closed(saver, copy_to_host if is_alone else None):
                yield Decoding(num_frames, run.request.num_frames)
            if run.is_cancelled():
                break
            if is_alone and saver.is_due():
                with run.clock.measure("decode"):
                    saver.save(copy_to_host)
    result = write_result(run, pieces, latents)
    remove_unfinished(run.folder)
    if run.is_cancelled():
        raise PartialVideo(result)
    return add_flops(result, run.loaded)


def write_result(run: Run, pieces: list[np.ndarray], latents: Latents) -> VideoResult:
    """Write the mp4 of all frames, `pieces` uint8 [F, H, W, 3], with the first audio that exists: the audio input, the decoded
    audio latents, or the clip's audio."""
    request, path, has_sound, sound = run.request, run.folder / VIDEO_FILE, False, None
    with run.clock.measure("decode"):
        if request.sound and request.keeps_sound:
            part = SoundPart.from_request(request)
            seconds_left = read_sound_facts(request.sound).seconds - part.start
            if seconds_left < part.seconds - AUDIBLE_SECONDS:
                run.notes.append(f"The audio ends after {seconds_left:.1f} s; the rest of the video is silent.")
            sound = read_original(request.sound, part)
        elif request.keeps_sound and SOUND in latents:
            samples = gather_to_host(do(run.model.decode_sound(run.weights, request, latents[SOUND])))
            rate = run.model.spec.sound_rate
            assert rate is not None, "the model generates audio"
            sound = Sound(samples=np.asarray(samples, np.float32), rate=rate)
        pieces = run.match_colors(pieces)
        count = sum(map(len, pieces))
        if run.place.is_first:
            write_video((frame for piece in pieces for frame in piece), path, fps=request.fps, request=request)
        # Only shots have a function `match_colors`. Every host writes a shot's audio file, before AAC encoding loses quality,
        # because every host reads the file if the next shot continues the audio.
        if sound is not None and (run.place.is_first or run.match_colors is not list):
            sound.write(run.folder / MODEL_SOUND)
        if run.place.is_first:
            clip, seconds, size = request.video or request.drive, count / request.fps, (request.width, request.height)
            try:
                if sound is not None:
                    replace_audio(path, sound.part(0, seconds), size)
                    has_sound = True
                # A video that extends a clip does not get its audio, because most of the video is new.
                elif clip is not None and request.extend is None and request.keeps_sound and read_clip_facts(clip).has_sound:
                    copy_clip_audio(path, clip, Part.from_request(request).trim[0], seconds, size)
                    has_sound = True
            except StudioError as error:
                run.notes.append(f"The video has no audio: {error.cause}")
    return run.create_result(path, count, has_sound=has_sound)


def add_flops(result: VideoResult, loaded: LoadedModel) -> VideoResult:
    """Add the floating-point operations of each stage, and the devices' peak rate, to the result of a whole video."""
    chips = [DEVICE_KINDS.get(device.device_kind) for device in loaded.model.layout(True).mesh.devices.flat]
    known = [CHIPS[chip].peak_flops for chip in chips if chip is not None]
    peak = sum(known) if len(known) == len(chips) else None
    return dataclasses.replace(result, flops=count_stage_flops(loaded, result.request), peak_flops=peak)


def count_stage_flops(loaded: LoadedModel, request: GenerationRequest) -> dict[str, float]:
    """Return the floating-point operations of a whole video by stage. A multiplication with an addition counts as two operations.
    With the step cache or Sol-Attn, denoising is left out, because its work depends on the video. The count omits the attention
    that NAG adds (less than one per cent of a step) and the network that enlarges latents."""
    flops = {"encode": loaded.model.encode_flops(request), "decode": loaded.model.decode_flops(request)}
    if request.uses_step_cache or request.sparse:
        return flops
    configs = request.resolved_preset.network_configs()

    @functools.cache
    def flops_of_step(is_guided: bool, is_small: bool) -> float:
        sized = request_at_first_size(request) if is_small else request
        num_branches = request.num_branches - (request.is_guided and not is_guided)
        return loaded.family.step_flops(configs, sized, num_branches).total

    calls = zip(plan_steps(request, loaded.model.spec.boundary), step_calls(request), strict=True)
    of_a_chunk = sum(flops_of_step(step.is_guided, step.is_small) * count for step, count in calls)
    return flops | {"denoise": len(divide_into_chunks(loaded.model, request)) * of_a_chunk}
