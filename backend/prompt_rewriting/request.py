"""The request to a helper that rewrites a prompt, and the extraction of the suggestion from the answer."""

import functools
import re
import tomllib
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from presets import Preset

INSTRUCTIONS = Path(__file__).with_name("instructions")  # one TOML file per group of models; its `series` lists the models
LONGEST = 4000  # longest suggestion in characters
ONLY = {
    "en": "Answer with the prompt alone, in the language of the user's words: no title, no list, no quotation marks around it.",
    "zh": "只回答提示词本身，使用用户所用的语言：不要标题，不要列表，不要加引号。",
}
_THOUGHT = re.compile(r"\s*<think>.*?(</think>|\Z)", re.DOTALL)  # the text of a reasoning model before its answer
_CHINESE = re.compile(r"[\u3400-\u9fff]")


@dataclass(frozen=True, kw_only=True)
class RewriteRequest:
    """A prompt to rewrite. `seconds` is the video's length. `picture` is the first frame as a data URL, for helpers that accept
    images. `starts_from_picture` is true for videos with a first frame, even if `picture` is missing."""

    prompt: str
    preset: Preset
    seconds: float
    starts_from_picture: bool = False
    picture: str | None = None

    @property
    def language(self) -> str:
        """The language of the prompt, in which the helper gets its instructions."""
        return "zh" if _CHINESE.search(self.prompt) else "en"

    @property
    def instructions(self) -> str:
        """The instructions for prompts of the preset's model, or "" if there are no instructions for the model."""
        words, language = _instructions_by_series().get(self.preset.series), self.language
        if words is None:
            return ""
        parts = [words[language], *([words[f"{language}_picture"]] if self.starts_from_picture else []), ONLY[language]]
        return "\n".join(part.strip() for part in parts)

    def messages(self, *, sees: bool) -> list[dict[str, Any]]:
        """Return the messages, with the image if `sees`, in the format of OpenAI's API and of chat templates in transformers."""
        if self.language == "zh":
            kind, unit = "图生视频" if self.starts_from_picture else "文生视频", "秒"
        else:
            kind = "A video that begins with a picture" if self.starts_from_picture else "A video from text"
            unit = "seconds"
        question = f"{kind}, {self.seconds:.3g} {unit}:\n{self.prompt.strip()}"
        content: Any = question
        if sees and self.picture:
            content = [{"type": "image_url", "image_url": {"url": self.picture}}, {"type": "text", "text": question}]
        return [{"role": "system", "content": self.instructions}, {"role": "user", "content": content}]


def has_instructions(preset: Preset) -> bool:
    return preset.reads_prompt and preset.series in _instructions_by_series()


def extract_suggestion(answer: str) -> str:
    """Extract the suggestion from the answer so far: one line of at most LONGEST characters, without the model's reasoning,
    the enclosing quotation marks and invisible characters."""
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
    files = [tomllib.loads(path.read_text("utf-8")) for path in sorted(INSTRUCTIONS.glob("*.toml"))]
    return {series: words for words in files for series in words["series"]}
