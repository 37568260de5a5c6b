"""One finding of `app.py doctor`, a value: what was looked at, how it is, and what mends it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "warning", "fault", "skipped"]


@dataclass(frozen=True, kw_only=True)
class Check:
    """`found` says what is there in plain words; `mend` is the one command or step, "" where nothing is wrong.

    "warning": the studio runs, but not as it could; "fault": what was asked for will not run; "skipped": there was nothing to
    look at, or nothing needs it.
    """

    name: str
    state: State
    found: str
    mend: str = ""

    def __str__(self) -> str:
        """One line, and one more for the mend."""
        line = f"{self.state:8} {self.name}: {self.found}"
        return f"{line}\n{'':9}-> {self.mend}" if self.mend else line


def worst_state(checks: Sequence[Check]) -> State:
    """ "fault" if there is one, else "warning" if there is one, else "ok"."""
    states = {check.state for check in checks}
    return "fault" if "fault" in states else "warning" if "warning" in states else "ok"
