"""Long videos in pieces. Each piece is a complete mp4, so that finished pieces survive when the process is killed. The pieces are
joined without encoding them again, with the audio of the source video."""

import queue
import re
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import numpy as np

from backend.errors import StudioError, VideoFileError
from backend.files import replace_file
from backend.media import ffmpeg
from backend.media.clips import MAX_PIXELS
from backend.media.video import read_request, temporary_tags_file, write_video
from backend.schemas.request import GenerationRequest

READ_SECONDS = 20.0  # time limit for reading the codec of a file's audio
JOIN_SECONDS = 1800.0  # time limit for copying an hour of video and encoding its audio: even a busy machine needs far less
_PIECE = re.compile(r"(\d{7})-(\d{7})\.mp4")
_AAC = ("-c:a", "aac", "-b:a", "192k", "-ac", "2")


class Pieces:
    """The finished pieces of a long video: mp4 files in `folder`, each with some consecutive frames. `request` describes the
    whole video."""

    def __init__(self, folder: Path, request: GenerationRequest) -> None:
        self._folder, self._request = folder, request

    def open_folder(self) -> int:
        """Create the folder if needed. Return how many frames its existing pieces have. Other files in the folder are deleted."""
        self._folder.mkdir(parents=True, exist_ok=True)
        found = {file: _PIECE.fullmatch(file.name) for file in sorted(self._folder.iterdir())}
        done = 0
        for file, name in found.items():
            if name is None or int(name[1]) != done or not self._is_ours(file):
                file.unlink()
            else:
                done = int(name[2])
        return done

    def start_piece(self, first: int) -> "PieceWriter":
        """Return a writer for the piece that starts at frame `first`, counted from 0."""
        return PieceWriter(self._folder, first, self._request)

    def join(self, path: Path, source: Path, comment: str, seconds: float) -> bool:
        """Write all pieces as one mp4 with this comment and the first `seconds` of the audio of the video `source`. Return
        whether `source` has audio. Raises: VideoFileError."""
        sound = _audio_codec(source)
        with (
            replace_file(path) as part,
            temporary_tags_file(comment) as tags,
            tempfile.NamedTemporaryFile("w", suffix=".txt") as listed,
        ):
            listed.writelines(f"file '{self._escape_path(file)}'\n" for file in sorted(self._folder.glob("*.mp4")))
            listed.flush()
            inputs = ["-f", "concat", "-safe", "0", "-i", listed.name, "-i", str(tags)]
            inputs += [*ffmpeg.limit_options(MAX_PIXELS), "-t", f"{seconds:.6f}", "-i", str(source)] if sound else []
            audio = ["-map", "2:a:0", *(("-c:a", "copy") if sound == "aac" else _AAC)] if sound else []
            copied = ["-map", "0:v:0", "-map_metadata", "1", "-c:v", "copy", *audio, "-movflags", "+faststart", "-f", "mp4"]
            _run_ffmpeg(ffmpeg.command("-y", *inputs, *copied, str(part)))
        return sound is not None

    def _is_ours(self, file: Path) -> bool:
        try:
            return read_request(file).for_sharing() == self._request.for_sharing()
        except StudioError:
            return False

    def _escape_path(self, file: Path) -> str:
        return str(file.absolute()).replace("'", r"'\''")


class PieceWriter:
    """Encodes the frames of one piece while they are generated.

    Call `put` inside the `with` block. After the block, the piece exists, unless the block raised an error or no frame was put.
    Raises: VideoFileError from `put` and at the end of the block.
    """

    def __init__(self, folder: Path, first: int, request: GenerationRequest) -> None:
        self._folder, self._first, self._request = folder, first, request
        self._path = folder / f"{first:07d}.mp4"
        self._frames: queue.Queue[np.ndarray | None] = queue.Queue(maxsize=2)
        self._error: BaseException | None = None
        self._is_discarded = False
        self._thread = threading.Thread(target=self._write, name="piece", daemon=True)
        self.count = 0

    def put(self, frame: np.ndarray) -> None:
        """Add a frame, uint8 [H, W, 3]."""
        while self._error is None:
            try:
                self._frames.put(frame, timeout=1.0)
                self.count += 1
                return
            except queue.Full:
                continue
        raise self._error

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type | None, *_: object) -> None:
        # If the generator that feeds this writer is closed inside the block, the piece keeps the frames that were put so far.
        self._is_discarded = self.count == 0 or kind not in (None, GeneratorExit)
        while self._thread.is_alive():
            try:
                self._frames.put(None, timeout=0.1)
                break
            except queue.Full:
                continue
        self._thread.join()
        if kind is None and self._error is not None:
            raise self._error
        if not self._is_discarded:
            self._path.replace(self._folder / f"{self._first:07d}-{self._first + self.count:07d}.mp4")

    def _write(self) -> None:
        try:
            write_video(self._queued_frames(), self._path, fps=self._request.fps, request=self._request)
        except _Discarded:
            pass
        except BaseException as error:  # the next `put`, or the end of the block, raises the error
            self._error = error

    def _queued_frames(self) -> Iterator[np.ndarray]:
        while (frame := self._frames.get()) is not None:
            yield frame
        if self._is_discarded:
            raise _Discarded


class _Discarded(Exception):
    """Raised in the writer's thread when the piece is no longer needed."""


def _audio_codec(source: Path) -> str | None:
    """Return the codec of a video's audio, such as "aac", or None if the video is silent."""
    line = ffmpeg.verbose_command(*ffmpeg.limit_options(MAX_PIXELS), "-i", str(source))
    try:
        match = re.search(r"Audio: (\w+)", ffmpeg.run_to_end(line, READ_SECONDS).errors)
    except subprocess.TimeoutExpired:
        match = None
    return match and match[1]


def _run_ffmpeg(line: list[str]) -> None:
    try:
        done = ffmpeg.run_to_end(line, JOIN_SECONDS, is_limited=False)
    except subprocess.TimeoutExpired:
        raise VideoFileError("the video could not be written", "in time", "check the disk") from None
    if done.returncode != 0:
        reason = ffmpeg.last_line(done.errors)
        raise VideoFileError("the video could not be written:", reason, "check the space on the disk")
