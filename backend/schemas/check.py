"""One finding of `app.py doctor`: what was checked, the result, and how to fix a problem."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "warning", "fault", "skipped"]


@dataclass(frozen=True, kw_only=True)
class Check:
    """A finding in plain words. `fix` is the command or step that fixes a problem, or "". The state is "warning" if the studio
    runs but could run better, "fault" if a requested feature cannot run, and "skipped" if the check was not needed."""

    name: str
    state: State
    found: str
    fix: str = ""

    def __str__(self) -> str:
        line = f"{self.state:8} {self.name}: {self.found}"
        return f"{line}\n{'':9}-> {self.fix}" if self.fix else line


def worst_state(checks: Sequence[Check]) -> State:
    states = {check.state for check in checks}
    return "fault" if "fault" in states else "warning" if "warning" in states else "ok"
