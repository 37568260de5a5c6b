"""Open the SQLite file of a data folder. Depends on no queue and no worker. Safe to use from several threads and processes."""

from pathlib import Path

from backend.engine.estimate import Runs
from backend.engine.jobs import JobEvents, JobFiles, Jobs
from backend.engine.library import Library
from backend.engine.projects import Projects
from backend.engine.tables import Tables
from backend.engine.user_presets import UserPresets


class Store:
    """The open file jobs.sqlite3. Each attribute reads and writes some of the file's tables."""

    def __init__(self, path: Path):
        """Open or create the file. Raises: DataFolderError."""
        self.tables = tables = Tables(path)
        self.jobs, self.events = Jobs(tables), JobEvents(tables)
        self.files, self.runs = JobFiles(tables), Runs(tables)
        self.library = Library(tables, self.jobs, self.events)
        self.projects, self.user_presets = Projects(tables), UserPresets(tables)

    def close(self) -> None:
        self.tables.close()
