"""The desktop of the machine that the studio runs on, where it has one."""

import shutil
import subprocess
from pathlib import Path

from backend.settings import has_screen

OPENER = "xdg-open"


def open_folder(folder: Path) -> bool:
    """Show a folder in the file manager; False where there is no desktop to show it on."""
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
