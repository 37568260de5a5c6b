"""Cuts a film: parts of clips in sequence, with hard cuts or cross-fades, their audio, and a soundtrack.

This module needs no model. Clips and soundtracks can be untrusted files, so the studio runs this module in the sandbox.
"""

import dataclasses
import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from backend.errors import ClipError, SoundError
from backend.media.audio_inputs import MAX_RATE, read_at_rate, read_sound_facts
from backend.media.clips import ClipFacts, check_part, read_clip, read_clip_facts
from backend.media.progress import report_progress
from backend.media.sound import FADE_SECONDS, Sound, join_sounds, replace_audio
from backend.media.video import Frame, Size, request_comment, write_frames
from backend.schemas.clip import Part, max_frames_within
from backend.schemas.film import Piece, Track, check_length, check_pieces, check_track, count_film_frames, plan_pieces
from backend.schemas.request import GenerationRequest
from backend.schemas.shots import shot_length
from backend.schemas.sound import SoundPart


@dataclasses.dataclass(frozen=True, kw_only=True)
class Film:
    """A film to cut: one piece for each of the `clips`, all at `size` (width, height) and `fps`, and a soundtrack. If `is_heard`
    is False, the clips are silent."""

    clips: tuple[Path, ...]
    pieces: tuple[Piece, ...]
    fps: int
    size: Size
    track: Track | None = None
    is_heard: bool = True

    @property
    def seconds(self) -> float:
        """The length of the film."""
        return count_film_frames(self.pieces) / self.fps


def make_film(request: GenerationRequest) -> Film:
    """Return the film of a storyboard whose shots are all finished. Raises: RequestError if the preset no longer exists."""
    return Film(
        clips=tuple(Path(request.shot_videos[shot.video]) for shot in request.shots if shot.video is not None),
        pieces=plan_pieces(request, request.resolved_preset),
        fps=request.fps,
        size=(request.width, request.height),
        track=Track.from_request(request),
        is_heard=request.keeps_sound,
    )


def write_storyboard_film(request: GenerationRequest, path: Path) -> dict[str, object]:
    """Write the film of a storyboard whose shots are all finished, with the request as its comment. See `write_film`."""
    return write_film(make_film(request), path, request_comment(request))


def write_film(film: Film, path: Path, comment: str) -> dict[str, object]:
    """Write the film to `path` as an mp4 with this comment. Return `num_frames`, `has_sound` and the `seconds` of the work.

    Raises: RequestError if the film is too long, or a piece or the soundtrack is invalid; ClipError if a clip is shorter than its
    piece needs; SoundError, VideoFileError.
    """
    began = time.monotonic()
    check_pieces(film.pieces, film.fps)
    check_length(film.seconds)
    check_track(film.track, film.seconds)
    for number, (clip, piece) in enumerate(zip(film.clips, film.pieces, strict=True), 1):
        check_clip_length(read_clip_facts(clip), piece.end, film.fps, f"shot {number}")
    sounds = [clip_audio_reader(clip) if film.is_heard else None for clip in film.clips]
    sound = mix_film_audio(film.pieces, film.fps, sounds, film.track)
    parts = (_piece_frames(clip, piece, film) for clip, piece in zip(film.clips, film.pieces, strict=True))
    frames = cross_fade(parts, [piece.fade for piece in film.pieces])
    num_frames = write_frames(report_progress(frames, count_film_frames(film.pieces)), path, fps=film.fps, comment=comment)
    if sound is not None:
        replace_audio(path, sound, film.size)
    return {"num_frames": num_frames, "has_sound": sound is not None, "seconds": round(time.monotonic() - began, 3)}


def check_clip_length(facts: ClipFacts, end: int, fps: int, what: str) -> None:
    """Check that the clip has at least `end` frames at this rate. Raises: ClipError."""
    there = max_frames_within(facts.seconds, fps)
    if there < end:
        rule = f"but its video has {there}: {facts.seconds:.2f} s at {fps} fps"
        raise ClipError(f"{what} shows {end} frames,", rule, "end it earlier")


def check_shot_clips(request: GenerationRequest) -> None:
    """Check that the finished videos and the driving clips are as long as their shots need. Raises: ClipError, also for files
    that are not clips."""
    pieces = plan_pieces(request, request.resolved_preset) if request.shot_videos else ()
    for number, (shot, piece) in enumerate(zip(request.shots, pieces, strict=False), 1):
        if shot.video is not None:
            check_clip_length(read_clip_facts(request.shot_videos[shot.video]), piece.end, request.fps, f"shot {number}")
    for index, shot in enumerate(request.shots):
        if shot.drive is not None:
            part = Part(start=0.0, num_frames=shot_length(request, index), fps=request.fps, size=(request.width, request.height))
            check_part(request.shot_drives[shot.drive], part)


def cross_fade(parts: Iterable[Iterable[Frame]], fades: Sequence[int]) -> Iterator[Frame]:
    """Yield the frames of all parts, each uint8 [height, width, 3], in sequence. The first `fades[i]` frames of part i are mixed
    with the last frames of the previous part, and the weight of part i grows. Only frames that are mixed are held in memory."""
    before: Sequence[Frame] = ()
    for part, fade, following in zip(parts, fades, [*fades[1:], 0], strict=True):
        frames, held = iter(part), deque()
        for number, (old, new) in enumerate(zip(before, itertools.islice(frames, fade), strict=True), 1):
            yield _mix_frames(old, new, number / (fade + 1))
        for frame in frames:
            held.append(frame)
            if len(held) > following:
                yield held.popleft()
        before = held


def _mix_frames(old: Frame, new: Frame, share: float) -> Frame:
    return np.round(old + np.float32(share) * (new.astype(np.float32) - old)).astype(np.uint8)


def mix_film_audio(
    pieces: Sequence[Piece], fps: int, sounds: Sequence[Callable[[float, float, int], Sound] | None], track: Track | None,
    rate: int = MAX_RATE,
) -> Sound | None:  # fmt: skip
    """Return the audio of all pieces with the soundtrack, at `rate` samples per second. None if the film is silent.

    `sounds` has one function for each piece, None for a silent piece. Each function reads a part of the clip's audio. Its
    arguments are the start of the part in the clip in seconds, the length in seconds, and a sample rate.

    Raises: SoundError, VideoFileError.
    """
    whole = None
    if any(sounds):
        parts = [_piece_audio(piece, sound, fps, rate) for piece, sound in zip(pieces, sounds, strict=True)]
        overlaps = [(piece.fade or piece.lead) / fps for piece in pieces[1:]]
        whole = join_sounds(parts, overlaps, [piece.fade / fps or FADE_SECONDS for piece in pieces[1:]])
    return whole if track is None else _mix_track(whole, track, count_film_frames(pieces) / fps, rate)


def _piece_audio(piece: Piece, sound: Callable[[float, float, int], Sound] | None, fps: int, rate: int) -> Sound:
    """Return a piece's audio.

    Without a fade, the audio starts `lead` frames before the piece's first visible frame. These frames repeat the end of the
    previous piece, and both pieces have the same audio there. Therefore a join within these frames is inaudible.
    """
    lead = 0 if piece.fade else piece.lead
    start, seconds = (piece.first - lead) / fps, (piece.num_frames + lead) / fps
    if sound is None:
        return Sound(samples=np.zeros((1, round(seconds * rate)), np.float32), rate=rate)
    return sound(start, seconds, rate)


def _mix_track(whole: Sound | None, track: Track, seconds: float, rate: int) -> Sound:
    """Mix the soundtrack into the film's audio. If a sample of the sum exceeds the range [-1, 1], the whole audio is made
    quieter."""
    facts = read_sound_facts(track.path)
    length = min(facts.seconds, seconds - track.start)
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
    return Sound(samples=samples / np.float32(max(1.0, np.abs(samples).max())), rate=rate)


def clip_audio_reader(path: Path) -> Callable[[float, float, int], Sound] | None:
    """Return a function for `mix_film_audio` that reads the clip's audio, or None if the clip is silent or its audio cannot be
    read."""
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


def _piece_frames(clip: Path, piece: Piece, film: Film) -> Iterator[Frame]:
    return read_clip(clip, Part(start=piece.first / film.fps, num_frames=piece.num_frames, fps=film.fps, size=film.size))
