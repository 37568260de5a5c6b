"""Cuts a film: pieces of clips one after another, hard or fading into each other, with their sounds and a track below. Needs no
model; opens strangers' files where the clips or the track are theirs, so for the studio it runs in the sandbox."""

import dataclasses
import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from backend.errors import ClipError, SoundError
from backend.media.audio_inputs import MAX_RATE, read_at_rate, read_sound_facts
from backend.media.clips import ClipFacts, check_part, read_clip, read_clip_facts
from backend.media.progress import report_progress
from backend.media.sound import FADE_SECONDS, Sound, join_sounds, replace_audio
from backend.media.video import Frame, Size, request_comment, write_frames
from backend.schemas.clip import Part, max_frames_within
from backend.schemas.film import Piece, Track, check_length, check_pieces, check_track, count_film_frames, plan_pieces
from backend.schemas.request import GenerationRequest, find_preset
from backend.schemas.shots import shot_length
from backend.schemas.sound import SoundPart


@dataclasses.dataclass(frozen=True, kw_only=True)
class Film:
    """The pieces, each of the clip at the same place of `clips`, brought to `size` (width, height) and `fps`, and the sound below
    them. A clip that is not `heard` is silent."""

    clips: tuple[Path, ...]
    pieces: tuple[Piece, ...]
    fps: int
    size: Size
    track: Track | None = None
    is_heard: bool = True

    @property
    def seconds(self) -> float:
        """How long it lasts."""
        return count_film_frames(self.pieces) / self.fps


def make_film(request: GenerationRequest) -> Film:
    """The film of a storyboard whose shots are all made. Raises: RequestError if it is too long."""
    return Film(
        clips=tuple(Path(request.shot_videos[shot.video]) for shot in request.shots if shot.video is not None),
        pieces=plan_pieces(request, find_preset(request.preset)),
        fps=request.fps,
        size=(request.width, request.height),
        track=Track.from_request(request),
        is_heard=request.keeps_sound,
    )


def write_storyboard_film(request: GenerationRequest, path: Path) -> dict[str, Any]:
    """Writes the film of a storyboard whose shots are all made to `path`, with the request as its comment; see `write_film`."""
    return write_film(make_film(request), path, request_comment(request))


def write_film(film: Film, path: Path, comment: str) -> dict[str, Any]:
    """Writes the film to `path` as an mp4 with this comment; the number of its frames, whether it `has_sound`, and the `seconds`
    that it took.

    Raises: RequestError if it is too long or what is wanted is not there, ClipError, SoundError, VideoFileError.
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
    """Raises: ClipError if the clip has no `end` frames at this rate."""
    there = max_frames_within(facts.seconds, fps)
    if there < end:
        rule = f"of which its video has {there}, {facts.seconds:.2f} s at {fps} a second"
        raise ClipError(f"{what} shows {end} frames,", rule, "let it end earlier")


def check_shot_clips(request: GenerationRequest) -> None:
    """Raises: ClipError if a shot that is made is not as long as what is seen of it, or one that a clip drives longer than that
    clip; the sentence of `read_clip_facts` for a file that is no clip."""
    pieces = plan_pieces(request, find_preset(request.preset)) if request.shot_videos else ()
    for number, (shot, piece) in enumerate(zip(request.shots, pieces, strict=False), 1):
        if shot.video is not None:
            check_clip_length(read_clip_facts(request.shot_videos[shot.video]), piece.end, request.fps, f"shot {number}")
    for index, shot in enumerate(request.shots):
        if shot.drive is not None:
            part = Part(start=0.0, num_frames=shot_length(request, index), fps=request.fps, size=(request.width, request.height))
            check_part(request.shot_drives[shot.drive], part)


def cross_fade(parts: Iterable[Iterable[Frame]], fades: Sequence[int]) -> Iterator[Frame]:
    """The frames of all parts, each uint8 [height, width, 3], one part after another; the first `fades[i]` of a part are mixed
    with the last ones of the part before, more and more of the new. Only those are held in memory."""
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
    """The sound of all pieces, `rate` samples a second, with the track; None if nothing is heard. `sounds` has one for each piece
    that is not silent: it is asked for the part from a moment of its clip on, for so many seconds and at this rate.

    Raises: SoundError, VideoFileError.
    """
    whole = None
    if any(sounds):
        parts = [_piece_audio(piece, sound, fps, rate) for piece, sound in zip(pieces, sounds, strict=True)]
        overlaps = [(piece.fade or piece.lead) / fps for piece in pieces[1:]]
        whole = join_sounds(parts, overlaps, [piece.fade / fps or FADE_SECONDS for piece in pieces[1:]])
    return whole if track is None else _mix_track(whole, track, count_film_frames(pieces) / fps, rate)


def _piece_audio(piece: Piece, sound: Callable[[float, float, int], Sound] | None, fps: int, rate: int) -> Sound:
    """From where the piece before is still heard; after a fade or a hard cut nothing is."""
    lead = 0 if piece.fade else piece.lead
    start, seconds = (piece.first - lead) / fps, (piece.num_frames + lead) / fps
    if sound is None:
        return Sound(samples=np.zeros((1, round(seconds * rate)), np.float32), rate=rate)
    return sound(start, seconds, rate)


def _mix_track(whole: Sound | None, track: Track, seconds: float, rate: int) -> Sound:
    """The track mixed into the film's sound, which is made quieter where both together would be cut."""
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
    """What `film_sound` asks for the sound of a clip; None if it is silent, or its sound cannot be read."""
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
