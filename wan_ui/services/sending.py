"""Create a file for one download and send it: exports and projects.

The number of such files and their space on disk are limited. A slow download is cut off when another caller needs its slot. A
very slow download is always cut off. The file is deleted after the response.
"""

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.types import Message, Receive, Scope, Send

from backend.errors import Busy, RequestError, StudioError
from backend.media.sandbox import Requester
from wan_ui.gateway.limits import FILES_SENT, Limit
from wan_ui.gateway.uploads import LEAST_FREE, has_free_space, temporary_upload_folder
from wan_ui.services.media import PRIVATE, busy_response, not_found_response
from wan_ui.services.sandbox_calls import cancel_on_disconnect

GRACE_SECONDS = 10.0  # a download is not cut off earlier
SLOW_BYTES = 500_000  # bytes per second; slower downloads lose their slot to others
LEAST_BYTES = 20_000  # bytes per second; slower downloads are cut off after LEAST_SECONDS
LEAST_SECONDS = 60.0
_DISK_LOW = "The server's disk is almost full"


class TooManyDownloads(Busy):
    """The visitor or network address has the largest allowed number of downloads."""


@dataclass(eq=False, kw_only=True)
class Download:
    """One download. `start_time` is when sending started, None while the file is created."""

    who: Requester
    num_bytes: int
    start_time: float | None = None
    sent_bytes: int = 0
    sending: asyncio.Future[None] | None = None
    is_cut: bool = False

    def speed(self, now: float) -> float:
        """Return the mean bytes per second, infinite within the first GRACE_SECONDS."""
        if self.start_time is None or now < self.start_time + GRACE_SECONDS:
            return math.inf
        return self.sent_bytes / (now - self.start_time)

    def cut_off(self) -> None:
        self.is_cut = True
        if self.sending is not None:
            self.sending.cancel()


@dataclass(eq=False, kw_only=True)
class Downloads:
    """The current downloads, with their limits. Use an instance in one event loop only."""

    limit: Limit = FILES_SENT
    read_clock: Callable[[], float] = time.monotonic
    _active: list[Download] = field(default_factory=list)

    def start_download(self, who: Requester, num_bytes: int) -> Download:
        """Register a download of at most `num_bytes`.

        If the server already has the largest number of downloads, cut off the slowest download. A download of at least
        SLOW_BYTES per second is not cut off.

        Raises: TooManyDownloads at the limit of the visitor or address. Busy at the server's limit if no download can be cut off.
        """
        own = sum(bool(who.owner) and one.who.owner == who.owner for one in self._active)
        near = sum(bool(who.address) and one.who.address == who.address for one in self._active)
        if own >= self.limit.of_visitor or near >= self.limit.of_address:
            raise TooManyDownloads("your other exports and projects", "are still downloading", "try again when they are complete")
        if len(self._active) >= self.limit.in_all:
            now = self.read_clock()
            slowest = min(self._active, key=lambda one: one.speed(now))
            if slowest.speed(now) >= SLOW_BYTES:
                raise Busy("the largest number of exports and projects", "is already downloading", "try again in a minute")
            slowest.cut_off()
            self.end_download(slowest)
        download = Download(who=who, num_bytes=num_bytes)
        self._active.append(download)
        return download

    def end_download(self, download: Download) -> None:
        """Remove a download. A second call has no effect."""
        with contextlib.suppress(ValueError):
            self._active.remove(download)

    def expected_bytes(self) -> int:
        """Return the expected size in bytes of all files that are still being created."""
        return sum(one.num_bytes for one in self._active if one.start_time is None)


async def send_generated_file(
    request: Request,
    downloads: Downloads,
    who: Requester,
    make: Callable[[Path], Coroutine[object, object, object]],
    *,
    name: str,
    media_type: str,
    num_bytes: int = 0,
) -> Response:
    """Create a file with `make` and send it as an attachment called `name`.

    `num_bytes` is the largest expected size, 0 if unknown. A disconnect of the caller cancels `make`.
    """
    try:
        download = downloads.start_download(who, num_bytes)
    except TooManyDownloads as error:
        return PlainTextResponse(str(error), 429, PRIVATE)
    except Busy as error:
        return busy_response(error)
    folder, response = None, None
    try:
        folder = await asyncio.to_thread(temporary_upload_folder)
        if not has_free_space(Path(folder.name), LEAST_FREE + downloads.expected_bytes()):
            return PlainTextResponse(_DISK_LOW, 507, PRIVATE)
        path = Path(folder.name) / f"file{Path(name).suffix}"
        await cancel_on_disconnect(request, make(path))
        more = {"media_type": media_type, "filename": name, "headers": PRIVATE}
        response = _DownloadResponse(path, downloads=downloads, download=download, done=folder.cleanup, **more)
        return response
    except Busy as error:
        return busy_response(error)
    except RequestError as error:
        return PlainTextResponse(str(error), 422, PRIVATE)
    except StudioError:
        return not_found_response()
    except OSError:
        return PlainTextResponse(_DISK_LOW, 507, PRIVATE)
    finally:
        if response is None:
            downloads.end_download(download)
            if folder is not None:
                folder.cleanup()


class _DownloadResponse(FileResponse):
    """A file response that deletes the file after sending, after a disconnect, or when the download is cut off."""

    def __init__(self, *arguments: Any, downloads: Downloads, download: Download, done: Callable[[], None], **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._downloads, self._download, self._done = downloads, download, done

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        download, read_clock = self._download, self._downloads.read_clock
        download.start_time = start_time = read_clock()

        async def send_counted(message: Message) -> None:
            await send(message)
            download.sent_bytes += len(message.get("body", b""))
            seconds = read_clock() - start_time
            if seconds > LEAST_SECONDS and download.sent_bytes < LEAST_BYTES * seconds:
                download.cut_off()

        try:
            download.sending = asyncio.ensure_future(super().__call__(scope, receive, send_counted))
            await download.sending
        except asyncio.CancelledError:
            if not download.is_cut:
                raise
        finally:
            self._downloads.end_download(download)
            self._done()
