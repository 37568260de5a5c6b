"""Read the body of a program's video request: JSON, or multipart with files (image, clip, audio). Checks sizes, not values.

A body is written to disk as it arrives, so slow or large requests take no memory. Complete bodies are parsed, at most two at the
same time. Multipart has only texts, so lists are named `guidance[]` and objects `input_reference[image_url]`, as OpenAI's
clients do. A character's image is a file `figures[NAME]`. In JSON, `figures` is a list of {"name", "image_url"}. All files may
also be data URLs (RFC 2397). Other URLs are never fetched.
"""

import asyncio
import re
import shutil
from collections.abc import AsyncGenerator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request

from backend.errors import ClipError, DataFolderError, ImageError, RequestError, SoundError, one_line, shorten
from backend.schemas.characters import MAX_FIGURES
from backend.schemas.settings import FOR_PROGRAMS, SETTINGS
from wan_ui.gateway.json_body import parse_json
from wan_ui.gateway.limits import JSON_BYTES
from wan_ui.gateway.uploads import LARGEST_BODY
from wan_ui.routes.data_urls import MOST_DATA_URLS, DataUrl, TextTooLong, cut_data_urls, decode_base64_pieces

AT_ONCE = 2  # bodies parsed at the same time
FINISHED = "finished_video"
PICTURE, CLIP, SOUND, CONTROL, DRIVE, _ = FILES = ("input_reference", "video", "sound", "control", "drive", FINISHED)
FIGURES = "figures"
_FIGURE = re.compile(r"figures\[([^\[\]]{1,200})\]")
_LONGEST_HEAD = 200  # characters of a data URL before its comma
_SHORTER = "shorten it, and send images and clips as files or data URLs"
_READ_ON = 2  # read and discard up to twice the limit, because a caller who is cut off while sending never sees the response
_MOST_FIELDS = 100
_PIECE = 2**16
_LISTS = {name for name in FOR_PROGRAMS if SETTINGS[name].is_list}
_REFERENCE = re.compile(rf"({'|'.join(FILES)})\[(image_url|video_url|audio_url|file_id)\]")
_ADDRESSES = {
    **dict.fromkeys((PICTURE, FIGURES), ("image_url", "image/png")),
    SOUND: ("audio_url", "audio/wav"),
    **dict.fromkeys((CLIP, CONTROL, DRIVE, FINISHED), ("video_url", "video/mp4")),
}
_FILE_FIELDS = f"{', '.join(FILES)} or {FIGURES}"
_WRONG = {
    **dict.fromkeys((PICTURE, FIGURES), (ImageError, "the picture")),
    SOUND: (SoundError, "the sound"),
    **dict.fromkeys((CLIP, CONTROL, DRIVE, FINISHED), (ClipError, "the clip")),
}


class BodyTooLarge(RequestError):
    """The body has more bytes than allowed."""


@dataclass(frozen=True)
class VideoBody:
    """The unchecked fields of a request by name, and its files. Values from a multipart body are texts or lists of texts.

    `drive` is the driving video. `finished` is a clip that is only upscaled. Each of `figures` is a character with its `name` and
    the path of its `image`.
    """

    fields: dict[str, Any]
    picture: Path | None
    clip: Path | None = None
    sound: Path | None = None
    control: Path | None = None
    drive: Path | None = None
    finished: Path | None = None
    figures: tuple[dict[str, Any], ...] = ()


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
        try:
            return await self._read_body(request, folder, is_form=kind == "multipart/form-data")
        except OSError as error:
            raise DataFolderError("the server cannot store", "the request's files", "ask the operator to free space") from error

    async def _read_body(self, request: Request, folder: Path, *, is_form: bool) -> VideoBody:
        body = folder / "body"
        await _store_body(request, body)
        async with self._turns:
            fields, files = (
                await _parse_form_body(request, body) if is_form else (await asyncio.to_thread(_parse_json_body, body), {})
            )
            try:
                kept = [await asyncio.to_thread(_store_file, fields, files.get(name), name, folder / name) for name in FILES]
                figures = await asyncio.to_thread(_store_characters, fields, files, folder)
                return VideoBody(fields, *kept, figures)
            finally:
                for file in files.values():
                    await file.close()


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
    """Return the fields. Long data URLs are cut out before parsing, and each becomes a `DataUrl`.

    Raises: RequestError, BodyTooLarge.
    """
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
    for name in FILES:
        if isinstance(given.get(name), dict):
            given[name] = _insert_data_urls(given[name], cut)
        elif isinstance(given.get(name), str):
            given[name] = cut.pop(given[name], given[name])
    if isinstance(given.get(FIGURES), list):
        given[FIGURES] = [_insert_data_urls(row, cut) for row in given[FIGURES]]
    if cut:
        raise RequestError("a data URL", f"may be used only once, in {_FILE_FIELDS}", "leave the others out")
    return given


def _insert_data_urls(given: Any, cut: dict[str, Any]) -> Any:
    """Replace the placeholders in an object by their data URLs. Each placeholder is used once."""
    if not isinstance(given, dict):
        return given
    return {key: cut.pop(value, value) if isinstance(value, str) else value for key, value in given.items()}


async def _parse_form_body(request: Request, body: Path) -> tuple[dict[str, object], dict[str, UploadFile]]:
    """Return the texts and the files of a form by name."""
    with body.open("rb") as file:
        parser = MultiPartParser(
            request.headers,
            _read_pieces(file),
            max_files=len(FILES) + MAX_FIGURES,
            max_fields=_MOST_FIELDS,
            max_part_size=LARGEST_BODY,
        )
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
            if name in files:
                raise RequestError(f"{name} was given", "twice, but only one file is allowed", "leave one out")
            if name not in FILES and not _FIGURE.fullmatch(name):
                raise RequestError(f"{one_line(name)[:60]} is a file and", f"only {_FILE_FIELDS} may be one", "leave it out")
            files[name] = value
        elif name.endswith("[]"):
            fields.setdefault(name[:-2], []).append(value)
        elif match := _REFERENCE.fullmatch(name):
            fields[match[1]] = {match[2]: value}
        else:
            fields[name] = _parse_list(value) if name in _LISTS else value
    return fields, files


def _parse_list(text: str) -> object:
    """Parse a list in JSON. A single value becomes a list of one."""
    try:
        value = parse_json(text.encode())
    except ValueError:
        return [text]
    return value if isinstance(value, list) else [value]


def _store_file(fields: dict[str, object], uploaded: UploadFile | None, name: str, path: Path) -> Path | None:
    """Write a file of the request to `path`, and remove its field from `fields`. Return None without a file.

    Raises: ImageError, ClipError, SoundError.
    """
    given = fields.pop(name, None)
    if uploaded is not None:
        with path.open("wb") as file:
            shutil.copyfileobj(uploaded.file, file)
        return path
    if given is None:
        return None
    key, _ = _ADDRESSES[name]
    _write_data_url(given.get(key) if isinstance(given, dict) else given, name, path)
    return path


def _store_characters(fields: dict[str, object], files: Mapping[str, UploadFile], folder: Path) -> tuple[dict[str, object], ...]:
    """Write the characters' images to `folder`, and remove their field from `fields`. Raises: RequestError, ImageError."""
    given = fields.pop(FIGURES, None) or []
    sent = {match[1]: file for name, file in files.items() if (match := _FIGURE.fullmatch(name))}
    if not isinstance(given, list) or not all(isinstance(one, dict) and one.keys() == {"name", "image_url"} for one in given):
        rule = 'must be a list of {"name": "Anna", "image_url": "data:image/png;base64,..."}'
        raise RequestError(f"figures={shorten(given)}", rule, "or send files as figures[NAME]")
    if len(given) + len(sent) > MAX_FIGURES:
        rule = f"must have at most {MAX_FIGURES}"
        raise RequestError(f"figures has {len(given) + len(sent)} characters and", rule, "leave some out")
    kept = []
    for name, picture in (*((one["name"], one["image_url"]) for one in given), *sent.items()):
        path = folder / f"figure-{len(kept) + 1}"
        if isinstance(picture, UploadFile):
            with path.open("wb") as file:
                shutil.copyfileobj(picture.file, file)
        else:
            _write_data_url(picture, FIGURES, path)
        kept.append({"name": name, "image": str(path)})
    return tuple(kept)


def _write_data_url(address: Any, name: str, path: Path) -> None:
    """Decode a base64 data URL to `path`. Raises: ImageError, ClipError or SoundError for any other value."""
    key, kind = _ADDRESSES[name]
    wrong, what = _WRONG[name]
    head, comma, _ = address[:_LONGEST_HEAD].partition(",") if isinstance(address, str) else ("", "", "")
    if isinstance(address, DataUrl):
        head, comma, _ = address.head(_LONGEST_HEAD).partition(",")
    if not (head.startswith("data:") and head.endswith(";base64") and comma):
        fix = f'send it as a file, or as {{"{key}": "data:{kind};base64,..."}}'
        raise wrong(name, f"must hold {what} itself, not a URL or a file id", fix)
    try:
        with path.open("wb") as file:
            if isinstance(address, DataUrl):
                address.decode(file)
            else:
                decode_base64_pieces((piece.encode() for piece in _text_pieces(address, len(head) + 1)), file)
    except ValueError:
        raise wrong(name, "must be base64", f"encode {what} as base64 after the comma") from None


def _text_pieces(text: str, start: int) -> Iterator[str]:
    return (text[place : place + _PIECE] for place in range(start, len(text), _PIECE))
