"""Read the body of a program's video request: JSON, or multipart with files (image, clip, audio). Checks sizes, not values.

A body is written to disk as it arrives, so that slow or large requests take no memory. A multipart form has only texts and files.
Therefore a list is sent as fields `guidance[]`, an object as a field `input_reference[image_url]`, as OpenAI's clients do, and
lists of images as files `references[]`, `keyframes[FRAME]` and `figures[NAME]`. In JSON they are lists of {"image_url"},
{"frame", "image_url"} and {"name", "image_url"}. All files may also be data URLs (RFC 2397). Other URLs are never fetched.
"""

import asyncio
import re
import shutil
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request

from backend.errors import ClipError, DataFolderError, ImageError, RequestError, SoundError, StudioError, one_line, shorten
from backend.schemas.settings import FOR_PROGRAMS, INPUTS, SETTINGS, Media
from wan_ui.gateway.json_body import parse_json
from wan_ui.gateway.limits import JSON_BYTES
from wan_ui.gateway.uploads import LARGEST_BODY
from wan_ui.routes.data_urls import MOST_DATA_URLS, MOST_IMAGES, DataUrl, TextTooLong, cut_data_urls, decode_base64_pieces

AT_ONCE = 2  # bodies parsed at the same time
FINISHED = "finished_video"
FILES: Mapping[str, Media] = {
    "input_reference" if one.name == "image" else one.name: one.media for one in INPUTS if one.media and not one.is_list
}
"""The fields that are one file, with the kind of file. "either" is an image or a clip."""
IMAGES: Mapping[str, str] = {"references": "", "keyframes": "frame", "figures": "name"}
"""The fields that are lists of images, with the key of each image's frame number or name. References have only images."""
_LISTED = re.compile(rf"({'|'.join(IMAGES)})\[([^\[\]]{{0,200}})\]")
_LONGEST_HEAD = 200  # most characters of a data URL before its comma
_SHORTER = "shorten it, and send images and clips as files or data URLs"
_READ_ON = 2  # read up to twice the limit before refusing: a caller who is cut off while sending never sees the response
_MOST_FIELDS = 100
_PIECE = 2**16
_LISTS = {name for name in FOR_PROGRAMS if SETTINGS[name].is_list}
_REFERENCE = re.compile(rf"({'|'.join(FILES)})\[(image_url|video_url|audio_url|file_id)\]")
_KINDS: Mapping[Media, tuple[tuple[str, ...], str, type[StudioError], str]] = {
    "picture": (("image_url",), "image/png", ImageError, "the picture"),
    "video": (("video_url",), "video/mp4", ClipError, "the clip"),
    "sound": (("audio_url",), "audio/wav", SoundError, "the sound"),
    "either": (("image_url", "video_url"), "image/png", ClipError, "the image or clip"),
}
"""For each kind: the keys of its data URL in an object, a MIME type, the error of a wrong value, and its name in errors."""
_FILE_FIELDS = f"{', '.join(FILES)}, {', '.join(IMAGES)}"


class BodyTooLarge(RequestError):
    """The body has more bytes than allowed."""


@dataclass(frozen=True)
class VideoBody:
    """The unchecked fields of a request by name, and the paths of its files by name.

    Values from a multipart body are texts or lists of texts. `references` is a list of paths. `keyframes` and `figures` are
    lists of objects with the path `image`, and with `frame` or `name`.
    """

    fields: dict[str, Any]
    files: dict[str, Any] = field(default_factory=dict)


class BodyReader:
    """Reads request bodies. At most AT_ONCE bodies are parsed at the same time."""

    def __init__(self) -> None:
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def read(self, request: Request, folder: Path) -> VideoBody:
        """Read the request's fields, and write its files to `folder`.

        Raises: RequestError, BodyTooLarge, ImageError, DataFolderError if the files cannot be written.
        """
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind not in ("application/json", "multipart/form-data"):
            rule = "must be application/json or multipart/form-data"
            raise RequestError(f"content-type={kind[:60]!r}", rule, "send JSON, or a form with the image as a file")
        body, files, kept = folder / "body", dict[str, UploadFile](), dict[str, Any]()
        try:
            await _store_body(request, body)
            async with self._turns:
                if kind == "multipart/form-data":
                    fields, files = await _parse_form_body(request, body)
                else:
                    fields = await asyncio.to_thread(_parse_json_body, body)
                try:
                    for name in FILES:
                        kept[name] = await asyncio.to_thread(_store_file, fields, files.get(name), name, folder / name)
                    for name in IMAGES:
                        kept[name] = await asyncio.to_thread(_store_images, fields, files, name, folder)
                    return VideoBody(fields, {name: stored for name, stored in kept.items() if stored})
                finally:
                    for file in files.values():
                        await file.close()
        except OSError as error:
            raise DataFolderError("the server cannot store", "the request's files", "ask the operator to free space") from error


async def _store_body(request: Request, path: Path) -> None:
    size = 0
    try:
        with path.open("wb") as file:
            async for piece in request.stream():
                size += len(piece)
                if size <= LARGEST_BODY:
                    file.write(piece)
                elif size > LARGEST_BODY * _READ_ON:
                    break
    except ClientDisconnect:
        raise RequestError("the body", "ended before it was whole", "send it again") from None
    if size > LARGEST_BODY:
        raise BodyTooLarge("the body", f"must have at most {LARGEST_BODY // 1_000_000} MB", "make the image or the clip smaller")


def _parse_json_body(body: Path) -> dict[str, object]:
    """Return the fields of a JSON body. Each long data URL becomes a `DataUrl`. Raises: RequestError, BodyTooLarge."""
    try:
        text, cut = cut_data_urls(body, JSON_BYTES.of_visitor)
    except TextTooLong:
        rule = f"must have at most {JSON_BYTES.of_visitor // 1_000_000} MB besides {MOST_DATA_URLS} data URLs"
        raise BodyTooLarge("the JSON", rule, _SHORTER) from None
    try:
        fields = parse_json(text)
    except ValueError:
        raise RequestError("the body", "must be JSON", "correct it") from None
    if not isinstance(fields, dict):
        raise RequestError("the body", "must be a JSON object", 'for example {"prompt": "a red circle"}')
    given = {name: value for name, value in fields.items() if value is not None}
    for name in given.keys() & FILES.keys():
        given[name] = _insert_data_urls(given[name], cut)
    for name in IMAGES:
        if isinstance(given.get(name), list):
            given[name] = [_insert_data_urls(row, cut) for row in given[name]]
    if cut:
        raise RequestError("a data URL", f"may be used only once, in {_FILE_FIELDS}", "leave the others out")
    return given


def _insert_data_urls(given: Any, cut: dict[str, Any]) -> Any:
    """Replace a placeholder, or those in an object, by their data URLs from `cut`. Remove these data URLs from `cut`."""
    if isinstance(given, str):
        return cut.pop(given, given)
    if not isinstance(given, dict):
        return given
    return {key: cut.pop(value, value) if isinstance(value, str) else value for key, value in given.items()}


async def _parse_form_body(request: Request, body: Path) -> tuple[dict[str, object], dict[str, UploadFile]]:
    limits = {"max_files": len(FILES) + MOST_IMAGES, "max_fields": _MOST_FIELDS, "max_part_size": LARGEST_BODY}
    with body.open("rb") as file:
        parser = MultiPartParser(request.headers, _read_pieces(file), **limits)
        try:
            form = await parser.parse()
        except (MultiPartException, KeyError, ValueError) as error:
            why = getattr(error, "message", "it is not a multipart form")
            raise RequestError("the body", f"cannot be read ({why})", f"send texts, and files as {_FILE_FIELDS}") from None
    texts = sum(len(value) for name, value in form.multi_items() if isinstance(value, str) and not _REFERENCE.fullmatch(name))
    if texts > JSON_BYTES.of_visitor:
        raise BodyTooLarge("the form's texts", f"must have at most {JSON_BYTES.of_visitor // 1_000_000} MB together", _SHORTER)
    try:
        return _split_form(form)
    except RequestError:
        await form.close()
        raise


async def _read_pieces(file: BinaryIO) -> AsyncGenerator[bytes, None]:
    while piece := file.read(_PIECE):
        yield piece
        await asyncio.sleep(0)  # let other requests run


def _split_form(form: FormData) -> tuple[dict[str, object], dict[str, UploadFile]]:
    fields: dict[str, Any] = {}
    files: dict[str, UploadFile] = {}
    for name, value in form.multi_items():
        if isinstance(value, UploadFile):
            name = name.replace("[]", f"[{len(files)}]") if name.partition("[")[0] == "references" else name
            if name in files:
                raise RequestError(f"{name} was given", "twice, but only one file is allowed", "leave one out")
            if name not in FILES and not _LISTED.fullmatch(name):
                raise RequestError(f"{one_line(name)[:60]} is a file and", f"only {_FILE_FIELDS} may be one", "leave it out")
            files[name] = value
        elif name.endswith("[]"):
            fields.setdefault(name[:-2], []).append(value)
        elif match := _REFERENCE.fullmatch(name):
            fields[match[1]] = {match[2]: value}
        elif name in _LISTS:
            try:
                parsed = parse_json(value.encode())
            except ValueError:
                parsed = value  # a text that is not JSON is the only element of the list
            fields[name] = parsed if isinstance(parsed, list) else [parsed]
        else:
            fields[name] = value
    return fields, files


def _store_file(fields: dict[str, object], uploaded: UploadFile | None, name: str, path: Path) -> Path | None:
    """Write a file of the request to `path`, and remove its field. Raises: ImageError, ClipError, SoundError."""
    given = fields.pop(name, None)
    if uploaded is None and given is None:
        return None
    _write_file(uploaded or given, name, FILES[name], path)
    return path


def _store_images(
    fields: dict[str, object], files: Mapping[str, UploadFile], name: str, folder: Path
) -> list[Path] | list[dict[str, object]]:
    """Write the images of a list to `folder`, and remove the list from `fields`. Raises: RequestError, ImageError."""
    key, given = IMAGES[name], fields.pop(name, None) or []
    keys = {"image_url", key} - {""}
    if not isinstance(given, list) or not all(
        row.keys() == keys if isinstance(row, dict) else not key and isinstance(row, str | DataUrl) for row in given
    ):
        example = f'{{"{key}": ..., "image_url": "data:image/png;base64,..."}}' if key else '"data:image/png;base64,..."'
        rule, fix = f"must be a list of {example}", f"or send files as {name}[{key.upper()}]"
        raise RequestError(f"{name}={shorten(given)}", rule, fix)
    rows = [(row.get(key), row["image_url"]) if isinstance(row, dict) else (None, row) for row in given]
    rows += [(match[2], file) for sent, file in files.items() if (match := _LISTED.fullmatch(sent)) and match[1] == name]
    if len(rows) > MOST_IMAGES:
        raise RequestError(f"{name} has {len(rows)} images and", f"must have at most {MOST_IMAGES}", "leave some out")
    paths = [folder / f"{name}-{number}" for number in range(1, len(rows) + 1)]
    for (_, image), path in zip(rows, paths, strict=True):
        _write_file(image, name, "picture", path)
    if not key:
        return paths
    return [{key: label, "image": str(path)} for (label, _), path in zip(rows, paths, strict=True)]


def _write_file(given: Any, name: str, kind: Media, path: Path) -> None:
    """Write an uploaded file, a data URL or an object with a data URL to `path`. Raises: ImageError, ClipError, SoundError."""
    if isinstance(given, UploadFile):
        with path.open("wb") as file:
            shutil.copyfileobj(given.file, file)
        return
    if isinstance(given, dict):
        given = next((given[key] for key in _KINDS[kind][0] if key in given), None)
    write_data_url(given, name, kind, path)


def write_data_url(address: Any, name: str, kind: Media, path: Path) -> None:
    """Decode a base64 data URL to `path`. Raises: ImageError, ClipError or SoundError for any other value."""
    (key, *_), example, wrong, what = _KINDS[kind]
    head, comma, _ = address[:_LONGEST_HEAD].partition(",") if isinstance(address, str) else ("", "", "")
    if isinstance(address, DataUrl):
        head, comma, _ = address.head(_LONGEST_HEAD).partition(",")
    if not (head.startswith("data:") and head.endswith(";base64") and comma):
        fix = f'send it as a file, or as {{"{key}": "data:{example};base64,..."}}'
        raise wrong(name, f"must hold {what} itself, not a URL or a file id", fix)
    try:
        with path.open("wb") as file:
            if isinstance(address, DataUrl):
                address.decode(file)
            else:
                starts = range(len(head) + 1, len(address), _PIECE)
                decode_base64_pieces((address[start : start + _PIECE].encode() for start in starts), file)
    except ValueError:
        raise wrong(name, "must be base64", f"encode {what} as base64 after the comma") from None
