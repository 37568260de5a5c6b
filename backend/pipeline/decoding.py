"""Decode latents to frames, piece by piece, and to audio, then write the mp4."""

import functools
import itertools
from collections.abc import Generator, Iterator
from pathlib import Path
from types import ModuleType

import jax
import numpy as np

from backend.errors import StudioError
from backend.media.audio_inputs import read_original, read_sound_facts
from backend.media.clips import read_clip_facts
from backend.media.sound import Sound, copy_clip_audio, replace_audio
from backend.media.source import KeptPixels
from backend.media.video import write_video
from backend.models.model import SOUND, VIDEO, Latents, StepState
from backend.pipeline.previews import frames_to_uint8
from backend.pipeline.profiling import trace_decoder
from backend.pipeline.rates import add_flops
from backend.pipeline.run import Described, PartialVideo, Run
from backend.pipeline.stage_files import Decoded, read_frames_so_far, remove_unfinished, write_frames, write_generated_audio
from backend.pipeline.state_saver import StateSaver, save_if_closed
from backend.runtime.hosts import gather_to_host
from backend.runtime.work import OnHost, Work, describe
from backend.runtime.work import run as do
from backend.schemas.clip import Part
from backend.schemas.events import VIDEO_FILE, Decoding, Event, VideoResult
from backend.schemas.request import GenerationRequest
from backend.schemas.sound import SoundPart

AUDIBLE_SECONDS = 0.05  # if the audio input ends at most this much before the video, no note reports it


def decode_piece(run: Run | Described, latents: jax.Array | np.ndarray, first: int = 0, decoder_state: StepState = None) -> Work:
    """Yield the work of decoding one piece of the video's latents, from latent frame `first`.

    Returns: frames [1, 3, F, height, width], and the decoder's state. The caller passes that state to the call for the next
    piece. This call overwrites the state's arrays. Some models generate a video in overlapping segments. The first piece of each
    segment is decoded without `decoder_state`.
    """
    cut = functools.partial(_slice_frames, first, first + run.model.decode_stride)
    piece = yield OnHost(cut, (latents,))
    state = None if _starts_later_segment(run, first) else decoder_state
    return (yield from run.model.decode(run.weights, run.request, piece, state))


def _starts_later_segment(run: Run | Described, first: int) -> bool:
    """Return whether a segment other than the first starts at this latent frame. Such a segment's first pixel frame repeats the
    previous segment's last pixel frame."""
    return first > 0 and run.model.segment is not None and first % run.model.segment == 0


def decode_preview(run: Run | Described, latents: jax.Array | np.ndarray) -> Work:
    """Yield the work of decoding a preview: the first frames [1, 3, F, height, width] of the video's latents."""
    piece = yield OnHost(functools.partial(_slice_frames, 0, run.model.preview_stride), (latents,))
    return (yield from run.model.preview(run.weights, run.request, piece))


def decode_all(run: Run | Described, latents: Latents) -> Work:
    """Yield the work of decoding a whole video and its audio. The results are dropped, because callers only list the programs
    that decoding calls."""
    decoder_state = None
    for first in range(0, latents[VIDEO].shape[2], run.model.decode_stride):
        _, decoder_state = yield from decode_piece(run, latents[VIDEO], first, decoder_state)
    if SOUND in latents and _uses_generated_audio(run.request):
        yield from run.model.decode_sound(run.weights, run.request, latents[SOUND])


def decode_frames(run: Run, latents: np.ndarray) -> Iterator[jax.Array]:
    """Yield pixel frames [1, 3, F, height, width] in [-1, 1] of the video's latents, piece by piece."""
    for frames, _ in decode_pieces(run, latents):
        yield frames


def decode_pieces(
    run: Run, latents: np.ndarray, first: int = 0, decoder_state: StepState = None
) -> Iterator[tuple[jax.Array, StepState]]:
    """Yield each piece from latent frame `first` on: its frames, and the decoder's state. Decoding the next piece overwrites the
    state."""
    for begin in range(first, latents.shape[2], run.model.decode_stride):
        frames, decoder_state = do(decode_piece(run, latents, begin, decoder_state))
        frames = gather_to_host(frames)
        yield frames[:, :, 1:] if _starts_later_segment(run, begin) else frames, decoder_state


class _DecodingLoop:
    """The loop over the pieces of one video, with the state that each piece passes to the next.

    With several hosts, the loop always starts with the first piece. It cannot resume, because no host can store the decoder's
    whole state.
    """

    def __init__(self, run: Run, latents: np.ndarray) -> None:
        self._run, self._latents = run, latents
        resumed_from = read_frames_so_far(run.folder, run.request, self._describe_state) if run.place.is_alone else None
        self._latent_frames = resumed_from.latent_frames if resumed_from else 0
        self._state = resumed_from.decoder_state if resumed_from else None
        self._kept_pixels = run.kept_pixels
        self.pieces = [resumed_from.pixels] if resumed_from else []

    @property
    def num_frames(self) -> int:
        """The number of pixel frames decoded so far."""
        return sum(map(len, self.pieces))

    def copy_to_host(self) -> Decoded:
        """Return the decoded frames and a copy of the decoder's state on the host."""
        return Decoded(
            latent_frames=self._latent_frames,
            pixels=np.concatenate(self.pieces),
            decoder_state=jax.tree.map(np.array, self._state),
        )

    def decode_remaining(self) -> Iterator[None]:
        """Decode one piece after another, and yield after each piece. The run's clock counts the time as "decode"."""
        run, stride = self._run, self._run.model.decode_stride
        pieces = decode_pieces(run, self._latents, self._latent_frames, self._state)
        self._state = None
        with trace_decoder(run.profile, run.folder) as tracer:
            for number in itertools.count(1):
                with run.clock.measure("decode"), tracer.trace_unit(number, lambda: jax.block_until_ready(self._state)):
                    piece = next(pieces, None)
                    if piece is None:
                        return
                    frames, self._state = piece
                    num_left = run.request.num_frames - self.num_frames
                    self.pieces.append(
                        restore_kept_pixels(self._kept_pixels, frames_to_uint8(frames)[:num_left], self.num_frames)
                    )
                    self._latent_frames += stride
                yield

    def _describe_state(self) -> object:
        """Return the shapes and shardings of the decoder's state after the second piece. The states after all later pieces have
        the same shapes. Only the state after the first piece has other shapes."""
        decoder_state = None
        for _ in range(2):
            _, decoder_state = describe(decode_piece(self._run, self._latents, 0, decoder_state))
        return decoder_state


def decode(run: Run, latents: Latents) -> Generator[Event, None, VideoResult]:
    """Decode all frames, or the remaining frames of an interrupted decoding, and write the mp4. Return the video's result.

    Closing the iterator saves the decoded frames. Raises: PartialVideo after a cancel, with the video of the decoded frames.
    """
    decoding = _DecodingLoop(run, np.asarray(latents[VIDEO]))
    if decoding.num_frames:
        yield Decoding(decoding.num_frames, run.request.num_frames)
    with StateSaver(functools.partial(write_frames, run)) as saver:
        for _ in decoding.decode_remaining():
            with save_if_closed(saver, decoding.copy_to_host if run.place.is_alone else None):
                yield Decoding(decoding.num_frames, run.request.num_frames)
            if run.is_cancelled():
                break
            if run.place.is_alone and saver.is_due():
                with run.clock.measure("decode"):
                    saver.save(decoding.copy_to_host)
    result = write_result(run, decoding.pieces, latents)
    remove_unfinished(run.folder)
    if run.is_cancelled():
        raise PartialVideo(result)
    return add_flops(result, run.loaded)


def restore_kept_pixels(kept_pixels: KeptPixels | None, pixels: np.ndarray, first: int) -> np.ndarray:
    """Return `pixels`, frames uint8 [F, H, W, 3], with the clip's own pixels in all areas that must stay unchanged.

    `first` is the index of `pixels[0]` in the video. Without `kept_pixels`, return `pixels` unchanged.
    """
    return pixels if kept_pixels is None else kept_pixels.put_back(pixels, first)


def write_result(run: Run, pieces: list[np.ndarray], latents: Latents) -> VideoResult:
    """Write the mp4. `pieces` has all frames in order, as arrays uint8 [F, H, W, 3].

    The mp4 gets the first audio that exists: the audio input, the decoded audio latents, or the clip's audio.
    """
    request, path, has_sound = run.request, run.folder / VIDEO_FILE, False
    with run.clock.measure("decode"):
        sound = _read_audio_input(run, request.sound) if request.sound else None
        if SOUND in latents and _uses_generated_audio(request):
            sound = _decode_audio(run, latents[SOUND])
        pieces = run.match_colors(pieces)
        count = sum(map(len, pieces))
        if run.place.is_first:
            write_video((frame for piece in pieces for frame in piece), path, fps=request.fps, request=request)
        # For a shot, every host writes the audio file, because every host reads the file if the next shot continues the audio.
        if sound is not None and (run.place.is_first or run.is_shot):
            write_generated_audio(run, sound)
        if run.place.is_first:
            has_sound = _add_audio(run, path, count, sound)
    return run.create_result(path, count, has_sound=has_sound)


def _uses_generated_audio(request: GenerationRequest) -> bool:
    """Return whether the video gets the audio that the model generates. An audio input replaces this audio."""
    return request.keeps_sound and not request.sound


def _read_audio_input(run: Run, path: str) -> Sound | None:
    """Read the audio input. If the audio ends before the video, add a note to the result."""
    request = run.request
    if not request.keeps_sound:
        return None
    part = SoundPart.from_request(request)
    seconds_left = read_sound_facts(path).seconds - part.start
    if seconds_left < part.seconds - AUDIBLE_SECONDS:
        run.notes.append(f"The audio ends after {seconds_left:.1f} s; the rest of the video is silent.")
    return read_original(path, part)


def _decode_audio(run: Run, latents: jax.Array) -> Sound:
    samples, rate = gather_to_host(do(run.model.decode_sound(run.weights, run.request, latents))), run.model.spec.sound_rate
    assert rate is not None, "the model generates audio"
    return Sound(samples=np.asarray(samples, np.float32), rate=rate)


def _add_audio(run: Run, path: Path, num_frames: int, sound: Sound | None) -> bool:
    """Put `sound` into the video, or the input clip's audio if no `sound` is given. Return whether the video now has audio.

    If this fails, add a note to the result and raise no error, because a silent video is better than no video. A video that
    extends a clip does not get the clip's audio, because most of the video is new.
    """
    request, seconds = run.request, num_frames / run.request.fps
    size = request.width, request.height
    try:
        if sound is not None:
            replace_audio(path, sound.part(0, seconds), size)
            return True
        clip = request.video or request.drive
        if clip is None or request.extend is not None or not request.keeps_sound or not read_clip_facts(clip).has_sound:
            return False
        copy_clip_audio(path, clip, Part.from_request(request).trim[0], seconds, size)
        return True
    except StudioError as error:
        run.notes.append(f"The video has no audio: {error.cause}")
        return False


def _slice_frames(first: int, end: int, xp: ModuleType, latents: jax.Array) -> jax.Array:
    return xp.asarray(latents)[:, :, first:end]
