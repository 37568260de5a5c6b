"""Download one checkpoint or LoRA file in a process of its own, because receiving and hashing gigabytes would delay the pages.

Writes JSON lines: {"bytes": [DONE, TOTAL]} during the download, and at the end {"done": true} or {"cause": TEXT, "fix": TEXT}.
The process ends when its standard input ends, for example because the server has exited.
"""

import os
import sys
import threading

from backend.checkpoints.hub import check_space, download_file, download_model, is_hub_id, list_wanted_files
from backend.child_process import write_message
from backend.errors import StudioError
from backend.models import recognise

POLITENESS = 10  # increase of the nice value, so that the server has priority and pages stay responsive


def main() -> None:
    os.nice(POLITENESS)
    threading.Thread(target=_end_with_input, name="input", daemon=True).start()
    try:
        _download(sys.argv[1])
        write_message({"done": True})
    except StudioError as error:
        write_message({"cause": error.cause, "fix": error.fix})


def _download(source: str) -> None:
    """Download the source and report progress. Raises: ModelError, before the download if the disk has too little space."""
    files = list_wanted_files(source)
    total = sum(file.num_bytes for file in files)
    check_space(source, files)

    def report(*_: int) -> None:
        write_message({"bytes": [sum(file.arrived_bytes for file in files), total]})

    report()
    download_model(source, recognise, report) if is_hub_id(source) else download_file(source, report)
    report()


def _end_with_input() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


if __name__ == "__main__":
    main()
