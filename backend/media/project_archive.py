"""Project files: a zip with the videos of a project, their inputs, and `project.json`, which has the settings of each video. An
uploaded zip is opened in the sandbox and not trusted: files get new names, and each video is read. Compressed files and files
that share data in the zip are refused, so that a small zip cannot unpack to a large one."""

import errno
import json
import re
import shutil
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backend.errors import RequestError, StudioError
from backend.files import replace_file
from backend.media.clips import read_clip_facts
from backend.media.progress import report_progress
from backend.schemas.settings import INPUTS

FORMAT = "studio project, 1"
MANIFEST = "project.json"
MOST_VIDEOS, MOST_FILES = 1000, 20_000
MOST_MANIFEST_BYTES = 20_000_000
Files = dict[str, zipfile.ZipInfo]
_INPUT = re.compile(r"inputs/\d{4}-[a-z_]{1,20}-\d{1,2}\.[a-z0-9]{2,4}")
_VIDEO = re.compile(r"videos/\d{4}\.mp4")


@dataclass(frozen=True, kw_only=True)
class ArchiveEntry:
    """A video of the archive. `metadata` are the plain values of its entry in `project.json`."""

    video: Path
    inputs: Mapping[str, Sequence[Path]]
    metadata: Mapping[str, Any]


def write_archive(name: str, entries: Sequence[ArchiveEntry], path: Path) -> None:
    """Files are stored uncompressed, because compression would not make them smaller. Raises: OSError."""
    with replace_file(path) as part, zipfile.ZipFile(part, "w", zipfile.ZIP_STORED) as archive:
        videos = []
        for number, entry in enumerate(report_progress(entries, len(entries)), 1):
            video, inputs = f"videos/{number:04}.mp4", dict[str, list[str]]()
            archive.write(entry.video, video)
            for role, files in entry.inputs.items():
                for place, file in enumerate(files, 1):
                    named = f"inputs/{number:04}-{role}-{place}{file.suffix.lower()}"
                    archive.write(file, named)
                    inputs.setdefault(role, []).append(named)
            videos.append({"file": video, "inputs": inputs, **entry.metadata})
        manifest = {"format": FORMAT, "name": name, "videos": videos}
        archive.writestr(MANIFEST, json.dumps(manifest, ensure_ascii=False, indent=1))


def unpack_archive(path: Path, folder: Path) -> dict[str, Any]:
    """Unpack a project into an empty folder. Return its `name` and its `videos`. Each video has `video`, its path, and `inputs`,
    the paths of its inputs by role. `seconds`, `fps`, `width`, `height` and `has_sound` are read from the file. `metadata` has
    the unchecked values of `project.json`. Raises: RequestError, ClipError for a video that cannot be played, OSError."""
    try:
        with zipfile.ZipFile(path) as archive:
            # Archives that this program would not have written are refused.
            files = archive.infolist()
            infos = {info.filename: info for info in files}
            if len(files) > MOST_FILES:
                raise _invalid_project_error(f"it has more than {MOST_FILES:,} files")
            if sum(info.file_size for info in files) > path.stat().st_size or len(infos) < len(files):
                raise _invalid_project_error("its files overlap")
            for info in files:
                if info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size or info.flag_bits & 1:
                    raise _invalid_project_error("its files are compressed, or locked")
                if info.filename != MANIFEST and not _VIDEO.fullmatch(info.filename) and not _INPUT.fullmatch(info.filename):
                    raise _invalid_project_error("it has files of other kinds")
            try:
                info = archive.getinfo(MANIFEST)
                if info.file_size > MOST_MANIFEST_BYTES:
                    raise _invalid_project_error(f"its {MANIFEST} is too large")
                manifest = json.loads(archive.read(info))
            except (KeyError, ValueError, RecursionError):
                raise _invalid_project_error(f"it has no {MANIFEST}") from None
            listed = manifest.get("videos") if isinstance(manifest, dict) and manifest.get("format") == FORMAT else None
            if not isinstance(listed, list) or not all(isinstance(one, dict) for one in listed):
                raise _invalid_project_error(f"its {MANIFEST} is of another kind")
            if not _is_nested_at_most(listed):
                raise _invalid_project_error(f"its {MANIFEST} is too deep")
            if not 0 < len(listed) <= MOST_VIDEOS:
                raise _invalid_project_error(f"it must have 1 to {MOST_VIDEOS:,} videos")
            reported = report_progress(listed, len(listed))
            videos = [_unpack_video(archive, infos, one, number, folder) for number, one in enumerate(reported, 1)]
    except (zipfile.BadZipFile, NotImplementedError, EOFError, ValueError):
        raise _invalid_project_error("it is no zip file, or is damaged") from None
    except OSError as error:
        if error.errno != errno.EINVAL:  # if the beginning of the zip is missing, zipfile seeks to a negative offset
            raise
        raise _invalid_project_error("it is no zip file, or is damaged") from None
    return {"name": str(manifest.get("name") or "")[:200], "videos": videos}


def _is_nested_at_most(value: object, levels: int = 20) -> bool:
    """Code that reads the value later must not hit the recursion limit."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels > 0 and all(_is_nested_at_most(one, levels - 1) for one in inner)


def _unpack_video(
    archive: zipfile.ZipFile, infos: Files, metadata: dict[str, object], number: int, folder: Path
) -> dict[str, Any]:
    video = folder / f"{number:04}.mp4"
    _extract(archive, infos, metadata.get("file"), _VIDEO, video)
    try:
        facts = read_clip_facts(video)
    except StudioError as error:
        raise RequestError(f"video {number} of the project", f"cannot be played: {error.cause}", "export it again") from None
    given, inputs = metadata.get("inputs"), dict[str, list[str]]()
    for role in (one.name for one in INPUTS):
        names = given.get(role) if isinstance(given, dict) else None
        for place, name in enumerate(names if isinstance(names, list) else [], 1):
            path = folder / f"{number:04}-{role}-{place}{Path(str(name)).suffix[:5]}"
            _extract(archive, infos, name, _INPUT, path)
            inputs.setdefault(role, []).append(str(path))
    seen = {name: getattr(facts, name) for name in ("seconds", "width", "height", "has_sound")} | {"fps": facts.nominal_fps}
    return {"video": str(video), "inputs": inputs, **seen, "metadata": metadata}


def _extract(archive: zipfile.ZipFile, infos: Files, name: object, kind: re.Pattern[str], path: Path) -> None:
    """Unpack the file called `name`. It is removed from `infos`, so that a second reference to it fails."""
    info = infos.pop(name, None) if isinstance(name, str) and kind.fullmatch(name) else None
    if info is None:
        raise _invalid_project_error("a file is missing in it")
    with archive.open(info) as source, path.open("xb") as target:
        shutil.copyfileobj(source, target)


def _invalid_project_error(reason: str) -> RequestError:
    return RequestError("the file", f"must be a project that this studio has exported: {reason}", "export it again")
