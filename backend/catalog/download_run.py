"""Downloads one checkpoint or LoRA file: `python -m backend.catalog.download_run SOURCE`, a process started by the engine.

In a process of its own, because receiving and hashing gigabytes would delay the page. Writes JSON lines to standard output:
{"bytes": [DONE, TOTAL]} while it works, and last {"done": true} or {"cause": TEXT, "fix": TEXT}. It ends when its standard input
does, as when the server is gone; what has arrived stays.
"""

import json
import os
import sys
import threading

from backend.checkpoints.hub import check_space, download_file, download_model, is_hub_id, list_wanted_files
from backend.errors import StudioError
from backend.models import recognise

POLITENESS = 10  # lets the page answer first


def main() -> None:
    """Downloads what the command line names."""
    os.nice(POLITENESS)
    threading.Thread(target=_end_with_input, name="input", daemon=True).start()
    try:
        _download(sys.argv[1])
        write_message({"done": True})
    except StudioError as error:
        write_message({"cause": error.cause, "fix": error.fix})


def _download(source: str) -> None:
    """Raises: ModelError, before anything is fetched if the disk has no room for all of it."""
    files = list_wanted_files(source)
    total = sum(file.num_bytes for file in files)
    check_space(source, files)

    def report(*_: int) -> None:
        write_message({"bytes": [sum(file.arrived_bytes for file in files), total]})

    report()
    download_model(source, recognise, report) if is_hub_id(source) else download_file(source, report)
    report()


def write_message(message: dict) -> None:
    """Writes one JSON line at once."""
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def _end_with_input() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


if __name__ == "__main__":
    main()
