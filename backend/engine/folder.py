"""A request with its inputs in a folder: how the engine keeps jobs, and the stage commands keep runs. Imports no jax."""

import contextlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from backend.errors import ImageError, RequestError
from backend.files import replacing, sync
from backend.media.audio_inputs import check_sound_part, read_sound_facts
from backend.media.clips import check_part, read_clip_facts
from backend.media.film import check_shot_clips
from backend.media.masks import check_mask_shape, is_single_image
from backend.media.pictures import load_checked_image
from backend.media.plain_pictures import strip_metadata
from backend.media.sandbox import LONG_SECONDS, QUICK_SECONDS, SandboxCall, Steps
from backend.schemas.clip import Part
from backend.schemas.request import GenerationRequest
from backend.schemas.settings import INPUTS, SETTINGS, Setting
from backend.schemas.sound import SoundPart

REQUEST = "request.json"
Inputs = Mapping[str, tuple[Path, ...]]
"""A request's inputs by role: pictures that can be opened, clips and sounds that have the wanted part."""


def write_request_steps(request: GenerationRequest, folder: Path) -> Steps[GenerationRequest]:
    """Writes the inputs and `request.json` into the folder, as steps: what opens the inputs is done in the sandbox. The returned
    request names those files. Raises: ImageError, ClipError, SoundError, OSError."""
    if request.inputs():
        is_long = any(one.media != "picture" for one in INPUTS if one.name in request.inputs())
        seconds = LONG_SECONDS if is_long else QUICK_SECONDS
        paths = yield SandboxCall(work=write_inputs, arguments=(request, folder), seconds=seconds)
        request = request.with_inputs(paths)
    write_request_file(request, folder)
    return request


def move_request_files(request: GenerationRequest, folder: Path, place: Path) -> GenerationRequest:
    """Moves what `written` has left in `folder` to another folder, and names it there. Raises: OSError."""
    for path in sorted(folder.iterdir()):
        if path.name != REQUEST:
            path.replace(place / path.name)
    paths = {role: [str(place / Path(path).name) for path in given] for role, given in request.inputs().items()}
    request = request.with_inputs(paths) if paths else request
    write_request_file(request, place)
    return request


def write_inputs(request: GenerationRequest, folder: Path) -> dict[str, list[str]]:
    """Opens the request's inputs and writes them into the folder; their paths by role. Opens strangers' files: for the sandbox.
    Raises: ImageError, ClipError, SoundError, OSError."""
    return {
        role: [str(_keep(one, folder / _stem(role, place), role)) for place, one in enumerate(given)]
        for role, given in open_inputs(request).items()
    }


def open_inputs(request: GenerationRequest) -> Inputs:
    """The request's inputs by role. Raises: ImageError, ClipError, SoundError."""
    given = request.inputs()
    opened = {one.name: tuple(_open(one, path, request) for path in given[one.name]) for one in INPUTS if one.name in given}
    if request.mask and request.video:
        check_mask_shape(request.mask, request.video)
    check_shot_clips(request)
    return opened


def _open(one: Setting, path: str, request: GenerationRequest) -> Path:
    if one.media == "picture" or one.media == "either" and is_single_image(path):
        load_checked_image(path)
        return Path(path)
    if one.media == "sound":
        check_sound_part(path, SoundPart.from_request(request)) if one.part == "sound" else read_sound_facts(path)
        return Path(path)
    if one.part == "story":
        read_clip_facts(path)
        return Path(path)
    check_part(path, Part.from_request(request, one.name))
    return Path(path)


def write_request(request: GenerationRequest, inputs: Inputs, folder: Path) -> GenerationRequest:
    """Writes the inputs and `request.json` into the folder, where a power cut leaves them; the returned request names those
    files."""
    paths = {
        role: [str(_keep(one, folder / _stem(role, place), role)) for place, one in enumerate(given)]
        for role, given in inputs.items()
    }
    request = request.with_inputs(paths)
    write_request_file(request, folder)
    return request


def write_request_file(request: GenerationRequest, folder: Path) -> None:
    """Writes `request.json` alone. Raises: OSError."""
    with replacing(folder / REQUEST, is_durable=True) as part:
        part.write_text(json.dumps(request.to_json(), indent=2, ensure_ascii=False), "utf-8")


def _stem(role: str, place: int) -> str:
    """A file's name without its ending: "image"; "input-video", because "video" is the result's; "references-2"."""
    name = f"input-{role}" if role in ("video", "sound") else role
    return f"{name}-{place + 1}" if SETTINGS[role].many else name


def _keep(one: Path, stem: Path, role: str) -> Path:
    media = SETTINGS[role].media
    if media == "picture" or media == "either" and is_single_image(one):
        path = _keep_picture(one, stem)
    else:
        path = stem.with_suffix((read_sound_facts if media == "sound" else read_clip_facts)(one).suffix)
        if one != path:  # a waiting request that is changed may keep its clip
            link_or_copy(one, path) if role == "shot_videos" else shutil.copyfile(one, path)
    sync(path)
    return path


def _keep_picture(source: Path, stem: Path) -> Path:
    """Write a picture without its metadata: a JPEG, PNG or WebP as it is, so that it does not grow; others as PNG."""
    picture = load_checked_image(source)
    plain = strip_metadata(source)
    if plain is not None:
        path = stem.with_suffix(plain[1])
        path.write_bytes(plain[0])
        with contextlib.suppress(ImageError):  # what this program takes for the picture may not be what the decoder does
            if load_checked_image(path).size == picture.size:
                return path
        path.unlink()
    path = stem.with_suffix(".png")
    picture.save(path, compress_level=1)
    return path


def link_or_copy(source: Path, place: Path) -> None:
    """A finished video under another name, or a copy where there can be no link: neither is ever written again. Raises:
    OSError."""
    try:
        os.link(source, place)
    except OSError:
        shutil.copyfile(source, place)


def read_request(folder: Path) -> GenerationRequest:
    """The folder's request, with its inputs where the folder is now. Raises: RequestError if there is none."""
    try:
        data = json.loads((folder / REQUEST).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise RequestError(
            f"run={str(folder)!r}",
            "must be a folder that `app.py encode` or the studio has written",
            "check the path, or begin with `app.py encode`",
        ) from error
    request = GenerationRequest.from_stored(data)
    moved = {role: [str(folder / Path(path).name) for path in paths] for role, paths in request.inputs().items()}
    return request.with_inputs(moved) if moved else request
