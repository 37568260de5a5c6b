"""Files that visitors send, and files that Gradio's own components show. Trusts no path in a request.

How much may be uploaded within an hour is limited here too, and where uploads are kept.
"""

import contextlib
import json
import os
import shutil
import tempfile
import time
import weakref
from collections import deque
from collections.abc import Generator, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any, Literal

from gradio.processing_utils import save_file_to_cache
from gradio.route_utils import upload_fn
from gradio.routes import file_upload_statuses
from gradio.utils import get_upload_folder
from gradio_client.utils import is_file_obj_with_meta
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from backend.engine.lock import EngineLock
from backend.errors import ClipError, ImageError, SoundError
from backend.settings import from_environment, use_upload_folder
from presets.loader import EXAMPLES_FOLDER
from wan_ui.gateway.access import Access
from wan_ui.gateway.body_limit import first
from wan_ui.gateway.limits import BODY_BYTES, UPLOADED_BYTES
from wan_ui.gateway.refusals import is_v1, refused
from wan_ui.gateway.rules import API, UPLOAD, VIDEOS
from wan_ui.gateway.visitors import address_of, owner_of
from wan_ui.i18n.languages import texts_for

MOST_BYTES = UPLOADED_BYTES.of_visitor  # far more than making videos needs
LARGEST_BODY = BODY_BYTES.of_visitor
LEAST_FREE = 1_000_000_000  # bytes on the disk, below which nothing more is taken
_MOST_FILES = 5000  # of a visitor within an hour: each upload counts as at least this part of MOST_BYTES
_HOUR = 3600.0
_FOLDER = ".uploads"
Sent = Literal["image", "clip", "mask", "sound", "project"]  # what a path is said to be
_CALLS = (f"{API}/run/", f"{API}/call/", f"{API}/queue/join")


def begin_uploads(data_dir: Path) -> EngineLock:
    """Makes a new folder for this server's uploads, `tmp/NAME.uploads` in the data folder, and removes those of servers that have
    ended. The lock that is returned keeps it from other servers on the same data folder. Raises: DataFolderError, OSError."""
    root = from_environment(data_dir).uploads_dir
    root.mkdir(parents=True, exist_ok=True)
    lock = EngineLock(root)
    for left in root.glob(f"*{_FOLDER}"):
        with lock.of_dead_engine(left.name.removesuffix(_FOLDER)) as is_dead:
            if is_dead:
                shutil.rmtree(left, ignore_errors=True)
    folder = root / f"{lock.name}{_FOLDER}"
    folder.mkdir()
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    weakref.finalize(lock, os.close, handle)
    # Gradio tells visitors where their uploads lie. This name says nothing of the data folder, which may name the account, and
    # stays as long as the process does, which a link in a folder for temporary files does not.
    use_upload_folder(Path(f"/proc/{os.getpid()}/fd/{handle}"))
    return lock


def known_as(path: Path) -> str:
    """The path of an upload as visitors may know it: below Gradio's upload folder, wherever that lies."""
    folder = Path(get_upload_folder())
    return str(folder / path.resolve().relative_to(folder.resolve()))


def uploaded_path(file: dict[str, Any], what: Sent = "image") -> Path:
    """The path of a file that was uploaded to this server. Raises: as `checked_upload`."""
    return checked_upload(file.get("path") if is_file_obj_with_meta(file) else None, what)


def checked_upload(path: object, what: Sent = "image") -> Path:
    """This path, if it is a file below Gradio's upload folder.

    Raises: ImageError, SoundError, or ClipError where a clip or a mask is meant, with the same words for every cause, so that the
    answer does not show what exists on the server.
    """
    folder = Path(get_upload_folder()).resolve()
    try:
        found = Path(str(path)).resolve() if path else folder
    except (OSError, ValueError):
        found = folder
    if not found.is_relative_to(folder) or not os.path.isfile(found):  # Path.is_file fails for very long names
        error = {"image": ImageError, "sound": SoundError}.get(what, ClipError)
        raise error(what, "must be an uploaded file", "upload it first, for example with handle_file()")
    return found


def to_cache(path: str | Path) -> str:
    """A copy in Gradio's cache, at an address with the SHA-256 of its content: only those who have the file can compute it."""
    return save_file_to_cache(path, get_upload_folder())


@contextlib.contextmanager
def picture_for_cache() -> Generator[Path]:
    """A place for a picture that goes to Gradio's cache by `to_cache` within the block."""
    with folder_for_parts() as folder:
        yield Path(folder) / "picture.png"


def folder_for_parts() -> tempfile.TemporaryDirectory[str]:
    """A new folder among the uploads for what one request brings, which goes with the request."""
    folder = Path(get_upload_folder())
    folder.mkdir(parents=True, exist_ok=True)
    folder = folder.resolve()
    return tempfile.TemporaryDirectory(prefix=".part-", dir=folder)


def upload_route() -> Route:
    """In place of Gradio's: parts that are no file of ours, and those of an upload that breaks off, are removed."""

    async def upload(request: Request) -> Response:
        blocks, upload_id = request.app.get_blocks(), request.query_params.get("upload_id")
        with folder_for_parts() as part:
            try:
                parts, _, _ = await upload_fn(
                    request, part, blocks.max_file_size, upload_id, upload_progress=file_upload_statuses if upload_id else None
                )
            except MultiPartException as error:
                status = (
                    HTTPStatus.REQUEST_ENTITY_TOO_LARGE if "maximum allowed size" in error.message else HTTPStatus.BAD_REQUEST
                )
                return PlainTextResponse(error.message, status)
            except (ClientDisconnect, TypeError, ValueError, KeyError, OSError) as error:
                raise HTTPException(HTTPStatus.BAD_REQUEST, "the upload could not be read") from error
            paths = [str(_moved(Path(path), Path(part), Path(get_upload_folder()))) for path in parts]
        blocks.upload_file_set.update(paths)
        return JSONResponse(paths)

    return Route(UPLOAD, upload, methods=["POST"])


def _moved(path: Path, part: Path, folder: Path) -> Path:
    """Moves an upload to the place that the SHA-256 of its content gives it."""
    place = folder / path.relative_to(part)
    place.parent.mkdir(exist_ok=True)
    return path.replace(place)


class FileCheck:
    """ASGI middleware: refuses calls of the page's handlers that name a file which was not uploaded here.

    Gradio would put any path below its folder, also that of a folder, on its list of files to remove later, where a folder ends
    all further removing. Handlers check what they open themselves.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST" or not scope["path"].startswith(_CALLS):
            await self.app(scope, receive, send)
            return
        message = await receive()
        if message["type"] == "http.request" and not _is_clean(message.get("body", b"")):
            texts = texts_for(Headers(scope=scope))
            await refused(scope, HTTPStatus.BAD_REQUEST, texts.file_refused)(scope, receive, send)
            return
        await self.app(scope, first(message, receive), send)


def _is_clean(body: bytes) -> bool:
    """Whether this JSON names only files that were uploaded here, and examples. Text that is no JSON names none."""
    try:
        return all(_is_ours(file.get("path")) for file in _files(json.loads(body)))
    except RecursionError:
        return False
    except ValueError:
        return True


def _is_ours(path: object) -> bool:
    if path is None:
        return True
    try:
        return _is_example(path) or bool(checked_upload(path))
    except ImageError:
        return False


def _is_example(path: object) -> bool:
    try:
        return isinstance(path, str) and Path(path).resolve().parent == EXAMPLES_FOLDER.resolve() and os.path.isfile(path)
    except (OSError, ValueError):
        return False


def _files(data: object) -> Iterator[dict[str, Any]]:
    """All of Gradio's files in a JSON value."""
    waiting = [data]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            mark = value.get("meta")
            if isinstance(mark, dict) and mark.get("_type") == "gradio.FileData":
                yield value
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)


def has_room(folder: Path, least_free: int = LEAST_FREE) -> bool:
    """Whether the disk of this folder has room for anything more."""
    try:
        return shutil.disk_usage(folder if folder.exists() else folder.parent).free >= least_free
    except OSError:
        return True  # it will be said when something is written


class UploadLimit:
    """ASGI middleware: refuses uploads from a visitor, an address or everybody who have sent too much within the last hour (429),
    and all if the disk is almost full (507)."""

    def __init__(
        self,
        app: ASGIApp,
        access: Access | None = None,
        most_bytes: int = MOST_BYTES,
        most_of_address: int = UPLOADED_BYTES.of_address,
        most_in_all: int = UPLOADED_BYTES.in_all,
        least_free: int = LEAST_FREE,
    ) -> None:
        self.app, self.access, self.least_free = app, access, least_free
        self.most_bytes, self.most_of_address, self.most_in_all = most_bytes, most_of_address, most_in_all
        self._sent: deque[tuple[float, int, str, str]] = deque()  # when, bytes, visitor, address

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "POST" and scope["path"].endswith(("/upload", VIDEOS)):
            texts = texts_for(Headers(scope=scope))
            if not has_room(Path(get_upload_folder()), self.least_free):
                await _upload_refused(scope, HTTPStatus.INSUFFICIENT_STORAGE, texts.disk_low)(scope, receive, send)
                return
            if not self._is_allowed(scope, time.monotonic()):
                text = texts.upload_refused.format(megabytes=self.most_bytes // 1_000_000)
                await _upload_refused(scope, HTTPStatus.TOO_MANY_REQUESTS, text)(scope, receive, send)
                return
        await self.app(scope, receive, send)

    def _is_allowed(self, scope: Scope, now: float) -> bool:
        request = Request(scope)
        who, address = self._sender(request)
        length = request.headers.get("content-length", "")
        # an upload that does not give its size counts as the most that it can have: on the page there may be any number of files
        most = min(self.most_bytes, LARGEST_BODY) if is_v1(scope) else self.most_bytes
        size = max(int(length[:20]), self.most_bytes // _MOST_FILES) if length.isdecimal() else most
        while self._sent and self._sent[0][0] < now - _HOUR:
            self._sent.popleft()
        own = sum(count for _, count, owner, _ in self._sent if owner == who)
        near = sum(count for _, count, _, place in self._sent if place == address) if address else 0
        everything = sum(count for _, count, _, _ in self._sent)
        if own + size > self.most_bytes or near + size > self.most_of_address or everything + size > self.most_in_all:
            return False
        self._sent.append((now, size, who, address))
        return True

    def _sender(self, request: Request) -> tuple[str, str]:
        """The owner and the address that this upload counts for; a program with a key has its own limit, wherever it is."""
        key = self.access.program(request.headers) if self.access else None
        address = address_of(request.scope)
        return (key.owner, "") if key else (owner_of(request.cookies, address or "this machine"), address)


def _upload_refused(scope: Scope, status: HTTPStatus, text: str) -> Response:
    """As Gradio's upload field shows it, which is plain text; for programs in their shape."""
    return refused(scope, status, text) if is_v1(scope) else PlainTextResponse(text, status)
