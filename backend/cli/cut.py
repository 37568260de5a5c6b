"""The command `cut`: cut finished videos into one video, with fades and a soundtrack. Loads no model."""

import argparse
import json
import sys
from pathlib import Path

from backend.cli.arguments import absolute
from backend.cli.generate import check_output
from backend.cli.storyboard_file import TRACK, path_beside, read_table
from backend.errors import OutputError, RequestError, shorten
from backend.media.clips import read_clip_facts
from backend.media.film import Film, write_film
from backend.schemas.clip import max_frames_within
from backend.schemas.film import Piece, Track, check_times
from backend.schemas.shots import MAX_SHOTS

MOST_FPS, MOST_SIDE = 120, 8192
_SHOT = ("video", "trim", "fade")
_NUMBERS = ("width", "height", "fps")


def cut(arguments: argparse.Namespace) -> None:
    """Write the video and print its path and length. Raises: RequestError, OutputError, StudioError."""
    file = Path(absolute(arguments.file))
    output = check_output(arguments.output or str(file.with_suffix(".mp4")))
    film = read_cut_list(file)
    if output in film.clips:
        raise OutputError(f"output={str(output)!r}", "is one of the input videos", "choose another file")
    shots = zip(film.clips, film.pieces, strict=True)
    clips = [{"video": clip.name, "from": piece.first, "to": piece.end} for clip, piece in shots]
    made = write_film(film, output, json.dumps({"cut": clips}))
    report = {"path": str(output), "width": film.size[0], "height": film.size[1], "fps": film.fps} | made
    words = f"{output}: {made['num_frames']} frames of {len(clips)} shots, {film.seconds:.2f} s"
    sys.stdout.write((json.dumps(report) if arguments.json else words) + "\n")


def read_cut_list(path: Path) -> Film:
    """Read the shots and the soundtrack from a TOML file, or from JSON if its name ends in .json. Raises: RequestError.

    Paths are relative to the file's folder. A missing size or frame rate is taken from the first video.
    """
    data = read_table(path)
    rows = data.pop("shots", None)
    if not isinstance(rows, list) or not 1 <= len(rows) <= MAX_SHOTS or not all(isinstance(row, dict) for row in rows):
        raise RequestError(f"{path.name}", f"must have [[shots]], 1 to {MAX_SHOTS} of them, each with its video", "correct it")
    _check_names(data, (*_NUMBERS, *TRACK), path.name)
    for number, row in enumerate(rows, 1):
        _check_names(row, _SHOT, f"shot {number}")
        if not isinstance(row.get("video"), str):
            raise RequestError(f"shot {number} has no video and", "needs one before it can be cut", "give its mp4 as video")
    clips = [Path(path_beside(path, row["video"])) for row in rows]
    facts = read_clip_facts(clips[0])
    usual = {"width": facts.width, "height": facts.height, "fps": max(1, round(facts.nominal_fps))}
    sizes = usual | {name: data[name] for name in _NUMBERS if name in data}
    for name, value in sizes.items():
        most = MOST_FPS if name == "fps" else MOST_SIDE
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise RequestError(f"{name}={shorten(value, 40)}", f"must be a whole number from 1 to {most}", "leave it out")
    width, height, fps = (sizes[name] for name in _NUMBERS)
    pieces = tuple(_shot_piece(row, number, clip, fps) for number, (row, clip) in enumerate(zip(rows, clips, strict=True), 1))
    given, track = {name.removeprefix("track_"): data[name] for name in TRACK if name in data}, None
    if "track" in given:
        sound = given.pop("track")
        if not isinstance(sound, str):
            raise RequestError(f"track={shorten(sound, 40)}", "must be the path of an audio file", "correct it")
        numbers = {name: _check_number(value, f"track_{name}=") for name, value in given.items()}
        track = Track(path=path_beside(path, sound), **numbers)
    elif given:
        raise RequestError(f"{path.name} has settings of a track", "but no track", "add track")
    return Film(clips=tuple(clips), pieces=pieces, fps=fps, size=(width, height), track=track)


def _shot_piece(row: dict[str, object], number: int, clip: Path, fps: int) -> Piece:
    what, trim, fade = f"shot {number}", row.get("trim"), _check_number(row.get("fade", 0.0), f"shot {number} has fade=")
    if trim is None:
        end = max_frames_within(read_clip_facts(clip).seconds, fps)
        check_times(None, fade, what)
        return Piece(first=0, end=end, fade=round(fade * fps))
    if not isinstance(trim, list) or len(trim) != 2:
        raise RequestError(f"{what} has trim={shorten(trim, 40)}, which", "must be two times in seconds", "for example [0, 3]")
    start, end = (_check_number(time, f"{what} has a time ") for time in trim)
    check_times((start, end), fade, what)
    return Piece(first=round(start * fps), end=round(end * fps), fade=round(fade * fps))


def _check_names(given: dict[str, object], known: tuple[str, ...], what: str) -> None:
    unknown = next((name for name in given if name not in known), None)
    if unknown is not None:
        raise RequestError(f"{what} has {unknown[:40]!r} and", f"may have {', '.join(known)}", "correct its name")


def _check_number(value: object, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RequestError(f"{what}{shorten(value, 40)}, which", "must be a number", "correct it")
    return float(value)
