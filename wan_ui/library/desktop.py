"""Access to the desktop of the server's machine, if it has a desktop."""

import shutil
import subprocess
from pathlib import Path

from backend.settings import has_screen

OPENER = "xdg-open"


def open_folder(folder: Path) -> bool:
    """Show a folder in the file manager. Return False without a desktop."""
    opener = shutil.which(OPENER)
    if opener is None or not has_screen():
        return False
    subprocess.Popen(
        [opener, str(folder)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    return True
