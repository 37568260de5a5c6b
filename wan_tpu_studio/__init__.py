"""The installed command `wan-studio`, which runs `app.py` from any folder."""

import sys
from pathlib import Path


def main() -> int:
    """Run the command of the command line and return its exit code."""
    folder = Path(__file__).resolve().parent  # a wheel contains the whole project in this package
    project = folder if (folder / "app.py").is_file() else folder.parent
    sys.path.insert(0, str(project))
    import app

    return app.main(sys.argv[1:])
