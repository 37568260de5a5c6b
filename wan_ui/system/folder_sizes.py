"""The sizes of folders, counted rarely."""

from pathlib import Path
from time import monotonic

_SECONDS = 30.0  # after this a folder is counted again: a cache may hold many files


class FolderSizes:
    """Remembers the sizes of folders."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[float, int]] = {}

    def bytes_of(self, folder: Path) -> int:
        """The size of all files below the folder, at most half a minute old."""
        when, size = self._known.get(folder, (-_SECONDS, 0))
        if monotonic() - when >= _SECONDS:
            size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else 0
            self._known[folder] = (monotonic(), size)
        return size
