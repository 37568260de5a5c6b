"""What a helper is asked who writes prompts, and what of its answer counts: text, and nothing else."""

import functools
import re
import tomllib
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from presets import Preset

INSTRUCTIONS = Path(__file__).with_name("instructions")  # one file for models that like the same prompts; `series` says which
LONGEST = 4000  # characters of a suggestion
ONLY = {
    "en": "Answer with the prompt alone, in the language of the user's words: no title, no list, no quotation marks around it.",
    "zh": "只回答提示词本身，使用用户所用的语言：不要标题，不要列表，不要加引号。",
}
_THOUGHT = re.compile(r"\s*<think>.*?(</think>|\Z)", re.DOTALL)  # what a reasoning model says before its answer
_CHINESE = re.compile(r"[\u3400-\u9fff]")


@dataclass(frozen=True, kw_only=True)
class RewriteRequest:
    """A prompt to be written anew, and for what: `seconds` is the video's length, `picture` its first frame as a data address,
    for helpers that see; `starts_from_picture` is true with or without it."""

    prompt: str
    preset: Preset
    seconds: float
    starts_from_picture: bool = False
    picture: str | None = None

    @property
    def language(self) -> str:
        """In which language the helper is spoken to: that of the prompt."""
        return "zh" if _CHINESE.search(self.prompt) else "en"

    @property
    def instructions(self) -> str:
        """What the helper should do, in the taste of the preset's model; "" for a model that nobody has written any for."""
        words, language = _series_instructions(self.preset.series), self.language
        if words is None:
            return ""
        parts = [words[language], *([words[f"{language}_picture"]] if self.starts_from_picture else []), ONLY[language]]
        return "\n".join(part.strip() for part in parts)

    @property
    def question(self) -> str:
        """What the user wants, after the instructions."""
        what = (
            ("图生视频" if self.starts_from_picture else "文生视频", "秒")
            if self.language == "zh"
            else ("A video that begins with a picture" if self.starts_from_picture else "A video from text", "seconds")
        )
        return f"{what[0]}, {self.seconds:.3g} {what[1]}:\n{self.prompt.strip()}"

    def messages(self, *, sees: bool) -> list[dict[str, Any]]:
        """The conversation as OpenAI's and transformers' chat templates take it; with the picture if the helper sees."""
        asked: Any = self.question
        if sees and self.picture:
            asked = [{"type": "image_url", "image_url": {"url": self.picture}}, {"type": "text", "text": self.question}]
        return [{"role": "system", "content": self.instructions}, {"role": "user", "content": asked}]


def has_instructions(preset: Preset) -> bool:
    """Whether a helper knows what the preset's model likes."""
    return preset.reads_prompt and _series_instructions(preset.series) is not None


def extract_suggestion(answer: str) -> str:
    """The suggestion in what a helper has answered so far: one text without thoughts, quotation marks around it and characters
    that cannot be seen, at most LONGEST long."""
    text = "".join(
        character if character.isprintable() else " "
        for character in _THOUGHT.sub("", answer[: 4 * LONGEST], count=1)
        if unicodedata.category(character) not in ("Cf", "Cs", "Co")
    )
    text = " ".join(text.split())
    for first, last in ('""', "''", "“”", "「」"):
        if len(text) > 1 and text[0] == first and text[-1] == last and first not in text[1:-1]:
            text = text[1:-1].strip()
    return text[:LONGEST]


@functools.cache
def _instructions_by_series() -> dict[str, Mapping[str, Any]]:
    """The instructions by series."""
    files = [tomllib.loads(path.read_text("utf-8")) for path in sorted(INSTRUCTIONS.glob("*.toml"))]
    return {series: words for words in files for series in words["series"]}


def _series_instructions(series: str) -> Mapping[str, Any] | None:
    return _instructions_by_series().get(series)
