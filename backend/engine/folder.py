"""Store a request with its inputs in a folder: a job of the engine, or a run of `app.py encode`. Imports no jax."""

import contextlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from backend.errors import ImageError, RequestError
from backend.files import flush_to_disk, link_or_copy, replace_file
from backend.media.audio_inputs import check_sound_part, read_sound_facts
from backend.media.clips import check_part, read_clip_facts
from backend.media.film import check_clip_length
from backend.media.masks import check_mask_shape, is_single_image
from backend.media.pictures import load_checked_image
from backend.media.plain_pictures import strip_metadata
from backend.media.sandbox import LONG_SECONDS, QUICK_SECONDS, SandboxCall, Steps
from backend.schemas.clip import Part
from backend.schemas.film import plan_pieces
from backend.schemas.request import GenerationRequest
from backend.schemas.settings import INPUTS, SETTINGS
from backend.schemas.shots import shot_length
from backend.schemas.sound import SoundPart

REQUEST = "request.json"
Inputs = Mapping[str, tuple[Path, ...]]
"""The checked input files of a request, by role."""


def write_request_steps(request: GenerationRequest, folder: Path) -> Steps[GenerationRequest]:
    request = yield from write_inputs_steps(request, folder)
    write_request_file(request, folder)
    return request


def write_inputs_steps(request: GenerationRequest, folder: Path) -> Steps[GenerationRequest]:
    """Write the inputs into the folder. The generator returns the request with the paths of the written files.

    Raises: ImageError, ClipError, SoundError, OSError.
    """
    if not request.inputs():
        return request
    is_long = any(one.media != "picture" for one in INPUTS if one.name in request.inputs())
    seconds = LONG_SECONDS if is_long else QUICK_SECONDS
    paths = yield SandboxCall(work=write_inputs, arguments=(request, folder), seconds=seconds)
    return request.with_inputs(paths)


def move_request_files(request: GenerationRequest, folder: Path, place: Path) -> GenerationRequest:
    """Move the files that `write_request_steps` wrote from `folder` to `place`. Return the request with the new paths.

    Raises: OSError.
    """
    for path in sorted(folder.iterdir()):
        if path.name != REQUEST:
            path.replace(place / path.name)
    paths = {role: [str(place / Path(path).name) for path in given] for role, given in request.inputs().items()}
    request = request.with_inputs(paths) if paths else request
    write_request_file(request, place)
    return request


def write_inputs(request: GenerationRequest, folder: Path) -> dict[str, list[str]]:
    """Open the request's inputs and write them into the folder. Return their paths by input field. Run it in the sandbox.

    Raises: ImageError, ClipError, SoundError, OSError.
    """
    return _store_inputs(open_inputs(request), folder)


def open_inputs(request: GenerationRequest) -> Inputs:
    """Open and check the request's inputs. Return their paths by input field. Raises: ImageError, ClipError, SoundError."""
    given = request.inputs()
    for one in INPUTS:
        for path in given.get(one.name, ()):
            if one.media == "picture" or one.media == "either" and is_single_image(path):
                load_checked_image(path)
            elif one.media == "sound" and one.subject == "sound":
                check_sound_part(path, SoundPart.from_request(request))
            elif one.media == "sound":
                read_sound_facts(path)
            elif one.subject == "story":
                read_clip_facts(path)
            else:
                check_part(path, Part.from_request(request, one.name))
    opened = {one.name: tuple(map(Path, given[one.name])) for one in INPUTS if one.name in given}
    if request.mask and request.video:
        check_mask_shape(request.mask, request.video)
    # Finished videos and driving clips must be as long as their shots need.
    pieces = plan_pieces(request, request.resolved_preset) if request.shot_videos else ()
    for number, (shot, piece) in enumerate(zip(request.shots, pieces, strict=False), 1):
        if shot.video is not None:
            check_clip_length(read_clip_facts(request.shot_videos[shot.video]), piece.end, request.fps, f"shot {number}")
    for index, shot in enumerate(request.shots):
        if shot.drive is not None:
            part = Part(start=0.0, num_frames=shot_length(request, index), fps=request.fps, size=(request.width, request.height))
            check_part(request.shot_drives[shot.drive], part)
    return opened


def write_request(request: GenerationRequest, inputs: Inputs, folder: Path) -> GenerationRequest:
    """Write the inputs and `request.json` into the folder and flush them to disk. Return the request with the new paths."""
    request = request.with_inputs(_store_inputs(inputs, folder))
    write_request_file(request, folder)
    return request


def write_request_file(request: GenerationRequest, folder: Path) -> None:
    """Write only `request.json`. Raises: OSError."""
    with replace_file(folder / REQUEST, is_durable=True) as part:
        part.write_text(json.dumps(request.to_json(), indent=2, ensure_ascii=False), "utf-8")


def _store_inputs(inputs: Inputs, folder: Path) -> dict[str, list[str]]:
    """Write the inputs into the folder and return their paths by input field.

    Files are named by their field. "video" and "sound" get the prefix "input-", because the job's result is named "video".
    """
    paths: dict[str, list[str]] = {role: [] for role in inputs}
    for role, given in inputs.items():
        media, name = SETTINGS[role].media, f"input-{role}" if role in ("video", "sound") else role
        for number, one in enumerate(given, 1):
            stem = folder / (f"{name}-{number}" if SETTINGS[role].is_list else name)
            if media == "picture" or media == "either" and is_single_image(one):
                path = _store_picture(one, stem)
            else:
                path = stem.with_suffix((read_sound_facts if media == "sound" else read_clip_facts)(one).suffix)
                if one != path:  # the paths are equal if a revised request keeps a clip that is already in the folder
                    link_or_copy(one, path) if role == "shot_videos" else shutil.copyfile(one, path)
            flush_to_disk(path)
            paths[role].append(str(path))
    return paths


def _store_picture(source: Path, stem: Path) -> Path:
    """Write an image without its metadata. JPEG, PNG and WebP keep their format and size; other formats become PNG."""
    size = load_checked_image(source).size  # keep only the size: two decoded images would take twice the memory
    plain = strip_metadata(source)
    if plain is not None:
        path = stem.with_suffix(plain[1])
        path.write_bytes(plain[0])
        with contextlib.suppress(ImageError):  # if the decoder refuses the output of `strip_metadata`, the image is stored as PNG
            if load_checked_image(path).size == size:
                return path
        path.unlink()
    path = stem.with_suffix(".png")
    load_checked_image(source).save(path, compress_level=1)
    return path


def read_request(folder: Path) -> GenerationRequest:
    """Read the folder's request, with the inputs' current paths. Raises: RequestError if the folder has no readable request."""
    try:
        data = json.loads((folder / REQUEST).read_text("utf-8"))
    except (OSError, ValueError) as error:
        rule = "must be a folder that `app.py encode` or the studio has written"
        fix = "check the path, or start with `app.py encode`"
        raise RequestError(f"run={str(folder)!r}", rule, fix) from error
    request = GenerationRequest.from_stored(data)
    moved = {role: [str(folder / Path(path).name) for path in paths] for role, paths in request.inputs().items()}
    return request.with_inputs(moved) if moved else request
