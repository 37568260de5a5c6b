"""Check the paths of files in requests, which are never trusted. Create the upload folder, and limit uploads per hour."""

import contextlib
import json
import os
import shutil
import tempfile
import time
import weakref
from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Literal

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
from wan_ui.gateway.body_limit import replay_message
from wan_ui.gateway.limits import BODY_BYTES, UPLOADED_BYTES
from wan_ui.gateway.refusals import is_v1, refusal_response
from wan_ui.gateway.rules import API, UPLOAD, VIDEOS
from wan_ui.gateway.visitors import owner_name, sender_address
from wan_ui.i18n.languages import texts_for

MOST_BYTES = UPLOADED_BYTES.of_visitor
LARGEST_BODY = BODY_BYTES.of_visitor
LEAST_FREE = 1_000_000_000  # bytes on the disk; with less free space uploads are refused
_MOST_FILES = 5000  # most uploads of a visitor per hour: a smaller upload counts as MOST_BYTES / _MOST_FILES bytes
_HOUR = 3600.0
_FOLDER = ".uploads"
UploadKind = Literal["image", "clip", "mask", "sound", "project"]  # what a request uses an upload for
_CALLS = (f"{API}/run/", f"{API}/call/", f"{API}/queue/join")


def create_upload_folder(data_dir: Path) -> EngineLock:
    """Create this server's upload folder, `tmp/NAME.uploads` in the data folder. NAME is unique for each start of a server.

    Also delete the upload folders of servers that have ended. The returned lock prevents other servers from deleting this folder.
    Raises: DataFolderError, OSError.
    """
    root = from_environment(data_dir).uploads_dir
    root.mkdir(parents=True, exist_ok=True)
    lock = EngineLock(root)
    for left in root.glob(f"*{_FOLDER}"):
        with lock.lock_dead_engine(left.name.removesuffix(_FOLDER)) as is_dead:
            if is_dead:
                shutil.rmtree(left, ignore_errors=True)
    folder = root / f"{lock.name}{_FOLDER}"
    folder.mkdir()
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    weakref.finalize(lock, os.close, handle)
    # Gradio shows visitors the paths of their uploads. A path below /proc hides the data folder, whose name may contain the
    # account's name. The path below /proc exists as long as this process. A symbolic link in a temporary folder would also hide
    # the data folder, but could be removed earlier.
    use_upload_folder(Path(f"/proc/{os.getpid()}/fd/{handle}"))
    return lock


def public_upload_path(path: Path) -> str:
    """Return the path of an upload for visitors, below the path of Gradio's upload folder, which hides the data folder."""
    folder = Path(get_upload_folder())
    return str(folder / path.resolve().relative_to(folder.resolve()))


def uploaded_path(file: dict[str, object], what: UploadKind = "image") -> Path:
    """Check the path in Gradio's file data, and return it. Raises: the errors of `check_upload_path`."""
    return check_upload_path(file.get("path") if is_file_obj_with_meta(file) else None, what)


def check_upload_path(path: object, what: UploadKind = "image") -> Path:
    """Check that the path is a file below Gradio's upload folder, and return the resolved path.

    Raises: ImageError, SoundError, or ClipError (clips, masks and projects). The message is the same for every cause, so that it
    does not reveal which files exist on the server.
    """
    folder = Path(get_upload_folder()).resolve()
    try:
        resolved = Path(str(path)).resolve() if path else folder
    except (OSError, ValueError):
        resolved = folder
    if not resolved.is_relative_to(folder) or not os.path.isfile(resolved):  # not Path.is_file, which fails for very long names
        error = {"image": ImageError, "sound": SoundError}.get(what, ClipError)
        raise error(what, "must be an uploaded file", "upload it first, for example with handle_file()")
    return resolved


def copy_to_cache(path: str | Path) -> str:
    """Copy a file to Gradio's cache. Return the new path, which contains the file's SHA-256, so that no visitor can guess it."""
    return save_file_to_cache(path, get_upload_folder())


@contextlib.contextmanager
def temporary_image_path() -> Generator[Path]:
    """Yield a temporary path for an image. Before the `with` block ends, it must pass the image to `copy_to_cache`."""
    with temporary_upload_folder() as folder:
        yield Path(folder) / "picture.png"


def temporary_upload_folder() -> tempfile.TemporaryDirectory[str]:
    """Create a temporary folder among the uploads for the files of one request."""
    folder = Path(get_upload_folder())
    folder.mkdir(parents=True, exist_ok=True)
    return tempfile.TemporaryDirectory(prefix=".part-", dir=folder.resolve())


def upload_route() -> Route:
    """Return a replacement for Gradio's upload route, which also deletes the files of interrupted and invalid uploads."""

    async def upload(request: Request) -> Response:
        blocks, upload_id = request.app.get_blocks(), request.query_params.get("upload_id")
        with temporary_upload_folder() as part:
            try:
                parts, _, _ = await upload_fn(
                    request, part, blocks.max_file_size, upload_id, upload_progress=file_upload_statuses if upload_id else None
                )
            except MultiPartException as error:
                is_large = "maximum allowed size" in error.message
                status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE if is_large else HTTPStatus.BAD_REQUEST
                return PlainTextResponse(error.message, status)
            except (ClientDisconnect, TypeError, ValueError, KeyError, OSError) as error:
                raise HTTPException(HTTPStatus.BAD_REQUEST, "the upload could not be read") from error
            paths = []
            for path in map(Path, parts):
                place = Path(get_upload_folder()) / path.relative_to(part)  # contains the SHA-256 of the file
                place.parent.mkdir(exist_ok=True)
                paths.append(str(path.replace(place)))
        blocks.upload_file_set.update(paths)
        return JSONResponse(paths)

    return Route(UPLOAD, upload, methods=["POST"])


@dataclass
class FileCheck:
    """ASGI middleware that refuses calls of the page's handlers with a file that is neither an upload nor an example.

    Gradio later deletes each path in its upload folder that a call names. If the path is a folder, the deletion fails, and Gradio
    then deletes no more files. Handlers also check each file before they open it.
    """

    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST" or not scope["path"].startswith(_CALLS):
            await self.app(scope, receive, send)
            return
        message = await receive()
        try:
            paths = (file.get("path") for file in _find_files(json.loads(message.get("body", b""))))
            is_known = all(path is None or _is_upload_or_example(path) for path in paths)
        except RecursionError:
            is_known = False
        except ValueError:
            is_known = True  # a disconnect, or text that is not JSON: it names no file
        if is_known:
            await self.app(scope, replay_message(message, receive), send)
            return
        texts = texts_for(Headers(scope=scope))
        await refusal_response(scope, HTTPStatus.BAD_REQUEST, texts.file_refused)(scope, receive, send)


def _is_upload_or_example(path: object) -> bool:
    with contextlib.suppress(OSError, ValueError):
        if isinstance(path, str) and Path(path).resolve().parent == EXAMPLES_FOLDER.resolve() and os.path.isfile(path):
            return True
    try:
        return bool(check_upload_path(path))
    except ImageError:
        return False


def _find_files(data: object) -> Iterator[dict[str, object]]:
    """Yield each of Gradio's file data objects in a JSON value."""
    unvisited = [data]
    while unvisited:
        value = unvisited.pop()
        if isinstance(value, dict):
            mark = value.get("meta")
            if isinstance(mark, dict) and mark.get("_type") == "gradio.FileData":
                yield value
            unvisited.extend(value.values())
        elif isinstance(value, list):
            unvisited.extend(value)


def has_free_space(folder: Path, least_free: int = LEAST_FREE) -> bool:
    try:
        return shutil.disk_usage(folder if folder.exists() else folder.parent).free >= least_free
    except OSError:
        return True  # the free space is unknown; if the disk is full, a later write reports it


@dataclass
class UploadLimit:
    """ASGI middleware that limits uploaded bytes per hour (429), and refuses uploads if the disk is almost full (507)."""

    app: ASGIApp
    access: Access | None = None
    most_bytes: int = MOST_BYTES
    most_of_address: int = UPLOADED_BYTES.of_address
    most_in_all: int = UPLOADED_BYTES.in_all
    least_free: int = LEAST_FREE
    # Uploads of the last hour: time, bytes, visitor, address
    _sent: deque[tuple[float, int, str, str]] = field(default_factory=deque, init=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "POST" and scope["path"].endswith(("/upload", VIDEOS)):
            texts, status, text = texts_for(Headers(scope=scope)), HTTPStatus.OK, ""
            if not has_free_space(Path(get_upload_folder()), self.least_free):
                status, text = HTTPStatus.INSUFFICIENT_STORAGE, texts.disk_low
            elif not self._is_allowed(scope, time.monotonic()):
                status = HTTPStatus.TOO_MANY_REQUESTS
                text = texts.upload_refused.format(megabytes=self.most_bytes // 1_000_000)
            if text:
                # Gradio's upload field shows plain text.
                refusal = refusal_response(scope, status, text) if is_v1(scope) else PlainTextResponse(text, status)
                await refusal(scope, receive, send)
                return
        await self.app(scope, receive, send)

    def _is_allowed(self, scope: Scope, now: float) -> bool:
        request = Request(scope)
        key, address = self.access.find_program_key(request.headers) if self.access else None, sender_address(scope)
        who = key.owner if key else owner_name(request.cookies, address or "this machine")
        if key:
            address = ""  # a program with a key has no limit per address
        length = request.headers.get("content-length", "")
        # A request without a content length counts as the largest possible request. Requests of the page have no limit of their
        # own, because the page can upload any number of files at once.
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
