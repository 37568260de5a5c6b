"""The small interface to a prompt rewriter: any program that the operator chooses, such as one that runs a local text model.

The program is given with `serve --rewriter COMMAND`; without it there is none. It reads one JSON object, {"prompt", "preset"},
from its standard input and writes the new prompt to its standard output. It runs only when somebody asks for a suggestion, as a
process of its own, without a shell, for a minute at most.
"""

import json
import shlex
import subprocess
from dataclasses import dataclass

from backend.errors import StudioError, one_line

SECONDS = 60.0
LONGEST = 4000  # characters


@dataclass(frozen=True, kw_only=True)
class PromptRewriter:
    """A program that suggests prompts."""

    command: tuple[str, ...]

    @classmethod
    def of(cls, words: str | None) -> "PromptRewriter | None":
        """The program of a command line, or None if there is none."""
        return cls(command=tuple(shlex.split(words))) if words and words.strip() else None

    def suggest(self, prompt: str, preset: str) -> str:
        """The rewritten prompt. Raises: StudioError."""
        try:
            answer = subprocess.run(
                self.command,
                input=json.dumps({"prompt": prompt, "preset": preset}),
                text=True,
                capture_output=True,
                timeout=SECONDS,
                check=True,
            )
        except (OSError, subprocess.SubprocessError) as error:
            reason = getattr(error, "stderr", "") or str(error)
            raise StudioError("the prompt could not be rewritten:", one_line(str(reason))[-200:], "write it by hand") from None
        suggestion = answer.stdout.strip()[:LONGEST]
        if not suggestion:
            raise StudioError("the rewriter", "must write a prompt, and wrote nothing", "write it by hand")
        return suggestion
