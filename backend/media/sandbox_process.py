"""One process in the sandbox (`backend.media.sandbox`), `python -m backend.media.sandbox_process MODULE...`: one piece of work at
a time.

It has limits of memory, of open files, of priority and of system calls. It ends with all that it has started when the studio that
started it is gone, also in the middle of work.
"""

import contextlib
import importlib
import json
import os
import queue
import resource
import signal
import sys
import threading
from pathlib import Path
from typing import IO, Any

from backend.errors import StudioError
from backend.media.progress import progress_listener
from backend.media.sandbox_wire import read_work, write_reply
from backend.media.system_calls import deny_system_calls

MEMORY_BYTES = 2**30  # of its own, without what it shares: a picture of 50 million pixels with transparency takes 0.75 GB
OPEN_FILES = 128
NICE = 5  # the studio itself answers first


def main() -> None:
    """Works until the studio is gone."""
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    with open(os.devnull, "r+b") as nothing:
        os.dup2(nothing.fileno(), 0)
        os.dup2(nothing.fileno(), 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal: the studio decides
    for module in sys.argv[1:]:
        importlib.import_module(module)
    _limit_process()
    works: queue.SimpleQueue = queue.SimpleQueue()
    threading.Thread(target=_receive_work, args=(requests, works), daemon=True).start()
    while True:
        with progress_listener(lambda share: write_reply(replies, {"share": share})):
            reply = _run_work(*works.get())
        write_reply(replies, reply)


def _limit_process() -> None:
    for kind, most in (
        (resource.RLIMIT_DATA, MEMORY_BYTES),
        (resource.RLIMIT_NOFILE, OPEN_FILES),
        (resource.RLIMIT_CORE, 0),
    ):
        with contextlib.suppress(OSError, ValueError):  # where the system allows less already
            resource.setrlimit(kind, (most, most))
    with contextlib.suppress(OSError):
        os.nice(NICE)
    deny_system_calls()  # `doctor` says where that is not possible


def _receive_work(requests: IO[bytes], works: queue.SimpleQueue) -> None:
    """Takes work while another piece is being done, so that the studio's end is seen at once."""
    while True:
        try:
            works.put(read_work(requests))
        except EOFError:
            os.killpg(0, signal.SIGKILL)
        except Exception as error:
            works.put((_raise_unreadable, (f"this work cannot be read: {error}",)))


def _raise_unreadable(why: str) -> None:
    raise RuntimeError(why)


def _run_work(work: Any, arguments: tuple[Any, ...]) -> dict[str, Any]:
    try:
        reply = {"value": work(*arguments)}
        json.dumps(reply)
    except StudioError as error:
        reply = {"error": {"kind": type(error).__name__, "words": [error.what, error.allowed, error.fix]}}
    except MemoryError:
        reply = {"error": {"kind": "MemoryError"}}
    except OSError as error:
        reply = {"error": {"kind": "OSError", "words": [str(error)]}}
    except Exception as error:
        reply = {"error": {"kind": "Exception", "words": [type(error).__name__, str(error)[:300]]}}
    return reply | {"memory": _resident_bytes()}


def _resident_bytes() -> int:
    """The bytes of memory that this process has now."""
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * resource.getpagesize()


if __name__ == "__main__":
    main()
