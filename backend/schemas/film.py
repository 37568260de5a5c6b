"""The cut of a storyboard or film: the visible frames of each shot, their overlap with the previous shot, and the soundtrack.
This module opens no file."""

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Self

from backend.errors import RequestError
from backend.schemas.settings import VideoSettings
from backend.schemas.shots import continues_previous, end_frame, num_overlap_frames
from presets import Preset

MOST_SECONDS = 300.0  # longest film that is cut without a model, because ffmpeg must write the film within a time limit
MOST_FADE = 2.0  # longest cross-fade in seconds, because all frames that are mixed are held in memory


@dataclasses.dataclass(frozen=True, kw_only=True)
class Piece:
    """The visible frames of a shot, from `first` up to but not including `end`. The first `fade` frames overlap the last frames
    of the previous piece. `lead` frames before `first` repeat the end of the previous piece, and their audio cross-fades with its
    audio."""

    first: int
    end: int
    fade: int = 0
    lead: int = 0

    @property
    def num_frames(self) -> int:
        return self.end - self.first


@dataclasses.dataclass(frozen=True, kw_only=True)
class Track:
    """An audio file under a film. It starts at `start` seconds of the film, and fades in during its first and out during its last
    `fade` seconds. Its samples are multiplied by `volume`."""

    path: str
    start: float = 0.0
    fade: float = 0.0
    volume: float = 1.0

    @classmethod
    def from_request(cls, request: VideoSettings) -> Self | None:
        """The request's soundtrack, or None."""
        if request.track is None:
            return None
        return cls(path=request.track, start=request.track_start, fade=request.track_fade, volume=request.track_volume)


def plan_pieces(request: VideoSettings, preset: Preset, count: int | None = None) -> tuple[Piece, ...]:
    """Return the visible part of each shot, or of the first `count` shots, without frames that only repeat the previous shot."""
    pieces = []
    for index, shot in enumerate(request.shots[:count]):
        carried = num_overlap_frames(request, index, preset) if continues_previous(request, index) else 0
        first = max(carried, round(shot.trim[0] * request.fps) if shot.trim else 0)
        lead = first if carried == first or shot.video is not None and not shot.cut else 0
        fade = round(shot.fade * request.fps)
        pieces.append(Piece(first=first, end=end_frame(request, index), fade=fade, lead=lead))
    return tuple(pieces)


def count_film_frames(pieces: Iterable[Piece]) -> int:
    """Frames in which two pieces overlap count once."""
    return sum(piece.num_frames - piece.fade for piece in pieces)


def check_film(request: VideoSettings, preset: Preset) -> None:
    """Check the shots and the soundtrack. Raises: RequestError."""
    for number, shot in enumerate(request.shots, 1):
        check_times(shot.trim, shot.fade, f"shot {number}")
        if shot.fade and continues_previous(request, number - 1):
            rule = "but continues from the previous shot"
            raise RequestError(f"shot {number} has a fade,", rule, "cut before it, or leave the fade out")
    if request.shots:
        pieces = plan_pieces(request, preset)
        check_pieces(pieces, request.fps)
        check_track(Track.from_request(request), count_film_frames(pieces) / request.fps)
        if request.track is None and (request.track_start, request.track_fade, request.track_volume) != (0.0, 0.0, 1.0):
            raise RequestError("a track's times were given", "but need track", "give track, or leave them out")


def check_times(trim: tuple[float, float] | None, fade: float, what: str) -> None:
    """Check a shot's visible part and fade. Raises: RequestError."""
    if trim is not None and not (all(map(math.isfinite, trim)) and 0 <= trim[0] < trim[1]):
        rule = "which must be two times of the shot, in seconds, 0 or more, the later time second"
        raise RequestError(f"{what} has trim={trim[0]:g},{trim[1]:g}", rule, "0,3 are its first three seconds")
    if not 0 <= fade <= MOST_FADE:
        raise RequestError(f"{what} has fade={fade:g}", f"and must have 0 to {MOST_FADE:g} seconds", "0.5 is usual, 0 is a cut")


def check_pieces(pieces: Sequence[Piece], fps: float) -> None:
    """Check that each piece has a visible frame and is as long as its fades. Raises: RequestError."""
    for number, piece in enumerate(pieces, 1):
        if piece.num_frames < 1:
            rule = f"of its {piece.end} frames at {fps:g} fps, and must leave at least one visible"
            raise RequestError(f"shot {number} has a trim that leaves nothing", rule, "start it earlier, or end it later")
        if number == 1 and piece.fade:
            raise RequestError("shot 1 has a fade,", "but no previous shot", "leave the fade out")
        fading = piece.fade + (pieces[number].fade if number < len(pieces) else 0)
        if fading > piece.num_frames:
            rule = f"of which {fading} would fade, and must be as long as its fades"
            raise RequestError(f"shot {number} has {piece.num_frames} frames,", rule, "shorten the fades")


def check_track(track: Track | None, seconds: float) -> None:
    """`seconds` is the length of the film. Raises: RequestError."""
    if track is None:
        return
    if not 0 <= track.start < seconds:
        raise RequestError(f"track_start={track.start:g}", f"must be within the film's {seconds:.2f} seconds", "start earlier")
    for name, value, most in (("track_fade", track.fade, 30), ("track_volume", track.volume, 2)):
        if not 0 <= value <= most:
            raise RequestError(f"{name}={value:g}", f"must be between 0 and {most}", "leave it out")
