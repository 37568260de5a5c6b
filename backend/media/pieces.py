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
    """Each file in `folder` has some consecutive frames. `request` describes the whole video."""

    def __init__(self, folder: Path, request: GenerationRequest) -> None:
        self.folder, self.request = folder, request

    def open_folder(self) -> int:
        """Return how many frames the existing pieces have. Other files in the folder are deleted."""
        self.folder.mkdir(parents=True, exist_ok=True)
        done = 0
        for file in sorted(self.folder.iterdir()):
            name = _PIECE.fullmatch(file.name)
            try:
                follows = name is not None and int(name[1]) == done
                is_ours = follows and read_request(file).for_sharing() == self.request.for_sharing()
            except StudioError:
                is_ours = False
            if name is not None and is_ours:
                done = int(name[2])
            else:
                file.unlink()
        return done

    def join(self, path: Path, source: Path, comment: str, seconds: float) -> bool:
        """Write all pieces as one mp4 with this comment and the first `seconds` of the audio of the video `source`. Return
        whether there is audio. Raises: VideoFileError."""
        limits = ffmpeg.limit_options(MAX_PIXELS)
        try:
            facts = ffmpeg.run_to_end(ffmpeg.command(*limits, "-i", str(source), is_verbose=True), READ_SECONDS).stderr
        except subprocess.TimeoutExpired:
            facts = ""
        codec = re.search(r"Audio: (\w+)", facts)
        with (
            replace_file(path) as part,
            temporary_tags_file(comment) as tags,
            tempfile.NamedTemporaryFile("w", suffix=".txt") as listed,
        ):
            for file in sorted(self.folder.glob("*.mp4")):
                quoted = str(file.absolute()).replace("'", r"'\''")
                listed.write(f"file '{quoted}'\n")
            listed.flush()
            inputs, audio = ["-f", "concat", "-safe", "0", "-i", listed.name, "-i", str(tags)], []
            if codec is not None:
                inputs += [*limits, "-t", f"{seconds:.6f}", "-i", str(source)]
                audio = ["-map", "2:a:0", *(("-c:a", "copy") if codec[1] == "aac" else _AAC)]
            copied = ["-map", "0:v:0", "-map_metadata", "1", "-c:v", "copy", *audio, "-movflags", "+faststart", "-f", "mp4"]
            line = ffmpeg.command("-y", *inputs, *copied, str(part))
            try:
                done = ffmpeg.run_to_end(line, JOIN_SECONDS, is_limited=False)
            except subprocess.TimeoutExpired:
                raise VideoFileError("the video could not be written", "in time", "check the disk") from None
            if done.returncode != 0:
                reason = ffmpeg.last_line(done.stderr)
                raise VideoFileError("the video could not be written:", reason, "check the space on the disk")
        return codec is not None


class PieceWriter:
    """Encodes the frames of the piece that starts at frame `first`, from 0, while they are generated. After the `with` block, the
    piece exists, unless the block raised an error or no frame was put. Raises: VideoFileError from `put` and at the end of the
    block."""

    def __init__(self, pieces: Pieces, first: int) -> None:
        self._folder, self._first, self._request = pieces.folder, first, pieces.request
        self._path = self._folder / f"{first:07d}.mp4"
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
    """Ends the thread of a piece that is no longer needed."""
