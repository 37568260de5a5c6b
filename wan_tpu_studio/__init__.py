"""The installed command `wan-studio`: it does what `python app.py` does, from any folder."""

import sys
from pathlib import Path


def main() -> int:
    """Run the command that is on the command line and return its exit code."""
    folder = Path(__file__).resolve().parent  # a wheel has the whole project in it
    project = folder if (folder / "app.py").is_file() else folder.parent
    sys.path.insert(0, str(project))
    import app

    return app.main(sys.argv[1:])
