"""Wait forever in the way that the first argument names; for `test_child_process.py`."""

import atexit
import ctypes
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

from backend.files import folder_lock


def wait_in_native_code() -> None:
    """Wait like a library that holds Python's lock: no other thread of the process runs again."""
    ctypes.PyDLL(None).pause()


def main(how: str, where: str = "", *more: str) -> None:
    """Print a line, then wait."""
    if how == "nothing":
        sys.exit(int(where))
    sys.stdout.write(json.dumps({"pid": os.getpid()}) + "\n" if more else "waits\n")
    sys.stdout.flush()
    match how:
        case "lock":
            with folder_lock(Path(where)):
                pass
        case "native":
            wait_in_native_code()
        case "exit":
            atexit.register(wait_in_native_code)
        case "thread":
            threading.Thread(target=threading.Event().wait).start()
            raise OSError("as where the terminal is gone")
        case "grandchild":
            sleeping = subprocess.Popen(["sleep", "600"])
            sys.stdout.write(f"{sleeping.pid}\n")
            sys.stdout.flush()
            wait_in_native_code()


if __name__ == "__main__":
    main(*sys.argv[1:])
