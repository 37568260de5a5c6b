"""Cuts a film: parts of clips in sequence, with hard cuts or cross-fades, their audio, and a soundtrack. This module needs no
model. Clips and soundtracks can be untrusted files, so the studio runs this module in the sandbox."""

import dataclasses
import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from backend.errors import ClipError, RequestError, SoundError
from backend.media.audio_inputs import MAX_RATE, read_at_rate, read_sound_facts
from backend.media.clips import ClipFacts, read_clip, read_clip_facts
from backend.media.progress import report_progress
from backend.media.sound import FADE_SECONDS, Sound, join_sounds, replace_audio
from backend.media.video import Frame, Size, request_comment, write_frames
from backend.schemas.clip import Part, max_frames_within
from backend.schemas.film import MOST_SECONDS, Piece, Track, check_pieces, check_track, count_film_frames, plan_pieces
from backend.schemas.request import GenerationRequest
from backend.schemas.sound import SoundPart


@dataclasses.dataclass(frozen=True, kw_only=True)
class Film:
    """One piece for each of the `clips`, all at `size` (width, height) and `fps`. If `is_heard` is False, the clips are
    silent."""

    clips: tuple[Path, ...]
    pieces: tuple[Piece, ...]
    fps: int
    size: Size
    track: Track | None = None
    is_heard: bool = True

    @property
    def seconds(self) -> float:
        return count_film_frames(self.pieces) / self.fps


def write_storyboard_film(request: GenerationRequest, path: Path) -> dict[str, object]:
    """See `write_film`. All shots must be finished. Raises also: RequestError if the preset no longer exists."""
    film = Film(
        clips=tuple(Path(request.shot_videos[shot.video]) for shot in request.shots if shot.video is not None),
        pieces=plan_pieces(request, request.resolved_preset),
        fps=request.fps,
        size=(request.width, request.height),
        track=Track.from_request(request),
        is_heard=request.keeps_sound,
    )
    return write_film(film, path, request_comment(request))


def write_film(film: Film, path: Path, comment: str) -> dict[str, object]:
    """Write an mp4 with this comment. Return `num_frames`, `has_sound` and the `seconds` of the work. Raises: RequestError if the
    film is too long, or a piece or the soundtrack is invalid; ClipError if a clip is shorter than its piece needs; SoundError,
    VideoFileError."""
    began = time.monotonic()
    check_pieces(film.pieces, film.fps)
    if film.seconds > MOST_SECONDS:
        raise RequestError(f"a film of {film.seconds:.0f} seconds", f"must last at most {MOST_SECONDS:.0f}", "cut it in two")
    check_track(film.track, film.seconds)
    for number, (clip, piece) in enumerate(zip(film.clips, film.pieces, strict=True), 1):
        check_clip_length(read_clip_facts(clip), piece.end, film.fps, f"shot {number}")
    sounds = [clip_audio_reader(clip) if film.is_heard else None for clip in film.clips]
    sound = mix_film_audio(film.pieces, film.fps, sounds, film.track)
    parts = (
        read_clip(clip, Part(start=piece.first / film.fps, num_frames=piece.num_frames, fps=film.fps, size=film.size))
        for clip, piece in zip(film.clips, film.pieces, strict=True)
    )
    frames = cross_fade(parts, [piece.fade for piece in film.pieces])
    num_frames = write_frames(report_progress(frames, count_film_frames(film.pieces)), path, fps=film.fps, comment=comment)
    if sound is not None:
        replace_audio(path, sound, film.size)
    return {"num_frames": num_frames, "has_sound": sound is not None, "seconds": round(time.monotonic() - began, 3)}


def check_clip_length(facts: ClipFacts, end: int, fps: int, what: str) -> None:
    """Check that the clip has at least `end` frames. Raises: ClipError."""
    there = max_frames_within(facts.seconds, fps)
    if there < end:
        rule = f"but its video has {there}: {facts.seconds:.2f} s at {fps} fps"
        raise ClipError(f"{what} shows {end} frames,", rule, "end it earlier")


def cross_fade(parts: Iterable[Iterable[Frame]], fades: Sequence[int]) -> Iterator[Frame]:
    """Yield the frames of all parts, each uint8 [height, width, 3], in sequence. The first `fades[i]` frames of part i are mixed
    with the last frames of the previous part. Only frames that are mixed are held in memory."""
    before: Sequence[Frame] = ()
    for part, fade, following in zip(parts, fades, [*fades[1:], 0], strict=True):
        frames, held = iter(part), deque()
        for number, (old, new) in enumerate(zip(before, itertools.islice(frames, fade), strict=True), 1):
            share = np.float32(number / (fade + 1))
            yield np.round(old + share * (new.astype(np.float32) - old)).astype(np.uint8)
        for frame in frames:
            held.append(frame)
            if len(held) > following:
                yield held.popleft()
        before = held


def mix_film_audio(
    pieces: Sequence[Piece], fps: int, sounds: Sequence[Callable[[float, float, int], Sound] | None], track: Track | None,
    rate: int = MAX_RATE,
) -> Sound | None:  # fmt: skip
    """Return the audio of all pieces with the soundtrack, or None if the film is silent. Each of the `sounds` reads a part of a
    piece's audio: its arguments are the start in the clip and the length, in seconds, and a sample rate. Raises: SoundError,
    VideoFileError."""
    whole = None
    if any(sounds):
        parts = []
        for piece, sound in zip(pieces, sounds, strict=True):
            # Without a fade, the audio starts with the frames that repeat the end of the previous piece. Both pieces have the
            # same audio there, so a join within these frames is inaudible.
            lead = 0 if piece.fade else piece.lead
            start, seconds = (piece.first - lead) / fps, (piece.num_frames + lead) / fps
            silence = Sound(samples=np.zeros((1, round(seconds * rate)), np.float32), rate=rate)
            parts.append(sound(start, seconds, rate) if sound else silence)
        overlaps = [(piece.fade or piece.lead) / fps for piece in pieces[1:]]
        whole = join_sounds(parts, overlaps, [piece.fade / fps or FADE_SECONDS for piece in pieces[1:]])
    if track is None:
        return whole
    seconds = count_film_frames(pieces) / fps
    length = min(read_sound_facts(track.path).seconds, seconds - track.start)
    heard = read_at_rate(track.path, SoundPart(start=0.0, seconds=length), rate).samples * np.float32(track.volume)
    count = min(round(track.fade * rate), heard.shape[1] // 2)
    rising = np.linspace(0, 1, count, dtype=np.float32)
    heard[:, :count] *= rising
    heard[:, heard.shape[1] - count :] *= rising[::-1]
    samples = np.zeros((2, round(seconds * rate)), np.float32)
    if whole is not None:
        samples += whole.samples[:, : samples.shape[1]]
    first = round(track.start * rate)
    samples[:, first : first + heard.shape[1]] += heard[:, : samples.shape[1] - first]
    # If a sample of the sum exceeds the range [-1, 1], the whole audio is made quieter.
    return Sound(samples=samples / np.float32(max(1.0, np.abs(samples).max())), rate=rate)


def clip_audio_reader(path: Path) -> Callable[[float, float, int], Sound] | None:
    """Return a function for `mix_film_audio`, or None if the clip is silent or its audio cannot be read."""
    try:
        if not read_clip_facts(path).has_sound:
            return None
        seconds = read_sound_facts(path).seconds
    except (ClipError, SoundError):
        return None

    def part(start: float, length: float, rate: int) -> Sound:
        if start >= seconds:
            return Sound(samples=np.zeros((2, round(length * rate)), np.float32), rate=rate)
        return read_at_rate(path, SoundPart(start=start, seconds=length), rate)

    return part
