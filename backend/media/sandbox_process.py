"""One process of the sandbox (`backend.media.sandbox`): `python -m backend.media.sandbox_process MODULE...` runs one call at a
time. The process has limits of memory, open files, priority and system calls. When the studio that started it ends, the process
and its children end too, even during a call."""

import contextlib
import importlib
import json
import os
import pickle
import queue
import resource
import signal
import sys
import threading
from pathlib import Path
from typing import IO, Any

from backend.errors import StudioError
from backend.media.progress import progress_listener
from backend.media.sandbox_wire import read_message, write_message
from backend.media.system_calls import deny_system_calls

# Limit of private memory. The largest accepted images have 50 million pixels. As PNG or JPEG they take 0.25 to 0.45 GB, as 16-bit
# PNG 0.55 GB and as WebP 0.6 GB (measured).
MEMORY_BYTES = 2**30
OPEN_FILES = 128
NICE = 5  # gives the process a lower priority than the studio, which must stay responsive


def main() -> None:
    """Run calls until the studio ends."""
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    with open(os.devnull, "r+b") as nothing:
        os.dup2(nothing.fileno(), 0)
        os.dup2(nothing.fileno(), 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # on Ctrl+C in the terminal, the studio ends this process
    for module in sys.argv[1:]:
        importlib.import_module(module)
    limits = {resource.RLIMIT_DATA: MEMORY_BYTES, resource.RLIMIT_NOFILE: OPEN_FILES, resource.RLIMIT_CORE: 0}
    for kind, most in limits.items():
        with contextlib.suppress(OSError, ValueError):  # raised if the limit is already lower
            resource.setrlimit(kind, (most, most))
    with contextlib.suppress(OSError):
        os.nice(NICE)
    deny_system_calls()  # not possible on every machine; `doctor` reports that
    works: queue.SimpleQueue = queue.SimpleQueue()
    threading.Thread(target=_receive_work, args=(requests, works), daemon=True).start()
    while True:
        with progress_listener(lambda share: write_message(replies, json.dumps({"share": share}).encode())):
            reply = _run_work(*works.get())
        write_message(replies, json.dumps(reply).encode())


def _receive_work(requests: IO[bytes], works: queue.SimpleQueue) -> None:
    """Read in a thread, even while a call runs, so that the studio's end is noticed at once."""
    while True:
        try:
            works.put(pickle.loads(read_message(requests)))
        except EOFError:
            os.killpg(0, signal.SIGKILL)
        except Exception as error:
            works.put((_raise_unreadable, (f"this work cannot be read: {error}",)))


def _raise_unreadable(why: str) -> None:
    raise RuntimeError(why)


def _run_work(work: Any, arguments: tuple[Any, ...]) -> dict[str, object]:
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
    resident_pages = int(Path("/proc/self/statm").read_text().split()[1])
    return reply | {"memory": resident_pages * resource.getpagesize()}


if __name__ == "__main__":
    main()
