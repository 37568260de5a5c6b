"""The desktop of the machine that the studio runs on, if it has one."""

import shutil
import subprocess
from pathlib import Path

from backend.settings import has_screen

OPENER = "xdg-open"


def open_folder(folder: Path) -> bool:
    """Shows a folder in the file manager; False if there is no desktop."""
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
